"""Surroundings that are not those of the author: a reader that leaves, a terminal without Unicode, no home."""

import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from command import esctl as esctl_here
from miniature import evaluation, write_run
from rich.console import Console

from esctl.cli.progress import TrainingDisplay
from esctl.training.events import Notice

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


@pytest.mark.parametrize("line", ["show mini", "compare mini", "recipes ls", "--help", "memory"])
def test_a_full_disk_under_the_output_is_one_line(line, stage):
    done = esctl(f"{line} > /dev/full", stage, HERE)
    assert done.returncode == 1
    assert done.stderr.startswith("esctl: ")
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
@pytest.mark.parametrize("line", ["show mini", "compare mini", "memory"])
def test_closed_streams_are_quiet(line, closed, stage):
    done = esctl(f"{line} {closed}", stage, HERE)
    assert (done.returncode, done.stderr) == (0, "")


HOSTILE = "\x1b[2J\x1b]52;c;ZXZpbA==\x07\u202eES\x9b1m\rFAKE"
SHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.mark.parametrize(
    "line", ["show D", "show D/run", "compare D", "compare D --format json", "compare D --format csv"]
)
def test_no_escape_code_of_a_run_reaches_the_terminal(line, tmp_path, capsys):
    run = write_run(tmp_path / "run", evaluation([1, 0]))
    hostile = {"label": HOSTILE, "engine": HOSTILE, "grader_failures": {HOSTILE: 1}}
    run.write_record(replace(run.read_record(), **hostile))
    esctl_here(line.replace("D", str(tmp_path)))
    shown = capsys.readouterr()
    assert not SHOWN.search(shown.out + shown.err)
    assert "ES" in shown.out + shown.err


@pytest.mark.parametrize(
    "line", ["show D/{}", "eval D/{}", "train --recipe D/{}", "adopt D/{} --label x --base embedded --run D/o"]
)
def test_no_escape_code_of_a_file_name_reaches_the_terminal(line, tmp_path, capsys):
    assert esctl_here(shlex.join(word.replace("D/", f"{tmp_path}/").format(HOSTILE) for word in line.split())) in (1, 2)
    assert not SHOWN.search(capsys.readouterr().err)


def test_no_markup_of_a_label_reaches_the_progress_line():
    console = Console(file=io.StringIO(), force_terminal=True, width=140, color_system="standard")
    with TrainingDisplay(console, f"[red]ES[/red] {HOSTILE}") as display:
        display(Notice(HOSTILE + "[bold]note"))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "[red]ES[/red]" in text
    assert "[bold]note" in text
    assert not re.search("\x1b\\]|\x1b\\[2J|\u202e|\x9b|\x07", text)


def test_the_runs_of_a_folder_are_listed_and_a_damaged_one_hides_no_other(stage):
    (stage / "folder" / "run.json").write_text("{", encoding="utf-8")
    done = esctl("show .", stage, HERE | NO_UNICODE)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^mini +ES +es +finished +10  arithmetic test 50\.0$", done.stdout, re.MULTILINE)
    assert re.search(r"^folder +unreadable$", done.stdout, re.MULTILINE)
    assert re.search(r"^folder/run\.json: not JSON", done.stdout, re.MULTILINE)
