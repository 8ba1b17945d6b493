"""The order in which a round's candidates become live weights: one for every engine."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from esctl import interrupts
from esctl.noise.moves import Move, Round

T = TypeVar("T")


class Weights(Protocol):
    """The live weights of one engine, and the center that they are written from."""

    def stage(self, move: Move) -> None:
        """Put θ' = fl(θ + Σ cᵢεᵢ) under the candidates to come."""

    def write(self, move: Move) -> None:
        """Make fl(θ' + Σ cᵢεᵢ), cast once, the live weights; drop every cache of the old ones."""

    def restore(self) -> None:
        """Stage θ and make it the live weights."""


def each_candidate(
    weights: Weights,
    round_: Round,
    evaluate: Callable[[], T],
    done: Callable[[int, T], None] | None = None,
    stay: bool = False,
) -> list[T]:
    """Run `evaluate()` under each candidate in turn, then make θ live again, whatever was raised.

    With `stay` the last candidate stays live instead, unless something was raised. Every write starts at the center and
    never at the previous candidate, so the next write replaces whatever an interrupted one left.
    """
    results: list[T] = []
    whole = False
    try:
        weights.stage(round_.center)
        for index, candidate in enumerate(round_.candidates):
            # A write frees many packed matrices, and Python drops an interrupt that arrives in a destructor.
            interrupts.check()
            weights.write(candidate)
            interrupts.check()
            results.append(evaluate())
            interrupts.check()
            if done is not None:
                done(index, results[-1])
        whole = True
    finally:
        if not (whole and stay):
            weights.restore()
    interrupts.check()
    return results
