"""A whole table from its definition: which runs it has, what is measured of each, what is missing, what it would cost.

A definition is a YAML file in `recipes/tables/`. `row` does the work on one run, and `jobs` starts the processes.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from esctl.comparison import tables
from esctl.comparison.compare import CompareOptions, Comparison, compare_loaded
from esctl.comparison.groups import grouped
from esctl.comparison.plots import draw
from esctl.comparison.questions import Question
from esctl.comparison.report import Evidence, report
from esctl.comparison.selection import Loaded, Request, load_runs, select
from esctl.errors import RecipeError, UsageError
from esctl.experiment.estimates.plan import planned_footprint, rollouts_planned
from esctl.experiment.loading import dump_recipe, load_recipe, recipes_root
from esctl.experiment.recipe import EMBEDDED, Plain, Recipe, Section
from esctl.reproduce.row import MARK, PassK, RowJob, Sharpness
from esctl.runs.directory import RunDir, folder_name
from esctl.runs.files import adapter, write_atomic
from esctl.runs.plain_yaml import read_yaml
from esctl.settings import Count
from esctl.training.jobs import Failure, Job, Progress, run_jobs

Measure = Literal["passk", "sharpness"]
# A step on gradients costs about as much time as so many rollouts of the same samples, beside the rollouts themselves.
TRAINING_WORK = 3.0
# What a GPU is taken to do when hours are reckoned: an assumption, to be replaced by what yours does.
PEAK_RATE, FLOPS = 30_000, 1e14  # generated tokens per second at most; floating-point operations per second
SHARPNESS_CANDIDATES, TEST_PROBLEMS = 70, 2000  # about


class RowSection(Section):
    """One row: a recipe with changes, over all seeds."""

    label: str
    recipe: str
    set: dict[str, bool | int | float | str | None] = Field(default_factory=dict)
    base: bool = False
    measure: tuple[Measure, ...] = ()


class FullSection(Section):
    """What --full adds."""

    seeds: Count
    also: tuple[str, ...] = ()  # every row's weights are evaluated on these tasks too
    rows: tuple[RowSection, ...] = ()


class TableSection(Section):
    """A table's definition."""

    models: Annotated[
        dict[str, Count], Field(min_length=1)
    ]  # and their number of weights, so that a plan needs no model
    seeds: Count
    passk: PassK
    sharpness: Sharpness
    rows: Annotated[tuple[RowSection, ...], Field(min_length=1)]
    full: FullSection | None = None
    questions: tuple[Question, ...] = ()  # of the report; none: those that every table has


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
    def measuring(self) -> int:
        """Rollouts of what is measured after training."""
        passk, sharp = self.job.passk, self.job.sharpness
        sampled = passk.samples * passk.problems if passk else 0
        return sampled + (SHARPNESS_CANDIDATES * sharp.problems if sharp else 0) + TEST_PROBLEMS

    @property
    def work(self) -> float:
        """Rollouts, in the time that one takes: what the order of runs and the time left are reckoned by."""
        trained = 0 if self.job.base else rollouts_planned(self.recipe)
        return trained * (1.0 if self.recipe.baseline is None else 1.0 + TRAINING_WORK) + self.measuring


def read_table(name: str) -> TableSection:
    """A table's definition by file or shipped name; raises UsageError or RecipeError with every mistake."""
    path = Path(name) if Path(name).is_file() else recipes_root() / "tables" / f"{name}.yaml"
    if not path.is_file():
        shipped = ", ".join(sorted(p.stem for p in (recipes_root() / "tables").glob("*.yaml")))
        raise UsageError(f"table {name}: no such file and none that ships; choose {shipped}")
    try:
        tree = read_yaml(path)
        if not isinstance(tree, dict):
            raise UsageError(f"{path}: a table is a mapping of keys to values; copy recipes/tables/cpu.yaml")
        table = TableSection.model_validate(tree)
    except ValidationError as error:
        mistakes = [f"{'.'.join(map(str, e['loc']))}: {e['msg'].removeprefix('Value error, ')}" for e in error.errors()]
        raise RecipeError([f"{path}: {mistake}" for mistake in mistakes]) from None
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    strangers = _unknown_rows(table)
    if strangers:
        raise RecipeError([f"{path}: {mistake}" for mistake in strangers])
    return table


