"""The order of a round, and what ends it: no interrupt is lost, wherever it arrives."""

import os
import signal

import pytest
from oracle import A, B, around

from esctl import interrupts
from esctl.engines.candidates import each_candidate
from esctl.noise.moves import EMPTY, Move


class Frees:
    """An object whose destructor runs while a signal arrives, as a packed matrix's does."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        sum(range(1000))


class Recorded:
    """Weights that write down what happened, and free an object at one place."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.events: list[str] = []

    def reach(self, event: str) -> None:
        self.events.append(event)
        if event == self.place:
            Frees()

    def stage(self, move: Move) -> None:
        self.reach("stage")

    def write(self, move: Move) -> None:
        self.reach(f"write {len(self.events)}")

    def restore(self) -> None:
        self.reach("restore")


@pytest.mark.parametrize(
    ("place", "events"),
    [
        ("stage", ["stage", "restore"]),
        ("write 1", ["stage", "write 1", "restore"]),
        ("evaluate 2", ["stage", "write 1", "evaluate 2", "restore"]),
        ("write 3", ["stage", "write 1", "evaluate 2", "write 3", "restore"]),
        ("restore", ["stage", "write 1", "evaluate 2", "write 3", "evaluate 4", "restore"]),
    ],
)
def test_an_interrupt_that_a_destructor_swallows_ends_the_round_at_the_next_safe_point(place, events) -> None:
    weights = Recorded(place)
    with pytest.raises(KeyboardInterrupt), interrupts.listening():
        each_candidate(weights, around(A, B, center=EMPTY), lambda: weights.reach(f"evaluate {len(weights.events)}"))
    assert weights.events == events
