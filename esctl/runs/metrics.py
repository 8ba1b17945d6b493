"""The numbers of a generation, as a pure function of its recorded scores and moves.

Each key is a path, defined in `KEYS`; `metrics.jsonl` can be written again from `scores.jsonl` at any time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from esctl.methods.shaping import mean
from esctl.noise.moves import Move
from esctl.runs.records import Cost, ScoreRecord

KEYS = {
    "generation": "generations done, this one included",
    "reward/mean": "mean score of the members of the last round (for ESSAM: around the probe)",
    "reward/sd": "their population standard deviation: the signal that a step is made of",
    "reward/max": "the best member",
    "accuracy/strict": "share of rollouts right in the asked-for format",
    "accuracy/flexible": "share right by the last number, box or expression",
    "format/rate": "share in the asked-for format, right or wrong",
    "truncated/rate": "share cut at max_tokens",
    "length/mean": "generated tokens per rollout",
    "probe/reward_mean": "mean score of the first round of a two-round method, around θ",
    "update/norm": "‖update‖ ≈ √(dim·Σc²)",
    "drift/norm": "‖θ − θ₀‖ ≈ √(dim·Σc²) over all updates",
    "candidates/non_finite": "members whose logits were not finite, given the round's lowest score",
    "cost/rollouts": "training rollouts so far",
    "cost/generated_tokens": "tokens generated in training so far",
    "time/seconds": "seconds of this generation: rollouts, grading and weight writes",
}
Metrics = dict[str, float]


@dataclass(frozen=True)
class Totals:
    """What the metrics of a generation take from those before it."""

    generations: int = 0
    spent: Cost = field(default_factory=Cost)
    drift: float = 0.0  # ‖θ − θ₀‖ ≈ √(dim·Σc²): all terms are independent draws


def all_metrics(records: Sequence[ScoreRecord], moves: Sequence[Move], dim: int) -> tuple[Totals, list[Metrics]]:
    """One entry per finished generation, and what the next one goes on from."""
    totals = Totals()
    found = list[Metrics]()
    groups = groupby(records, key=lambda r: r.generation)
    for (_, group), move in zip(groups, moves, strict=False):
        totals, metrics = next_metrics(totals, list(group), move, dim)
        found.append(metrics)
    return totals, found


def next_metrics(before: Totals, records: Sequence[ScoreRecord], move: Move, dim: int) -> tuple[Totals, Metrics]:
    """The entry of one generation from its own records and move, so that a long run pays for each record once."""
    norm = move.norm(dim)
    spent = before.spent + cost_of(records, dim)
    totals = Totals(before.generations + 1, spent, math.hypot(before.drift, norm))
    return totals, _one(totals.generations, records) | {
        "drift/norm": totals.drift,
        "cost/rollouts": spent.rollouts,
        "cost/generated_tokens": spent.generated_tokens,
        "update/norm": norm,
    }


def cost_of(records: Sequence[ScoreRecord], dim: int) -> Cost:
    """What so many candidates cost; a forward pass is some 2 operations per weight and token."""
    prompt = sum(r.prompt_tokens for r in records)
    generated = sum(r.generated_tokens for r in records)
    seconds = math.fsum(r.seconds for r in records)
    return Cost(sum(r.rollouts for r in records), prompt, generated, 2.0 * dim * (prompt + generated), seconds)


def _one(number: int, group: Sequence[ScoreRecord]) -> Metrics:
    last = [r for r in group if r.round == group[-1].round]
    first = [r for r in group if r.round != group[-1].round]
    finite = [r.score for r in last if r.score is not None]
    centre = mean(finite)
    share = {key: mean([r.parts[key] for r in last]) for key in last[0].parts}
    found = {
        "generation": number,
        "reward/mean": centre,
        "reward/sd": math.sqrt(mean([(s - centre) ** 2 for s in finite])),
        "reward/max": max(finite),
        "accuracy/strict": share["strict"],
        "accuracy/flexible": share["flexible"],
        "format/rate": share["formatted"],
        "truncated/rate": share["truncated"],
        "length/mean": share["length"],
        "candidates/non_finite": sum(r.score is None for r in group),
        "time/seconds": math.fsum(r.seconds for r in group),
    }
    if first:
        found["probe/reward_mean"] = mean([r.score for r in first if r.score is not None])
    return found


def warnings(metrics: Sequence[Metrics], patience: int = 3) -> list[str]:
    """What a person should know after the newest generation: no signal, or a collapse of reward or length."""
    newest = metrics[-1]
    recent = metrics[-patience:]
    found = []
    if len(recent) == patience and all(m["reward/sd"] == 0 for m in recent):
        level = newest["reward/mean"]
        found.append(
            f"no signal: every member scored {level:g} for {patience} generations; raise sigma or ease the task"
        )
    if newest["candidates/non_finite"]:
        found.append(f"{newest['candidates/non_finite']:.0f} members had logits that were not finite; lower sigma")
    return found + collapses(metrics, remedy="lower alpha")


def collapses(metrics: Sequence[Metrics], remedy: str) -> list[str]:
    """Whether reward or length has just collapsed, and what to do about the reward."""
    newest = metrics[-1]
    found = list[str]()
    best = max(m["reward/mean"] for m in metrics)
    now = newest["reward/mean"]
    before = metrics[max(0, len(metrics) - 2)]["reward/mean"]
    if best > 0.1 and now < best / 2 <= before:
        found.append(f"reward fell below half of its best, {now:.3f} from {best:.3f}; {remedy}")
    if newest["length/mean"] < 0.2 * metrics[0]["length/mean"]:
        found.append("completions are under a fifth of their first length: read samples/ for a degenerate answer")
    return found
