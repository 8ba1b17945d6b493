"""Stored numbers belong to weights: others are never given them, and never mixed into their file."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command import esctl
from refusing import SMALL
from safetensors.numpy import load_file, save_file

from esctl.assets import tiny_model_path

REFUSED = ("was measured on weights", "holds another model's evaluations", "and the run recorded")
QUICK = "--split validation -n 4"
EVAL = f"eval {{target}} {QUICK}"
PASSK = f"passk {{target}} --k 1 --samples {{samples}} {QUICK}"
SHARPNESS = f"sharpness {{target}} {QUICK} --seeds 1 --members 2 --directions 1 --sigmas 0.01 --scales 1"
FLAGS = "--engine transformers --recipe arithmetic/es --set sampling.max_tokens=8"


def change(weights: Path) -> None:
    """The next checkpoint in the place of this one."""
    file = weights / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"] = tensors["model.norm.weight"] * np.float32(1.5)
    real = file.resolve()
    save_file(tensors, real)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("trained") / "run"
    assert esctl(f"train {SMALL} --generations 2 --run {run} --set eval.every=1 --set eval.n=4") == 0
    return run


def adopted(folder: Path) -> tuple[str, Callable[[], None]]:
    model = folder / "model"
    shutil.copytree(tiny_model_path(), model)
    run = folder / "adopted"
    assert esctl(f"adopt {model} --label other --base embedded --cost rollouts=1 --run {run} {FLAGS[21:]}") == 0
    return f"{run}", lambda: change(model)


def own_weights(folder: Path, trained: Path) -> tuple[str, Callable[[], None]]:
    run = folder / "run"
    shutil.copytree(trained, run)
    return f"{run}", lambda: change(run / "weights")


def plain(folder: Path) -> tuple[str, Callable[[], None]]:
    model = folder / "model"
    shutil.copytree(tiny_model_path(), model)
    return f"{model} --run {folder / 'base'} {FLAGS}", lambda: change(model)


def rebuilt(folder: Path, trained: Path) -> tuple[str, Callable[[], None]]:
    run = folder / "run"
    shutil.copytree(trained, run)

    def other_scores() -> None:
        lines = [json.loads(line) for line in (run / "scores.jsonl").read_text().splitlines()]
        for number, line in enumerate(lines):
            line["score"] = float(number % 3)
        (run / "scores.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    return f"{run} --step 1", other_scores


CASES = ["adopted", "own weights", "plain", "rebuilt"]


def case_of(name: str, folder: Path, trained: Path) -> tuple[str, Callable[[], None]]:
    if name == "adopted":
        return adopted(folder)
    if name == "plain":
        return plain(folder)
    return own_weights(folder, trained) if name == "own weights" else rebuilt(folder, trained)


@pytest.mark.slow
@pytest.mark.parametrize("command", [EVAL, PASSK, SHARPNESS], ids=["eval", "passk", "sharpness"])
@pytest.mark.parametrize("name", CASES)
def test_other_weights_are_not_given_stored_numbers(tmp_path, trained, capsys, name, command):
    target, change_weights = case_of(name, tmp_path, trained)
    first = command.format(target=target, samples=2)
    assert esctl(first) == 0
    assert esctl(first) == 0  # stored: the same weights are given the same numbers
    files = {p: p.read_bytes() for p in tmp_path.rglob("*.json*") if p.parent.name in ("evals", "sharpness")}
    change_weights()
    capsys.readouterr()
    assert esctl(first) == 1
    message = capsys.readouterr().err
    assert any(said in message for said in REFUSED)
    assert {p: p.read_bytes() for p in files} == files


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_more_samples_of_other_weights_are_not_mixed_in(tmp_path, trained, name):
    target, change_weights = case_of(name, tmp_path, trained)
    assert esctl(PASSK.format(target=target, samples=2)) == 0
    change_weights()
    assert esctl(PASSK.format(target=target, samples=4)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adopted", "own weights"])
def test_weights_that_were_replaced_are_not_measured_as_those_of_the_run(tmp_path, trained, name):
    """Although nothing was measured before, or on another split."""
    target, change_weights = case_of(name, tmp_path, trained)
    change_weights()
    assert esctl(f"eval {target} --split test -n 4") == 1
    assert esctl(SHARPNESS.format(target=target)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_what_training_measured_is_read_by_a_later_evaluation(tmp_path, capsys, monkeypatch, dtype):
    """Below fp32 the hash of weights/ is another than that of the center that training measured."""
    run = tmp_path / "run"
    sets = f"--set eval.every=1 --set eval.n=4 --set engine.dtype={dtype}"
    assert esctl(f"train {SMALL} --generations 1 --run {run} {sets}") == 0
    monkeypatch.setattr("esctl.evaluation.target.open_engine", lambda spec: pytest.fail("an engine was started"))
    assert esctl(f"eval {run} {QUICK}") == 0
    assert "strict" in capsys.readouterr().out