def _unknown_rows(table: TableSection) -> list[str]:
    """Labels that a question names and no row has: it would be answered by "not in this table" after all runs."""
    labels = dict.fromkeys(row.label for row in (*table.rows, *(table.full.rows if table.full else ())))
    asked = [(place, label) for place, q in enumerate(table.questions) for pair in q.pairs for label in pair]
    return [
        f"questions.{place}.compare: no row is called {label}; choose {', '.join(labels)}"
        for place, label in dict.fromkeys(asked)
        if label not in labels
    ]


def plan_table(table: TableSection, root: Path, full: bool = False) -> list[Planned]:
    """Every run of the table, each recipe validated."""
    if full and table.full is None:
        raise UsageError("--full: this table has no section `full`; leave --full out, or add the section")
    more = table.full if full and table.full else FullSection(seeds=table.seeds)
    found: list[Planned] = []
    for model in table.models:
        for row in (*table.rows, *more.rows):
            for seed in range(1 if row.base else more.seeds):
                found.append(_planned(table, row, model, seed, root, more.also))
    names = [p.name for p in found]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice:
        raise UsageError(f"table: two runs would be called {twice}; give each row of a task its own label")
    return found


def _planned(table: TableSection, row: RowSection, model: str, seed: int, root: Path, also: tuple[str, ...]) -> Planned:
    changes: dict[str, Plain] = {**row.set, "model": model, "label": row.label, "seed": seed}
    recipe = load_recipe(row.recipe, changes)
    which = "" if len(table.models) == 1 else f"{short_name(model)}-"
    name = folder_name(f"{which}{row.label}-{recipe.task.name}" + ("" if row.base else f"-s{seed}"))
    job = RowJob(
        recipe=str(root / "recipes" / f"{name}.yaml"),
        recipe_sha256=hashlib.sha256(dump_recipe(recipe).encode()).hexdigest(),
        run=str(root / "runs" / name),
        base=row.base,
        also=tuple(task for task in also if task != recipe.task.name),
        passk=table.passk if "passk" in row.measure else None,
        sharpness=table.sharpness if "sharpness" in row.measure else None,
    )
    return Planned(name, recipe, job)


def side_by_side(table: TableSection) -> int:
    """Runs at once: one per core for the embedded model; one alone for models that fill a device."""
    return (os.cpu_count() or 1) if set(table.models) == {EMBEDDED} else 1


def run_table(
    planned: Sequence[Planned], root: Path, at_once: int, report: Callable[[Progress], None]
) -> list[Failure]:
    """Do what is missing."""
    return run_jobs([_job(p, root) for p in planned if not p.done], at_once, report)


def _job(planned: Planned, root: Path) -> Job:
    write_atomic(Path(planned.job.recipe), dump_recipe(planned.recipe).encode())
    argv = ("esctl", "row", adapter(RowJob).dump_json(planned.job).decode())
    return Job(planned.name, argv, root / "logs" / f"{planned.name}.log", planned.work, RunDir(Path(planned.job.run)))


def short_name(model: str) -> str:
    """A model's name without its owner."""
    return model.rpartition("/")[2]


def finished_lines(table: TableSection, planned: Sequence[Planned], root: Path) -> list[str]:
    """Write the results of what is finished of a table that was stopped, and say so; nothing without a pair."""
    done = _by_model([p for p in planned if p.done]).values()
    kept = [p for own in done if sum(p.recipe.task.name == own[0].recipe.task.name for p in own) > 1 for p in own]
    if not kept:
        return []
    write_results(table, kept, root)
    return [f"{root} has the tables of {len(kept)} finished runs, of {len(planned)}"]


def _by_model(planned: Sequence[Planned]) -> dict[str, list[Planned]]:
    found: dict[str, list[Planned]] = {}
    for p in planned:
        found.setdefault(p.recipe.model, []).append(p)
    return found


def write_results(table: TableSection, planned: Sequence[Planned], root: Path) -> list[Path]:
    """Tables, pictures and a report of finished runs; a folder for each model, where there are several."""
    by_model = _by_model(planned)
    if len(by_model) == 1:
        return _write_model(table, planned, root)
    folders = {model: root / folder_name(short_name(model)) for model in by_model}
    return [file for model, own in by_model.items() for file in _write_model(table, own, folders[model])]


