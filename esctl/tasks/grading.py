"""From grades to rewards: the recipe's weights, or a user's function.

Leaves grading to the tasks; a function that raises is a counted failure, never a silent 0.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from esctl.errors import UsageError
from esctl.tasks import Grade, Problem

RewardFunction = Callable[[Problem, str, Grade], float]


@dataclass(frozen=True)
class Reward:
    """reward = answer·[strictly right] + format·[formatted], or `function(problem, completion, grade) -> float`."""

    answer: float = 1.0
    format: float = 0.1
    function: str | None = None  # package.module:name

    def load(self) -> RewardFunction:
        """The function that rewards; raises UsageError where a user's cannot be found."""
        return self.weigh if self.function is None else find_function(self.function)

    def weigh(self, problem: Problem, completion: str, grade: Grade) -> float:
        """The weighted sum."""
        return self.answer * grade.strict + self.format * grade.formatted


def find_function(name: str) -> RewardFunction:
    """Import `package.module:name`."""
    module, colon, attribute = name.partition(":")
    if not colon:
        raise UsageError(f"reward.function: {name}: write package.module:name")
    try:
        found: RewardFunction = vars(importlib.import_module(module))[attribute]
    except ImportError as error:
        raise UsageError(f"reward.function: {name}: {error}; run where the module can be imported") from None
    except KeyError:
        raise UsageError(f"reward.function: module {module} has no {attribute}") from None
    return found


def rewarded(reward: RewardFunction, problem: Problem, completion: str, grade: Grade) -> tuple[float, Grade]:
    """The reward of one sample; a user's function that raises, or gives no finite number, is counted by cause."""
    try:
        value = float(reward(problem, completion, grade))
    except Exception as error:  # a user's code may raise anything; its cause is counted and shown
        return 0.0, replace(grade, failure=f"reward raised {type(error).__name__}")
    if value != value or value in (float("inf"), float("-inf")):
        return 0.0, replace(grade, failure="reward not finite")
    return value, grade
