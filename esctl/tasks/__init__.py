"""Tasks: problems, how they are asked, and how an answer is graded. Knows no engine and no weights.

This file is the public face: `from esctl.tasks import Grade, Problem` in a user's reward function.

embedded, gsm8k, math, countdown, file   one task each;  world: the text of the embedded problems
data      published data sets and their splits;  rows: local files as text
prompts   system line, examples, style: a problem as token ids;  tokenizer: the model's vocabulary and chat template
grading/  what an answer is and equals, rewards, and the worker processes

A new task is one file and one entry of `TASKS`. May import the ground alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Protocol, Self

from esctl.errors import TaskError, UsageError, did_you_mean
from esctl.settings import Count, Positive, Share

TRAIN, VALIDATION, TEST = "train", "validation", "test"


@dataclass(frozen=True)
class Problem:
    """One problem; `id` is stable across versions of this code, and unique in its task."""

    id: str
    question: str
    answer: str  # gold, in the form that the task's grader reads
    difficulty: str = ""  # a small number of groups to report accuracy by; "" when the data has none
    solution: str = ""  # reference solution in the format of the prompt; "" when the data has none
    data: tuple[tuple[str, str], ...] = field(default=())  # what the grader needs beyond the answer, or extra columns


@dataclass(frozen=True)
class Grade:
    """A task's verdict on one completion."""

    strict: bool  # right, in the format that the prompt asks for
    flexible: bool  # right by the last number, box or expression anywhere
    formatted: bool  # the format is there, right or wrong
    answer: str | None  # the extracted answer, normalised; None when there is none
    failure: str | None = None  # why grading failed: "timeout", "crash"; such a 0 is not a score


class Task(Protocol):
    """What every entry of `TASKS` opens to; the contract tests run over the table."""

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
class TaskSettings:
    """A recipe's `task:` section; all but the first three keys are for `name: file`."""

    name: str = "gsm8k"  # a task of the table; see docs/tasks.md
    data: str | None = None  # a local file or folder in place of the hub
    split: str = "train"  # the problems to train on
    question: str | None = None  # column of the question; null: `question`
    answer: str | None = None  # column of the gold answer; null: `answer`
    id: str | None = None  # column of an identifier
    difficulty: str | None = None  # column of a group to report accuracy by
    solution: str | None = None  # column of a reference solution
    grader: str | None = None  # form of an answer: number, boxed or text; null: number

    @property
    def own_keys(self) -> list[str]:
        """The keys that only `file` has, as far as they are set."""
        keys = [f.name for f in fields(TaskSettings)[3:]]
        return [key for key in keys if getattr(self, key) is not None]


@dataclass(frozen=True)
class Limits:
    """Limits for graders that run apart from the trainer."""

    timeout_seconds: Positive = 5.0  # for one answer
    max_failures: Share = 0.01  # share of a round's samples; above it the run stops
    workers: Count = 2  # processes that grade at a time


@dataclass(frozen=True)
class TaskSpec(TaskSettings):
    """What a task is opened from: a recipe's `task:` section, and what follows from the rest of the recipe."""

    limits: Limits = Limits()
    think: str = "auto"  # the end of a thought: auto (known tags), none, or a string

    @classmethod
    def of(cls, settings: TaskSettings, limits: Limits, think: str) -> Self:
        """The settings with the recipe's limits of graders and end of a thought."""
        return cls(**asdict(settings), limits=limits, think=think)

    @property
    def path(self) -> Path | None:
        """The local data; raises TaskError where it does not exist."""
        if self.data is None:
            return None
        path = Path(self.data)
        if not path.exists():
            raise TaskError(f"task.data: {path}: no such file or folder")
        return path


def _embedded(spec: TaskSpec) -> Task:
    from esctl.tasks.embedded import EmbeddedTask

    return EmbeddedTask(spec.name)


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
    return FileTask(spec.data, spec, spec.limits)


# A task is imported when it is opened, so listing the table is cheap.
TASKS: dict[str, Callable[[TaskSpec], Task]] = {
    "arithmetic": _embedded,
    "tiny-countdown": _embedded,
    "gsm8k": _gsm8k,
    "math": _math,
    "aime24": _math,
    "amc23": _math,
    "countdown": _countdown,
    "file": _file,
}
EMBEDDED = ("arithmetic", "tiny-countdown")  # their problems are generated


def open_task(spec: TaskSpec) -> Task:
    """A task by name, without reading its problems; raises UsageError where the name or the settings are wrong."""
    if spec.name not in TASKS:
        raise UsageError(f"task.name: no task {spec.name}{did_you_mean(spec.name, TASKS)}; choose {', '.join(TASKS)}")
    if spec.name in EMBEDDED and spec.data is not None:
        raise UsageError(f"task.data: {spec.name} makes its own problems; leave --data out")
    if spec.own_keys and spec.name != "file":
        key = spec.own_keys[0]
        raise UsageError(f"task.{key}: only the task file has it; {spec.name} knows its own columns, leave it out")
    from esctl.tasks.grading.thoughts import AfterThought

    return AfterThought(TASKS[spec.name](spec), spec.think)
