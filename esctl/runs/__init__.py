"""The files of a run directory: their schema, their names, how they are written whole, and what follows from them.

`records` is the schema, `directory` the names and the lock, `files` atomic writes and line files, `metrics` the numbers
of a generation (RL's own are in `training.rl.recorder`), `notices` what a person should know of them, `replay` the way
from recorded scores to moves. May import `methods` and `noise.moves`; no torch here.
"""
