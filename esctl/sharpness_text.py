"""A sharpness measurement as text for a person, and as JSON."""

import math
from collections.abc import Sequence

from esctl.cells import aligned
from esctl.records import SharpnessRecord
from esctl.rundir import adapter
from esctl.stats import over_seeds, wilson


def json_text(record: SharpnessRecord) -> str:
    """The measurement as it is stored."""
    return adapter(SharpnessRecord).dump_json(record, indent=1).decode()


def text(record: SharpnessRecord, dim: int) -> str:
    """θ itself, then what noise and steps cost it, in points of strict accuracy and nats per reference token."""
    return "\n\n".join([_head(record), _average(record, dim), _direction(record)])


def _head(record: SharpnessRecord) -> str:
    n = record.cost.rollouts // _candidates(record)
    score = wilson(round(record.score * n), n)
    lines = [
        f"{record.task.name} v{record.task.version}, {record.split} split, {n:,} problems, generation {record.step},"
        f" greedy, at most {record.sampling.max_tokens:,} tokens",
        f"at θ: strict {100 * score.value:.1f} % ({100 * score.low:.1f}–{100 * score.high:.1f}), one problem is"
        f" {100 / n:.1f} points"
        + ("" if record.nll is None else f", reference solutions {record.nll:.4f} nats per token"),
    ]
    return "\n".join(lines)


def _candidates(record: SharpnessRecord) -> int:
    """How often every problem was answered."""
    average = sum(len(point.drops) for point in record.average)
    return 1 + average + record.estimate_members + sum(1 + len(point.random) for point in record.direction)


def _average(record: SharpnessRecord, dim: int) -> str:
    seeds = len(record.average[0].drops)
    rows = [["σ", "‖σε‖", "points lost", "nats per token risen"]]
    for point in record.average:
        risen = _mean(point.nll_rises, 1, 4) if point.nll_rises else "no references"
        rows.append([f"{point.sigma:g}", f"{point.sigma * math.sqrt(dim):.3g}", _mean(point.drops, 100, 1), risen])
    return f"average: θ + σε, mean over {_count(seeds, 'noise seed')}{_interval(seeds)}\n{_table(rows)}"


def _direction(record: SharpnessRecord) -> str:
    members, sigma = record.estimate_members, record.estimate_sigma
    if not record.direction:
        return f"direction: none to follow, all {members} members at σ = {sigma:g} scored alike; raise --sigma or -n"
    n = len(record.direction[0].random)
    rows = [["c", "norm", "points lost against g", "points lost at random"]]
    rows += [
        [f"{p.scale:g}", f"{p.norm:.3g}", f"{100 * p.against:+.1f}", _mean(p.random, 100, 1)] for p in record.direction
    ]
    return (
        f"direction: a step of norm c·ρ√(d/N), ρ = {record.rho:g}, against a fresh ES estimate g (N = {members},"
        f" σ = {sigma:g}),\nand along {_count(n, 'random direction')} of equal norm{_interval(n)}\n{_table(rows)}"
    )


def _mean(values: Sequence[float], factor: float, places: int) -> str:
    if len(values) == 1:
        return f"{factor * values[0]:+.{places}f}"
    e = over_seeds([factor * v for v in values])
    return f"{e.value:+.{places}f} ({e.low:+.{places}f} to {e.high:+.{places}f})"


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _interval(n: int) -> str:
    return ", no interval from one" if n == 1 else " (95 %, Student's t)"


def _table(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"  {line}" for line in aligned(rows))
