"""Draw, grade and store one evaluation: one set of weights, one split, greedy or sampled, in resumable chunks.

`sampling` decides which samples there are, `coverage` and `stats` say what they show.
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from esctl.engines import Engine
from esctl.errors import RunError
from esctl.evaluation.coverage import problem_counts
from esctl.evaluation.sampling import GREEDY, Chunk, Decoding, chunks, missing, noise_seed, token_seed
from esctl.experiment.experiment import Experiment, Split
from esctl.experiment.scoring import Rewarded
from esctl.noise.moves import EMPTY, Move, Round
from esctl.runs.directory import RunDir
from esctl.runs.files import (
    append_lines,
    drop_torn_line,
    read_gzip_lines,
    read_json,
    read_lines,
    write_gzip_lines,
    write_json,
)
from esctl.runs.records import WEIGHT, Cost, EvalPart, EvalRecord, EvalSample, SamplingRecord, TaskRecord
from esctl.tasks import Problem


@dataclass(frozen=True)
class EvalRequest:
    """Which problems, for the weights of which generation, and how samples are drawn."""

    split: Split
    step: int
    rollouts_spent: int  # training rollouts before these weights
    decoding: Decoding = GREEDY


@dataclass(frozen=True)
class EvalProgress:
    """How far an evaluation is, after a chunk."""

    done: int  # samples, those of earlier sessions too
    total: int
    drawn: int  # samples of this session, with their tokens and seconds
    tokens: int
    seconds: float


ReportProgress = Callable[[EvalProgress], None]


def draw_evaluation(
    experiment: Experiment,
    run: RunDir,
    engine: Engine,
    request: EvalRequest,
    report: ReportProgress = lambda progress: None,
) -> EvalRecord | None:
    """Evaluate the engine's θ and store it; None when that is stored already, with as many samples or more.

    Samples of an interrupted evaluation, or of one with fewer samples, are kept: only what is missing is drawn. So the
    files are those of an evaluation that nothing interrupted, but for the seconds.
    """
    path = eval_path(experiment, run, request)
    weights = engine.center_sha256()
    if stored_eval(experiment, run, request, weights) is not None:
        return None
    have, seconds = _kept(path, weights)
    seconds += _draw_missing(experiment, engine, request, path, have, report, weights)
    ids, n = [p.id for p in request.split.problems], request.decoding.n
    samples = [[have[problem, s] for s in range(n)] for problem in ids]
    record = _record(experiment, engine, request, samples, seconds, weights)
    write_gzip_lines(path.with_suffix(".jsonl.gz"), (s for own in samples for s in own))
    write_json(path, record)
    part_path(path).unlink(missing_ok=True)
    return record


def stored_eval(experiment: Experiment, run: RunDir, request: EvalRequest, weights: str) -> EvalRecord | None:
    """The stored evaluation that answers a request: equal settings, and at least as many samples.

    `weights` is the hash of the weights that the request is about; RunError where the stored ones were others.
    """
    path = eval_path(experiment, run, request)
    if not path.is_file():
        return None
    record = read_json(path, EvalRecord)
    run.refuse_other_weights(path, record.weights_sha256, weights)
    return record if record.sampling.n >= request.decoding.n else None


def has_stored(experiment: Experiment, run: RunDir, request: EvalRequest) -> bool:
    """Whether a file answers a request, whatever weights it is of; reads no weights."""
    path = eval_path(experiment, run, request)
    return path.is_file() and read_json(path, EvalRecord).sampling.n >= request.decoding.n


def eval_path(experiment: Experiment, run: RunDir, request: EvalRequest) -> Path:
    """evals/<task>-<split>-<mode>-<hash8 of the settings>.json: equal settings but for n are one file."""
    split, decoding = request.split, request.decoding
    settings = {
        **asdict(decoding),
        "n": None,
        "max_tokens": experiment.recipe.sampling.max_tokens,
        "task": [experiment.task.name, experiment.task.version],
        "step": request.step,
        "problems": split.sha256,
        "prompt": experiment.prompt_sha256,
        **({"stop": experiment.recipe.stops} if experiment.recipe.stops else {}),
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    return run.evals / f"{experiment.task.name}-{split.name}-{decoding.mode.kind}-{digest}.json"


def part_path(path: Path) -> Path:
    """Where the chunks of an evaluation lie until it is whole."""
    return path.with_suffix(".part.jsonl")


def _kept(path: Path, weights: str) -> tuple[dict[tuple[str, int], EvalSample], float]:
    """Samples of these weights that are on disk for these settings, and the seconds they took."""
    record = read_json(path, EvalRecord) if path.is_file() else None
    whole, part = path.with_suffix(".jsonl.gz"), part_path(path)
    before = read_gzip_lines(whole, EvalSample) if whole.is_file() else []
    drop_torn_line(part)
    # Chunks of samples that the file has already were left by a kill after it was written.
    first, seconds = (0, 0.0) if record is None else (record.sampling.n, record.cost.seconds)
    parts = [p for p in read_lines(part, EvalPart) if p.samples[-1].sample >= first and p.weights_sha256 == weights]
    samples = [*before, *(s for p in parts for s in p.samples)]
    return {(s.problem, s.sample): s for s in samples}, seconds + sum(p.seconds for p in parts)


def _draw_missing(
    experiment: Experiment,
    engine: Engine,
    request: EvalRequest,
    path: Path,
    have: dict[tuple[str, int], EvalSample],
    report: ReportProgress,
    weights: str,
) -> float:
    """Add what is missing to `have`, chunk by chunk, each on disk before the next begins; returns the seconds."""
    ids, n = [p.id for p in request.split.problems], request.decoding.n
    plan = [rest for chunk in chunks(len(ids), request.decoding) if (rest := missing(chunk, ids, have)) is not None]
    total, drawn, tokens, spent = len(ids) * n, 0, 0, 0.0
    left = sum(len(chunk.problems) * len(chunk.samples) for chunk in plan)
    for chunk in plan:
        begun = time.perf_counter()
        samples = _draw(experiment, engine, request, chunk)
        seconds = time.perf_counter() - begun
        have |= {(s.problem, s.sample): s for s in samples}
        if chunk is not plan[-1]:  # the last is followed by the file itself
            append_lines(part_path(path), [EvalPart(samples, seconds, weights)], sync=True)
        drawn, tokens, spent = drawn + len(samples), tokens + sum(s.tokens for s in samples), spent + seconds
        report(EvalProgress(total - left + drawn, total, drawn, tokens, spent))
    return spent


def _draw(experiment: Experiment, engine: Engine, request: EvalRequest, chunk: Chunk) -> list[EvalSample]:
    """One chunk: one generate call under θ, or under θ + σε of its one sample index."""
    decoding, split = request.decoding, request.split.subset(chunk.problems)
    candidate, seeds = EMPTY, None
    if decoding.mode.kind == WEIGHT:
        [index] = chunk.samples
        candidate = Move.of([noise_seed(decoding.seed, index)], [decoding.mode.sigma])
    if decoding.temperature > 0:
        seeds = [[token_seed(decoding.seed, p.id, s) for s in chunk.samples] for p in split.problems]
    sampling = experiment.sampling(decoding.temperature, decoding.top_p)
    [completions] = engine.rollout(Round(request.step, 0, EMPTY, (candidate,)), split.token_ids, sampling, seeds)
    if candidate == EMPTY and not all(c.finite for own in completions for c in own):
        raise RunError(
            "the model's logits are not finite, so its answers mean nothing; check its weights,"
            " or serve it with engine.dtype float32"
        )
    rewarded = experiment.reward(split.problems, completions)
    return [
        _sample(problem, index, sample)
        for problem, own in zip(split.problems, rewarded, strict=True)
        for index, sample in zip(chunk.samples, own, strict=True)
    ]


def _sample(problem: Problem, index: int, sample: Rewarded) -> EvalSample:
    return EvalSample(
        problem=problem.id,
        sample=index,
        completion=sample.completion.text,
        tokens=len(sample.completion.token_ids),
        answer=sample.grade.answer,
        strict=sample.grade.strict,
        flexible=sample.grade.flexible,
        formatted=sample.grade.formatted,
        truncated=sample.truncated,
        failure=sample.grade.failure,
        finite=sample.completion.finite,
    )


def _record(
    experiment: Experiment,
    engine: Engine,
    request: EvalRequest,
    samples: Sequence[Sequence[EvalSample]],
    seconds: float,
    weights: str,
) -> EvalRecord:
    split, decoding = request.split, request.decoding
    return EvalRecord(
        task=TaskRecord(experiment.task.name, experiment.task.version),
        split=split.name,
        step=request.step,
        rollouts_spent=request.rollouts_spent,
        sampling=SamplingRecord(
            decoding.temperature,
            decoding.top_p,
            experiment.recipe.sampling.max_tokens,
            decoding.n,
            decoding.seed,
            list(experiment.recipe.stops),
        ),
        mode=decoding.mode,
        prompt_sha256=experiment.prompt_sha256,
        problems_sha256=split.sha256,
        weights_sha256=weights,
        problems=problem_counts([p.id for p in split.problems], [p.difficulty for p in split.problems], samples),
        cost=_cost(split, samples, engine.dim, seconds),
        grader_failures=dict(Counter(s.failure for own in samples for s in own if s.failure is not None)),
        non_finite=sum(not s.finite for own in samples for s in own),
    )


def _cost(split: Split, samples: Sequence[Sequence[EvalSample]], dim: int, seconds: float) -> Cost:
    prompt = sum(len(ids) * len(own) for ids, own in zip(split.token_ids, samples, strict=True))
    generated = sum(s.tokens for own in samples for s in own)
    return Cost(sum(map(len, samples)), prompt, generated, 2.0 * dim * (prompt + generated), seconds)
