"""Intervals and paired tests for accuracies, without scipy: what a comparison may claim.

Leaves which runs may be compared to `compare`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

Z95 = 1.959963984540054  # Φ⁻¹(0.975)
# Two-sided 95 % points of Student's t for 1..30 degrees of freedom; beyond, the normal's is within 2 %.
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
    share, z2 = right / n, Z95 * Z95
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


def over_seeds(values: Sequence[float]) -> Estimate:
    """Mean over seeds with Student's t interval; needs two or more values."""
    n, centre = len(values), math.fsum(values) / len(values)
    half = t95(n - 1) * sd(values) / math.sqrt(n)
    return Estimate(centre, centre - half, centre + half)


def sd(values: Sequence[float]) -> float:
    """Sample standard deviation (ddof 1); 0 for one value."""
    if len(values) < 2:
        return 0.0
    centre = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - 1))


def t95(freedom: int) -> float:
    """The two-sided 95 % point of Student's t."""
    return T95[freedom - 1] if freedom <= len(T95) else Z95


def mcnemar(first: Sequence[int], second: Sequence[int]) -> float:
    """Exact two-sided McNemar test on paired right/wrong answers: the p-value that neither is better."""
    won = sum(a > b for a, b in zip(first, second, strict=True))
    lost = sum(a < b for a, b in zip(first, second, strict=True))
    n, few = won + lost, min(won, lost)
    if n == 0:
        return 1.0
    # Sum in logarithms: 2⁻ⁿ underflows for the thousands of discordant pairs of a large benchmark.
    log_half = n * math.log(0.5)
    tail = math.fsum(math.exp(_log_choose(n, k) + log_half) for k in range(few + 1))
    return min(1.0, 2 * tail)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
