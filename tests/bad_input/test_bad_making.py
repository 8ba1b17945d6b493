"""What the commands refuse that make many runs, before the first of them: sweep, reproduce."""

import pytest
from refusing import refused

# (command, exit code, message). D is the folder that the fixture `stage` makes.
PLAIN = [
    ("sweep D/none", 2, "recipe D/none: no such file and no shipped recipe; `esctl recipes ls` lists those that ship"),
    (
        "sweep D/empty",
        2,
        "recipe D/empty: no such file and no shipped recipe; `esctl recipes ls` lists those that ship",
    ),
    (
        "sweep D/data/train.jsonl",
        2,
        "D/data/train.jsonl: a recipe is a mapping of keys to values; copy one with `esctl recipes copy`",
    ),
    (
        "sweep arithmetic/es --grid nonsense",
        2,
        "--grid nonsense: write key=a,b,c, such as --grid method.rho=0.005,0.015",
    ),
    (
        "sweep arithmetic/essam --grid rho=0.1,0.2",
        2,
        "recipe arithmetic/essam: rho: unknown key, did you mean method.rho?",
    ),
    (
        "sweep arithmetic/es --grid max_tokens=8",
        2,
        "recipe arithmetic/es: max_tokens: unknown key, did you mean sampling.max_tokens?",
    ),
    (
        "sweep arithmetic/es --grid method.sigma=x",
        2,
        "recipe arithmetic/es: method.sigma: 'x' — input should be a valid number, unable to parse string as a number",
    ),
    (
        "sweep arithmetic/es --jobs 0",
        2,
        "Invalid value for '--jobs': Input should be greater than or equal to 1; `esctl sweep --help` lists "
        "what there is",
    ),
    (
        "sweep arithmetic/es --split nope",
        2,
        "task.split: arithmetic has no split 'nope'; choose train, validation, test",
    ),
    (
        "sweep arithmetic/es --root D/data/train.jsonl",
        1,
        "D/data/train.jsonl/recipes/es-s0.yaml: cannot be written (Not a directory); make room or give write "
        "access, then go on where it stopped",
    ),
    ("reproduce D/none", 2, "table D/none: no such file and none that ships; choose cpu, gpu"),
    ("reproduce D/empty", 2, "table D/empty: no such file and none that ships; choose cpu, gpu"),
    (
        "reproduce D/data/train.jsonl",
        2,
        "D/data/train.jsonl: a table is a mapping of keys to values; copy recipes/tables/cpu.yaml",
    ),
    (
        "reproduce --jobs 0",
        2,
        "Invalid value for '--jobs': Input should be greater than or equal to 1; `esctl reproduce --help` "
        "lists what there is",
    ),
    ("row {}", 2, "row: JSON is not a job of a table; run the whole table with `esctl reproduce`, which starts these"),
]


@pytest.mark.parametrize(("line", "code", "says"), PLAIN)
def test_a_mistake_in_what_is_asked_is_told_and_changes_nothing(line, code, says, stage, capsys):
    assert refused(line, stage, capsys) == (code, f"esctl: {says}")
