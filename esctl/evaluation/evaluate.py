"""`esctl eval` and `esctl passk`: evaluations of a run's weights or of a plain model, greedy or sampled.

`target` finds the weights, `draw` draws and stores. No engine starts where everything is stored already.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from esctl.engines import Engine
from esctl.errors import UsageError
from esctl.evaluation.draw import EvalProgress, EvalRequest, draw_evaluation, has_stored, stored_eval
from esctl.evaluation.sampling import GREEDY, Decoding
from esctl.evaluation.target import Target, TargetRequest, find_target
from esctl.experiment.experiment import Experiment
from esctl.experiment.provenance import peak_bytes
from esctl.runs.records import Cost, EvalRecord, RunRecord, decoding_text

Report = Callable[[str, EvalProgress], None]  # what is evaluated, in words, and how far it is


@dataclass(frozen=True)
class StoredEvaluation:
    """One evaluation and the run directory that holds it."""

    folder: Path
    record: EvalRecord


@dataclass(frozen=True)
class _Job:
    experiment: Experiment
    request: EvalRequest

    @property
    def text(self) -> str:
        """What is evaluated, for a progress line."""
        decoding = self.request.decoding
        how = decoding_text(decoding.temperature, decoding.top_p, decoding.mode)
        return f"{self.experiment.task.name} {self.request.split.name}, {how}"


def evaluate(
    request: TargetRequest,
    tasks: Sequence[str],
    split: str,
    n: int | None,
    decodings: Sequence[Decoding] = (GREEDY,),
    report: Report = lambda what, progress: None,
) -> list[StoredEvaluation]:
    """Evaluate on each task (none: the recipe's) with each decoding, under one engine; what is stored is read."""
    if n is not None and n < 1:
        raise UsageError(f"-n {n}: give 1 problem or more, or leave it out for all")
    if len(tasks) > 1 and "task.data" in request.flags:
        raise UsageError("--data: is for one task; evaluate the tasks that need it one at a time")
    settings = [replace(request, flags={**request.flags, "task.name": task}) for task in tasks] or [request]
    targets = [find_target(setting) for setting in settings]
    experiments = [target.experiment() for target in targets]
    target = targets[0]  # all have the same weights
    jobs = [
        _Job(x, EvalRequest(x.split(split).first(n), target.step, target.rollouts_spent, decoding))
        for x in experiments
        for decoding in decodings
    ]
    with target.folder.lock():
        records = _stored(target, jobs)
        if records is None:
            with target.engine(experiments) as engine:
                records = _evaluated(target, jobs, engine, report)
    return [StoredEvaluation(target.folder.path, record) for record in records]


def _stored(target: Target, jobs: Sequence[_Job]) -> list[EvalRecord] | None:
    """All that was requested, where all of it is stored; the weights are read once to be sure whose they are."""
    if not all(has_stored(job.experiment, target.folder, job.request) for job in jobs):
        return None
    weights = target.weights_sha256(jobs[0].experiment)
    target.refuse_other_model(weights)
    found = [stored_eval(job.experiment, target.folder, job.request, weights) for job in jobs]
    return [record for record in found if record is not None]


def _evaluated(target: Target, jobs: Sequence[_Job], engine: Engine, report: Report) -> list[EvalRecord]:
    run, record = target.folder, target.begin(jobs[0].experiment, engine)
    records = []
    for job in jobs:

        def tell(progress: EvalProgress, what: str = job.text) -> None:
            report(what, progress)

        found = draw_evaluation(job.experiment, run, engine, job.request, tell)
        found = found or stored_eval(job.experiment, run, job.request, engine.center_sha256())
        assert found is not None, job.request
        records.append(found)
        _count(target, record, engine)
    return records


def _count(target: Target, record: RunRecord, engine: Engine) -> None:
    """Keep what the evaluations cost. A run's peak is its training's: evaluating it later is no cost of its method."""
    spent = sum((e.cost for e in target.folder.read_evals()), Cost())
    peak = record.peak_bytes if target.trained else peak_bytes(engine, record.peak_bytes)
    target.folder.write_record(replace(record, eval=spent, peak_bytes=peak))
