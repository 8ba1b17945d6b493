"""One command starts a run and continues it, as a requeued job does."""

import contextlib
import re
import shlex
from dataclasses import replace

import pytest
import typer
from command import esctl
from documented import ROOT

from esctl.cli import app
from esctl.runs.directory import RunDir

SMALL = (
    "--engine transformers --set method.population=4 --set prompts=8 --set sampling.max_tokens=16 --set eval.n=16"
    " --set eval.final=null --set eval.every=0 --generations 2"
)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["--run here/mine", ""])
def test_the_same_command_starts_continues_and_says_that_it_is_done(where, tmp_path, capsys):
    line = f"train --method es {SMALL} {where} --resume auto"
    with contextlib.chdir(tmp_path):
        assert esctl(line) == 0
        run = RunDir(tmp_path / ("here/mine" if where else "runs/es-arithmetic-s0"))
        whole, scores = run.read_record(), run.scores.read_bytes()
        assert whole.generation == 2

        run.write_record(replace(whole, status="interrupted"))  # as after a signal
        assert esctl(line) == 0
        assert run.scores.read_bytes() == scores
        assert run.read_record().status == "finished"

        capsys.readouterr()
        before = {p: p.stat().st_mtime_ns for p in run.path.rglob("*") if p.is_file()}
        assert esctl(line) == 0
        shown = capsys.readouterr()
        assert "already finished" in shown.out
        assert shown.err == ""
        assert {p: p.stat().st_mtime_ns for p in run.path.rglob("*") if p.is_file()} == before

        assert esctl(f"train --method es {SMALL} {where}") == 1  # without it, a used directory is refused
        assert "is in use" in capsys.readouterr().err


def understood(line: str) -> dict[str, object]:
    command = typer.main.get_command(app).commands["train"]  # type: ignore[attr-defined]
    return command.make_context("esctl", shlex.split(line)).params


@pytest.mark.parametrize(
    ("line", "resume", "auto"),
    [
        ("--run x", False, False),
        ("--resume --run x", True, False),
        ("--run x --resume", True, False),
        ("--resume auto --run x", False, True),
        ("--run x --resume=auto", False, True),
        ("--label auto --resume", True, False),
    ],
)
def test_resume_is_read_with_and_without_its_value(line, resume, auto):
    read = understood(line)
    assert (read["resume"], read["resume_auto"]) == (resume, auto)


def test_every_esctl_line_of_the_scripts_for_schedulers_is_understood():
    lines = re.findall(
        r"^srun esctl train (.*)$", (ROOT / "docs" / "slurm.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(lines) == 2
    for line in lines:
        assert understood(re.sub(r"\$\w+", "0", line))["resume_auto"]  # a variable of the script is a number
