"""Every command of README.md, CONTRIBUTING.md and docs/ is run as it stands, or, if it needs a hub or hours, parsed."""

import contextlib
import re
import shlex
import subprocess
import tomllib
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import pytest
import typer
from command import esctl
from documented import ROOT, Command, mentioned, typed
from typer.core import TyperCommand, TyperGroup

from esctl.cli import app
from esctl.experiment.loading import load_recipe

TRANSFORMERS = "--engine transformers"
FEW = f"-n 8 {TRANSFORMERS}"
FIVE = "--set generations=5 --set prompts=8 --set method.population=4"
UNTESTED = f"{TRANSFORMERS} --set eval.every=0 --set eval.final=null"


@dataclass(frozen=True)
class Claim:
    """How a line is proved. `flags` make a run smaller; what is proved `elsewhere` is so by the test file `where`."""

    how: Literal["run", "read", "make", "extra", "elsewhere"]
    flags: str = ""
    where: str = ""


# By how a line begins; the longest that fits counts. A new line of a page needs a claim here.
CLAIMS = {
    "esctl train --method es": Claim("run", f"{FIVE} --set eval.n=8"),
    "esctl train --method essam --set method.roh": Claim("run"),
    "esctl train --method es --track": Claim("run", f"{FIVE} {UNTESTED}"),
    "esctl train --method es --model Qwen/": Claim("read"),  # of the hub
    "esctl train --recipe arithmetic/essam --set engine.replicas=": Claim("read"),  # test_fleet.py runs such
    "esctl train --recipe gsm8k/essam --set engine.replicas=": Claim("read"),  # of the hub, on a cluster
    "esctl train --recipe gsm8k/essam --set engine.tensor_parallel": Claim("read"),  # of the hub
    "esctl train --recipe arithmetic/es --set": Claim("read"),
    "esctl train --recipe arithmetic/es --task file": Claim("elsewhere", where="tasks/test_own_task.py"),
    "esctl train --recipe mine.yaml --dry-run": Claim("run"),
    "esctl recipes": Claim("run"),
    "esctl sweep": Claim("elsewhere", where="training/test_sweep.py"),
    "esctl eval": Claim("run", FEW),
    "esctl eval embedded": Claim("run"),
    "esctl eval embedded --": Claim("run", FEW),
    "esctl passk": Claim("run", f"-n 1 {TRANSFORMERS}"),
    "esctl sharpness": Claim("run", f"-n 4 --seeds 1 --members 2 --directions 1 --sigmas 0.015 {TRANSFORMERS}"),
    "esctl compare": Claim("run"),
    "esctl show": Claim("run"),
    "esctl export": Claim("run"),
    "esctl memory": Claim("run"),
    "esctl precision": Claim("run"),
    "esctl adopt": Claim("run"),
    "make": Claim("make"),
    "pip install 'esctl-lm[": Claim("extra"),
    "python make_sums.py": Claim("elsewhere", where="tasks/test_own_task.py"),
    "source .venv/bin/activate": Claim("read"),
}
COMMANDS, MENTIONED = typed(), mentioned()
MAKE = list(dict.fromkeys(c.text for c in [*COMMANDS, *MENTIONED] if c.text.startswith("make ")))


def claim_of(command: Command) -> Claim | None:
    fitting = [prefix for prefix in CLAIMS if command.text.startswith(prefix)]
    return CLAIMS[max(fitting, key=len)] if fitting else None


def claimed(how: str) -> list[Command]:
    return [c for c in COMMANDS if (claim := claim_of(c)) and claim.how == how]


def test_every_line_that_a_reader_copies_is_claimed():
    assert [f"{c.page}: {c.text}" for c in COMMANDS if claim_of(c) is None] == []


def test_no_claim_is_about_a_line_that_is_gone():
    used = {id(claim_of(c)) for c in COMMANDS}
    assert [prefix for prefix, claim in CLAIMS.items() if id(claim) not in used] == []


def test_what_is_claimed_elsewhere_is_read_there():
    """Those tests take their command from the page, so that they cannot prove another one."""
    for command in claimed("elsewhere"):
        claim = claim_of(command)
        assert claim is not None
        assert re.search(r"README|documented", (ROOT / "tests" / claim.where).read_text()), claim


