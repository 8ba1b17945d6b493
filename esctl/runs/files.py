"""What is in a run directory: names, lock, atomic writes, typed readers.

Leaves what the files say to `records`, and what the numbers mean to those who write and read them. No torch here:
`compare` reads runs on any laptop.
"""

import gzip
import io
import json
import os
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
    """Write beside, sync, rename: readers see the old file or the new one, never half of one."""
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


def read_json(path: Path, kind: type[T]) -> T:
    """A dataclass from a JSON file; says which file and key is damaged, missing or from a later esctl."""
    try:
        tree = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RunError(f"{path}: missing") from None
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); restore it or move it away") from None
    except ValueError as error:
        raise RunError(f"{path}: not JSON ({error}); restore it or remove the run") from None
    if isinstance(tree, dict) and tree.get("schema", SCHEMA) != SCHEMA:
        raise RunError(f"{path}: schema {tree['schema']}, but this esctl reads {SCHEMA}; use the esctl that wrote it")
    return _checked(path, kind, tree)


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
    if not path.is_file():
        return []
    values = []
    for number, line in enumerate(_whole_lines(path.read_bytes()), 1):
        try:
            values.append(adapter(kind).validate_json(line, strict=True))
        except ValidationError as error:
            what = error.errors()[0]
            key = ".".join(map(str, what["loc"])) or "line"
            raise RunError(f"{path}:{number}: {key}: {what['msg']}; restore the file from a copy") from None
    return values


def drop_torn_line(path: Path) -> int:
    """Cut off what a kill left of a last line; returns the bytes dropped."""
    if not path.is_file():
        return 0
    data = path.read_bytes()
    torn = len(data) - (data.rfind(b"\n") + 1)
    if torn:
        os.truncate(path, len(data) - torn)
    return torn


def keep_lines(path: Path, n: int) -> None:
    """Drop every line after the first n."""
    write_atomic(path, b"".join(line + b"\n" for line in _whole_lines(path.read_bytes())[:n]))


def write_gzip_lines(path: Path, values: Iterable[object]) -> None:
    """JSON lines, compressed; equal values give equal bytes (mtime 0, no file name)."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=buffer, mode="wb", mtime=0) as file:
        for value in values:
            file.write(adapter(type(value)).dump_json(value) + b"\n")
    write_atomic(path, buffer.getvalue())


def read_gzip_lines(path: Path, kind: type[T]) -> list[T]:
    """The dataclasses of a compressed JSON-lines file."""
    try:
        return [adapter(kind).validate_json(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    except (OSError, EOFError, zlib.error, ValidationError) as error:
        raise RunError(f"{path}: damaged ({str(error).splitlines()[0]}); remove it and evaluate again") from None


def _whole_lines(data: bytes) -> list[bytes]:
    return data[: data.rfind(b"\n") + 1].splitlines()


def _checked(path: Path, kind: type[T], tree: object) -> T:
    try:
        return adapter(kind).validate_python(tree)
    except ValidationError as error:
        what = error.errors()[0]
        raise RunError(f"{path}: {'.'.join(map(str, what['loc']))}: {what['msg']}") from None
