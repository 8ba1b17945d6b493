"""Estimates with intervals and paired tests for accuracies, without scipy.

Closed forms come first (Wilson, Student, McNemar, pass@k), then the bootstrap over problems, whose resamples all rows
share. docs/statistics.md says how often the intervals hold the truth.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Z95 = 1.959963984540054  # Φ⁻¹(0.975)
# Two-sided 95 % points of Student's t for 1..30 degrees of freedom; the normal's is still 4 % below that of 31.
T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float


def wilson(right: int, n: int) -> Estimate:
    """Share `right/n` with Wilson's score interval (Wilson 1927), which holds its level near 0 and 1."""
    return score_interval(right / n, n)


def score_interval(share: float, n: float) -> Estimate:
    """Wilson's interval of a share with an effective number of n answers."""
    z2 = Z95 * Z95
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return Estimate(share, max(0.0, centre - half), min(1.0, centre + half))


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate of the chance that one of k samples is right, from c right of n (Chen et al. 2021).

    1 − C(n−c, k)/C(n, k) = 1 − Π (1 − k/i) over i = n−c+1 … n: no factorial, so that it holds for any n. Raises
    ValueError for k > n, where no unbiased estimate exists.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass@{k} of {c} right among {n} samples: needs 1 ≤ k ≤ n and 0 ≤ c ≤ n")
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1)) if c <= n - k else 1.0


def pass_values(n: Sequence[int], right: Sequence[int], k: int) -> list[float]:
    """The unbiased pass@k of each problem, from its n samples of which `right` are right."""
    table = {pair: pass_at_k(*pair, k) for pair in set(zip(n, right, strict=True))}
    return [table[pair] for pair in zip(n, right, strict=True)]


BINS = 10  # of `solved_histogram`, besides the bin of problems that no sample solved


def solved_histogram(n: Sequence[int], right: Sequence[int]) -> list[int]:
    """Problems by the share of right samples: first exactly 0, then (0, 0.1], (0.1, 0.2], …, (0.9, 1]."""
    found = [0] * (BINS + 1)
    for samples, solved in zip(n, right, strict=True):
        # The ceiling in whole numbers: with floats, 3 of 10 could land in the fourth bin.
        upper_edge = -(-BINS * solved // samples)
        found[upper_edge] += 1
    return found


def over_problems(values: Sequence[float], answers: int = 1) -> Estimate:
    """Mean of per-problem scores in [0, 1], with Wilson's interval at their effective number of answers.

    A score may be a mean of `answers` answers (seeds × samples). Answers to one problem resemble each other, so the
    effective number is n = s(1−s)/Var(s), between P problems (all answers alike) and P·answers (independent; Korn &
    Graubard 1998). If every score is 0, or every score is 1, their likeness cannot be estimated: then n = P.
    """
    n_problems = len(values)
    share = math.fsum(values) / n_problems
    spread = math.fsum((v - share) ** 2 for v in values) / n_problems**2
    most = n_problems * answers
    if share in (0.0, 1.0):
        effective: float = n_problems
    elif spread:
        effective = min(share * (1 - share) / spread, most)
    else:
        effective = most
    return score_interval(share, effective)


def both(problems: Estimate, seeds_half: float) -> Estimate:
    """An interval over problems and seeds: the distances of both to the mean are added in quadrature.

    This is MOVER (Zou & Donner 2008) for two independent sources of error. The wider one alone would be too narrow
    when both are equally wide: by a factor of √2.
    """
    low = math.hypot(problems.value - problems.low, seeds_half)
    high = math.hypot(problems.high - problems.value, seeds_half)
    return Estimate(problems.value, problems.value - low, problems.value + high)


def within(estimate: Estimate, low: float, high: float) -> Estimate:
    """The estimate with its interval clipped to [low, high]."""
    return Estimate(estimate.value, max(low, estimate.low), min(high, estimate.high))


def seeds_half_width(first: Sequence[float], second: Sequence[float] = ()) -> float:
    """Half the width of Welch's t interval for the difference of two means over seeds, or for one mean alone."""
    parts = [(sd(values) ** 2 / len(values), len(values) - 1) for values in (first, second) if len(values) > 1]
    variance = math.fsum(v for v, _ in parts)
    if variance == 0.0:
        return 0.0
    freedom = variance**2 / math.fsum(v**2 / d for v, d in parts)
    return t95(int(freedom + 1e-9)) * math.sqrt(variance)  # rounded down, but not from 1.999… to 1


def over_seeds(values: Sequence[float]) -> Estimate:
    """Mean over seeds with Student's t interval; needs two or more values."""
    n = len(values)
    centre = math.fsum(values) / n
    half = t95(n - 1) * sd(values) / math.sqrt(n)
    return Estimate(centre, centre - half, centre + half)


def sd(values: Sequence[float]) -> float:
    """Sample standard deviation (ddof 1); 0 for one value."""
    if len(values) < 2:
        return 0.0
    centre = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - 1))


