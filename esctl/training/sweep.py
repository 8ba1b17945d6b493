"""A grid of settings times seeds, from one recipe: one run directory each, finished ones skipped, ending in a table.

Each run is an `esctl train` in a process of its own, which `jobs` starts.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from esctl.errors import RecipeError, RunError, UsageError
from esctl.experiment.estimates.plan import rollouts_planned
from esctl.experiment.loading import changes, dump_recipe, load_recipe, read_recipe
from esctl.experiment.recipe import Plain, Recipe
from esctl.runs.directory import RunDir, folder_name
from esctl.runs.files import write_atomic
from esctl.training.jobs import Failure, Job, Progress, run_jobs

FINISHED = "finished"


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    name: str  # also its directory's
    recipe: Recipe
    run: RunDir


def parse_grid(axes: Sequence[str]) -> dict[str, list[str]]:
    """`key=a,b,c` for each axis; a value with commas is written as YAML: `key=[[1, 2], [3]]`."""
    grid: dict[str, list[str]] = {}
    for axis in axes:
        key, equals, text = axis.partition("=")
        values = _values(axis, text) if equals else []
        if not key.strip() or not values:
            raise UsageError(f"--grid {axis}: write key=a,b,c, such as --grid method.rho=0.005,0.015")
        if key.strip() in (*grid, "seed"):
            raise UsageError(f"--grid {axis}: {key.strip()} is there already; seeds are given by --seeds")
        grid[key.strip()] = values
    return grid


def _values(axis: str, text: str) -> list[str]:
    try:
        whole = yaml.safe_load(text) if text.startswith("[[") else None
    except yaml.YAMLError:
        raise UsageError(f"--grid {axis}: {text} is not YAML") from None
    if isinstance(whole, list):
        return [yaml.safe_dump(v, default_flow_style=True).strip() for v in whole]
    return [v.strip() for v in text.split(",") if v.strip()]


def cells(
    source: str, overrides: Mapping[str, Plain], sets: Sequence[str], grid: Mapping[str, Sequence[str]], seeds: int,
    root: Path,
) -> list[Cell]:  # fmt: skip
    """Every run of the sweep, each validated before the first begins; raises RecipeError with all mistakes."""
    found, mistakes = list[Cell](), list[str]()
    for values in itertools.product(*grid.values()):
        chosen = [f"{key}={value}" for key, value in zip(grid, values, strict=True)]
        for seed in range(seeds):
            try:
                recipe = load_recipe(source, {**overrides, "seed": seed}, [*sets, *chosen])
            except RecipeError as error:
                mistakes += [m for m in str(error).splitlines() if m not in mistakes]
                continue
            label = " ".join([recipe.label, *_short(chosen)])
            name = folder_name(f"{label}-s{seed}")
            found.append(Cell(name, recipe.model_copy(update={"label": label}), RunDir(root / name)))
    if mistakes:
        raise RecipeError(mistakes)
    _refuse_equal_names(found)
    return found


def _short(chosen: Sequence[str]) -> list[str]:
    """`rho=0.005` for `method.rho=0.005`."""
    pairs = [c.partition("=") for c in chosen]
    return [f"{key.rpartition('.')[2]}={value}" for key, _, value in pairs]


def _refuse_equal_names(found: Sequence[Cell]) -> None:
    names = [cell.name for cell in found]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice:
        raise UsageError(f"--grid: two runs would be called {twice}; remove the value that is there twice")


def is_finished(cell: Cell) -> bool:
    """Whether the run is there as asked; raises RunError where its directory holds another recipe."""
    if not cell.run.exists:
        return False
    recorded = read_recipe(cell.run)
    different = changes(recorded, cell.recipe)
    if different:
        raise RunError(f"{cell.run.path}: holds another run ({'; '.join(different)}); choose another --root")
    record = cell.run.read_record()
    return record.status == FINISHED and record.generation == cell.recipe.generations


def refuse_split(cell: Cell, split: str) -> None:
    """Refuse a split that the task lacks, before the first run and not after the last."""
    from esctl.experiment.experiment import task_spec
    from esctl.tasks import open_task

    open_task(task_spec(cell.recipe)).problems(split)


def train_job(cell: Cell, root: Path) -> Job:
    """`esctl train` of a cell, which starts it or continues it; its recipe and log are in folders of `root`."""
    recipe = root / "recipes" / f"{cell.name}.yaml"
    write_atomic(recipe, dump_recipe(cell.recipe).encode())
    # Which of both is decided when the job starts: until then another process may begin the run.
    argv = ("esctl", "train", "--recipe", str(recipe), "--run", str(cell.run.path), "--resume", "auto")
    return Job(cell.name, argv, root / "logs" / f"{cell.name}.log", rollouts_planned(cell.recipe), cell.run)


def run_sweep(found: Sequence[Cell], root: Path, at_once: int, report: Callable[[Progress], None]) -> list[Failure]:
    """Train every cell that is not finished."""
    jobs = [train_job(cell, root) for cell in found if not is_finished(cell)]
    return run_jobs(jobs, at_once, report)


def failure_lines(failures: Sequence[Failure]) -> list[str]:
    """One line per failed job: its name, its last words, and where to read more."""
    return [f"{f.job.name}: {f.tail or f'exit code {f.exit_code}'} (all of it: {f.job.log})" for f in failures]