def command_of(words: list[str]) -> tuple[TyperCommand, list[str]]:
    """The command that the words after `esctl` name, and what is left for it."""
    command, rest = typer.main.get_command(app), words
    while isinstance(command, TyperGroup) and not rest[0].startswith("-"):
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


def read(words: list[str]) -> None:
    """Read a command line as esctl does, every flag and value of it, without running it."""
    command, rest = command_of(words)
    with command.make_context("esctl", rest):
        pass


@pytest.mark.parametrize("text", dict.fromkeys(c.text for c in COMMANDS if c.text.startswith("esctl ")))
def test_every_typed_command_is_understood(text):
    read(shlex.split(text)[1:])


@pytest.mark.parametrize("text", dict.fromkeys(c.text for c in claimed("read") if " --recipe " in c.text))
def test_every_key_of_a_command_that_is_only_read_exists(text):
    words = shlex.split(text)
    sets = [value for flag, value in pairwise(words) if flag == "--set"]
    assert load_recipe(words[words.index("--recipe") + 1], {}, sets)


@pytest.mark.parametrize("text", dict.fromkeys(c.text for c in claimed("extra")))
def test_every_extra_that_a_page_installs_exists(text):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    name, _, extras = shlex.split(text)[2].rstrip("]").partition("[")
    assert name == project["name"]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])


@pytest.mark.parametrize("text", dict.fromkeys(c.text for c in MENTIONED if c.text.startswith("esctl ")))
def test_every_flag_of_a_command_in_running_text_exists(text):
    command, rest = command_of(Command("", text).words[1:])
    known = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    assert {word.partition("=")[0] for word in rest if word.startswith("-")} <= known | {"--help"}


@pytest.mark.parametrize("text", dict.fromkeys(c.text for c in MENTIONED if "bench/" in c.text))
def test_every_flag_of_a_benchmark_exists(text):
    words = shlex.split(text.removeprefix("python "))
    source = (ROOT / words[0]).read_text()
    assert all(f'"{word}"' in source for word in words if word.startswith("--"))


def shapes(text: str) -> set[str]:
    """The lines without their numbers and spacing: a smaller run prints other numbers in the same words."""
    numbers = re.compile(r"(\d+ (h|min) )*\d+ s\b|[−–+-]?\d[\d,.]*(e[+-]\d+)?")
    lines = (numbers.sub("N", line) for line in text.splitlines() if line.strip("─…- "))
    return {" ".join(line.split()) for line in lines}


def expanded(text: str) -> list[str]:
    """The `esctl` commands that a `make` line would run, without the word `esctl`."""
    program, *words = shlex.split(text)
    shown = subprocess.run([program, "-n", *words], cwd=ROOT, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    return [part.strip() for part in re.findall(r'\.venv/bin/esctl ([^&;|"\n]+)', shown.stdout)]


@pytest.mark.parametrize("text", MAKE)
def test_what_make_would_run_is_understood(text):
    for line in expanded(text):
        read(shlex.split(line))


@pytest.mark.slow
@pytest.mark.parametrize("text", [text for text in MAKE if "reproduce-table" in text])
def test_a_table_is_planned_by_its_own_command(text, tmp_path, capsys):
    [line] = expanded(f"{text} DRY=1")
    with contextlib.chdir(tmp_path):
        assert esctl(line) == 0
    assert re.search(r"^\d+ runs, [\d,]+ training rollouts", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.slow
def test_every_other_command_does_what_the_page_says(tmp_path, capsys):
    """In their order and in one folder, since they build on each other."""
    (tmp_path / "MODEL_DIR").symlink_to("model-3")  # any model folder; an exported one is one
    with contextlib.chdir(tmp_path):
        for command in claimed("run"):
            claim = claim_of(command)
            assert claim is not None
            capsys.readouterr()
            code = esctl(f"{command.text.removeprefix('esctl ')} {claim.flags}")
            printed = capsys.readouterr()
            if command.output.startswith("esctl: "):
                assert (code, printed.err) == (2, command.output), command
            else:
                assert code == 0, (command, printed.err)
                assert printed.out, command
                assert shapes(command.output) <= shapes(printed.out + printed.err), command
    assert {"runs", "model-3", "pictures"} <= {path.name for path in tmp_path.iterdir()}
