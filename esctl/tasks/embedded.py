"""The embedded benchmarks: templated word problems graded as GSM8K is, and a Countdown with three numbers.

`world` generates the problems; `grading.answers` reads and compares the answers.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import islice

from esctl.tasks import TEST, TRAIN, VALIDATION, Grade, Problem
from esctl.tasks.data import refuse_unknown
from esctl.tasks.grading.answers import MARK, countdown_value, grade_number
from esctl.tasks.world import Item, items, marked

SIZES = {TRAIN: 4096, VALIDATION: 512, TEST: 2048}
LONGEST = 64  # characters of an expression that are read; the longest right one has ten
EXPRESSION = re.compile(r"[-+*/() \d]*\d[-+*/() \d]*")


class EmbeddedTask:
    """One of `GRADES`. The format of an answer is `#### n` or `#### expression`; flexible is the last one anywhere."""

    version = 1
    splits: tuple[str, ...] = tuple(SIZES)
    trainable: tuple[str, ...] = (TRAIN,)
    system = ""

    def __init__(self, name: str) -> None:
        self.name = name
        self._grade = GRADES[name]

    def problems(self, split: str) -> tuple[Problem, ...]:
        """All problems of a split; raises TaskError for an unknown one."""
        refuse_unknown(self.name, split, self.splits)
        return world_problems(self.name, split)

    def grade(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade]:
        """Grade one completion for each problem."""
        return [self._grade(p, t) for p, t in zip(problems, texts, strict=True)]


@lru_cache(maxsize=8)
def world_problems(family: str, split: str) -> tuple[Problem, ...]:
    """The problems of a split of the embedded world; disjoint between splits by construction."""
    chosen = islice(items(family, split), SIZES[split])
    return tuple(_problem(f"{split}-{i}", item) for i, item in enumerate(chosen))


def _problem(name: str, item: Item) -> Problem:
    return Problem(name, item.question, item.answer, item.difficulty, marked(item), item.data)


def _grade_arithmetic(problem: Problem, text: str) -> Grade:
    return grade_number(problem.answer, text)


def _grade_countdown(problem: Problem, text: str) -> Grade:
    strict = marked_expression(text)
    flexible = last_expression(text)
    return Grade(
        strict=strict is not None and _reaches(problem, strict),
        flexible=flexible is not None and _reaches(problem, flexible),
        formatted=strict is not None,
        answer=strict if strict is not None else flexible,
    )


GRADES: dict[str, Callable[[Problem, str], Grade]] = {
    "arithmetic": _grade_arithmetic,
    "tiny-countdown": _grade_countdown,
}


def marked_expression(text: str) -> str | None:
    """The expression that begins right after the last `####`, or None."""
    _, mark, rest = text.rpartition(MARK)
    found = EXPRESSION.match(rest[:LONGEST]) if mark else None
    return found[0].strip() if found else None


def last_expression(text: str) -> str | None:
    """The last expression with an operator between numbers, in the text's last 256 characters."""
    found = [e.strip() for e in EXPRESSION.findall(text[-4 * LONGEST :])]
    return next((e for e in reversed(found) if any(sign in e[1:] for sign in "+-*/")), None)


def _reaches(problem: Problem, expression: str) -> bool:
    data = dict(problem.data)
    value = countdown_value(expression, [int(n) for n in data["numbers"].split()])
    return value is not None and value == int(data["target"])
