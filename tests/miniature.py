"""Miniature run directories: what `compare` needs of a run, written with the records that a real run writes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from esctl.recipe import dump_recipe, load_recipe
from esctl.records import (
    Base,
    Cost,
    EvalRecord,
    Mode,
    NoiseRecord,
    Peak,
    ProblemCounts,
    RunRecord,
    SamplingRecord,
    TaskRecord,
)
from esctl.rundir import RunDir, write_atomic, write_json

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
