"""What a task is: problems, how they are asked, and how an answer is graded. Knows no engine and no tokenizer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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


def open_task(name: str, data: Path | None = None) -> Task:
    """A task by name; raises UsageError for an unknown one. Data is read when problems are asked for."""
    from esctl.tasks.arithmetic import ArithmeticTask
    from esctl.tasks.gsm8k import GSM8KTask
    from esctl.tasks.tiny_countdown import TinyCountdownTask

    embedded: dict[str, Callable[[], Task]] = {"arithmetic": ArithmeticTask, "tiny-countdown": TinyCountdownTask}
    external: dict[str, Callable[[Path | None], Task]] = {"gsm8k": GSM8KTask}
    if name in embedded:
        if data is not None:
            raise UsageError(f"task.data: {name} makes its own problems; leave --data out")
        return embedded[name]()
    if name not in external:
        raise UsageError(f"task.name: no task {name}; choose {', '.join([*embedded, *external])}")
    if data is not None and not data.exists():
        raise TaskError(f"task.data: {data}: no such file or folder")
    return external[name](data)
