"""esctl: post-train language models with Evolution Strategies, and compare the result honestly.

The rooms, lowest first; each `__init__` says what is in it. `tests/test_layers.py` holds who may import whom.

errors, plain, interrupts, stats, settings   messages and exit codes; text of strangers; Ctrl-C, SIGTERM and their kin;
                                             intervals and tests; checks of settings
noise        what a seed means            runs         the files of a run       training   the loop, sessions, RL
methods      ES, ESSAM and RL's settings  experiment   a recipe and its names   reproduce  a whole table
tasks        problems, prompts, grades    comparison   tables, report, plots    cli        commands
engines      all that touches weights     evaluation   one set of weights
"""

__version__ = "0.1.0"
