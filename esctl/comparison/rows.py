"""Every number of a table: rows, each over its seeds, and pairs of rows on the same problems.

Every estimate has a 95 % interval; costs are means over seeds. docs/statistics.md explains each number.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from esctl.comparison.groups import ENOUGH_SEEDS, Group, mostly_right, pass_at, shares
from esctl.comparison.settings import EvalSetting
from esctl.runs.records import Cost, Peak, SharpnessRecord
from esctl.stats import (
    Estimate,
    Floats,
    Resamples,
    both,
    mcnemar,
    over_problems,
    over_seeds,
    resampled,
    sd,
    seeds_half_width,
    within,
)


@dataclass(frozen=True)
class Pair:
    """`row` minus `against` in one metric, over the problems of both."""

    row: str
    against: str
    metric: str  # strict, or a column of pass@k
    difference: Estimate
    over: str  # problems | problems and seeds: what the interval generalises to
    won: float | None  # problems that `row` answers rightly and `against` does not, mean over pairs of their runs;
    lost: float | None  # and the other way; None for pass@k, where a problem is neither right nor wrong
    p_value: float | None  # McNemar's exact test, where each side is one greedy run


def pair_of(pairs: Sequence[Pair], row: str, against: str, metric: str = "strict") -> Pair | None:
    """`row` minus `against`, in whichever order the pair is stored; None without such a pair."""
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

    `seeds` and `others` are the means of each run of the two rows, and empty for an untrained model, which has no
    seeds. With fewer than three seeds on a side the interval is conditional on these runs.
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
        for earlier, later, estimate, over in _differences(alike, scores):
            row, against = alike[later], alike[earlier]
            won, lost = won_and_lost(right[later], right[earlier])
            # McNemar's test needs one right or wrong answer to each problem on both sides.
            p_value = None
            if row.single_greedy and against.single_greedy:
                p_value = mcnemar(right[later][0].astype(int).tolist(), right[earlier][0].astype(int).tolist())
            found.append(Pair(row.label, against.label, "strict", estimate, over, won, lost, p_value))
    return found


def sampled_pairs(groups: Sequence[Group], name: str, setting: EvalSetting, k: int) -> list[Pair]:
    """Every pair of groups that were sampled alike, in pass@k; the later minus the earlier."""
    found = []
    sampled = [g for g in groups if g.sampled(setting)]
    for alike in _by_problems(sampled, lambda g: g.sampled_ids(setting)):
        scores = [pass_at(g, setting, k) for g in alike]
        for earlier, later, estimate, over in _differences(alike, scores):
            found.append(Pair(alike[later].label, alike[earlier].label, name, estimate, over, None, None, None))
    return found


def won_and_lost(row: Floats, against: Floats) -> tuple[float, float]:
    """Problems wrong → right and right → wrong, from runs × problems of 0 and 1: the mean over all pairs of runs."""
    ours = row.mean(axis=0)
    theirs = against.mean(axis=0)
    return float(ours @ (1 - theirs)), float(theirs @ (1 - ours))


def _by_problems(groups: Sequence[Group], ids: Callable[[Group], tuple[str, ...]]) -> list[list[Group]]:
    """Groups that can be paired: those whose problems are the same, in the same order."""
    found: dict[tuple[str, ...], list[Group]] = {}
    for group in groups:
        if group.paired:
            found.setdefault(ids(group), []).append(group)
    return list(found.values())


def _differences(groups: Sequence[Group], scores: Sequence[Floats]) -> list[tuple[int, int, Estimate, str]]:
    """(earlier, later, later − earlier, what its interval generalises to) of every pair, from one set of resamples."""
    draws = resampled(np.stack([s.mean(axis=0) for s in scores]))
    seeds = [s.mean(axis=1).tolist() if g.trained else [] for g, s in zip(groups, scores, strict=True)]
    found = []
    for earlier, later in combinations(range(len(groups)), 2):
        over = "problems and seeds" if speaks_for_seeds(seeds[later], seeds[earlier]) else "problems"
        found.append((earlier, later, difference(draws, later, earlier, seeds[later], seeds[earlier]), over))
    return found


@dataclass(frozen=True)
class SeedScore:
    """The shares of one run of a row: what its mean and its spread over seeds are made of."""

    seed: int
    strict: float
    flexible: float
    formatted: float


@dataclass(frozen=True)
class Row:
    """The numbers of one group: the mean over its seeds, with intervals."""

    label: str
    seeds: int
    strict: Estimate
    strict_sd: float  # over seeds; 0 for one
    flexible: Estimate
    formatted: Estimate
    pass_at: dict[str, Estimate]  # by column
    gain: Estimate | None  # strict accuracy over the base, where the table has a base row
    progressions: float | None  # problems wrong for the base and right here, mean over pairs of runs
    regressions: float | None
    p_value: float | None  # McNemar against the base, for a single greedy run
    sharpness: Estimate | None  # S_avg at the comparison's sigma
    rollouts: float  # training cost, mean over seeds; None where no file records it
    generated_tokens: float | None
    flops: float | None  # 2 per weight and token, an estimate
    seconds: float | None
    host_bytes: int  # the largest of its runs, without KV cache
    device_bytes: int
    by_seed: tuple[SeedScore, ...] = ()


def mean_estimate(scores: Floats, answers: int) -> Estimate:
    """Mean over seeds × problems of scores in [0, 1] that are means of `answers` answers each, with its interval.

    Over problems by Wilson at the number of answers that they are worth; with three or more seeds, over seeds too.
    """
    estimate = over_problems(scores.mean(axis=0).tolist(), answers * len(scores))
    if len(scores) >= ENOUGH_SEEDS:
        estimate = both(estimate, seeds_half_width(scores.mean(axis=1).tolist()))
    return within(estimate, 0.0, 1.0)


def accuracy(group: Group, part: str) -> Estimate:
    """Strict or flexible accuracy, or the format rate."""
    if group.paired:
        return mean_estimate(group.shares(part), min(group.items[0].eval.problems.n))
    pooled = np.concatenate([shares(item, part) for item in group.items])
    return mean_estimate(pooled[None, :], 1)


def pass_estimate(group: Group, setting: EvalSetting, k: int) -> Estimate:
    """pass@k of a row whose runs were all sampled so; n samples are worth n // k independent draws of k."""
    return mean_estimate(pass_at(group, setting, k), group.samples(setting) // k)


def common_sigmas(records: Sequence[SharpnessRecord]) -> list[float]:
    """The noise scales that all records share, in order."""
    grids = [{p.sigma for p in r.average} for r in records]
    return sorted(set.intersection(*grids)) if grids else []


def drops_at(records: Sequence[SharpnessRecord], sigma: float) -> Floats:
    """The terms of S_avg(sigma), runs × directions: the first so many that all have, the same ε for every run."""
    terms = [p.drops for r in records for p in r.average if p.sigma == sigma]
    n = min(map(len, terms))
    return np.array([drops[:n] for drops in terms])


def sharpness_estimate(records: Sequence[SharpnessRecord], sigma: float) -> Estimate:
    """S_avg at a sigma that all records share, with an interval over directions of noise, for these problems.

    Over seeds too where three or more runs were measured. One direction alone says nothing: all of [-1, 1].
    """
    drops = drops_at(records, sigma)
    by_direction = drops.mean(axis=0).tolist()
    estimate = over_seeds(by_direction) if len(by_direction) > 1 else Estimate(by_direction[0], -1.0, 1.0)
    if len(drops) >= ENOUGH_SEEDS:
        estimate = both(estimate, seeds_half_width(drops.mean(axis=1).tolist()))
    return within(estimate, -1.0, 1.0)


def middle_sigma(records: Sequence[SharpnessRecord]) -> float | None:
    """The middle of the sigmas that all records share, the larger of two; None where they share none."""
    common = common_sigmas(records)
    return common[len(common) // 2] if common else None


def without_kv(peak: Peak) -> tuple[int, int]:
    """Host and device bytes without the KV cache, which is on the device where there is one."""
    if peak.device:
        return peak.host, max(0, peak.device - peak.kv)
    return max(0, peak.host - peak.kv), 0


@dataclass(frozen=True)
class MeanCosts:
    """What training cost, mean over the runs of a row; None where no file has it."""

    rollouts: float
    generated_tokens: float | None
    flops: float | None
    seconds: float | None


def mean_costs(group: Group) -> MeanCosts:
    """Costs up to the weights that are compared."""
    spent = [item.spent for item in group.items]
    known = [cost for cost in spent if cost is not None]
    if len(known) < len(spent):
        rollouts = _mean([float(item.eval.rollouts_spent) for item in group.items])
        return MeanCosts(rollouts, None, None, None)
    return MeanCosts(
        rollouts=_mean([float(cost.rollouts) for cost in known]),
        generated_tokens=_counted(known, lambda cost: float(cost.generated_tokens)),
        flops=_counted(known, lambda cost: cost.flops),
        seconds=_counted(known, lambda cost: cost.seconds),
    )


def _counted(costs: Sequence[Cost], part: Callable[[Cost], float]) -> float | None:
    """Mean over runs. A cost of 0 for a run with rollouts was never counted (`adopt` allows that): then None."""
    if any(cost.rollouts and not part(cost) for cost in costs):
        return None
    return _mean([part(cost) for cost in costs])


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


@dataclass(frozen=True)
class PeakMemory:
    """The largest memory that a run of a row held, in bytes without the KV cache."""

    host_bytes: int
    device_bytes: int


def peak_memory(group: Group) -> PeakMemory:
    """Host and device apart: their peaks may be of different runs."""
    peaks = [without_kv(item.loaded.record.peak_bytes) for item in group.items]
    return PeakMemory(max(host for host, _ in peaks), max(device for _, device in peaks))


def seed_scores(group: Group) -> tuple[SeedScore, ...]:
    """The shares of every run."""
    found = []
    for item in group.items:
        means = {part: float(shares(item, part).mean()) for part in ("strict", "flexible", "formatted")}
        found.append(SeedScore(seed=item.loaded.record.seed, **means))
    return tuple(found)


def row_of(group: Group, gain: Pair | None, passes: dict[str, Estimate], sigma: float | None) -> Row:
    """The row of a group; `gain` is its pair with the base."""
    by_seed = seed_scores(group)
    costs = mean_costs(group)
    memory = peak_memory(group)
    sharp = group.sharpness
    return Row(
        label=group.label,
        seeds=len(group.items),
        strict=accuracy(group, "strict"),
        strict_sd=sd([score.strict for score in by_seed]),
        flexible=accuracy(group, "flexible"),
        formatted=accuracy(group, "formatted"),
        pass_at=passes,
        gain=gain.difference if gain else None,
        progressions=gain.won if gain else None,
        regressions=gain.lost if gain else None,
        p_value=gain.p_value if gain else None,
        sharpness=sharpness_estimate(sharp, sigma) if sharp and sigma is not None else None,
        rollouts=costs.rollouts,
        generated_tokens=costs.generated_tokens,
        flops=costs.flops,
        seconds=costs.seconds,
        host_bytes=memory.host_bytes,
        device_bytes=memory.device_bytes,
        by_seed=by_seed,
    )
