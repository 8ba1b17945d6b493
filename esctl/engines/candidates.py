"""The order in which a round's candidates become live weights and leave them again: the same for every engine.

Leaves to the engine how a weight is written and what is evaluated under it.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

from esctl.noise.moves import Move, Round

T = TypeVar("T")


class Weights(Protocol):
    """The live weights of one engine, and the center that they are written from."""

    def stage(self, move: Move) -> None:
        """Put θ' = fl(θ + Σ cᵢεᵢ) under the candidates to come."""

    def write(self, move: Move) -> None:
        """Make fl(θ' + Σ cᵢεᵢ), cast once, the live weights, and forget what was computed with the old ones."""

    def restore(self) -> None:
        """Stage θ and make it the live weights."""


def each_candidate(
    weights: Weights,
    round_: Round,
    evaluate: Callable[[], T],
    done: Callable[[int, T], None] | None = None,
    stay: bool = False,
) -> list[T]:
    """`evaluate()` under each candidate in turn, then θ is live again, whatever was raised.

    With `stay` the last candidate stays live instead, unless something was raised.

    A candidate never builds on the one before: every write starts at the center, so an interrupted one leaves nothing
    behind that the next write would not replace.
    """
    results: list[T] = []
    whole = False
    try:
        weights.stage(round_.center)
        for index, candidate in enumerate(round_.candidates):
            weights.write(candidate)
            results.append(evaluate())
            if done is not None:
                done(index, results[-1])
        whole = True
    finally:
        if not (whole and stay):
            weights.restore()
    return results
