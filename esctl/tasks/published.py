"""Splits of a published data set: train and test as they are, validation carved from train by a hash.

Leaves rows to `data` and what a row means to each task.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from esctl.errors import TaskError
from esctl.tasks import TEST, TRAIN, VALIDATION, Problem
from esctl.tasks.data import Fields, Row, Source, find_file, load_rows

VALIDATION_PERCENT = 7  # of train: 512 of GSM8K's 7,473, or so


@dataclass(frozen=True)
class Published:
    """One data set; without `train` there is a test split alone, and nothing may be trained on."""

    name: str
    fields: Fields
    problem: Callable[[str, Row], Problem | None]  # from an id and a row; None leaves the row out
    test: Source
    train: Source | None = None

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that there are."""
        return (TRAIN, VALIDATION, TEST) if self.train else (TEST,)

    @property
    def trainable(self) -> tuple[str, ...]:
        """The splits that may be trained on."""
        return (TRAIN,) if self.train else ()

    def problems(self, split: str, data: Path | None) -> tuple[Problem, ...]:
        """All problems of a split, ids in file order; raises TaskError where data is missing, empty, or leaks."""
        refuse_unknown(self.name, split, self.splits)
        if split == TEST or self.train is None:
            return self._read(TEST, self.test, data)
        published = self._read(TRAIN, self.train, data)
        if data is None or find_file(data, self.test.names) is not None:
            refuse_shared(published, self._read(TEST, self.test, data))
        return tuple(p for p in published if is_held_out(p) == (split == VALIDATION))

    def _read(self, split: str, source: Source, data: Path | None) -> tuple[Problem, ...]:
        rows = load_rows(source, data, self.fields)
        made = (self.problem(f"{split}-{i}", row) for i, row in enumerate(rows))
        kept = tuple(p for p in made if p is not None)
        if not kept:
            raise TaskError(f"task.data: {self.name} {split}: none of {len(rows)} rows is a problem of this task")
        return kept


def refuse_unknown(task: str, split: str, splits: Sequence[str]) -> None:
    """Raise TaskError for a split that the task does not have."""
    if split not in splits:
        raise TaskError(f"task.split: {task} has no split {split!r}; choose {', '.join(splits)}")


def refuse_shared(train: Sequence[Problem], test: Sequence[Problem]) -> None:
    """Raise TaskError where a question is in both, whatever its case and spacing."""
    known = {key(p): p for p in train}
    shared = [(known[key(p)], p) for p in test if key(p) in known]
    if shared:
        a, b = shared[0]
        raise TaskError(
            f"task.data: train and test share {len(shared)} problems, such as {a.id} and {b.id}; drop them from one"
        )


def key(problem: Problem) -> str:
    """What makes a question the same question."""
    return " ".join(problem.question.casefold().split())


def is_held_out(problem: Problem) -> bool:
    """Whether a problem of train is held out for validation; the same in any subset and order of the data."""
    return percentile(problem) < VALIDATION_PERCENT


def percentile(problem: Problem) -> int:
    """0 to 99, evenly, from a hash of the question."""
    digest = hashlib.blake2b(key(problem).encode(), digest_size=8, person=b"esctl-valid").digest()
    return int.from_bytes(digest, "little") % 100
