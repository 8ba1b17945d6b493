"""Surroundings that are not those of the author: a reader that leaves, a terminal without Unicode, no home."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = {key: value for key, value in os.environ.items() if not key.startswith(("LC_", "LANG", "PYTHON"))}
NO_UNICODE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def esctl(line: str, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = f"{sys.executable} -m esctl {line}"
    return subprocess.run(["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True, timeout=120)


def test_a_reader_that_leaves_is_no_error(stage):
    done = esctl("recipes ls | head -1", stage, HERE)
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


@pytest.mark.parametrize("line", ["compare mini", "compare --help"])
def test_a_terminal_without_unicode_gets_its_result(line, stage):
    done = esctl(line, stage, HERE | NO_UNICODE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_no_home_is_needed(stage):
    done = esctl("compare mini", stage, {key: value for key, value in HERE.items() if key != "HOME"})
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_named(stage):
    (stage / "mini").chmod(0)
    try:
        done = esctl("show mini", stage, HERE)
    finally:
        (stage / "mini").chmod(0o755)
    assert done.returncode == 1
    assert done.stderr.startswith("esctl: mini/run.json")
    assert done.stderr.count("\n") == 1
