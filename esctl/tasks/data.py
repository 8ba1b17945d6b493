"""Rows of a data set as text: from local files, or from the hub, both read through `datasets`.

Knows files and columns, not what they mean.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import cast

from esctl.errors import TaskError

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
