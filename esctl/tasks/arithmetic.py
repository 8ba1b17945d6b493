"""The embedded benchmark: templated word problems whose answers are numbers, graded as GSM8K is.

Leaves the problems' text to `world` and the reading of answers to `answers`.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import islice

from esctl.errors import TaskError
from esctl.tasks import TEST, TRAIN, VALIDATION, Grade, Problem
from esctl.tasks.answers import flexible_number, same_number, strict_number
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
        return [_grade(p.answer, t) for p, t in zip(problems, texts, strict=True)]


def _grade(gold: str, text: str) -> Grade:
    told, last = strict_number(text), flexible_number(text)
    return Grade(
        strict=told is not None and same_number(told, gold),
        flexible=last is not None and same_number(last, gold),
        formatted=told is not None,
        answer=told if told is not None else last,
    )
