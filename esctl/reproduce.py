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

from esctl import tables
from esctl.compare import Comparison, Wanted, compare_loaded
from esctl.errors import RecipeError, UsageError
from esctl.groups import grouped
from esctl.jobs import Failure, Job, Progress, run_jobs
from esctl.plan import rollouts_planned
from esctl.plots import draw
from esctl.recipe import Count, Plain, Recipe, Section, dump_recipe, load_recipe, recipes_root
from esctl.report import Evidence, report
from esctl.row import MARK, PassK, RowJob, Sharpness
from esctl.rundir import RunDir, adapter, write_atomic
from esctl.selection import Request, load_runs, select
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


def write_results(planned: Sequence[Planned], root: Path, split: str = "test") -> list[Path]:
    """The tables, the pictures and the report of finished runs; returns the files, in the order of reading."""
    loaded = load_runs([RunDir(Path(p.job.run)) for p in planned])
    task = planned[0].recipe.task.name
    at_home = [item for item, p in zip(loaded, planned, strict=True) if task in tasks_of(p)]
    own = [item for item, p in zip(loaded, planned, strict=True) if p.recipe.task.name == task]
    request = Request(split, task)
    table, groups = compare_loaded(own, Wanted(request)), tuple(grouped(select(own, request).items))
    others = []
    for other in sorted({t for p in planned for t in tasks_of(p)} - {task}):
        there = [item for item, p in zip(loaded, planned, strict=True) if other in tasks_of(p)]
        others.append(compare_loaded(there, Wanted(Request(split, other))))
    if len(at_home) > len(own):  # runs trained on another task, tested on this one
        others.append(compare_loaded(at_home, Wanted(request)))
    answers = report(Evidence(table, groups, tuple(others)))
    return [*_written(root, table, others, answers), *draw(groups, root / "plots").files]


def tasks_of(planned: Planned) -> set[str]:
    """Tasks that a run is evaluated on."""
    return {planned.recipe.task.name, *planned.job.also}


def _written(root: Path, table: Comparison, others: Sequence[Comparison], answers: str) -> list[Path]:
    texts = {
        "report.md": answers,
        "table.md": tables.markdown(table),
        "table.csv": tables.csv_text(table),
        "table.tex": tables.latex(table),
        **{f"table-{file_name(t.task)}-{n}.md": tables.markdown(t) for n, t in enumerate(others)},
    }
    for name, text in texts.items():
        write_atomic(root / name, text.encode())
    return [root / name for name in texts]


def plan_lines(planned: Sequence[Planned]) -> list[str]:
    """One line per run: what it is, its training rollouts, what is measured, and whether it is done."""
    return [_plan_line(p) for p in planned]


def _plan_line(p: Planned) -> str:
    more = {"pass@k": p.job.passk, "sharpness": p.job.sharpness}
    measured = ", ".join(["greedy", *(name for name, asked in more.items() if asked), *p.job.also])
    rollouts = 0 if p.job.base else rollouts_planned(p.recipe)
    tokens = rollouts * p.recipe.sampling.max_tokens
    state = "done" if p.done else "to do"
    return f"{p.name:36} {rollouts:>12,} rollouts, at most {tokens:>16,} tokens; {measured} [{state}]"
