"""Rows from run directories: scores beside costs, an interval on every accuracy, and no numbers that differ in kind.

Reads `run.json`, `recipe.yaml` and `evals/` only: no torch, so it runs on any laptop.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import yaml

from esctl.errors import RunError, UsageError
from esctl.records import EvalRecord, RunRecord
from esctl.rundir import RunDir
from esctl.stats import Estimate, mcnemar, over_seeds, sd, wilson

ENOUGH_SEEDS = 3  # fewer say nothing about other seeds: the interval is over problems, conditional on these runs

# Both are safe; the one in C reads a recipe in under 1 ms instead of 5, and a table may hold a hundred.
LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


@dataclass(frozen=True)
class Evaluated:
    """One run and the evaluation that stands for it."""

    run: RunDir
    record: RunRecord
    eval: EvalRecord


@dataclass(frozen=True)
class Row:
    """One label: its seeds together."""

    label: str
    seeds: int
    strict: Estimate
    strict_sd: float  # over seeds; 0 for one
    flexible: Estimate
    formatted: Estimate
    gain: float | None  # strict accuracy over the base, where a base row is there
    p_value: float | None  # McNemar against the base, for a single run
    rollouts: float  # training cost, mean over seeds
    generated_tokens: float
    seconds: float
    peak_bytes: int  # the largest


@dataclass(frozen=True)
class Comparison:
    """The table, what it is about, and what a reader must know."""

    task: str
    split: str
    problems: int
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


def compare(runs: Sequence[RunDir], split: str, task: str | None = None, force: bool = False) -> Comparison:
    """Put runs side by side; raises UsageError naming the first field in which their evaluations differ in kind."""
    chosen = [_stand_in(run, split, task) for run in runs]
    differences = _differences(chosen)
    if differences and not force:
        raise UsageError(f"not comparable: {differences[0]}; evaluate them alike, or print anyway with --force")
    first = chosen[0].eval
    groups = _grouped(chosen)
    bases = {g[0].record.base.weights_sha256: g for g in groups.values() if g[0].record.method == "base"}
    rows = tuple(_row(group, bases.get(group[0].record.base.weights_sha256)) for group in groups.values())
    notes = [f"NOT COMPARABLE: {d}" for d in differences]
    for group in groups.values():
        if len({item.record.seed for item in group}) < len(group):
            notes.append(f"{group[0].record.label}: a seed is there twice, so the interval is too narrow")
    few = [r.label for r in rows if r.seeds < ENOUGH_SEEDS and r.rollouts]  # what was not trained has no seeds
    if few:
        notes.append(f"{', '.join(few)}: fewer than {ENOUGH_SEEDS} seeds, intervals are conditional on these runs")
    return Comparison(f"{first.task.name} v{first.task.version}", split, len(first.problems.id), rows, tuple(notes))


def _stand_in(run: RunDir, split: str, task: str | None) -> Evaluated:
    """The greedy evaluation of the weights that the run kept, or of its newest weights so far."""
    record = run.read_record()
    evals = [e for e in run.read_evals() if e.split == split and task in (None, e.task.name)]
    greedy = [e for e in evals if e.sampling.temperature == 0 and e.mode.kind == "token" and e.problems.id]
    if not greedy:
        raise RunError(
            f"{run.path}: no greedy evaluation on {split}; make one with `esctl eval {run.path} --split {split}`"
        )
    kept = [e for e in greedy if e.step == record.kept_generation]
    return Evaluated(run, record, (kept or sorted(greedy, key=lambda e: e.step))[-1])


def _differences(chosen: Sequence[Evaluated]) -> list[str]:
    """The fields that decide what a number means, where two evaluations differ in them."""
    found, first, wanted = [], chosen[0], _kind(chosen[0].eval)
    for other in chosen[1:]:
        for field, value in _kind(other.eval).items():
            if value != wanted[field]:
                found.append(f"{field} is {wanted[field]} in {first.run.path} but {value} in {other.run.path}")
    return found


def _kind(record: EvalRecord) -> dict[str, object]:
    return {
        "task": asdict(record.task),
        "split": record.split,
        "sampling": asdict(record.sampling),
        "mode": asdict(record.mode),
        "prompt_sha256": record.prompt_sha256,
        "problems_sha256": record.problems_sha256,
    }


def _grouped(chosen: Sequence[Evaluated]) -> dict[str, list[Evaluated]]:
    groups: dict[str, list[Evaluated]] = {}
    for item in chosen:
        groups.setdefault(_group_key(item), []).append(item)
    return groups


def _group_key(item: Evaluated) -> str:
    """The recipe without its seed: runs that differ in nothing else are one row."""
    if not item.run.recipe.is_file():
        return f"{item.record.label}\0{item.record.method}\0{item.record.base.weights_sha256}"
    try:
        tree = yaml.load(item.run.recipe.read_text(), LOADER)
    except (yaml.YAMLError, UnicodeDecodeError):
        tree = None
    if not isinstance(tree, dict):
        raise RunError(f"{item.run.recipe}: not a recipe; restore it from a copy")
    return json.dumps({k: v for k, v in tree.items() if k not in ("seed", "engine")}, sort_keys=True)


def _row(group: Sequence[Evaluated], base: Sequence[Evaluated] | None) -> Row:
    train = [item.record.train for item in group]
    strict = [_share(item.eval, "strict") for item in group]
    gain = None if base is None or group is base else _mean(strict) - _mean([_share(b.eval, "strict") for b in base])
    alone = base is not None and group is not base and len(group) == len(base) == 1
    paired = base is not None and group[0].eval.problems.id == base[0].eval.problems.id
    return Row(
        label=group[0].record.label,
        seeds=len(group),
        strict=_estimate(group, "strict"),
        strict_sd=sd(strict),
        flexible=_estimate(group, "flexible"),
        formatted=_estimate(group, "formatted"),
        gain=gain,
        p_value=mcnemar(_right(group[0].eval), _right(base[0].eval)) if base and alone and paired else None,
        rollouts=_mean([c.rollouts for c in train]),
        generated_tokens=_mean([c.generated_tokens for c in train]),
        seconds=_mean([c.seconds for c in train]),
        peak_bytes=max(item.record.peak_bytes.host + item.record.peak_bytes.device for item in group),
    )


def _estimate(group: Sequence[Evaluated], part: str) -> Estimate:
    """The wider of the interval over problems (pooled Wilson) and, with enough seeds, the t interval over seeds."""
    right = sum(sum(_counts(item.eval, part)) for item in group)
    pooled = wilson(right, sum(sum(item.eval.problems.n) for item in group))
    if len(group) < ENOUGH_SEEDS:
        return pooled
    seeds = over_seeds([_share(item.eval, part) for item in group])
    wider = seeds if seeds.high - seeds.low > pooled.high - pooled.low else pooled
    return Estimate(wider.value, max(0.0, wider.low), min(1.0, wider.high))


def _counts(record: EvalRecord, part: str) -> list[int]:
    p = record.problems
    return {"strict": p.strict, "flexible": p.flexible, "formatted": p.formatted}[part]


def _share(record: EvalRecord, part: str) -> float:
    return sum(_counts(record, part)) / sum(record.problems.n)


def _right(record: EvalRecord) -> list[int]:
    return [int(c > 0) for c in record.problems.strict]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
