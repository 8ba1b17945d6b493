"""The embedded benchmark: templated word problems whose answers are numbers, graded as GSM8K is."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import islice

from esctl.errors import TaskError
from esctl.tasks import TEST, TRAIN, VALIDATION, Grade, Problem
from esctl.tasks.answers import grade_number
from esctl.tasks.world import items, marked

SIZES = {TRAIN: 4096, VALIDATION: 512, TEST: 2048}


@lru_cache(maxsize=8)
def world_problems(family: str, split: str) -> tuple[Problem, ...]:
    """The first so many problems of a split of the embedded world; disjoint between splits by construction."""
    if split not in SIZES:
        raise TaskError(f"task.split: {family} has no split {split}; choose {', '.join(SIZES)}")
    found = enumerate(islice(items(family, split), SIZES[split]))
    return tuple(Problem(f"{split}-{i}", x.question, x.answer, x.difficulty, marked(x)) for i, x in found)


class ArithmeticTask:
    """Word problems of one to three events; the asked-for format ends in `#### n`."""

    name = "arithmetic"
    version = 1
    splits = tuple(SIZES)
    trainable = (TRAIN,)
    system = ""

    def problems(self, split: str) -> tuple[Problem, ...]:
        """All problems of a split; raises TaskError for an unknown one."""
        return world_problems(self.name, split)

    def grade(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade]:
        """Strict by the last `#### n`, flexible by the last number."""
        return [grade_number(p.answer, t) for p, t in zip(problems, texts, strict=True)]
