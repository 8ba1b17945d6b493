"""A run directory: the names of its files, its lock, and a typed reader for each file.

`records` is the schema of the files, `files` how they are read and written. No torch here: `compare` runs on a laptop.
"""

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import filelock

from esctl.errors import RunError
from esctl.runs.files import read_json, read_limited, read_lines, write_atomic, write_json
from esctl.runs.plain_yaml import YAML_LIMIT
from esctl.runs.records import BASE, EXTERNAL, EvalRecord, RunRecord, ScoreRecord

OWN_FOLDERS = ("samples", "weights", "checkpoints", "evals", "sharpness", "tensorboard")
NO_LOCK = "ESCTL_NO_LOCK"  # an environment variable
WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOTSUP)  # what a file system without locks answers; some NFS mounts
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
            if not os.environ.get(NO_LOCK):
                lock.acquire()
        except filelock.Timeout:
            raise RunError(f"{self.path}: another process is using this run; wait for it or stop it") from None
        except (FileExistsError, NotADirectoryError):
            raise RunError(f"{self.path}: is a file; choose a directory with --run") from None
        except OSError as error:
            if error.errno in WITHOUT_LOCKS:
                raise RunError(
                    f"{self.path}: this file system has no locks ({error.strerror}); choose a local disk with --run, or"
                    f" set {NO_LOCK}=1 if no other process uses this run"
                ) from None
            what = f"cannot be written ({error.strerror})"
            raise RunError(
                f"{error.filename or self.path}: {what}; give write access, or choose another place with --run"
            ) from None
        try:  # apart: what the caller raises is not about the lock
            yield
        finally:
            lock.release()

    @property
    def is_locked(self) -> bool:
        """Whether another process holds the lock now; False where nobody ever took it or where it cannot be known."""
        path = self.path / ".lock"
        if os.environ.get(NO_LOCK) or not path.exists():
            return False
        lock = filelock.FileLock(path, timeout=0)
        try:
            lock.acquire()
        except filelock.Timeout:
            return True
        except OSError:
            return False
        lock.release()
        return False

    def read_record(self) -> RunRecord:
        """`run.json`, checked."""
        if not self.exists:
            raise RunError(f"{self.path}: no run here (run.json is missing); start one with `esctl train --run`")
        return read_json(self.record, RunRecord)

    def begin(self, recipe: str, record: RunRecord) -> None:
        """Write the recipe and then the record, which makes the folder a run."""
        write_atomic(self.recipe, recipe.encode())
        self.write_record(replace(record, recipe_sha256=[sha256_of(recipe.encode())]))

    def known_recipes(self, record: RunRecord, recipe: str) -> list[str]:
        """The hashes of every recipe.yaml that a run has had, this one included."""
        known = record.recipe_sha256 or [sha256_of(read_limited(self.recipe, YAML_LIMIT))]
        digest = sha256_of(recipe.encode())
        return known if digest in known else [*known, digest]

    def refuse_edited_recipe(self, record: RunRecord) -> None:
        """RunError where recipe.yaml is not what esctl wrote for this run: its scores mean what that file said."""
        if not record.recipe_sha256 or not self.recipe.is_file():
            return
        if sha256_of(read_limited(self.recipe, YAML_LIMIT)) not in record.recipe_sha256:
            raise RunError(
                f"{self.recipe}: was edited since the run was recorded, so it no longer says what was trained;"
                " restore it from a copy, or start another run with `--recipe`"
            )

    def refuse_other_weights(self, path: Path, recorded: str, now: str) -> None:
        """RunError where a stored measurement is of other weights than those that would be given its numbers.

        Weights that were kept are known by two hashes: training measures θ in fp32, later commands what weights/ holds.
        """
        if recorded == now or not self.exists:
            return
        record = self.read_record()
        if recorded in record.kept_sha256 and now in record.kept_sha256:
            return
        if not record.kept_sha256 and record.method not in (BASE, EXTERNAL) and "float32" not in record.engine:
            return  # esctl 0.1.0 did not record the hash of weights/, which differs from that of θ below fp32
        raise RunError(
            f"{path}: was measured on weights {recorded[:8]}, and these are {now[:8]}: the run's weights, recipe or"
            " scores have changed since; restore them, or move the file away and measure again"
        )

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
        """The file of a generation's rollouts."""
        return self.samples / f"{generation:05d}.jsonl"

    def checkpoint_file(self, generation: int) -> Path:
        """The file of the cached fp32 center after `generation` generations."""
        return self.checkpoints / f"{generation:05d}.safetensors"

    def checkpoint_folder(self, step: int) -> Path:
        """The folder of an RL trainer's state after `step` steps."""
        return self.checkpoints / f"{step:05d}"

    def eval_files(self) -> list[Path]:
        """Every evaluation, by name."""
        return sorted(self.evals.glob("*.json"))

    def read_evals(self) -> list[EvalRecord]:
        """Every evaluation, checked; a damaged one is named."""
        return [read_json(p, EvalRecord) for p in self.eval_files()]


def sha256_of(data: bytes) -> str:
    """The hash by which a run knows a file."""
    return hashlib.sha256(data).hexdigest()


def default_folder(name: str) -> Path:
    """runs/<name>: where a command puts a run whose folder was not given."""
    return Path("runs") / folder_name(name)


def folder_name(text: str) -> str:
    """What a label or a model is called as a directory or file: for people, no program reads it."""
    return "".join(c if c.isalnum() or c in "-._=" else "-" for c in text.lower())


def find_runs(paths: Iterable[Path]) -> list[RunDir]:
    """The runs at the paths: each a run directory or a folder of them at any depth, links included.

    Raises RunError with a line for everything that would be passed over: a run without run.json, a dead link, a folder
    that cannot be read, a path without a run.
    """
    found: list[RunDir] = []
    problems: list[str] = []
    for path in paths:
        inside = [path] if (path / "run.json").is_file() else []
        before = len(problems)
        if not inside:
            for folder in _folders(path, problems):
                if (folder / "run.json").is_file():
                    inside.append(folder)
                elif (folder / "recipe.yaml").exists() or (folder / "evals").exists():
                    problems.append(f"{folder}: run.json is missing; restore it, or move the folder away")
        if not inside and len(problems) == before:
            problems.append(f"{path}: no run directory here (nothing below it holds a run.json)")
        found += [RunDir(folder) for folder in inside]
    if problems:
        raise RunError("\n".join(problems))
    return list({run.path.resolve(): run for run in found}.values())


def _folders(path: Path, problems: list[str]) -> Iterator[Path]:
    """The folder and all below it that can hold runs, each once; what cannot be looked at is added to `problems`."""

    def unreadable(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            problems.append(f"{error.filename}: cannot be read ({error.strerror}); give read access, or move it away")

    seen: set[Path] = set()
    for name, folders, files in os.walk(path, onerror=unreadable, followlinks=True):
        folder = Path(name)
        real = folder.resolve()
        if real in seen:  # reached through another link, perhaps one to a folder above itself
            folders.clear()
            continue
        seen.add(real)
        if "run.json" in files:  # its own folders hold no runs, and weights may be a link into a large cache
            folders[:] = [f for f in folders if f not in OWN_FOLDERS]
        else:
            dead = [folder / f for f in files if (folder / f).is_symlink() and not (folder / f).exists()]
            problems += [
                f"{link}: a link to nothing ({link.readlink()}); mount it, or remove the link" for link in dead
            ]
        folders.sort()
        yield folder
