"""What the commands refuse that read what is there: compare, show, export, recipes."""

import pytest
from refusing import refused

# (command, exit code, message). D is the folder that the fixture `stage` makes.
PLAIN = [
    (
        "compare D/empty",
        1,
        "D/empty: no run directory here (nothing below it holds a run.json)",
    ),
    (
        "compare D/none",
        1,
        "D/none: no run directory here (nothing below it holds a run.json)",
    ),
    (
        "compare D/mini --split validation",
        1,
        "D/mini: no greedy evaluation on validation; make one with `esctl eval D/mini --split validation`",
    ),
    (
        "compare D/mini --format html",
        2,
        "--format html: choose table, markdown, csv, json, latex",
    ),
    (
        "compare D/mini --at generations=3",
        2,
        "--at generations=3: write rollouts=N, such as --at rollouts=10000",
    ),
    (
        "compare D/mini --at rollouts=3",
        1,
        "D/mini: no greedy evaluation on test within 3 rollouts; evaluate an earlier generation with --step",
    ),
    (
        "compare D/mini --k 1,x",
        2,
        "--k 1,x: write numbers of samples, 1 or more, such as --k 1,8,64",
    ),
    (
        "compare D/mini --k 4",
        2,
        "--k 4: no run has a sampled evaluation; make one with `esctl passk RUN`",
    ),
    (
        "compare D/mini --references esam-gsm8k",
        2,
        "--references esam-gsm8k: choose essam-gsm8k (gsm8k), es-countdown (countdown), coverage-gsm8k (gsm8k), "
        "coverage-math500 (math) or all",
    ),
    (
        "compare D/mini --base D/none",
        1,
        "D/none: no run here (run.json is missing); start one with `esctl train --run`",
    ),
    (
        "show D/none",
        1,
        "D/none: no run here (run.json is missing); start one with `esctl train --run`",
    ),
    (
        "export D/none D/out --step 0",
        1,
        "D/none: no run here (run.json is missing); start one with `esctl train --run`",
    ),
    (
        "recipes show arithmetic/esam",
        2,
        "recipe arithmetic/esam: no such file and no shipped recipe; did you mean arithmetic/essam?",
    ),
    (
        "compare D/folder",
        1,
        "D/folder/evals/a.json: is not a regular file; restore it from a copy or move it away",
    ),
    (
        "show D/mini --generation 4",
        2,
        "--generation 4: D/mini has rollouts of 3 to 3",
    ),
    (
        "recipes copy arithmetic/es D/none/mine.yaml",
        1,
        "D/none/mine.yaml: No such file or directory; check the path, its permissions and the disk",
    ),
    (
        f"show D/{'x' * 300}",
        1,
        f"D/{'x' * 300}/run.json: File name too long; check the path, its permissions and the disk",
    ),
    (
        "recipes copy arithmetic/es D/data/train.jsonl",
        2,
        "D/data/train.jsonl: exists; choose another name",
    ),
    ("compare D/other", 1, "D/other/recipe.yaml: is not a regular file; restore it from a copy or move it away"),
    ("compare D/mini D/other", 1, "D/other/recipe.yaml: is not a regular file; restore it from a copy or move it away"),
    ("compare D/data/train.jsonl", 1, "D/data/train.jsonl: no run directory here (nothing below it holds a run.json)"),
    ("compare D/mini --k 0", 2, "--k 0: write numbers of samples, 1 or more, such as --k 1,8,64"),
    (
        "compare D/mini --base D/data/train.jsonl",
        1,
        "D/data/train.jsonl: no run here (run.json is missing); start one with `esctl train --run`",
    ),
    (
        "show D/data/train.jsonl",
        1,
        "D/data/train.jsonl: no run here (run.json is missing); start one with `esctl train --run`",
    ),
    (
        "show D/mini -n -1",
        2,
        "Invalid value for '-n': Input should be greater than or equal to 0; `esctl show --help` lists what there is",
    ),
    ("export D/other D/out --step 0", 1, "D/other/recipe.yaml: no recipe here, but a run; restore it from a copy"),
    ("export D/mini D/out", 2, "Missing option '--step'; `esctl export --help` lists what there is"),
    ("doctor now", 2, "Got unexpected extra argument(s) (now); `esctl doctor --help` lists what there is"),
    ("diagnose", 2, "No such command 'diagnose'; `esctl --help` lists what there is"),
]


@pytest.mark.parametrize(("line", "code", "says"), PLAIN)
def test_a_mistake_in_what_is_asked_is_told_and_changes_nothing(line, code, says, stage, capsys):
    assert refused(line, stage, capsys) == (code, f"esctl: {says}")
