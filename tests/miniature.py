"""Miniature run directories: what `compare` needs of a run, written with the records that a real run writes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from esctl.experiment.loading import dump_recipe, load_recipe
from esctl.runs.directory import RunDir
from esctl.runs.files import append_lines, write_atomic, write_json
from esctl.runs.records import (
    AveragePoint,
    Base,
    Cost,
    DirectionPoint,
    EvalRecord,
    Mode,
    NoiseRecord,
    Peak,
    ProblemCounts,
    RunRecord,
    SamplingRecord,
    ScoreRecord,
    SharpnessRecord,
    TaskRecord,
)

RECORD = RunRecord(
    label="ES",
    method="es",
    seed=0,
    base=Base("embedded", "base-weights", "tokenizer"),
    prompt_sha256="prompt",
    problems_sha256={"train": "train-problems"},
    dim=1000,
    noise=NoiseRecord(1, "noise"),
    status="finished",
    generation=10,
    kept_generation=10,
    train=Cost(640, 6400, 12800, 1e9, 20.0),
    peak_bytes=Peak(host=2**30, device=2**29),
)


def evaluation(right: Sequence[int], step: int = 10, split: str = "test", weights: str = "tuned") -> EvalRecord:
    """A greedy evaluation in which the problems with a 1 in `right` were answered strictly right."""
    n, strict = len(right), list(right)
    counts = ProblemCounts([f"p{i}" for i in range(n)], ["easy"] * n, [1] * n, strict, strict, [1] * n, [0] * n)
    return EvalRecord(
        TaskRecord("arithmetic", 1), split, step, 640, SamplingRecord(0.0, 1.0, 64, 1, 0), Mode(), "prompt",
        f"{split}-problems", weights, counts, Cost(n, n, n, 1.0, 1.0),
    )  # fmt: skip


def sampled(right: Sequence[int], n: int, step: int = 10, temperature: float = 0.6) -> EvalRecord:
    """An evaluation with n samples of each problem, of which `right` were strictly right."""
    greedy = evaluation(right, step)
    counts = replace(greedy.problems, n=[n] * len(right), formatted=[n] * len(right), truncated=[0] * len(right))
    return replace(greedy, sampling=SamplingRecord(temperature, 0.95, 64, n, 0), problems=counts)


def sharpness(drops: Sequence[float], sigmas: Sequence[float] = (0.01, 0.02), step: int = 10) -> SharpnessRecord:
    """A measurement in which noise costs `drops` at every sigma, one per direction, doubled at each further one."""
    points = [AveragePoint(s, [d * 2**i for d in drops], [d * i for d in drops]) for i, s in enumerate(sigmas)]
    directions = [DirectionPoint(s, 0.3 * s, 0.02 * s, [0.01 * s, 0.015 * s]) for s in (1.0, 2.0)]
    return SharpnessRecord(
        TaskRecord("arithmetic", 1), "test", step, 640, SamplingRecord(0.0, 1.0, 64, 1, 0), "prompt", "test-problems",
        "tuned", 0.7, 0.5, points, directions, 16, Cost(10, 10, 10, 1.0, 1.0),
    )  # fmt: skip


def score(generation: int, member: int = 0) -> ScoreRecord:
    """A candidate of 64 rollouts that took 2 seconds."""
    parts = {"strict": 0.5, "flexible": 0.6, "formatted": 0.9, "truncated": 0.0, "length": 20.0}
    return ScoreRecord(generation, 0, member, 0.5, parts, 64, 640, 1280, 2.0)


def write_scores(run: RunDir, generations: int) -> None:
    """A history of one candidate per generation, 64 rollouts each."""
    append_lines(run.scores, [score(generation) for generation in range(generations)])


def write_run(path: Path, *evals: EvalRecord, seed: int = 0, method: str = "es", label: str = "") -> RunDir:
    """A run of a shipped method on the embedded task, with its recipe, record and evaluations."""
    run = RunDir(path)
    recipe = load_recipe(f"arithmetic/{method}", {"seed": seed, **({"label": label} if label else {})})
    write_atomic(run.recipe, dump_recipe(recipe).encode())
    run.write_record(replace(RECORD, label=recipe.label, method=method, seed=seed))
    write_evals(run, *evals)
    return run


def write_base(path: Path, *evals: EvalRecord, weights: str = "base-weights") -> RunDir:
    """A plain model's evaluations: no training and no cost."""
    run = RunDir(path)
    record = replace(RECORD, label="base", method="base", generation=0, kept_generation=0, train=Cost())
    run.write_record(replace(record, base=replace(record.base, weights_sha256=weights)))
    write_evals(run, *evals)
    return run


def write_evals(run: RunDir, *evals: EvalRecord) -> None:
    """Evaluation files; their names are read by nobody."""
    for number, record in enumerate(evals):
        write_json(run.evals / f"{number}.json", record)
