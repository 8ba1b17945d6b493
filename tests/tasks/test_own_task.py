"""The README's own task: its files and its commands, word for word, train."""

import json
import os
import shlex
import subprocess
import sys

import pytest
from documented import FENCE, ROOT


def section(page: str, title: str) -> tuple[list[str], list[str]]:
    """The Python blocks and the commands of one section of a page."""
    text = (ROOT / page).read_text()
    blocks = FENCE.findall(text[text.index(f"## {title}") :].split("\n## ")[0])
    commands = [line for language, block in blocks if language == "" for line in block.splitlines()]
    return [block for language, block in blocks if language == "python"], commands


[MAKE_SUMS], [MAKE_DATA, TRAIN] = section("README.md", "Your task")
[BRIEF], [TRAIN_BRIEF] = section("docs/tasks.md", "Your own task")
SMALL = ["--engine=transformers", "--generations=1", "--set=prompts=16", "--set=method.population=2"]
QUIET = ["--set=eval.every=0", "--set=eval.final=null"]


def run(words, folder):
    done = subprocess.run([sys.executable, *words], cwd=folder, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def scores_of(command: str, folder) -> list[dict]:
    """The scores of a run that is as short as can be, of a command that trains."""
    program, *arguments = shlex.split(command)
    assert program == "esctl"
    run(["-m", "esctl", *arguments, *SMALL, *QUIET], folder)
    name = arguments[arguments.index("--run") + 1]
    return [json.loads(line) for line in (folder / name / "scores.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_the_own_task_and_the_own_reward_train_as_the_pages_say(tmp_path):
    (tmp_path / "make_sums.py").write_text(MAKE_SUMS)
    (tmp_path / "brief.py").write_text(BRIEF)
    python, script, arrow, data = shlex.split(MAKE_DATA)
    assert (python, arrow) == ("python", ">")
    (tmp_path / data).write_text(run([script], tmp_path))
    plain = scores_of(TRAIN, tmp_path)
    assert max(r["parts"]["strict"] for r in plain) > 0.1  # the model reads the question as it was taught to
    assert all(r["score"] >= r["parts"]["strict"] for r in plain)
    brief = scores_of(TRAIN_BRIEF, tmp_path)
    assert all(r["score"] < r["parts"]["strict"] for r in brief)  # every character costs
