"""Rows of a local file, as written: JSON lines, JSON and CSV are read here as text, Parquet through pyarrow.

A reader that guesses types rewrites data: the date 2024-01-02 gets a time, the zip code 02139 loses its zero. So every
cell of JSON lines, JSON and CSV keeps its characters, numbers included. Nothing is cached.
"""

import csv
import io
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from esctl.errors import TaskError

ENDINGS = (".jsonl", ".json", ".csv", ".parquet")
NEWLINE = re.compile(r"\r\n|\n|\r")
Rows = list[Mapping[str, object]]


class _NotRowsError(Exception):
    """Why a file holds no rows: one line, with the place."""


class _Doubled(dict[str, object]):
    """A JSON object that has a key twice, of which readers would keep the last in silence."""

    key: str = ""


def read_rows(path: Path) -> Rows:
    """All rows of a file in order; raises TaskError, one line with the place and what to do."""
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise TaskError(f"task.data: {path}: unknown ending {path.suffix!r}; give {', '.join(ENDINGS)}")
    try:
        if ending == ".parquet":
            return _parquet(path)
        text = _text(path)
        return _csv(text) if ending == ".csv" else _json(text)
    except _NotRowsError as error:
        raise TaskError(f"task.data: {path}: {error}") from None
    except OSError as error:
        raise TaskError(f"task.data: {path}: cannot be read ({error.strerror or error})") from None


def _text(path: Path) -> str:
    """The file as text without its byte order mark; only UTF-8 is read, since a guess could change characters."""
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _NotRowsError(
            f"line {line}: byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
        ) from None
    if "\0" in text:  # UTF-16 without a mark reads as UTF-8 with a zero after every letter
        line = text.count("\n", 0, text.index("\0")) + 1
        raise _NotRowsError(f"line {line}: zero bytes, as UTF-16 has them; save the file as UTF-8")
    return text


def _json(text: str) -> Rows:
    """A JSON list of objects, or one object on each line; the ending does not decide, the first character does."""
    if text.lstrip().startswith("["):
        return _json_list(text)
    rows: Rows = []
    for number, line in enumerate(NEWLINE.split(text), 1):
        if line.strip():
            rows.append(_object(_parsed(line, number), f"line {number}"))
    return rows


def _json_list(text: str) -> Rows:
    values = _parsed(text, 1)
    if not isinstance(values, list):  # cannot be: the text begins with a bracket
        raise _NotRowsError("not a list of rows")
    return [_object(value, f"row {number}") for number, value in enumerate(values, 1)]


def _parsed(text: str, line: int) -> object:
    """One JSON value, numbers as text; `line` is where the text begins."""
    try:
        return json.loads(text, parse_int=str, parse_float=str, parse_constant=str, object_pairs_hook=_pairs)
    except json.JSONDecodeError as error:
        place = line + error.lineno - 1
        raise _NotRowsError(
            f"line {place}: not JSON ({error.msg}, column {error.colno}); write one object on each line, or one list"
        ) from None
    except RecursionError:
        raise _NotRowsError(f"line {line}: nested too deep to be read") from None


def _pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    row = dict(pairs)
    if len(row) == len(pairs):
        return row
    keys = [key for key, _ in pairs]
    doubled = _Doubled(row)
    doubled.key = next(key for key in keys if keys.count(key) > 1)
    return doubled


def _object(value: object, place: str) -> Mapping[str, object]:
    if isinstance(value, _Doubled):
        raise _NotRowsError(f"{place}: the key {value.key!r} stands twice; keep one")
    if not isinstance(value, dict):
        kind = "a list" if isinstance(value, list) else "a single value"
        raise _NotRowsError(f'{place}: {kind} where a row is expected; write an object such as {{"question": …}}')
    return {key: _written(cell) for key, cell in value.items()}


def _written(value: object) -> object:
    """Truth values as they are written in JSON; numbers are text already."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return [_written(item) for item in value]
    return value


def _csv(text: str) -> Rows:
    """Cells as written; a quote that never closes or a row of another length is an error, not the rest of the file."""
    csv.field_size_limit(sys.maxsize)  # the default of 131,072 characters is below a long question
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: Rows = []
    header: list[str] = []
    try:
        for cells in reader:
            if not cells:  # an empty line
                continue
            if not header:
                header = _header(cells)
                continue
            if len(cells) != len(header):
                raise _NotRowsError(
                    f"line {reader.line_num}: {len(cells)} cells under {len(header)} columns; quote cells with commas"
                )
            rows.append(dict(zip(header, cells, strict=True)))
    except csv.Error as error:
        raise _NotRowsError(f"line {reader.line_num}: not CSV ({error}); check its quotes") from None
    return rows


def _header(cells: list[str]) -> list[str]:
    doubled = next((cell for cell in cells if cells.count(cell) > 1), None)
    if doubled is not None:
        raise _NotRowsError(f"line 1: two columns are called {doubled!r}; rename one")
    return cells


def _parquet(path: Path) -> Rows:
    """Values of the types that the file declares; nothing in it is guessed."""
    from pyarrow import ArrowException, parquet

    try:
        return list(parquet.read_table(path).to_pylist())
    except ArrowException as error:
        raise _NotRowsError(f"not Parquet ({' '.join(str(error).split())[:200]})") from None


def as_text(value: object) -> str:
    """A cell as text: whole floats without their point, lists joined by commas, nothing as "".

    Raises TypeError for an object or a list of them, which have no one text.
    """
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, list | tuple):
        return ", ".join(map(as_text, value))
    if isinstance(value, Mapping | bytes):
        raise TypeError("an object" if isinstance(value, Mapping) else "bytes")
    return str(value)
