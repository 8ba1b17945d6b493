"""The README's own task: its files and its commands, word for word, train."""

import json
import os
import shlex
import subprocess
import sys

import pytest
from documented import FENCE, ROOT

README = (ROOT / "README.md").read_text()
SECTION = README[README.index("## Your task") :].split("\n## ")[0]
[MAKE_SUMS, BRIEF] = [block for language, block in FENCE.findall(SECTION) if language == "python"]
[COMMANDS] = [block.replace("\\\n", " ").splitlines() for language, block in FENCE.findall(SECTION) if language == ""]
SMALL = ["--engine=transformers", "--generations=1", "--set=prompts=16", "--set=method.population=2"]
QUIET = ["--set=eval.every=0", "--set=eval.final=null"]


def run(words, folder):
    done = subprocess.run([sys.executable, *words], cwd=folder, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_own_task_of_the_readme_trains(tmp_path):
    (tmp_path / "make_sums.py").write_text(MAKE_SUMS)
    (tmp_path / "brief.py").write_text(BRIEF)
    python, script, arrow, data = shlex.split(COMMANDS[0])
    assert (python, arrow) == ("python", ">")
    (tmp_path / data).write_text(run([script], tmp_path))
    program, *arguments = shlex.split(COMMANDS[1])
    assert program == "esctl"
    run(["-m", "esctl", *arguments, *SMALL, *QUIET], tmp_path)
    records = [json.loads(line) for line in (tmp_path / "runs" / "own" / "scores.jsonl").read_text().splitlines()]
    assert max(r["parts"]["strict"] for r in records) > 0.1  # the model reads the question as it was taught to
    assert all(r["score"] < r["parts"]["strict"] for r in records)  # every character costs
