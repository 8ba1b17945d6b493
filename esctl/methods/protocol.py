"""What an ES method is: ask and tell on seeds, pure functions over explicit state."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from esctl.noise.moves import EMPTY, Move, Round


@dataclass(frozen=True)
class State:
    """Everything a method remembers between rounds; recomputed from recorded scores on resume."""

    seed: int
    dim: int  # number of weights, for methods that scale by a norm
    generation: int = 0
    index: int = 0  # round within the generation
    probe: Move = EMPTY


class Method(Protocol):
    """Ask and tell on seeds: pure functions over explicit state. Scores: higher is better, everywhere."""

    probes: ClassVar[bool]  # whether candidates may be asked for around a probe θ', which needs a second fp32 center

    @property
    def rounds(self) -> tuple[int, ...]:
        """Candidates in each round of a generation; their sum is the cost of a generation in evaluations."""
        ...

    def start(self, seed: int, dim: int) -> State:
        """The state before the first generation."""
        ...

    def ask(self, state: State) -> Round:
        """The candidates to evaluate next."""
        ...

    def tell(self, state: State, scores: Sequence[float]) -> tuple[State, Move]:
        """The next state, and the move to commit at θ now (empty after a probing round)."""
        ...
