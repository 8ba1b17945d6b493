"""All that a table needs of one run, in one process: training, greedy evaluation, pass@k and sharpness.

One process, since importing an engine costs more than most of these on a small model. `table` starts it as
`esctl row JSON`. What is stored already is not done again.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from esctl.runs.directory import RunDir
from esctl.runs.files import adapter, write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from esctl.experiment.recipe import Plain
    from esctl.training.events import Report


MARK = "row.json"  # in the run directory: what was asked, written when all of it is there


@dataclass(frozen=True)
class PassK:
    """pass@k to measure: n samples of the first so many test problems."""

    ks: tuple[int, ...]
    samples: int
    problems: int
    temperature: float = 0.6


@dataclass(frozen=True)
class Sharpness:
    """Sharpness to measure, with the default grids."""

    problems: int
    seeds: int


@dataclass(frozen=True)
class RowJob:
    """One run and what to measure of it."""

    recipe: str  # a file, complete
    recipe_sha256: str  # of its text: a run of another recipe does not count as done
    run: str
    split: str = "test"
    base: bool = False  # the recipe's model as it is; nothing is trained
    also: tuple[str, ...] = ()  # tasks that the weights are evaluated on beside their own
    passk: PassK | None = None
    sharpness: Sharpness | None = None


def make_row(job: RowJob, display: "Callable[[str], AbstractContextManager[Report]]") -> None:
    """Train what is not trained, then measure what is not stored."""
    from esctl.evaluation.evaluate import evaluate
    from esctl.evaluation.sampling import decodings
    from esctl.evaluation.sharpness_run import SharpnessOptions, measure_sharpness
    from esctl.evaluation.target import TargetRequest

    if not job.base:
        _train(job, display)
    target = _base_model(job) if job.base else job.run
    request = TargetRequest(target, _base_setting(job) if job.base else {}, (), Path(job.run) if job.base else None)
    evaluate(request, (), job.split, None)
    if job.also:
        evaluate(request, job.also, job.split, None)
    if job.passk:
        wanted = decodings(job.passk.ks, job.passk.samples, [job.passk.temperature])
        evaluate(request, (), job.split, job.passk.problems, wanted)
    if job.sharpness:
        measure_sharpness(request, SharpnessOptions(job.split, job.sharpness.problems, seeds=job.sharpness.seeds))
    write_atomic(Path(job.run) / MARK, adapter(RowJob).dump_json(job))


def _train(job: RowJob, display: "Callable[[str], AbstractContextManager[Report]]") -> None:
    from esctl.experiment.loading import load_recipe
    from esctl.training import session

    run = RunDir(Path(job.run))
    recipe = load_recipe(job.recipe, {})
    if session.has_nothing_to_do(recipe, run):
        return
    with display(recipe.label) as report:
        session.train(recipe, run, run.exists or run.recipe.exists(), report)


def _base_model(job: RowJob) -> str:
    from esctl.experiment.loading import load_recipe

    return load_recipe(job.recipe, {}).model


def _base_setting(job: RowJob) -> "dict[str, Plain]":
    """How a plain model is asked: as the rows beside it, in the engine that the table names for them too."""
    from esctl.evaluation.target import sections
    from esctl.experiment.loading import read_recipe_file

    return {**sections(job.recipe), "engine": read_recipe_file(job.recipe)[0]["engine"]}
