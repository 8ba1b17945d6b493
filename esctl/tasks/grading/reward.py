"""From completions to rewards: the task's grades, weighted as the recipe says or by a user's function.

Leaves what is right to the tasks and processes to `pool`; whatever fails is counted by cause, never a silent 0.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from esctl.tasks import Grade, Limits, Problem, Task
from esctl.tasks.grading.pool import GraderPool, Outcome
from esctl.tasks.grading.worker import Json

# A user's reward: `def reward(problem: Problem, completion: str, grade: Grade) -> float`, higher is better.
RewardFunction = Callable[[Problem, str, Grade], float]


@dataclass(frozen=True)
class Reward:
    """reward = answer·[strictly right] + format·[formatted], or `function(problem, completion, grade) -> float`."""

    answer: float = 1.0
    format: float = 0.1
    function: str | None = None  # package.module:name

    def weigh(self, grade: Grade) -> float:
        """The weighted sum."""
        return self.answer * grade.strict + self.format * grade.formatted


class Grader:
    """Grades and rewards the completions of one task.

    A user's function is never imported here: it runs in worker processes under the limits, and one that raises, hangs,
    ends its process or gives no finite number fails for that sample.
    """

    def __init__(self, task: Task, reward: Reward, limits: Limits) -> None:
        self.task, self.reward = task, reward
        self._pool = GraderPool(reward.function, limits, kind="reward") if reward.function else None

    def check(self) -> None:
        """Raise UsageError where the reward function cannot be imported; to be called before a model is loaded."""
        if self._pool is not None:
            self._pool.check()

    def score(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[tuple[float, Grade]]:
        """Reward and grade of one completion for each problem."""
        grades = self.task.grade(problems, texts)
        if self._pool is None:
            return [(self.reward.weigh(g), g) for g in grades]
        asked = zip(problems, texts, grades, strict=True)
        outcomes = self._pool.run([[_plain(p), t, asdict(g)] for p, t, g in asked])
        return [_rewarded(g, o) for g, o in zip(grades, outcomes, strict=True)]

    def close(self) -> None:
        """End the processes; calling it twice is harmless."""
        if self._pool is not None:
            self._pool.close()


def _rewarded(grade: Grade, outcome: Outcome) -> tuple[float, Grade]:
    value = outcome.value
    if outcome.failure is not None:
        return 0.0, replace(grade, failure=outcome.failure)
    if not isinstance(value, float) or not math.isfinite(value):
        return 0.0, replace(grade, failure="reward not finite")
    return value, grade


def _plain(problem: Problem) -> dict[str, Json]:
    """A problem as JSON."""
    return {**asdict(problem), "data": [[key, value] for key, value in problem.data]}
