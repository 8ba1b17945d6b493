"""The questions of a report, as a table's definition states them under `questions`.

A question names the rows that it compares by their labels, so that any table can have a report of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from esctl.settings import Text

Kind = Literal["pairs", "gains", "flatness", "coverage", "format", "benchmarks"]
COMPARING: tuple[Kind, ...] = ("pairs", "flatness", "coverage")  # the others are about every row


@dataclass(frozen=True)
class Question:
    """One section of the report: its heading, and what answers it.

    `pairs`: strict accuracy, row against row. `gains`: every row against the base. `flatness`: accuracy lost under the
    same noise. `coverage`: pass@k at the smallest and the largest k. `format`: the share of a gain that is format.
    `benchmarks`: every row on the table's other tasks.
    """

    ask: Text
    kind: Kind = "pairs"
    compare: tuple[str, ...] | tuple[tuple[str, ...], ...] = ()  # the first row against each other; or several of these

    def __post_init__(self) -> None:
        if self.kind not in COMPARING:
            if self.compare:
                raise ValueError(f"kind {self.kind} is about every row; leave `compare` out")
        elif not self.compare or any(len(chain) < 2 for chain in self._chains):
            raise ValueError(f"kind {self.kind} needs `compare`: a row and the rows to compare it with")

    @property
    def _chains(self) -> Sequence[tuple[str, ...]]:
        """The lists in `compare`."""
        single = tuple(entry for entry in self.compare if isinstance(entry, str))
        several = tuple(entry for entry in self.compare if not isinstance(entry, str))
        return (single, *several) if single else several

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """(row, the row that it is compared with), in the order of the question."""
        return [(chain[0], other) for chain in self._chains for other in chain[1:]]


# The questions of a table that states none.
DEFAULT_QUESTIONS = (
    Question("Does each method beat the base?", "gains"),
    Question("How much of each gain is format?", "format"),
)
