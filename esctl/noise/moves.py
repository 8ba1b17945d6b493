"""A step before it touches a weight: arithmetic on (seed, coefficient) pairs, and the seeds that runs use.

`spec` defines what a seed means. Imports neither torch nor NumPy.
"""

import hashlib
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self


class Term(NamedTuple):
    """`coefficient · ε(seed)`; the coefficient is float64 until an engine rounds it once to fp32."""

    seed: int
    coefficient: float


@dataclass(frozen=True)
class Move:
    """A direction in weight space, θ ← θ + Σᵢ coefficientᵢ · ε(seedᵢ), summed left to right.

    Moves concatenate and never merge equal seeds: the order of terms decides the rounding, so it is part of the value.
    """

    terms: tuple[Term, ...] = ()

    @classmethod
    def of(cls, seeds: Iterable[int], coefficients: Iterable[float]) -> Self:
        """Pair seeds with coefficients; raises ValueError when the lengths differ."""
        return cls(tuple(Term(s, float(c)) for s, c in zip(seeds, coefficients, strict=True)))

    def __add__(self, other: "Move") -> "Move":
        return Move(self.terms + other.terms)

    def __mul__(self, factor: float) -> "Move":
        return Move(tuple(Term(t.seed, t.coefficient * factor) for t in self.terms))

    __rmul__ = __mul__

    def __neg__(self) -> "Move":
        return self * -1.0

    def __len__(self) -> int:
        return len(self.terms)

    def norm(self, dim: int) -> float:
        """‖Σ cᵢεᵢ‖ over `dim` weights, from ‖·‖ ≈ √(dim·Σcᵢ²): independent noise needs no pass over weights."""
        return math.sqrt(dim * math.fsum(t.coefficient**2 for t in self.terms))


EMPTY = Move()


@dataclass(frozen=True)
class Round:
    """The candidates to evaluate next: each is fl(fl(θ + center) + candidate)."""

    generation: int
    index: int  # within the generation; all rounds of a generation use the same prompts
    center: Move
    candidates: tuple[Move, ...]


def hash64(person: str, layout: str, *values: int) -> int:
    """Little-endian u64 of BLAKE2b over the packed integers; `person` keeps the uses of randomness apart."""
    digest = hashlib.blake2b(struct.pack(layout, *values), digest_size=8, person=person.encode()).digest()
    return int.from_bytes(digest, "little")


def member_seed(run_seed: int, generation: int, round_index: int, member: int) -> int:
    """The noise seed of a member (or mirrored pair); a published constant of noise version 1."""
    return hash64("esctl-seed", "<qIII", run_seed, generation, round_index, member)


def probe_seed(run_seed: int, generation: int, round_index: int, member: int) -> int:
    """The noise seed of a random control probe, in a hash domain of its own."""
    return hash64("esctl-probe", "<qIII", run_seed, generation, round_index, member)


def sample_seed(run_seed: int, generation: int, problem: int, sample: int) -> int:
    """The token-sampling seed of one rollout; equal for all members, so they differ by weights only. 63 bits."""
    return hash64("esctl-sample", "<qIII", run_seed, generation, problem, sample) >> 1