def _write_model(definition: TableSection, planned: Sequence[Planned], root: Path, split: str = "test") -> list[Path]:
    """Returns the files in the order of reading."""
    loaded = load_runs([RunDir(Path(p.job.run)) for p in planned])
    runs = [_Finished(p, item) for p, item in zip(planned, loaded, strict=True)]
    task = planned[0].recipe.task.name
    at_home = _evaluated_on(task, runs)
    own = [run.loaded for run in runs if run.planned.recipe.task.name == task]
    request = Request(split, task)
    ks = next((p.job.passk.ks for p in planned if p.job.passk and p.recipe.task.name == task), ())
    table = compare_loaded(own, CompareOptions(request, ks))
    groups = tuple(grouped(select(own, request).items))
    others = []
    for other in sorted({t for p in planned for t in tasks_of(p)} - {task}):
        others.append(compare_loaded(_evaluated_on(other, runs), CompareOptions(Request(split, other))))
    if len(at_home) > len(own):  # runs trained on another task, tested on this one
        others.append(compare_loaded(at_home, CompareOptions(request)))
    full = definition.full or FullSection(seeds=definition.seeds)
    full_rows = frozenset(row.label for row in full.rows) - {row.label for row in definition.rows}
    evidence = Evidence(table, groups, tuple(others), full_rows, bool(full.also))
    answers = report(evidence, definition.questions)
    return [*_written(root, table, others, answers), *draw(groups, root / "plots").files]


@dataclass(frozen=True)
class _Finished:
    """A run of the table, read from its directory."""

    planned: Planned
    loaded: Loaded


def _evaluated_on(task: str, runs: Sequence[_Finished]) -> list[Loaded]:
    return [run.loaded for run in runs if task in tasks_of(run.planned)]


def tasks_of(planned: Planned) -> set[str]:
    """Tasks that a run is evaluated on."""
    return {planned.recipe.task.name, *planned.job.also}


def _written(root: Path, table: Comparison, others: Sequence[Comparison], answers: str) -> list[Path]:
    texts = {
        "report.md": answers,
        "table.md": tables.markdown(table),
        "table.csv": tables.csv_text(table),
        "table.tex": tables.latex(table),
        **{f"table-{folder_name(t.task)}-{n}.md": tables.markdown(t) for n, t in enumerate(others)},
    }
    for name, text in texts.items():
        write_atomic(root / name, text.encode())
    return [root / name for name in texts]


def plan_lines(table: TableSection, planned: Sequence[Planned], gpus: int | None = None) -> list[str]:
    """One line per run with its cost, then the sum; hours only for a number of GPUs, by an assumed rate."""
    costs = [_cost(table, p, gpus) for p in planned]
    lines = [_plan_line(p, c) for p, c in zip(planned, costs, strict=True)]
    total = f"{len(planned)} runs, {sum(c.rollouts for c in costs):,} training rollouts"
    if gpus:
        hours = sum(c.hours or 0.0 for c in costs)
        total += (
            f", some {hours:,.0f} h on {gpus} GPU{'s' if gpus > 1 else ''}, if each generates {PEAK_RATE:,} tokens/s or"
            f" reaches {FLOPS:.0e} FLOP/s, whichever is less, and every completion is as long as it may be"
        )
    return [*lines, total]


@dataclass(frozen=True)
class _Cost:
    rollouts: int  # of training
    tokens: int  # generated, training and measuring, at most
    bytes: int  # held in training beside activations and KV cache
    hours: float | None


def _cost(table: TableSection, p: Planned, gpus: int | None) -> _Cost:
    dim = table.models[p.recipe.model]
    held = planned_footprint(p.recipe, dim)
    rollouts = 0 if p.job.base else rollouts_planned(p.recipe)
    measured = p.measuring
    tokens = (rollouts + measured) * p.recipe.sampling.max_tokens
    rate = min(PEAK_RATE, FLOPS / (2 * dim))
    # 6 FLOPs per weight and token for a step on gradients, beside the 2 of generating it.
    steps = rollouts * p.recipe.sampling.max_tokens * 6 * dim / FLOPS if p.recipe.baseline and not p.job.base else 0.0
    hours = (tokens / rate + steps) / 3600 / gpus if gpus else None
    return _Cost(rollouts, tokens, held.purposes["weights"] if p.job.base else held.states, hours)


def _plan_line(p: Planned, cost: _Cost) -> str:
    more = {"pass@k": p.job.passk, "sharpness": p.job.sharpness}
    measured = ", ".join(["greedy", *(name for name, asked in more.items() if asked), *p.job.also])
    hours = "" if cost.hours is None else f"{cost.hours:>8,.1f} h, "
    state = "done" if p.done else "to do"
    return (
        f"{p.name:40} {cost.rollouts:>12,} rollouts, at most {cost.tokens:>16,} tokens,"
        f" {cost.bytes / 2**30:>8.2f} GiB, {hours}{measured} [{state}]"
    )
