"""How the files of a run are read and written: whole or not at all, checked, and never without a limit.

A run directory can come from a stranger. Every reader here takes regular files up to a size, nested up to a depth, and
says in one line which file and key is wrong. No torch here: `compare` reads runs on any laptop.
"""

import gzip
import io
import json
import math
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from esctl.errors import RunError, unwritable
from esctl.faults import reach
from esctl.runs.records import SCHEMA

T = TypeVar("T")
MEBI = 2**20
JSON_LIMIT = 64 * MEBI  # bytes of a JSON file; an evaluation of 100,000 problems has some 15 MiB
LINES_LIMIT = 256 * MEBI  # bytes of a file of JSON lines
LINE_LIMIT = 16 * MEBI  # bytes of one line of a compressed file
MOST_SAMPLES = 4_000_000  # lines of a compressed file: 1,319 problems × 3,000 samples
LARGEST = 2**63  # of a whole number
# What a number that is not finite, or has more than 64 bits, looks like; text can look so too.
ODD = re.compile(rb"NaN|Infinity|\d{19}|[eE]\+?\d{3}")
_ADAPTERS: dict[type, object] = {}


def adapter(kind: type[T]) -> TypeAdapter[T]:
    """The reader and writer of a dataclass, built once."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return cast(TypeAdapter[T], _ADAPTERS[kind])


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Say which file a full or read-only disk refused; what was there before stays."""
    try:
        yield
    except OSError as error:
        with suppress(OSError):  # a read-only disk refuses this too
            path.with_name(f".{path.name}.new").unlink(missing_ok=True)
        raise RunError(unwritable(path, error)) from None


def write_atomic(path: Path, data: bytes) -> None:
    """Write a temporary file, sync, rename: readers see the old file or the new one, never half of one."""
    temporary = path.with_name(f".{path.name}.new")
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        reach("mid-rename")
        temporary.replace(path)


def write_json(path: Path, value: object) -> None:
    """Replace a JSON file by a dataclass."""
    write_atomic(path, adapter(type(value)).dump_json(value, indent=1) + b"\n")


def read_limited(path: Path, limit: int) -> bytes:
    """The bytes of a regular file of at most `limit` bytes; RunError for anything else that a path can be.

    The file is opened without waiting and looked at before it is read: a FIFO would hang, a device never end.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        raise RunError(f"{path}: missing; restore it from a copy") from None
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); restore it or move it away") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise RunError(f"{path}: is not a regular file; restore it from a copy or move it away")
    with open(descriptor, "rb") as file:
        if status.st_size > limit:
            size = f"{status.st_size / MEBI:,.0f} MiB, more than the {limit / MEBI:,.0f} MiB that such a file can have"
            raise RunError(f"{path}: has {size}; restore it from a copy or move it away")
        return file.read(limit)


def read_json(path: Path, kind: type[T]) -> T:
    """A dataclass from a JSON file; says which file and key is damaged, missing or from a later esctl."""
    data = read_limited(path, JSON_LIMIT)
    _refuse_odd_numbers(path, data)
    try:
        value = adapter(kind).validate_json(data, strict=True)
    except ValidationError as error:
        _refuse_other_files(path, data)
        raise RunError(f"{path}: {_first_mistake(error)}; restore the file from a copy") from None
    _refuse_schema(path, getattr(value, "schema", SCHEMA))
    return value


def _refuse_other_files(path: Path, data: bytes) -> None:
    """RunError where a file is no JSON, or was written by another esctl: its other mistakes follow from that."""
    try:
        tree = json.loads(data)
    except RecursionError:
        raise RunError(f"{path}: not JSON of a run (nested too deeply); restore it or remove the run") from None
    except ValueError as error:
        raise RunError(f"{path}: not JSON ({error}); restore it or remove the run") from None
    if isinstance(tree, dict):
        _refuse_schema(path, tree.get("schema", SCHEMA))


def _refuse_schema(path: Path, schema: object) -> None:
    if schema != SCHEMA:
        raise RunError(f"{path}: schema {schema}, but this esctl reads {SCHEMA}; use the esctl that wrote it")


def append_lines(path: Path, values: Iterable[object], sync: bool = False) -> None:
    """Append one JSON line per dataclass, starting on a line of its own also after a torn one was dropped."""
    text = b"".join(adapter(type(v)).dump_json(v) + b"\n" for v in values)
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _append(path, text, sync)


def _append(path: Path, text: bytes, sync: bool) -> None:
    with path.open("ab") as file:
        file.write(text[: len(text) // 2])
        file.flush()
        reach("mid-append")
        file.write(text[len(text) // 2 :])
        file.flush()
        if sync:
            os.fsync(file.fileno())


def read_lines(path: Path, kind: type[T]) -> list[T]:
    """The dataclasses of a JSON-lines file; a last line without its end was torn by a kill and is left out."""
    if not os.path.lexists(path):
        return []
    values = []
    for number, line in enumerate(_whole_lines(read_limited(path, LINES_LIMIT)), 1):
        _refuse_odd_numbers(Path(f"{path}:{number}"), line)
        try:
            values.append(adapter(kind).validate_json(line, strict=True))
        except ValidationError as error:
            raise RunError(f"{path}:{number}: {_first_mistake(error)}; restore the file from a copy") from None
    return values


def drop_torn_line(path: Path) -> int:
    """Cut off what a kill left of a last line; returns the bytes dropped."""
    if not os.path.lexists(path):
        return 0
    data = read_limited(path, LINES_LIMIT)
    torn = len(data) - (data.rfind(b"\n") + 1)
    if torn:
        os.truncate(path, len(data) - torn)
    return torn


def keep_lines(path: Path, n: int) -> None:
    """Drop every line after the first n."""
    write_atomic(path, b"".join(line + b"\n" for line in _whole_lines(read_limited(path, LINES_LIMIT))[:n]))


def write_gzip_lines(path: Path, values: Iterable[object]) -> None:
    """JSON lines, compressed; equal values give equal bytes (mtime 0, no file name)."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=buffer, mode="wb", mtime=0) as file:
        for value in values:
            file.write(adapter(type(value)).dump_json(value) + b"\n")
    write_atomic(path, buffer.getvalue())


