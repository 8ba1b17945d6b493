"""Rows of a data set: from local files, or from the hub through `datasets`. Knows columns, not what they mean."""

import os
from collections.abc import Sequence
from pathlib import Path

from esctl.errors import TaskError

Row = dict[str, str]
READERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}


def load_rows(hub: tuple[str, str], data: Path | None, task: str, split: str, columns: Sequence[str]) -> list[Row]:
    """All rows of a split with these columns as text; raises TaskError, one line, for whatever is missing or empty."""
    rows = _local(find_file(data, task, split)) if data is not None else _hub(*hub, split)
    where = str(data) if data is not None else hub[0]
    if not rows:
        raise TaskError(f"task.data: {where}: split {split} is empty")
    missing = [c for c in columns if c not in rows[0]]
    if missing:
        raise TaskError(f"task.data: {where}: no column {missing[0]}; it has {', '.join(rows[0])}")
    return [{c: str(row[c]) for c in columns} for row in rows]


def find_file(data: Path, task: str, split: str) -> Path:
    """The file of a split: `<task>_<split>.*` or `<split>.*` in a folder, or the file itself or its sibling.

    For a file named after one split, the other split's file is looked for beside it.
    """
    folder = data if data.is_dir() else data.parent
    names = [f"{stem}{end}" for stem in (f"{task}_{split}", split) for end in READERS]
    found = next((folder / n for n in names if (folder / n).is_file()), None)
    if found is None:
        raise TaskError(f"task.data: {data}: no {split} split; expected {names[0]} or {split}.jsonl in {folder}")
    return found


def _local(path: Path) -> list[dict[str, object]]:
    return _load(READERS[path.suffix], path)


def _load(kind: str, path: Path) -> list[dict[str, object]]:
    import datasets

    if path.stat().st_size == 0:
        return []
    datasets.disable_progress_bars()
    try:
        return list(datasets.load_dataset(kind, data_files=str(path), split="train"))
    except (datasets.exceptions.DatasetGenerationError, ValueError, OSError) as error:
        cause = error.__cause__ or error
        raise TaskError(f"task.data: {path}: cannot be read as {kind} ({str(cause).splitlines()[0]})") from None


def _hub(name: str, config: str, split: str) -> list[dict[str, object]]:
    import datasets

    datasets.disable_progress_bars()
    try:
        return list(datasets.load_dataset(name, config, split=split))
    except (OSError, ValueError) as error:
        cache = os.environ.get("HF_DATASETS_CACHE", datasets.config.HF_DATASETS_CACHE)
        raise TaskError(
            f"task: {name} is not in the cache {cache} and cannot be fetched ({type(error).__name__});"
            " give local files with --data PATH"
        ) from None
