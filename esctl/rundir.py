"""What is in a run directory: names, lock, atomic writes, typed readers.

Leaves what the files say to `records`, and what the numbers mean to those who write and read them. No torch here:
`compare` reads runs on any laptop.
"""

import gzip
import io
import json
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar, cast

import filelock
from pydantic import TypeAdapter, ValidationError

from esctl.errors import RunError, unwritable
from esctl.faults import reach
from esctl.records import SCHEMA, EvalRecord, RunRecord, ScoreRecord, SharpnessRecord

T = TypeVar("T")
_ADAPTERS: dict[type, object] = {}
UNBEGUN = (".lock", ".recipe.yaml.new")  # what a kill can leave of a run that was not begun


class RunDir:
    """The files of one run. Files are appended or replaced atomically; a directory's name is never parsed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.yaml"
        self.record = path / "run.json"
        self.scores = path / "scores.jsonl"
        self.metrics = path / "metrics.jsonl"
        self.samples = path / "samples"
        self.weights = path / "weights"
        self.checkpoints = path / "checkpoints"
        self.evals = path / "evals"
        self.sharpness = path / "sharpness"
        self.tensorboard = path / "tensorboard"

    @property
    def exists(self) -> bool:
        """Whether a run was begun here."""
        return self.record.is_file()

    def refuse_used(self) -> None:
        """Refuse a directory that holds anything but what a kill leaves before a run is begun."""
        if self.path.is_file():
            raise RunError(f"{self.path}: is a file; choose a directory with --run")
        if self.path.is_dir() and any(p.name not in UNBEGUN for p in self.path.iterdir()):
            raise RunError(f"{self.path}: is in use; continue it with --resume, or choose another with --run")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One process at a time; the lock dies with its process."""
        lock = filelock.FileLock(self.path / ".lock", timeout=0)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except filelock.Timeout:
            raise RunError(f"{self.path}: another process is using this run; wait for it or stop it") from None
        except (FileExistsError, NotADirectoryError):
            raise RunError(f"{self.path}: is a file; choose a directory with --run") from None
        except OSError as error:
            what = f"cannot be written ({error.strerror})"
            raise RunError(
                f"{error.filename or self.path}: {what}; give write access, or choose another place with --run"
            ) from None
        try:  # apart: what the caller raises is not about the lock
            yield
        finally:
            lock.release()

    def read_record(self) -> RunRecord:
        """`run.json`, checked."""
        if not self.exists:
            raise RunError(f"{self.path}: no run here (run.json is missing); start one with `esctl train --run`")
        return read_json(self.record, RunRecord)

    def write_record(self, record: RunRecord) -> None:
        """Replace `run.json`."""
        write_json(self.record, record)

    def read_scores(self) -> list[ScoreRecord]:
        """Every recorded candidate in order; a torn last line does not count."""
        return read_lines(self.scores, ScoreRecord)

    def read_metrics(self) -> list[dict[str, float]]:
        """One entry per recorded generation; a torn last line does not count."""
        return read_lines(self.metrics, dict[str, float])

    def sample_file(self, generation: int) -> Path:
        """Where the rollouts of a generation lie."""
        return self.samples / f"{generation:05d}.jsonl"

    def checkpoint_file(self, generation: int) -> Path:
        """Where the cached fp32 center after so many generations lies."""
        return self.checkpoints / f"{generation:05d}.safetensors"

    def checkpoint_folder(self, step: int) -> Path:
        """Where the state of an RL trainer after so many steps lies."""
        return self.checkpoints / f"{step:05d}"

    def eval_files(self) -> list[Path]:
        """Every evaluation, by name."""
        return sorted(self.evals.glob("*.json"))

    def read_evals(self) -> list[EvalRecord]:
        """Every evaluation, checked; a damaged one is named."""
        return [read_json(p, EvalRecord) for p in self.eval_files()]

    def read_sharpness(self) -> list[SharpnessRecord]:
        """Every sharpness measurement, checked."""
        return [read_json(p, SharpnessRecord) for p in sorted(self.sharpness.glob("*.json"))]


def adapter(kind: type[T]) -> TypeAdapter[T]:
    """The reader and writer of a dataclass, built once."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return cast(TypeAdapter[T], _ADAPTERS[kind])


def folder_name(text: str) -> str:
    """What a label or a model is called as a directory or file: for people, no program reads it."""
    return "".join(c if c.isalnum() or c in "-._=" else "-" for c in text.lower())


def find_runs(paths: Iterable[Path]) -> list[RunDir]:
    """The runs at the paths: each a run directory or a folder of them at any depth; names those without run.json."""
    found: list[RunDir] = []
    problems: list[str] = []
    for path in paths:
        inside = [path] if (path / "run.json").is_file() else sorted(p.parent for p in path.rglob("run.json"))
        halves = {p.parent for name in ("recipe.yaml", "evals") for p in path.rglob(name)} - set(inside)
        problems += [f"{half}: run.json is missing; restore it, or move the folder away" for half in sorted(halves)]
        if not inside and not halves:
            problems.append(f"{path}: no run directory here (nothing below it holds a run.json)")
        found += [RunDir(p) for p in inside]
    if problems:
        raise RunError("\n".join(problems))
    return list({run.path.resolve(): run for run in found}.values())


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


def replace_folder(path: Path, built: Path) -> None:
    """Put a finished folder in the place of another; a reader finds one of them, or for an instant none."""
    old = path.with_name(f".{path.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)
    reach("mid-rename")
    built.rename(path)
    shutil.rmtree(old, ignore_errors=True)


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
