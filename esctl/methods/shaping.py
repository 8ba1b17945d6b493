"""How scores become coefficients: z-scores and centred ranks, independent of SIMD width and member order."""

import math
from collections.abc import Callable, Sequence
from typing import Literal

FLAT = 1e-7  # scores closer together than this carry no direction
Z_EPSILON = 1e-8


def is_flat(scores: Sequence[float]) -> bool:
    """Whether the scores carry no signal, so that the only right step is none."""
    return max(scores) - min(scores) <= FLAT


def fill_missing(scores: Sequence[float | None]) -> list[float]:
    """Give a candidate whose logits were not finite (None) the lowest finite score of its round.

    Raises ValueError where no score is finite: such a round carries no direction.
    """
    finite = [s for s in scores if s is not None]
    if not finite:
        raise ValueError("no candidate had finite logits")
    lowest = min(finite)
    return [lowest if s is None else s for s in scores]


def mean(scores: Sequence[float]) -> float:
    """The mean by exact summation: equal everywhere, which plain summation orders are not."""
    return math.fsum(scores) / len(scores)


def deviations(scores: Sequence[float]) -> list[float]:
    """Scores less their mean."""
    m = mean(scores)
    return [s - m for s in scores]


def z_scores(scores: Sequence[float]) -> list[float]:
    """(r − mean r)/(std r + 1e-8) with the population's std (ddof 0)."""
    centred = deviations(scores)
    std = math.sqrt(math.fsum(c * c for c in centred) / len(centred))
    return [c / (std + Z_EPSILON) for c in centred]


def centred_ranks(scores: Sequence[float]) -> list[float]:
    """Ranks spread evenly over [−½, ½] (Wierstra et al. 2014); tied scores share the mean of their ranks."""
    order = sorted(scores)
    first = {s: i for i, s in reversed(list(enumerate(order)))}
    last = {s: i for i, s in enumerate(order)}
    return [(first[s] + last[s]) / 2 / (len(scores) - 1) - 0.5 for s in scores]


Shaping = Literal["z-score", "rank"]
SHAPINGS: dict[Shaping, Callable[[Sequence[float]], list[float]]] = {"z-score": z_scores, "rank": centred_ranks}
