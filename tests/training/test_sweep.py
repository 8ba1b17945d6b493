"""A sweep is run directories: every one validated first, finished ones left alone, unfinished ones continued."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from documented import typed
from miniature import RECORD

from esctl.errors import RecipeError, RunError, UsageError
from esctl.experiment.loading import dump_recipe
from esctl.runs.directory import find_runs
from esctl.runs.files import write_atomic
from esctl.training.sweep import Cell, cells, is_finished, parse_grid, train_job

SMALL = ["generations=1", "prompts=4", "method.population=2", "sampling.max_tokens=4", "engine.kind=transformers"]


def grid_of(tmp_path: Path, *axes: str, seeds: int = 1, source: str = "arithmetic/essam") -> list[Cell]:
    return cells(source, {}, SMALL, parse_grid(axes), seeds, tmp_path)


def record_as(cell: Cell, generation: int, status: str) -> None:
    write_atomic(cell.run.recipe, dump_recipe(cell.recipe).encode())
    cell.run.write_record(replace(RECORD, generation=generation, status=status))


def test_a_grid_is_the_product_of_its_axes_times_seeds(tmp_path):
    found = grid_of(tmp_path, "method.rho=0.005,0.015", "prompts=4,8", seeds=3)
    assert len(found) == 12
    assert len({c.run.path for c in found}) == 12
    assert {(c.recipe.evolution.rho, c.recipe.prompts) for c in found} == {
        (0.005, 4), (0.005, 8), (0.015, 4), (0.015, 8),
    }  # fmt: skip
    assert found[0].recipe.label == "ESSAM rho=0.005 prompts=4"


def test_a_value_with_commas_is_written_as_yaml():
    assert parse_grid(["method.betas=[[0.9, 0.95], [0.9, 0.99]]"]) == {"method.betas": ["[0.9, 0.95]", "[0.9, 0.99]"]}


def test_every_mistake_of_every_cell_is_reported_before_any_run_begins(tmp_path):
    with pytest.raises(RecipeError) as caught:
        grid_of(tmp_path, "method.rho=-1,x", "promts=3")
    text = str(caught.value)
    assert "promts: unknown key, did you mean prompts?" in text
    assert "method.rho: 'x'" in text
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("axis", ["method.rho", "method.rho=", "=1", "seed=1,2"])
def test_an_axis_that_is_none_is_refused(axis):
    with pytest.raises(UsageError, match="--grid"):
        parse_grid([axis])


def test_a_value_that_is_there_twice_is_refused(tmp_path):
    with pytest.raises(UsageError, match="two runs would be called"):
        grid_of(tmp_path, "method.rho=0.005,0.005")


def test_only_a_finished_run_of_the_same_recipe_is_skipped(tmp_path):
    [cell] = grid_of(tmp_path)
    assert not is_finished(cell)
    record_as(cell, 1, "interrupted")
    assert not is_finished(cell)
    assert train_job(cell, tmp_path).argv[-2:] == ("--resume", "auto")
    record_as(cell, 1, "finished")
    assert is_finished(cell)


def test_a_directory_with_another_recipe_is_refused_naming_the_key(tmp_path):
    [cell] = grid_of(tmp_path)
    record_as(cell, 1, "finished")
    other = replace(cell, recipe=cell.recipe.model_copy(update={"prompts": 7}))
    with pytest.raises(RunError, match=r"prompts: 4 → 7.*--root"):
        is_finished(other)


@pytest.mark.slow
def test_the_readmes_sweep_ends_in_a_table_and_run_again_trains_nothing(tmp_path):
    sets = [x for s in [*SMALL, "eval.n=4", "eval.final=validation", "eval.every=0"] for x in ("--set", s)]
    [words] = [c.words for c in typed() if c.text.startswith("esctl sweep")]
    fewer = ["--seeds", "1", "--root", str(tmp_path / "s"), "--split", "validation", *sets]
    command = [sys.executable, "-m", *words, *fewer]
    first = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"})
    assert first.returncode == 0, first.stderr
    assert "ESSAM rho=0.015" in first.stdout
    assert "2/2 done" in first.stderr
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "s").rglob("run.json")}
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 0
    assert stamps == {p: p.stat().st_mtime_ns for p in (tmp_path / "s").rglob("run.json")}


@pytest.mark.slow
def test_a_sweep_killed_in_the_middle_goes_on_by_the_same_command(tmp_path):
    """Its jobs hold their runs until they have recorded their work; the next sweep waits for them."""
    root = tmp_path / "s"
    sets = [x for s in [*SMALL, "eval.n=4", "eval.final=test", "eval.every=0", "generations=40"] for x in ("--set", s)]
    words = ["sweep", "arithmetic/es", "--seeds", "2", "--jobs", "2", "--root", str(root), *sets]
    command = [sys.executable, "-m", "esctl", *words]
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(list(root.rglob("scores.jsonl"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    again = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr
    assert "failed" not in again.stderr
    assert [r.read_record().generation for r in find_runs([root])] == [40, 40]