def t95(freedom: int) -> float:
    """The two-sided 95 % point of Student's t; past the table by the first terms of Fisher & Cornish (1960)."""
    assert freedom >= 1, freedom  # one value has no spread
    if freedom <= len(T95):
        return T95[freedom - 1]
    z = Z95
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


@dataclass(frozen=True)
class FTest:
    """A one-way analysis of variance: whether several rows have one mean."""

    f: float
    between: int  # degrees of freedom between rows
    within: int  # and within them, over seeds
    p_value: float


def f_test(rows: Sequence[Sequence[float]]) -> FTest | None:
    """Fisher's F test on the seeds of each row; None without two rows, a row with two seeds, or any spread."""
    between = len(rows) - 1
    within_ = sum(map(len, rows)) - len(rows)
    if between < 1 or within_ < 1:
        return None
    means = [math.fsum(row) / len(row) for row in rows]
    centre = math.fsum(map(math.fsum, rows)) / sum(map(len, rows))
    explained = math.fsum(len(row) * (mean - centre) ** 2 for row, mean in zip(rows, means, strict=True))
    residual = math.fsum(sd(row) ** 2 * (len(row) - 1) for row in rows)
    if residual < 1e-18:  # the seeds of every row agree: no spread to hold differences against
        return None
    f = (explained / between) / (residual / within_)
    p_value = beta_share(residual / (residual + explained), within_ / 2, between / 2)
    return FTest(f, between, within_, p_value)


def beta_share(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function I_x(a, b), by Lentz's continued fraction (Numerical Recipes, 6.4)."""
    if x <= 0.0 or x >= 1.0:
        return min(1.0, max(0.0, x))
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast below this point only
        return 1.0 - beta_share(1.0 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    c = 1.0
    d = 1.0 / (1.0 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 / (1.0 + term * d)
            c = 1.0 + term / c
            fraction *= c * d
        if abs(c * d - 1.0) < 1e-14:
            break
    return front * fraction


def mcnemar(first: Sequence[int], second: Sequence[int]) -> float:
    """Exact two-sided McNemar test on paired right/wrong answers: the p-value that neither is better."""
    won = sum(a > b for a, b in zip(first, second, strict=True))
    lost = sum(a < b for a, b in zip(first, second, strict=True))
    n = won + lost
    if n == 0:
        return 1.0
    # Sum in logarithms: 2⁻ⁿ underflows for the thousands of discordant pairs of a large benchmark.
    log_half = n * math.log(0.5)
    tail = math.fsum(math.exp(_log_choose(n, k) + log_half) for k in range(min(won, lost) + 1))
    return min(1.0, 2 * tail)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


Floats = NDArray[np.float64]
RESAMPLES = 2000
SEED = 20260203  # of the drawing: equal inputs give equal intervals
BLOCK = 1 << 20  # draws at a time: 8 MiB of counts whatever the number of problems


@dataclass(frozen=True)
class Resamples:
    """The means of rows of per-problem scores, over the problems and over resamples of them."""

    values: Floats  # (rows,) means over the problems themselves
    means: Floats  # (resamples, rows) means with the two added problems, which count 0 here
    tilt: Floats  # (resamples,) what the two added problems contribute to a difference

    def difference(self, first: int, second: int) -> Estimate:
        """Mean of row `first` minus mean of row `second`, with its 95 % percentile interval."""
        value = float(self.values[first] - self.values[second])
        low, high = np.quantile(self.means[:, first] - self.means[:, second] + self.tilt, (0.025, 0.975))
        return Estimate(value, min(float(low), value), max(float(high), value))


def resampled(scores: Floats, resamples: int = RESAMPLES) -> Resamples:
    """Resample the problems of `scores` (rows × problems, in [0, 1]) with replacement, the same way for every row.

    A row's scores are averaged over its seeds, so a problem is drawn with all of its answers. Every difference includes
    two more problems, one that each row wins, as Agresti & Min (2005) add for Wald's interval: otherwise rows that
    agree on all, or almost all, problems would get an interval of no width.
    """
    n_problems = scores.shape[1]
    n = n_problems + 2
    rng = np.random.default_rng(SEED)
    step = max(1, BLOCK // n)
    means = []
    tilts = []
    for done in range(0, resamples, step):
        counts = _counts(rng, min(step, resamples - done), n)
        means.append(counts[:, :n_problems] @ scores.T / n)
        tilts.append((counts[:, -2] - counts[:, -1]) / n)
    return Resamples(scores.mean(axis=1), np.concatenate(means), np.concatenate(tilts))


def _counts(rng: np.random.Generator, resamples: int, n: int) -> Floats:
    """How often each of n problems was drawn, in each resample of n draws with replacement."""
    draws = rng.integers(0, n, size=(resamples, n), dtype=np.int32)
    draws += np.arange(0, resamples * n, n, dtype=np.int32)[:, None]
    return np.bincount(draws.ravel(), minlength=resamples * n).reshape(resamples, n).astype(np.float64)
