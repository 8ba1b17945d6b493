"""The embedded benchmark: templated word problems whose answers are numbers, graded as GSM8K is.

Leaves the problems' text to `world` and the reading of answers to `answers`.

The embedded world's second benchmark: reach a target from three numbers by writing an expression.

Leaves the problems' text to `world` and the value of an expression to `answers`.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice

from esctl.errors import TaskError
from esctl.tasks import TEST, TRAIN, VALIDATION, Grade, Problem
from esctl.tasks.grading.answers import countdown_value, flexible_number, same_number, strict_number
from esctl.tasks.world import Item, items, marked

SIZES = {TRAIN: 4096, VALIDATION: 512, TEST: 2048}


@lru_cache(maxsize=8)
def world_problems(family: str, split: str) -> tuple[Problem, ...]:
    """The first so many problems of a split of the embedded world; disjoint between splits by construction."""
    if split not in SIZES:
        raise TaskError(f"task.split: {family} has no split {split!r}; choose {', '.join(SIZES)}")
    return tuple(_problem(f"{split}-{i}", x) for i, x in enumerate(islice(items(family, split), SIZES[split])))


def _problem(name: str, item: Item) -> Problem:
    return Problem(name, item.question, item.answer, item.difficulty, marked(item), item.data)


class ArithmeticTask:
    """Word problems of one to three events; the asked-for format ends in `#### n`."""

    name = "arithmetic"
    version = 1
    splits: tuple[str, ...] = tuple(SIZES)
    trainable: tuple[str, ...] = (TRAIN,)
    system = ""

    def problems(self, split: str) -> tuple[Problem, ...]:
        """All problems of a split; raises TaskError for an unknown one."""
        return world_problems(self.name, split)

    def grade(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade]:
        """Strict by the last `#### n`, flexible by the last number."""
        return [_grade_arithmetic(p.answer, t) for p, t in zip(problems, texts, strict=True)]


def _grade_arithmetic(gold: str, text: str) -> Grade:
    told, last = strict_number(text), flexible_number(text)
    return Grade(
        strict=told is not None and same_number(told, gold),
        flexible=last is not None and same_number(last, gold),
        formatted=told is not None,
        answer=told if told is not None else last,
    )


MARK = "####"
LONGEST = 64  # characters of an expression that are read; the longest right one has ten
EXPRESSION = re.compile(r"[-+*/() \d]*\d[-+*/() \d]*")


class TinyCountdownTask:
    """Three numbers, each used once, with `+`, `-` and `*`; the asked-for format ends in `#### expression`."""

    name = "tiny-countdown"
    version = 1
    splits: tuple[str, ...] = tuple(SIZES)
    trainable: tuple[str, ...] = (TRAIN,)
    system = ""

    def problems(self, split: str) -> tuple[Problem, ...]:
        """All problems of a split; raises TaskError for an unknown one."""
        return world_problems(self.name, split)

    def grade(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade]:
        """Strict by the expression after the last `####`, flexible by the last expression that uses an operator."""
        return [_grade_countdown(p, t) for p, t in zip(problems, texts, strict=True)]


def _grade_countdown(problem: Problem, text: str) -> Grade:
    told, last = marked_expression(text), last_expression(text)
    return Grade(
        strict=told is not None and _reaches(problem, told),
        flexible=last is not None and _reaches(problem, last),
        formatted=told is not None,
        answer=told if told is not None else last,
    )


def marked_expression(text: str) -> str | None:
    """The expression that begins right after the last `####`, or None."""
    _, mark, rest = text.rpartition(MARK)
    found = EXPRESSION.match(rest[:LONGEST]) if mark else None
    return found[0].strip() if found else None


def last_expression(text: str) -> str | None:
    """The last expression with an operator between numbers, looked for in the text's last 256 characters."""
    found = [e.strip() for e in EXPRESSION.findall(text[-4 * LONGEST :])]
    return next((e for e in reversed(found) if any(sign in e[1:] for sign in "+-*/")), None)


def _reaches(problem: Problem, expression: str) -> bool:
    data = dict(problem.data)
    value = countdown_value(expression, [int(n) for n in data["numbers"].split()])
    return value is not None and value == int(data["target"])
