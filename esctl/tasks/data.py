"""Rows of a data set as text: from local files, or from the hub, both read through `datasets`.

Knows files and columns, not what they mean.

Splits of a published data set: train and test as they are, validation carved from train by a hash.

Leaves rows to `data` and what a row means to each task.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import cast

from esctl.errors import TaskError
from esctl.tasks import TEST, TRAIN, VALIDATION, Problem

Row = dict[str, str]
READERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}


@dataclass(frozen=True)
class Source:
    """Where the rows of one split lie: on the hub, or under one of these names in a local folder."""

    hub: str
    split: str  # as the hub calls it; may be a slice such as train[:1000]
    names: tuple[str, ...]  # file names without ending, in order of preference
    config: str | None = None


@dataclass(frozen=True)
class Fields:
    """What is read from a row, each under the first of its possible column names that is there."""

    needed: Mapping[str, tuple[str, ...]]
    optional: Mapping[str, tuple[str, ...]]


def load_rows(source: Source, data: Path | None, fields: Fields) -> list[Row]:
    """All rows of a split, keyed by field; raises TaskError, one line, for whatever is missing or empty."""
    if data is None:
        return pick(from_hub(source.hub, source.config, source.split), fields, f"{source.hub} {source.split}")
    path = find_file(data, source.names)
    if path is None:
        folder = data if data.is_dir() else data.parent
        raise TaskError(
            f"task.data: {data}: no file {source.names[0]}.jsonl (or {', '.join(READERS)}) in {folder};"
            " add it, or leave --data out to read from the hub"
        )
    return pick(from_file(path), fields, str(path))


def find_file(data: Path, names: Sequence[str]) -> Path | None:
    """The file of one of these names: `data` itself, or in the folder `data`, or beside the file `data`."""
    if data.is_file() and data.stem in names:
        return data
    folder = data if data.is_dir() else data.parent
    return next((p for name in names for end in READERS if (p := folder / f"{name}{end}").is_file()), None)


def pick(rows: Sequence[Mapping[str, object]], fields: Fields, where: str) -> list[Row]:
    """The fields of every row as text; raises TaskError for no rows, a missing column, or an empty value."""
    if not rows:
        raise TaskError(f"task.data: {where}: no rows; give data that has problems")
    found = {field: _column(rows[0], names) for field, names in {**fields.needed, **fields.optional}.items()}
    for field, names in fields.needed.items():
        if found[field] is None:
            have = ", ".join(map(str, rows[0]))
            raise TaskError(f"task.data: {where}: no column {' or '.join(names)} for the {field}; it has {have}")
    picked = [{field: as_text(row[c]) if c is not None else "" for field, c in found.items()} for row in rows]
    for number, row in enumerate(picked):
        empty = next((f for f in fields.needed if not row[f].strip()), None)
        if empty is not None:
            raise TaskError(f"task.data: {where}: row {number + 1} has no {empty}; fill it or drop the row")
    return picked


def as_text(value: object) -> str:
    """A cell as text: whole floats without their point, lists joined by commas, nothing as ""."""
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, list | tuple):
        return ", ".join(map(as_text, value))
    return str(value)


def quiet_datasets() -> ModuleType:
    """The library without its bars and notes: what goes wrong is told once, by the error that is raised."""
    import datasets

    datasets.disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    return cast("ModuleType", datasets)


def from_file(path: Path) -> list[dict[str, object]]:
    """Rows of a JSONL, JSON, CSV or Parquet file; raises TaskError where it cannot be read."""
    kind = READERS.get(path.suffix)
    if kind is None:
        raise TaskError(f"task.data: {path}: unknown ending {path.suffix!r}; give {', '.join(READERS)}")
    if path.stat().st_size == 0:
        return []
    datasets = quiet_datasets()
    try:
        return list(datasets.load_dataset(kind, data_files=str(path), split="train"))
    except (datasets.exceptions.DatasetGenerationError, ValueError, OSError) as error:
        cause = " ".join(str(error.__cause__ or error).split())
        raise TaskError(f"task.data: {path}: cannot be read as {kind} ({cause[:200]})") from None


def from_hub(name: str, config: str | None, split: str) -> list[dict[str, object]]:
    """Rows of a split from the hub or its cache; raises TaskError naming the cache and the local way out."""
    datasets = quiet_datasets()
    try:
        return list(datasets.load_dataset(name, config, split=split))
    except (OSError, ValueError) as error:
        raise _not_there(name, error) from None


def hub_splits(name: str) -> tuple[str, ...]:
    """The splits that a hub data set has; raises TaskError as `from_hub` does."""
    datasets = quiet_datasets()
    try:
        return tuple(datasets.get_dataset_split_names(name))
    except (OSError, ValueError) as error:
        raise _not_there(name, error) from None


def _not_there(name: str, error: Exception) -> TaskError:
    from datasets import config

    return TaskError(
        f"task.data: {name} is not in the cache {config.HF_DATASETS_CACHE} and cannot be fetched"
        f" ({type(error).__name__}); go online once, or give local files with --data PATH"
    )


def _column(row: Mapping[str, object], names: Sequence[str]) -> str | None:
    return next((name for name in names if name in row), None)


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
