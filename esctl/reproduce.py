"""A whole table from its definition: which runs it has, what is measured of each, what is missing, what it would cost.

A definition is a YAML file in `recipes/tables/`. Leaves one run's work to `row`, processes to `jobs`, and what the
numbers say to `compare` and `report`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field, ValidationError

from esctl.errors import RecipeError, UsageError
from esctl.jobs import Failure, Job, Progress, run_jobs
from esctl.plan import rollouts_planned
from esctl.recipe import Count, Plain, Recipe, Section, dump_recipe, load_recipe, recipes_root
from esctl.row import MARK, PassK, RowJob, Sharpness
from esctl.rundir import adapter, write_atomic
from esctl.sweep import file_name

Measure = Literal["passk", "sharpness"]
# A step on gradients costs about as much time as so many rollouts of the same samples, beside the rollouts themselves.
TRAINING_WORK = 3.0


class RowSection(Section):
    """One row: a recipe with changes, over all seeds."""

    label: str
    recipe: str
    set: dict[str, bool | int | float | str] = Field(default_factory=dict)
    base: bool = False
    measure: tuple[Measure, ...] = ()


class FullSection(Section):
    """What FULL=1 adds."""

    seeds: Count
    also: tuple[str, ...] = ()  # every row's weights are evaluated on these tasks too
    rows: tuple[RowSection, ...] = ()


class TableSection(Section):
    """A table's definition."""

    models: tuple[str, ...]
    seeds: Count
    passk: PassK
    sharpness: Sharpness
    rows: tuple[RowSection, ...]
    full: FullSection | None = None


@dataclass(frozen=True)
class Planned:
    """One run of the table."""

    name: str  # also its directory's
    recipe: Recipe
    job: RowJob

    @property
    def done(self) -> bool:
        """Whether all of it was measured, as asked now."""
        mark = Path(self.job.run) / MARK
        return mark.is_file() and mark.read_bytes() == adapter(RowJob).dump_json(self.job)

    @property
    def work(self) -> float:
        """Rollouts, in the time that one takes: what the order of runs and the time left are reckoned by."""
        trained = 0 if self.job.base else rollouts_planned(self.recipe)
        passk = self.job.passk.samples * self.job.passk.problems if self.job.passk else 0
        candidates = 100 if self.job.sharpness else 0
        sharpness = candidates * self.job.sharpness.problems if self.job.sharpness else 0
        return trained * (1.0 if self.recipe.baseline is None else 1.0 + TRAINING_WORK) + passk + sharpness + 2048


def read_table(name: str) -> TableSection:
    """A table's definition by file or shipped name; raises UsageError or RecipeError with every mistake."""
    path = Path(name) if Path(name).is_file() else recipes_root() / "tables" / f"{name}.yaml"
    if not path.is_file():
        shipped = ", ".join(sorted(p.stem for p in (recipes_root() / "tables").glob("*.yaml")))
        raise UsageError(f"table {name}: no such file and none that ships; choose {shipped}")
    try:
        return TableSection.model_validate(yaml.safe_load(path.read_text()))
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        mistakes = [f"{'.'.join(map(str, e['loc']))}: {e['msg'].removeprefix('Value error, ')}" for e in error.errors()]
        raise RecipeError([f"{path}: {mistake}" for mistake in mistakes]) from None


def plan_table(table: TableSection, root: Path, full: bool = False) -> list[Planned]:
    """Every run of the table, each recipe validated."""
    if full and table.full is None:
        raise UsageError("FULL: this table has no `full` section")
    more = table.full if full and table.full else FullSection(seeds=table.seeds)
    found: list[Planned] = []
    for model in table.models:
        for row in (*table.rows, *more.rows):
            for seed in range(1 if row.base else more.seeds):
                found.append(_planned(table, row, model, seed, root, more.also))
    return found


def _planned(table: TableSection, row: RowSection, model: str, seed: int, root: Path, also: tuple[str, ...]) -> Planned:
    label = row.label if len(table.models) == 1 else f"{row.label} {model.rpartition('/')[2]}"
    changes: dict[str, Plain] = {**row.set, "model": model, "label": label, "seed": seed}
    recipe = load_recipe(row.recipe, changes)
    name = file_name(f"{label}-{recipe.task.name}" + ("" if row.base else f"-s{seed}"))
    job = RowJob(
        recipe=str(root / "recipes" / f"{name}.yaml"),
        run=str(root / "runs" / name),
        base=row.base,
        also=tuple(task for task in also if task != recipe.task.name),
        passk=table.passk if "passk" in row.measure else None,
        sharpness=table.sharpness if "sharpness" in row.measure else None,
    )
    return Planned(name, recipe, job)


def run_table(
    planned: Sequence[Planned], root: Path, at_once: int, report: Callable[[Progress], None]
) -> list[Failure]:
    """Do what is missing."""
    return run_jobs([_job(p, root) for p in planned if not p.done], at_once, report)


def _job(planned: Planned, root: Path) -> Job:
    write_atomic(Path(planned.job.recipe), dump_recipe(planned.recipe).encode())
    argv = ("esctl.row", adapter(RowJob).dump_json(planned.job).decode())
    return Job(planned.name, argv, root / "logs" / f"{planned.name}.log", planned.work)
