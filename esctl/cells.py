"""Estimates as text, and rows of cells as aligned columns: what every table and report writes them with.

Leaves what stands in a table to whoever makes it.
"""

from collections.abc import Sequence

from esctl.stats import Estimate


def percent(e: Estimate) -> str:
    """A share as percent with its interval."""
    return f"{100 * e.value:.1f} ({100 * e.low:.1f}–{100 * e.high:.1f})"


def points(e: Estimate) -> str:
    """A difference of shares as percentage points with its interval, signed."""
    return f"{signed(e.value)} ({signed(e.low)} to {signed(e.high)})"


def signed(share: float) -> str:
    """A difference of shares as percentage points; zero has no sign."""
    text = f"{100 * share:+.1f}".replace("-", "−")
    return "0.0" if text in ("+0.0", "−0.0") else text


def aligned(rows: Sequence[Sequence[str]], left: int = 0) -> list[str]:
    """One line per row: columns as wide as their widest cell, the first `left` of them flush left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]
