"""The README's own task: its function and its command, as they stand there, train."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text()
SECTION = README[README.index("### Your own task") :].split("\n## ")[0]
BLOCKS = dict(re.findall(r"^```(\w*)\n(.*?)^```$", SECTION, re.DOTALL | re.MULTILINE))
SMALL = ["--engine=transformers", "--generations=1", "--set=prompts=4", "--set=method.population=2"]
QUIET = ["--set=eval.every=0", "--set=eval.final=null"]


@pytest.mark.slow
def test_the_readmes_own_task_trains(tmp_path):
    first = json.loads(BLOCKS["json"])
    rows = [{**first, "question": f"Tom has {i} pens. 4 come. How many pens now?"} for i in range(3, 43)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "brief.py").write_text(BLOCKS["python"])
    program, *arguments = shlex.split(BLOCKS[""])
    assert program == "esctl"
    command = [sys.executable, "-m", "esctl", *arguments, *SMALL, *QUIET]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [*_, last] = map(json.loads, (tmp_path / "runs" / "own" / "scores.jsonl").read_text().splitlines())
    assert last["score"] < last["parts"]["strict"]  # every character costs
