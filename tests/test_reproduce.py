"""A table is its definition: every run planned and validated first, and what is done told by what was asked."""

from dataclasses import replace
from pathlib import Path

import pytest

from esctl.errors import RecipeError, UsageError
from esctl.recipe import recipes_root
from esctl.reproduce import plan_table, read_table
from esctl.row import MARK, RowJob
from esctl.rundir import adapter, write_atomic

TABLES = sorted(p.stem for p in (recipes_root() / "tables").glob("*.yaml"))


@pytest.mark.parametrize("name", TABLES)
def test_every_run_of_every_table_is_a_valid_recipe_in_a_directory_of_its_own(name, tmp_path):
    table = read_table(name)
    planned = plan_table(table, tmp_path, full=table.full is not None)
    assert len({p.job.run for p in planned}) == len(planned)
    assert {p.recipe.label for p in planned if not p.job.base} >= {"ES", "ESSAM"} or len(table.models) > 1
    assert not any(tmp_path.iterdir())  # planning writes nothing


def test_full_adds_rows_and_seeds_and_changes_none(tmp_path):
    table = read_table("cpu")
    core = {p.name: p.recipe for p in plan_table(table, tmp_path)}
    full = {p.name: p.recipe for p in plan_table(table, tmp_path, full=True)}
    assert core.items() <= full.items()
    assert len(full) > len(core)


def test_a_run_is_done_when_all_that_is_asked_now_was_measured(tmp_path):
    planned = plan_table(read_table("cpu"), tmp_path)[1]
    assert not planned.done
    write_atomic(Path(planned.job.run) / MARK, adapter(RowJob).dump_json(planned.job))
    assert planned.done
    assert not replace(planned, job=replace(planned.job, also=("tiny-countdown",))).done


def test_mistakes_in_a_table_are_named_with_their_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("models: [embedded]\nseeds: 0\npassk: {}\nrows: [{label: ES}]\nrow: 1\n")
    with pytest.raises(RecipeError) as caught:
        read_table(str(path))
    assert all(line.startswith(str(path)) for line in str(caught.value).splitlines())
    assert {"seeds", "sharpness", "rows.0.recipe", "row"} <= {
        line.split(": ")[1] for line in str(caught.value).splitlines()
    }


def test_an_unknown_table_names_those_that_ship():
    with pytest.raises(UsageError, match="cpu"):
        read_table("laptop")
