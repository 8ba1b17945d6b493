"""The numbers behind the plots: learning, pass@k, coverage and sharpness of each row, without a plotting library."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from esctl.comparison.groups import Group
from esctl.comparison.rows import common_sigmas, pass_estimate, sharpness_estimate
from esctl.comparison.selection import Chosen
from esctl.comparison.settings import EvalSetting
from esctl.runs.files import read_lines
from esctl.runs.metrics import Metrics
from esctl.runs.records import AveragePoint, DirectionPoint, is_greedy, strict_share
from esctl.stats import BINS, Estimate, over_seeds, solved_histogram

# Bins by the share of a problem's samples that are right: the upper edges in percent. In bin 0 none is right.
COVERAGE_BINS = tuple(str(100 * i // BINS) for i in range(BINS + 1))


@dataclass(frozen=True)
class Curve:
    """A line with a band; a band of no height is not drawn."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Learning:
    """A row's training over one measure of cost: accuracy of members on training prompts, and of evaluations."""

    members: Curve
    evaluations: Curve | None


@dataclass(frozen=True)
class SolvedShares:
    """A row's problems by the share of samples that are right, mean over seeds; sums to 1."""

    label: str
    shares: tuple[float, ...]


COSTS: dict[str, Callable[[Sequence[Metrics]], list[float]]] = {
    "generations": lambda metrics: [m["generation"] for m in metrics],
    "training rollouts": lambda metrics: [m["cost/rollouts"] for m in metrics],
    "training time (s)": lambda metrics: np.cumsum([m["time/seconds"] for m in metrics]).tolist(),
}


def learning(group: Group, cost: str) -> Learning | None:
    """Mean over seeds with their range as band, at each generation that all seeds reached; None without metrics."""
    histories = [read_lines(item.loaded.run.metrics, dict[str, float]) for item in group.items]
    n = min(map(len, histories))
    if n == 0:
        return None
    x = np.mean([COSTS[cost](h[:n]) for h in histories], axis=0)
    members = _over_runs(group.label, x.tolist(), [[m["accuracy/strict"] for m in h[:n]] for h in histories])
    return Learning(members, _evaluations(group, [0.0, *x.tolist()]))


def _evaluations(group: Group, at: Sequence[float]) -> Curve | None:
    """Strict accuracy on the split that was evaluated most often; `at` is the cost after 0, 1, … generations."""
    series = [_by_step(item) for item in group.items]
    steps = [s for s in sorted(set.intersection(*(set(found) for found in series))) if s < len(at)]
    if len(steps) < 2:
        return None
    return _over_runs(group.label, [at[s] for s in steps], [[found[s] for s in steps] for found in series])


def _by_step(item: Chosen) -> dict[int, float]:
    """Accuracy by generation: greedy evaluations under one setting, the one with most generations."""
    by_setting: dict[EvalSetting, dict[int, float]] = {}
    for e in filter(is_greedy, item.loaded.evals):
        by_setting.setdefault(EvalSetting.of(e), {})[e.step] = strict_share(e)
    return max(by_setting.values(), key=len, default={})


def _over_runs(label: str, x: Sequence[float], values: Sequence[Sequence[float]]) -> Curve:
    """Mean of the runs at each x, and their range."""
    table = np.array(values)
    y, low, high = table.mean(axis=0), table.min(axis=0), table.max(axis=0)
    return Curve(label, tuple(x), tuple(y.tolist()), tuple(low.tolist()), tuple(high.tolist()))


def samplings(groups: Sequence[Group]) -> list[EvalSetting]:
    """The ways in which answers were sampled, more than one per problem."""
    found = {k: None for g in groups for i in g.items for k, e in i.sampled.items() if min(e.problems.n) > 1}
    return list(found)


def sampled_alike(groups: Sequence[Group], setting: EvalSetting) -> list[Group]:
    """The groups all of whose runs have samples drawn under this setting."""
    return [group for group in groups if group.sampled(setting)]


def pass_curve(group: Group, setting: EvalSetting) -> Curve:
    """pass@k with its 95 % interval at k = 1, 2, 4, … up to the number of samples."""
    n = group.samples(setting)
    ks = [2**i for i in range(n.bit_length()) if 2**i <= n]
    return _estimates(group.label, ks, [pass_estimate(group, setting, k) for k in ks])


def coverage(group: Group, setting: EvalSetting) -> SolvedShares:
    """The histogram of a row over COVERAGE_BINS."""
    counts = np.sum([solved_histogram(p.n, p.strict) for p in group.sampled_problems(setting)], axis=0)
    return SolvedShares(group.label, tuple((counts / counts.sum()).tolist()))


def sharpness_curve(group: Group) -> Curve | None:
    """S_avg over the sigmas that all runs of the row share."""
    records = group.sharpness
    sigmas = common_sigmas(records)
    return _estimates(group.label, sigmas, [sharpness_estimate(records, s) for s in sigmas]) if sigmas else None


def nll_curve(group: Group) -> Curve | None:
    """Rise of the negative log-likelihood of reference solutions, over the sigmas of the row."""
    by_sigma: dict[float, list[AveragePoint]] = {}
    for record in group.sharpness:
        for point in record.average:
            by_sigma.setdefault(point.sigma, []).append(point)
    sigmas = [s for s in sorted(by_sigma) if all(p.nll_rises for p in by_sigma[s])]
    rises = [np.mean([p.nll_rises for p in by_sigma[s]], axis=0).tolist() for s in sigmas]
    return _estimates(group.label, sigmas, [_mean(values) for values in rises]) if sigmas else None


def direction_curves(group: Group) -> tuple[Curve, Curve] | None:
    """Accuracy lost by steps against a fresh ES estimate, and along random directions of equal norm, over the norm."""
    by_scale: dict[float, list[DirectionPoint]] = {}
    for record in group.sharpness:
        for point in record.direction:
            by_scale.setdefault(point.scale, []).append(point)
    if not by_scale:
        return None
    points = [by_scale[scale] for scale in sorted(by_scale)]
    norms = [float(np.mean([p.norm for p in at])) for at in points]
    against = [_mean([p.against for p in at]) for at in points]
    random = [_mean([drop for p in at for drop in p.random]) for at in points]
    return _estimates(group.label, norms, against), _estimates(f"{group.label}, random", norms, random)


def _mean(values: Sequence[float]) -> Estimate:
    """A mean with a t interval; a single value has an interval of no width."""
    return over_seeds(values) if len(values) > 1 else Estimate(values[0], values[0], values[0])


def _estimates(label: str, x: Sequence[float], estimates: Sequence[Estimate]) -> Curve:
    y, low, high = zip(*((e.value, e.low, e.high) for e in estimates), strict=True)
    return Curve(label, tuple(map(float, x)), tuple(y), tuple(low), tuple(high))
