"""How a refusal is looked at: the command in this process, its exit code, its message, and that no file changed."""

import contextlib
from pathlib import Path

import pytest
from command import esctl

SMALL = (
    "--recipe arithmetic/es --engine transformers --set method.population=4 --set prompts=8"
    " --set sampling.max_tokens=16 --set eval.n=16 --set eval.final=null --set eval.every=0"
)


def files_below(folder: Path) -> dict[str, bytes]:
    """Every file but locks: what must not be lost."""
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file() and p.name != ".lock"}


def refused(line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and message of a refused command, with `D` for its folder; checks that no file changed."""
    before = files_below(folder)
    capsys.readouterr()
    with contextlib.chdir(folder):
        code = esctl(line.replace("D/", f"{folder}/"))
    printed = capsys.readouterr()
    assert printed.out == ""
    assert files_below(folder) == before
    return code, printed.err.replace(str(folder), "D").rstrip("\n")
