"""The numbers of a generation, as a pure function of its recorded scores and moves.

Each key is a path, defined in `KEYS`; `metrics.jsonl` can be written again from `scores.jsonl` at any time.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
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
    "signal/members": "members of the last round whose score differs from the most common one",
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


def reward_metrics(rewards: Sequence[float], share: Mapping[str, float]) -> Metrics:
    """Mean, spread and best of the rewards (of ES: scores of members), and the parts of the rollouts' grades."""
    centre = mean(rewards)
    return {
        "reward/mean": centre,
        "reward/sd": math.sqrt(mean([(r - centre) ** 2 for r in rewards])),
        "reward/max": max(rewards),
        "accuracy/strict": share["strict"],
        "accuracy/flexible": share["flexible"],
        "format/rate": share["formatted"],
        "truncated/rate": share["truncated"],
        "length/mean": share["length"],
    }


def _one(number: int, group: Sequence[ScoreRecord]) -> Metrics:
    last = [r for r in group if r.round == group[-1].round]
    first = [r for r in group if r.round != group[-1].round]
    finite = [r.score for r in last if r.score is not None]
    share = {key: mean([r.parts[key] for r in last]) for key in last[0].parts}
    found = {
        "generation": number,
        **reward_metrics(finite, share),
        "signal/members": len(finite) - max(Counter(finite).values()),
        "candidates/non_finite": sum(r.score is None for r in group),
        "time/seconds": math.fsum(r.seconds for r in group),
    }
    if first:
        found["probe/reward_mean"] = mean([r.score for r in first if r.score is not None])
    return found
