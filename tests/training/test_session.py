"""What a session decides before a model is loaded."""

from dataclasses import replace
from pathlib import Path

import pytest
from command import esctl
from miniature import RECORD, write_run, write_scores

from esctl.experiment.loading import dump_recipe, read_recipe
from esctl.runs.directory import RunDir
from esctl.runs.files import write_atomic
from esctl.training import session

GENERATIONS = 10  # of RECORD and of the shipped recipes


def finished(path: Path, method: str) -> RunDir:
    """A run whose recipe, history, weights and record agree that nothing is left to do."""
    run = write_run(path, method=method)
    recipe = read_recipe(run).model_copy(update={"generations": GENERATIONS})
    write_atomic(run.recipe, dump_recipe(recipe).encode())
    if recipe.baseline is None:
        write_scores(run, GENERATIONS)
    run.weights.mkdir()
    return run


class EngineStartedError(Exception):
    """Raised in place of opening the recipe's model."""


@pytest.fixture(autouse=True)
def _no_model(monkeypatch):
    def refuse(recipe: object) -> None:
        raise EngineStartedError

    monkeypatch.setattr(session, "Experiment", refuse)


@pytest.mark.parametrize("method", ["es", "essam", "grpo", "ppo"])
def test_a_finished_run_is_left_alone(method, tmp_path, capsys):
    run = finished(tmp_path / "run", method)
    before = run.record.read_bytes()
    for words in ("--resume", "--resume auto", "--resume --generations 10"):
        assert esctl(f"train {words} --run {run.path}") == 0
        assert "already finished" in capsys.readouterr().out
    assert session.train(read_recipe(run), run, True, lambda event: None) == run.read_record()
    assert run.record.read_bytes() == before


def lengthen(run: RunDir) -> str:
    return "--generations 11"


def evaluate_more(run: RunDir) -> str:
    return "--set eval.every=1"


def interrupt(run: RunDir) -> str:
    run.write_record(replace(RECORD, status="interrupted"))
    return ""


def lose_weights(run: RunDir) -> str:
    run.weights.rmdir()
    return ""


def lose_scores(run: RunDir) -> str:
    run.scores.unlink()
    return ""


@pytest.mark.parametrize("change", [lengthen, evaluate_more, interrupt, lose_weights, lose_scores])
def test_what_is_left_to_do_is_done(change, tmp_path):
    run = finished(tmp_path / "run", "es")
    with pytest.raises(EngineStartedError):
        esctl(f"train --resume --run {run.path} {change(run)}")
