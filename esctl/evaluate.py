"""One evaluation of one set of weights on one split: rollouts, grades, and the file that comparisons read.

Leaves the weights to the engine and the statistics to `stats`.
"""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from esctl.engines import Completion, Engine, Sampling
from esctl.experiment import Experiment, Split
from esctl.grades import Scored, failures
from esctl.moves import EMPTY, Round
from esctl.records import Cost, EvalRecord, EvalSample, Mode, ProblemCounts, SamplingRecord, TaskRecord
from esctl.rundir import RunDir, adapter, write_gzip_lines, write_json


@dataclass(frozen=True)
class EvalRequest:
    """Which problems, for the weights of which generation; greedy."""

    split: Split
    step: int
    rollouts_spent: int  # training rollouts before these weights


def evaluate(experiment: Experiment, run: RunDir, engine: Engine, request: EvalRequest) -> EvalRecord | None:
    """Evaluate the engine's θ greedily and store it; None when the same evaluation is stored already."""
    sampling = SamplingRecord(0.0, 1.0, experiment.recipe.sampling.max_tokens, n=1, seed=0)
    path = eval_path(experiment, run, request, sampling)
    if path.is_file():
        return None
    begun = time.perf_counter()
    prompts = request.split.token_ids
    here = Round(request.step, 0, EMPTY, (EMPTY,))
    [completions] = engine.rollout(here, prompts, Sampling(sampling.temperature, sampling.max_tokens, sampling.top_p))
    scored = [experiment.score(request.split.problems, [c[s] for c in completions]) for s in range(sampling.n)]
    cost = _cost(completions, prompts, engine.dim, time.perf_counter() - begun)
    record = _record(experiment, engine, request, sampling, scored, cost)
    write_gzip_lines(path.with_suffix(".jsonl.gz"), _samples(request.split, scored))
    write_json(path, record)
    return record


def eval_path(experiment: Experiment, run: RunDir, request: EvalRequest, sampling: SamplingRecord) -> Path:
    """evals/<task>-<split>-<mode>-<hash8 of the settings>.json: equal settings are one file."""
    split, mode = request.split, Mode()
    settings = (
        adapter(SamplingRecord).dump_json(sampling) + adapter(Mode).dump_json(mode),
        f"{experiment.task.version}/{request.step}/{split.sha256}/{experiment.prompt_sha256}".encode(),
    )
    digest = hashlib.sha256(b"\0".join(settings)).hexdigest()[:8]
    return run.evals / f"{experiment.task.name}-{split.name}-{mode.kind}-{digest}.json"


def strict_share(record: EvalRecord) -> float:
    """Strict accuracy over all samples."""
    return sum(record.problems.strict) / sum(record.problems.n)


def _record(
    experiment: Experiment,
    engine: Engine,
    request: EvalRequest,
    sampling: SamplingRecord,
    scored: Sequence[Sequence[Scored]],
    cost: Cost,
) -> EvalRecord:
    return EvalRecord(
        task=TaskRecord(experiment.task.name, experiment.task.version),
        split=request.split.name,
        step=request.step,
        rollouts_spent=request.rollouts_spent,
        sampling=sampling,
        mode=Mode(),
        prompt_sha256=experiment.prompt_sha256,
        problems_sha256=request.split.sha256,
        weights_sha256=engine.center_sha256(),
        problems=_counts(request.split, scored),
        cost=cost,
        grader_failures=dict(failures([s for samples in scored for s in samples])),
    )


def _counts(split: Split, scored: Sequence[Sequence[Scored]]) -> ProblemCounts:
    by_problem = list(zip(*scored, strict=True))
    return ProblemCounts(
        id=[p.id for p in split.problems],
        difficulty=[p.difficulty for p in split.problems],
        n=[len(samples) for samples in by_problem],
        strict=[sum(s.grade.strict for s in samples) for samples in by_problem],
        flexible=[sum(s.grade.flexible for s in samples) for samples in by_problem],
        formatted=[sum(s.grade.formatted for s in samples) for samples in by_problem],
        truncated=[sum(s.truncated for s in samples) for samples in by_problem],
    )


def _samples(split: Split, scored: Sequence[Sequence[Scored]]) -> list[EvalSample]:
    by_problem = zip(split.problems, zip(*scored, strict=True), strict=True)
    return [
        EvalSample(
            problem=problem.id,
            sample=number,
            completion=s.completion.text,
            tokens=len(s.completion.token_ids),
            answer=s.grade.answer,
            strict=s.grade.strict,
            flexible=s.grade.flexible,
            formatted=s.grade.formatted,
            truncated=s.truncated,
        )
        for problem, samples in by_problem
        for number, s in enumerate(samples)
    ]


def _cost(
    completions: Sequence[Sequence[Completion]], prompts: Sequence[Sequence[int]], dim: int, seconds: float
) -> Cost:
    rollouts = sum(map(len, completions))
    prompt = sum(len(p) * len(c) for p, c in zip(prompts, completions, strict=True))
    generated = sum(len(c.token_ids) for samples in completions for c in samples)
    return Cost(rollouts, prompt, generated, 2.0 * dim * (prompt + generated), seconds)
