"""What `esctl doctor` says is missing, and that training says it too where it matters."""

import importlib.util
import re
import shlex
import tomllib

import pytest
from command import esctl
from documented import ROOT

from esctl.cli.doctor import OPTIONAL, diagnosis
from esctl.runs.directory import RunDir

TINY = "--set prompts=2 --set method.population=2 --set sampling.max_tokens=4 --set eval.every=0 --set eval.final=null"


@pytest.fixture
def bare(monkeypatch):
    """As on a machine without any optional part."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: None if name in OPTIONAL else found(name, *rest)
    )


def test_what_is_missing_is_named_with_a_command_that_brings_it(bare):
    text = diagnosis()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for module in OPTIONAL:
        [line] = [line for line in text.splitlines() if line.startswith(module)]
        assert "not installed" in line
        named = re.findall(r"esctl-lm\[(.*?)\]", line)
        assert named
        assert set(named) <= set(extras)
        assert shlex.split(line.split("; ")[1])[:2] == ["pip", "install"]
    assert "auto means transformers" in text


@pytest.mark.slow
def test_training_without_vllm_works_and_says_so(bare, tmp_path, capsys):
    assert esctl(f"train --method es --generations 1 {TINY} --run {tmp_path}/run") == 0
    assert "vLLM is not installed" in capsys.readouterr().err
    assert RunDir(tmp_path / "run").read_record().engine.startswith("transformers")
