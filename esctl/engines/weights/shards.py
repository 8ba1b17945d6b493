"""Which rectangle of a canonical tensor one rank of a tensor-parallel group holds, and where in its live tensor.

Pure arithmetic. Element numbers are those of the canonical tensor, so every rank draws the noise of the whole tensor,
and ranks that hold the same rows hold the same bits. The engine decides which layer is partitioned in which way.
"""

import math
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class Share:
    """One rank of a tensor-parallel group."""

    rank: int = 0
    size: int = 1


class Partition(Enum):
    """What of a tensor is divided among ranks; the terms of Megatron-LM (arXiv 1909.08053) follow."""

    WHOLE = "every rank holds all of it"
    ROWS = "column-parallel: outputs, in whole heads where there are heads"
    COLUMNS = "row-parallel: inputs"
    VOCABULARY = "tokens, after padding"


@dataclass(frozen=True)
class Piece:
    """Some rows and columns of one canonical tensor; a row is one index of its first dimension."""

    name: str
    width: int  # columns of the canonical tensor
    rows: range
    columns: range
    at: int = 0  # the row of the live tensor where it begins

    @property
    def first(self) -> int:
        """The number of its first element, as `noise` counts; its rows are `width` apart."""
        return self.rows.start * self.width + self.columns.start

    @property
    def end(self) -> int:
        """The row of the live tensor where the next piece begins."""
        return self.at + len(self.rows)


def piece(name: str, shape: tuple[int, ...], partition: Partition, share: Share, units: int = 0, at: int = 0) -> Piece:
    """The piece of a tensor that a rank holds.

    `units` counts the indivisible parts that rows consist of: heads of attention. 0 is one row each. For the
    vocabulary it is the multiple that the number of rows is padded to before they are dealt out.
    """
    width = math.prod(shape[1:])
    rows, columns = range(shape[0]), range(width)
    if partition is Partition.ROWS:
        rows = _dealt(shape[0], units or shape[0], share)
    elif partition is Partition.COLUMNS:
        columns = _dealt(width, width, share)
    elif partition is Partition.VOCABULARY:
        rows = _vocabulary(shape[0], units, share)
    return Piece(name, width, rows, columns, at)


def _dealt(n: int, units: int, share: Share) -> range:
    """Equal numbers of units in order; where ranks outnumber units, neighbouring ranks hold the same one."""
    assert n % units == 0, (n, units)
    assert units % share.size == 0 or share.size % units == 0, (units, share)
    groups = min(units, share.size)
    size = n // groups
    group = share.rank * groups // share.size
    return range(group * size, (group + 1) * size)


def _vocabulary(n: int, multiple: int, share: Share) -> range:
    """Equal numbers of rows of the padded tensor; a late rank may hold few that exist, or none."""
    padded = math.ceil(n / multiple) * multiple
    assert padded % share.size == 0, (padded, share)
    size = padded // share.size
    return range(min(share.rank * size, n), min((share.rank + 1) * size, n))