def read_gzip_lines(path: Path, kind: type[T], most: int = MOST_SAMPLES) -> list[T]:
    """The dataclasses of a compressed JSON-lines file of at most `most` lines.

    It is read line by line: a few kilobytes can be made that unpack to more than a machine holds.
    """
    data = read_limited(path, LINES_LIMIT)
    values: list[T] = []
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            while line := file.readline(LINE_LIMIT):
                if len(values) == most or len(line) == LINE_LIMIT:
                    raise RunError(f"{path}: holds more than its evaluation has; remove it and evaluate again")
                values.append(adapter(kind).validate_json(line))
    except (OSError, EOFError, zlib.error, ValidationError) as error:
        raise RunError(f"{path}: damaged ({str(error).splitlines()[0]}); remove it and evaluate again") from None
    return values


def _whole_lines(data: bytes) -> list[bytes]:
    return data[: data.rfind(b"\n") + 1].splitlines()


def _first_mistake(error: ValidationError) -> str:
    """`key: what is wrong` of the first mistake in a file."""
    what = error.errors()[0]
    key = ".".join(map(str, what["loc"])) or "line"
    return f"{key}: {what['msg']}"


def _refuse_odd_numbers(path: Path, data: bytes) -> None:
    """RunError that names the first key whose number is not finite or has over 64 bits: esctl writes no such number."""
    if ODD.search(data) is None:  # nearly always, and fast
        return
    try:
        nodes: list[tuple[str, object]] = [("", json.loads(data))]
    except (ValueError, RecursionError):
        return  # a mistake of another kind, which is reported as such
    while nodes:
        key, value = nodes.pop()
        if isinstance(value, dict):
            nodes += [(f"{key}.{name}" if key else str(name), child) for name, child in value.items()]
        elif isinstance(value, list):
            nodes += [(f"{key}.{place}", child) for place, child in enumerate(value)]
        elif isinstance(value, float) and not math.isfinite(value):
            raise RunError(f"{path}: {key}: {value} is not a finite number; restore the file from a copy")
        elif isinstance(value, int) and not -LARGEST <= value < LARGEST:
            raise RunError(f"{path}: {key}: a number of more than 64 bits; restore the file from a copy")
