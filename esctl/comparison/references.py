"""Published numbers as rows of a table, marked as such; nothing is ever tested against them.

The numbers are in `assets/reference_rows.yaml`, each set with its citation.
"""

from dataclasses import dataclass, field
from pathlib import Path

import yaml
from pydantic import TypeAdapter

from esctl.errors import UsageError

FILE = Path(__file__).parents[1] / "assets" / "reference_rows.yaml"
ALL = "all"


@dataclass(frozen=True)
class Reference:
    """One published row by metric (`accuracy`, `pass@k`; `progressions`, `regressions`), as printed in the paper."""

    label: str
    model: str
    percent: dict[str, float]
    counts: dict[str, int]  # progressions, regressions
    source: str  # the set it belongs to
    task: str
    citation: str  # such as arXiv 2602.01003
    setting: str


@dataclass(frozen=True)
class ReferenceRow:
    """A row as the file holds it."""

    label: str
    model: str
    percent: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ReferenceSet:
    """The rows of one table of one paper."""

    task: str
    citation: str
    title: str
    setting: str
    rows: list[ReferenceRow]


def reference_sets() -> dict[str, ReferenceSet]:
    """Every set that ships, by name."""
    return TypeAdapter(dict[str, ReferenceSet]).validate_python(yaml.safe_load(FILE.read_text(encoding="utf-8")))


def references(name: str, task: str) -> list[Reference]:
    """The rows of one set, or with `all` of every set about the task; refused by name where there are none."""
    sets = reference_sets()
    chosen = [key for key, rows in sets.items() if key == name or (name == ALL and rows.task == task)]
    if not chosen:
        about = f"none is about {task}; " if name == ALL else ""
        known = ", ".join(f"{key} ({rows.task})" for key, rows in sets.items())
        raise UsageError(f"--references {name}: {about}choose {known}{'' if name == ALL else ' or all'}")
    return [
        Reference(
            row.label, row.model, row.percent, row.counts, key, sets[key].task, sets[key].citation, sets[key].setting
        )
        for key in chosen
        for row in sets[key].rows
    ]
