"""What a task is: problems, how they are asked, and how an answer is graded. Knows no engine and no tokenizer."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from esctl.errors import TaskError, UsageError

TRAIN, VALIDATION, TEST = "train", "validation", "test"


@dataclass(frozen=True)
class Problem:
    """One problem; `id` is stable across versions of this code, and unique in its task."""

    id: str
    question: str
    answer: str  # gold, in the form that the task's grader reads
    difficulty: str = ""  # a small number of groups to report accuracy by; "" when the data has none
    solution: str = ""  # reference solution in the asked-for format; "" when the data has none
    data: tuple[tuple[str, str], ...] = field(default=())  # what the grader needs beyond the answer, or extra columns


@dataclass(frozen=True)
class Grade:
    """What a completion is worth; `truncated` is known by its finish reason and kept beside it."""

    strict: bool  # right, in the asked-for format
    flexible: bool  # right by the last number, box or expression anywhere
    formatted: bool  # the asked-for format is there, right or wrong
    answer: str | None  # the extracted answer, normalised; None when there is none
    failure: str | None = None  # a grader that crashed or hung: "timeout", "crash"; never a silent 0


class Task(Protocol):
    """One row of the table in `TASKS`; a new task is one file and one line, and joins the contract tests by that."""

    name: str
    version: int  # raised whenever problems, prompt or grading change what a number means
    splits: tuple[str, ...]
    trainable: tuple[str, ...]  # the splits that may be trained on
    system: str  # the default system line

    def problems(self, split: str) -> tuple[Problem, ...]:
        """All problems of a split in a fixed order; raises TaskError where the data is missing or empty."""
        ...

    def grade(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade]:
        """Grade one completion for each problem; never raises on what a model wrote."""
        ...


@dataclass(frozen=True)
class Columns:
    """What the columns of one's own data are called, and how its answers are graded; for the task `file` alone."""

    question: str | None = None  # None: "question"
    answer: str | None = None  # None: "answer"
    id: str | None = None
    difficulty: str | None = None
    solution: str | None = None
    grader: str | None = None  # number | boxed | text


@dataclass(frozen=True)
class Limits:
    """How long a grader in a process of its own may take for one answer, and how many work at a time."""

    timeout_seconds: float = 5.0
    workers: int = 2


@dataclass(frozen=True)
class TaskSpec:
    """What a task is opened from."""

    name: str
    data: str | None = None  # a local file or folder in place of the hub; for `file` also a hub id
    columns: Columns = Columns()
    limits: Limits = Limits()

    @property
    def path(self) -> Path | None:
        """The local data, checked to be there; raises TaskError."""
        path = None if self.data is None else Path(self.data)
        if path is not None and not path.exists():
            raise TaskError(f"task.data: {path}: no such file or folder")
        return path


def _arithmetic(spec: TaskSpec) -> Task:
    from esctl.tasks.embedded import ArithmeticTask

    return ArithmeticTask()


def _tiny_countdown(spec: TaskSpec) -> Task:
    from esctl.tasks.embedded import TinyCountdownTask

    return TinyCountdownTask()


def _gsm8k(spec: TaskSpec) -> Task:
    from esctl.tasks.gsm8k import GSM8KTask

    return GSM8KTask(spec.path)


def _math(spec: TaskSpec) -> Task:
    from esctl.tasks.math import MathTask

    return MathTask(spec.name, spec.path, spec.limits)


def _countdown(spec: TaskSpec) -> Task:
    from esctl.tasks.countdown import CountdownTask

    return CountdownTask(spec.path)


def _file(spec: TaskSpec) -> Task:
    from esctl.tasks.file import FileTask

    if spec.data is None:
        raise TaskError("task.data: the task file needs a file, a folder or a hub id; give --data PATH")
    return FileTask(spec.data, spec.columns, spec.limits)


# Opening a task imports it: the table costs nothing to those who only list it.
TASKS: dict[str, Callable[[TaskSpec], Task]] = {
    "arithmetic": _arithmetic,
    "tiny-countdown": _tiny_countdown,
    "gsm8k": _gsm8k,
    "math": _math,
    "aime24": _math,
    "amc23": _math,
    "countdown": _countdown,
    "file": _file,
}
EMBEDDED = ("arithmetic", "tiny-countdown")  # they make their own problems


def open_task(spec: TaskSpec) -> Task:
    """A task by name; raises UsageError where it does not exist or cannot be opened so. Reads no problems yet."""
    if spec.name not in TASKS:
        close = difflib.get_close_matches(spec.name, TASKS, n=1)
        hint = f", did you mean {close[0]}?" if close else ""
        raise UsageError(f"task.name: no task {spec.name}{hint}; choose {', '.join(TASKS)}")
    if spec.name in EMBEDDED and spec.data is not None:
        raise UsageError(f"task.data: {spec.name} makes its own problems; leave --data out")
    named = [column for column, name in asdict(spec.columns).items() if name is not None]
    if named and spec.name != "file":
        raise UsageError(f"task.{named[0]}: columns are named for the task file only; {spec.name} knows its own")
    return TASKS[spec.name](spec)
