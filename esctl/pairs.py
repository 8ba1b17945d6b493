"""Two rows against each other on the same problems: difference, interval, exact test, problems won and lost.

Leaves single rows to `rows` and drawing problems again to `resampling`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from esctl.groups import ENOUGH_SEEDS, Group, mostly_right, pass_at
from esctl.resampling import Floats, Resamples, resampled
from esctl.selection import Kind, is_greedy
from esctl.stats import Estimate, both, mcnemar, seeds_half_width, within


@dataclass(frozen=True)
class Pair:
    """`row` minus `against` in one metric, over the problems of both."""

    row: str
    against: str
    metric: str  # strict, or a column of pass@k
    difference: Estimate
    over: str  # problems | problems and seeds: what the interval speaks for
    won: float | None  # problems that `row` answers rightly and `against` does not, mean over pairs of their runs;
    lost: float | None  # and the other way; None for pass@k, where a problem is neither right nor wrong
    p_value: float | None  # McNemar's exact test, where each side is one greedy run


def pair_of(pairs: Sequence[Pair], row: str, against: str, metric: str = "strict") -> Pair | None:
    """`row` minus `against`, whichever way round the pair is there; None where it is not."""
    for pair in pairs:
        if pair.metric == metric and {pair.row, pair.against} == {row, against}:
            return pair if pair.row == row else turned(pair)
    return None


def turned(pair: Pair) -> Pair:
    """The same pair from the other side."""
    d = pair.difference
    flipped = Estimate(-d.value, -d.high, -d.low)
    return replace(pair, row=pair.against, against=pair.row, difference=flipped, won=pair.lost, lost=pair.won)


def difference(draws: Resamples, row: int, against: int, seeds: Sequence[float], others: Sequence[float]) -> Estimate:
    """Row minus row with a 95 % interval over problems and, with three or more seeds, over seeds too.

    `seeds` and `others` are the means of each run of the two rows; empty for a model that was not trained, which has
    no seeds. With fewer than three on a side the interval is conditional on these runs.
    """
    estimate = draws.difference(row, against)
    if speaks_for_seeds(seeds, others):
        estimate = both(estimate, seeds_half_width(seeds, others))
    return within(estimate, -1.0, 1.0)


def speaks_for_seeds(seeds: Sequence[float], others: Sequence[float]) -> bool:
    """Whether each side that has seeds has enough, and one side has any."""
    counts = [len(values) for values in (seeds, others) if values]
    return bool(counts) and min(counts) >= ENOUGH_SEEDS


def strict_pairs(groups: Sequence[Group]) -> list[Pair]:
    """Every pair of groups that share their problems, in strict accuracy; the later minus the earlier."""
    found = []
    for alike in _by_problems(groups, lambda g: g.ids):
        scores = [g.shares("strict") for g in alike]
        right = [mostly_right(g) for g in alike]
        for i, j, estimate, over in _differences(alike, scores):
            single = all(len(alike[x].items) == 1 and is_greedy(alike[x].items[0].eval) for x in (i, j))
            a, b = right[j], right[i]
            p_value = mcnemar(a[0].astype(int).tolist(), b[0].astype(int).tolist()) if single else None
            found.append(Pair(alike[j].label, alike[i].label, "strict", estimate, over, *won_and_lost(a, b), p_value))
    return found


def sampled_pairs(groups: Sequence[Group], name: str, kind: Kind, k: int) -> list[Pair]:
    """Every pair of groups that were sampled alike, in pass@k; the later minus the earlier."""
    found = []
    having = [g for g in groups if g.sampled(kind)]
    for alike in _by_problems(having, lambda g: tuple(g.items[0].sampled[kind].problems.id)):
        scores = [pass_at(g, kind, k) for g in alike]
        for i, j, estimate, over in _differences(alike, scores):
            found.append(Pair(alike[j].label, alike[i].label, name, estimate, over, None, None, None))
    return found


def won_and_lost(row: Floats, against: Floats) -> tuple[float, float]:
    """Problems wrong → right and right → wrong, from runs × problems of 0 and 1: the mean over all pairs of runs."""
    a, b = row.mean(axis=0), against.mean(axis=0)
    return float(a @ (1 - b)), float(b @ (1 - a))


def _by_problems(groups: Sequence[Group], ids: Callable[[Group], tuple[str, ...]]) -> list[list[Group]]:
    """Groups that can be paired: those whose problems are the same, in the same order."""
    found: dict[tuple[str, ...], list[Group]] = {}
    for group in groups:
        if group.paired:
            found.setdefault(ids(group), []).append(group)
    return list(found.values())


def _differences(groups: Sequence[Group], scores: Sequence[Floats]) -> list[tuple[int, int, Estimate, str]]:
    """(earlier, later, later − earlier, what its interval speaks for) of every pair, from one drawing of problems."""
    draws = resampled(np.stack([s.mean(axis=0) for s in scores]))
    seeds = [s.mean(axis=1).tolist() if g.trained else [] for g, s in zip(groups, scores, strict=True)]
    return [
        (
            i,
            j,
            difference(draws, j, i, seeds[j], seeds[i]),
            "problems and seeds" if speaks_for_seeds(seeds[j], seeds[i]) else "problems",
        )
        for i, j in combinations(range(len(groups)), 2)
    ]
