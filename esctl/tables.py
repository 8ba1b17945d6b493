"""A comparison as text: the same rows for a terminal, Markdown, CSV and JSON."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict

from esctl.compare import Comparison, Row
from esctl.rundir import adapter
from esctl.stats import Estimate

HEADERS = (
    "method",
    "seeds",
    "strict % (95 %)",
    "flexible %",
    "format %",
    "gain",
    "p vs base",
    "rollouts",
    "tokens",
    "seconds",
    "peak GiB",
)


def cells(row: Row) -> list[str]:
    """A row as a person reads it: percent, points, thousands."""
    spread = f" ± {100 * row.strict_sd:.1f} sd" if row.seeds > 1 else ""
    return [
        row.label,
        str(row.seeds),
        f"{_percent(row.strict)}{spread}",
        f"{100 * row.flexible.value:.1f}",
        f"{100 * row.formatted.value:.1f}",
        "" if row.gain is None else f"{100 * row.gain:+.1f}",
        "" if row.p_value is None else f"{row.p_value:.2g}",
        f"{row.rollouts:,.0f}",
        f"{row.generated_tokens:,.0f}",
        f"{row.seconds:,.0f}",
        f"{row.peak_bytes / 2**30:.2f}",
    ]


def terminal(comparison: Comparison) -> str:
    """Aligned columns for a terminal; plain text, as wide as it needs to be."""
    rows = [list(HEADERS), *(cells(row) for row in comparison.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True)))
        for r in rows
    ]
    rule = "─" * len(lines[0])
    return "\n".join([title(comparison), rule, lines[0], rule, *lines[1:], rule, *comparison.notes])


def markdown(comparison: Comparison) -> str:
    """A GitHub table with its notes beneath."""
    lines = [_bar(HEADERS), _bar(["---"] * len(HEADERS)), *(_bar(cells(row)) for row in comparison.rows)]
    return "\n".join([f"{title(comparison)}\n", *lines, *(f"\n{note}" for note in comparison.notes)]) + "\n"


def title(comparison: Comparison) -> str:
    """What the numbers are about."""
    return f"{comparison.task}, {comparison.split} split, {comparison.problems:,} problems, greedy"


def csv_text(comparison: Comparison) -> str:
    """One line per row, every number in full: shares between 0 and 1, bytes, seconds."""
    flat = [_flat(row) for row in comparison.rows]
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def json_text(comparison: Comparison) -> str:
    """The comparison as it is, with the names of the code."""
    return adapter(Comparison).dump_json(comparison, indent=1).decode() + "\n"


def _flat(row: Row) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in asdict(row).items():
        if isinstance(value, dict):
            found |= {f"{key}_{part}" if part != "value" else key: number for part, number in value.items()}
        else:
            found[key] = value
    return found


def _percent(e: Estimate) -> str:
    return f"{100 * e.value:.1f} ({100 * e.low:.1f}–{100 * e.high:.1f})"


def _bar(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"
