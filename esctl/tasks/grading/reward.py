"""From completions to rewards: the task's grades, weighted by the recipe or by a user's function.

A reward function is `reward(problem: Problem, completion: str, grade: Grade) -> float`, higher is better.
A function that fails is recorded by cause in the grade, never as a silent 0.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from esctl.tasks import Grade, Limits, Problem, Task
from esctl.tasks.grading.pool import GraderPool, Outcome
from esctl.tasks.grading.worker import Json


@dataclass(frozen=True)
class Reward:
    """reward = answer·[strictly right] + format·[formatted], or `function(problem, completion, grade) -> float`."""

    answer: float = 1.0  # weight of a strictly right answer
    format: float = 0.1  # weight of the asked-for format
    function: str | None = None  # package.module:name of a function that replaces both weights

    def weigh(self, grade: Grade) -> float:
        """The weighted sum."""
        answer = self.answer if grade.strict else 0.0
        return answer + (self.format if grade.formatted else 0.0)


class Grader:
    """Grades and rewards the completions of one task.

    A user's function runs in worker processes and is never imported here. It fails for one sample where it raises,
    hangs, ends its process or returns no finite number. The workers end with this object or with the process.
    """

    def __init__(self, task: Task, reward: Reward, limits: Limits) -> None:
        self.task, self.reward = task, reward
        self._pool = GraderPool(reward.function, limits, kind="reward") if reward.function else None

    def check(self) -> None:
        """Import the reward function in a worker, before a model is loaded; raises UsageError where that fails."""
        if self._pool is not None:
            self._pool.check()

    def rewards(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[tuple[float, Grade]]:
        """Reward and grade of one completion for each problem."""
        grades = self.task.grade(problems, texts)
        if self._pool is None:
            return [(self.reward.weigh(g), g) for g in grades]
        samples = zip(problems, texts, grades, strict=True)
        outcomes = self._pool.run([[_plain(p), t, asdict(g)] for p, t, g in samples])
        return [_rewarded(g, o) for g, o in zip(grades, outcomes, strict=True)]


def _rewarded(grade: Grade, outcome: Outcome) -> tuple[float, Grade]:
    value = outcome.value
    if outcome.failure is not None:
        return 0.0, replace(grade, failure=outcome.failure)
    if not isinstance(value, float) or not math.isfinite(value):
        return 0.0, replace(grade, failure="reward not finite")
    return value, grade


def _plain(problem: Problem) -> dict[str, Json]:
    """A problem as JSON values."""
    return {**asdict(problem), "data": [[key, value] for key, value in problem.data]}
