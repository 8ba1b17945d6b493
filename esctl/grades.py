"""What completions are worth: grades joined with how they ended, and the shares that curves are drawn from.

Leaves how an answer is graded to `tasks`, and what a reward does to `train`.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from esctl.engines import Completion
from esctl.errors import GradingError
from esctl.tasks import Grade


@dataclass(frozen=True)
class Scored:
    """One sample: what was written, its grade, and its reward."""

    completion: Completion
    grade: Grade
    reward: float

    @property
    def truncated(self) -> bool:
        """Whether it was cut at max_tokens instead of ended by the model."""
        return self.completion.finish_reason == "length"


def mean_reward(samples: Sequence[Scored]) -> float:
    """The score of a candidate: exact summation, so that it is the same on every machine."""
    return math.fsum(s.reward for s in samples) / len(samples)


def parts(samples: Sequence[Scored]) -> dict[str, float]:
    """Shares over the samples, and their mean length in tokens: format is tracked apart from content."""
    n = len(samples)
    return {
        "strict": sum(s.grade.strict for s in samples) / n,
        "flexible": sum(s.grade.flexible for s in samples) / n,
        "formatted": sum(s.grade.formatted for s in samples) / n,
        "truncated": sum(s.truncated for s in samples) / n,
        "length": sum(len(s.completion.token_ids) for s in samples) / n,
    }


def failures(samples: Sequence[Scored]) -> Counter[str]:
    """Graders that crashed or hung, by cause."""
    return Counter(s.grade.failure for s in samples if s.grade.failure is not None)


def refuse_failures(counted: Counter[str], samples: int, limit: float) -> None:
    """Raise GradingError when more than `limit` of a round's samples were not graded: their 0 is no score."""
    total = sum(counted.values())
    if total > limit * samples:
        causes = ", ".join(f"{n} {cause}" for cause, n in sorted(counted.items()))
        raise GradingError(
            f"{total} of {samples} gradings failed ({causes}), above grader.max_failures {limit}: the scores would"
            " become the search direction; mend the grader or raise the limit, then --resume"
        )
