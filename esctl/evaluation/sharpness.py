"""How fast a score falls around one set of weights: the candidates to measure, and the numbers from their scores.

The caller measures each candidate's score. With score R (strict greedy accuracy), weights θ, their number d
and standard normal noise ε:

    average       S_avg(σ) = R(θ) − mean over seeds of R(θ + σ ε),   for each σ of a grid
    estimate      g = (1/N) Σ zᵢ εᵢ,   z the z-scores of R(θ + σ' εᵢ), i = 1..N: one fresh ES estimate at θ
    directional   R(θ) − R(θ − c·ρ·g), a step of norm c·ρ√(d/N), for each c of a grid; and R(θ) − R(θ + u), for
                  random directions u of that norm

The step −ρ·g is the probe of ESSAM (Sun et al. 2026, arXiv 2602.01003). The random directions are its control: a
direction learnt by ES behaves on held-out tasks like a random one (arXiv 2604.01499). Every seed lies in a hash domain
of its own and depends on its number only: all models, whatever trained them, are measured under the same noise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from esctl.methods.shaping import is_flat, z_scores
from esctl.noise.moves import EMPTY, Move, hash64
from esctl.runs.records import AveragePoint, DirectionPoint

SMALL = 10_000_000  # weights below which a model is of the embedded one's kind


@dataclass(frozen=True)
class Settings:
    """The settings of a measurement; models are comparable where these are equal."""

    sigmas: tuple[float, ...]  # of the average
    seeds: int  # noise seeds for each of them, the same for all
    members: int  # N of the estimate
    sigma: float  # σ' of the estimate
    rho: float
    scales: tuple[float, ...]  # c of the directional steps
    directions: int  # random directions of equal norm for each


# In weights as large as the embedded model's an accuracy feels a σ of 0.01; in those of pretrained models one of 0.001.
# The scales end where the step is about as long as one perturbation, σ'√d: c = σ'√N/ρ is 4 and 55.
EMBEDDED_KIND = Settings((0.005, 0.01, 0.015, 0.02, 0.03), 8, 16, 0.015, 0.015, (0.5, 1.0, 2.0, 4.0), 4)
PRETRAINED = Settings((0.0005, 0.001, 0.002, 0.004), 8, 30, 0.001, 1e-4, (1.0, 4.0, 16.0, 64.0), 4)


def default_settings(dim: int) -> Settings:
    """By the number of weights alone: models that can be compared have it in common, whatever their recipes say."""
    return EMBEDDED_KIND if dim < SMALL else PRETRAINED


def noise_seed(number: int) -> int:
    """The noise of S_avg; the same ε at every σ, so that a curve over σ is one walk in each direction."""
    return hash64("esctl-sharpness", "<I", number)


def estimate_seed(member: int) -> int:
    """The noise of a member of the fresh estimate."""
    return hash64("esctl-sharp-es", "<I", member)


def direction_seed(number: int) -> int:
    """A random direction."""
    return hash64("esctl-sharp-dir", "<I", number)


class Readings(Protocol):
    """What can be read of candidates around θ, in their order. Calls come in the same order every time."""

    def scores(self, candidates: Sequence[Move]) -> list[float]:
        """The score at each."""
        ...

    def nlls(self, candidates: Sequence[Move]) -> list[float]:
        """Negative log-likelihood per reference token, in nats; empty where there are no references."""
        ...


@dataclass(frozen=True)
class Shape:
    """What was measured."""

    score: float
    nll: float | None
    average: list[AveragePoint]
    direction: list[DirectionPoint]  # empty when all members scored alike: there is no direction


def measure(settings: Settings, dim: int, read: Readings) -> Shape:
    """Read every candidate and say how the score falls around θ."""
    around = [EMPTY, *(Move.of([noise_seed(j)], [sigma]) for sigma in settings.sigmas for j in range(settings.seeds))]
    scores, nlls = read.scores(around), read.nlls(around)
    members = [estimate_seed(i) for i in range(settings.members)]
    member_scores = read.scores([Move.of([seed], [settings.sigma]) for seed in members])
    direction = [] if is_flat(member_scores) else _direction(settings, dim, read, scores[0], members, member_scores)
    return Shape(scores[0], nlls[0] if nlls else None, _average(settings, scores, nlls), direction)


def _average(settings: Settings, scores: Sequence[float], nlls: Sequence[float]) -> list[AveragePoint]:
    """Differences to the first reading, which is at θ, in rows of one σ."""
    drops, rises = [scores[0] - s for s in scores[1:]], [n - nlls[0] for n in nlls[1:]]
    rows = [slice(i * settings.seeds, (i + 1) * settings.seeds) for i in range(len(settings.sigmas))]
    return [AveragePoint(s, drops[row], rises[row]) for s, row in zip(settings.sigmas, rows, strict=True)]


def _direction(
    settings: Settings, dim: int, read: Readings, score: float, seeds: Sequence[int], scores: Sequence[float]
) -> list[DirectionPoint]:
    # Scaled to its norm and not by ρ/N alone: z-scores are some 1e-8/std short, and the random steps are to be equal.
    against = Move.of(seeds, [-z for z in z_scores(scores)])
    randoms = [Move.of([direction_seed(j)], [1.0]) for j in range(settings.directions)]
    norms = [c * settings.rho * math.sqrt(dim / settings.members) for c in settings.scales]
    steps = [_of_norm(move, norm, dim) for norm in norms for move in (against, *randoms)]
    drops, width = [score - s for s in read.scores(steps)], 1 + settings.directions
    rows = [drops[i : i + width] for i in range(0, len(drops), width)]
    points = zip(settings.scales, norms, rows, strict=True)
    return [DirectionPoint(scale, norm, row[0], row[1:]) for scale, norm, row in points]


def _of_norm(move: Move, norm: float, dim: int) -> Move:
    return move * (norm / move.norm(dim))
