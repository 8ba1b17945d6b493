"""From the rewards of samples to the score of a candidate.

A task *grades* an answer, the recipe's weights turn the grade into the *reward* of a sample, and the objective turns
all rewards of a candidate into its *score*, the only number that a method sees.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, TypeAlias

from esctl.engines import Completion
from esctl.errors import GradingError
from esctl.settings import Count
from esctl.stats import pass_at_k
from esctl.tasks import Grade
from esctl.tasks.grading.reward import Reward


@dataclass(frozen=True)
class Rewarded:
    """One sample: what was written, its grade, and its reward."""

    completion: Completion
    grade: Grade
    reward: float

    @property
    def truncated(self) -> bool:
        """Whether it was cut at max_tokens instead of ended by the model."""
        return self.completion.finish_reason == "length"


RewardedSamples: TypeAlias = Sequence[Sequence[Rewarded]]  # [prompt][sample], as engines return their completions


def each(samples: RewardedSamples) -> list[Rewarded]:
    """Every sample, prompt by prompt."""
    return list(chain.from_iterable(samples))


def mean_reward(samples: RewardedSamples) -> float:
    """The mean over all samples, by exact summation: the same bits on every machine."""
    return _mean([s.reward for s in each(samples)])


def parts(samples: RewardedSamples) -> dict[str, float]:
    """Shares over all samples, and their mean length in tokens: format is tracked apart from content."""
    every = each(samples)
    n = len(every)
    return {
        "strict": sum(s.grade.strict for s in every) / n,
        "flexible": sum(s.grade.flexible for s in every) / n,
        "formatted": sum(s.grade.formatted for s in every) / n,
        "truncated": sum(s.truncated for s in every) / n,
        "length": sum(len(s.completion.token_ids) for s in every) / n,
    }


def failures(samples: RewardedSamples) -> Counter[str]:
    """Graders that crashed or hung, by cause."""
    return Counter(s.grade.failure for s in each(samples) if s.grade.failure is not None)


def refuse_failures(counted: Counter[str], samples: int, limit: float) -> None:
    """Raise GradingError when more than `limit` of a round's samples were not graded.

    A failed grading counts as reward 0, which would bias the step.
    """
    total = sum(counted.values())
    if total > limit * samples:
        causes = ", ".join(f"{n} {cause}" for cause, n in sorted(counted.items()))
        raise GradingError(
            f"{total} of {samples} gradings failed ({causes}), above grader.max_failures {limit}: the scores would"
            " become the search direction; mend the grader or raise the limit, then --resume"
        )


@dataclass(frozen=True)
class ObjectiveSettings:
    """What a member's score is: the mean reward of n samples per prompt, or the unbiased pass@k of them."""

    kind: Literal["mean", "pass@k"] = "mean"  # the mean reward of a candidate's samples, or their unbiased pass@k
    n: Count = 1  # samples per prompt
    k: Count = 1  # tries of pass@k

    def __post_init__(self) -> None:
        """Refuse fewer samples than tries, in a line that names the recipe's key."""
        if self.kind == "mean" and self.k > 1:
            raise ValueError(f"objective.k: {self.k}, but the mean has no tries; set objective.kind to pass@k")
        if self.n < self.k:
            raise ValueError(f"objective.n: {self.n} samples are too few for pass@{self.k}; use {self.k} or more")


@dataclass(frozen=True)
class Objective:
    """What a candidate's score is, from the recipe's `objective:` section and the weights of its `reward:`.

    With n samples of each prompt, of which c are strictly right:

        mean      score = mean over all samples of their reward
        pass@k    score = answer · mean over prompts of [1 − C(n−c, k)/C(n, k)] + format · share of formatted samples

    `answer` and `format` are the weights of the recipe's `reward:`. The bracket is the unbiased estimate of the chance
    that k samples hold a right one (Chen et al. 2021, arXiv 2107.03374); as an objective of ES it is that of EGGROLL
    (arXiv 2511.16652). The format share is taken over all n samples and not over the best of k: a member is not paid
    for a format that it keeps once in k tries. At n = k = 1 both objectives are the same.

    With a reward function of the user's, pass@k is the expected best reward of k of the n samples, which is the
    bracket where the function gives 0 and 1, and the format share is left out, as it is from the mean.
    """

    reward: Reward
    settings: ObjectiveSettings = ObjectiveSettings()

    def score(self, samples: RewardedSamples) -> float:
        """The score of a candidate from its n samples of each prompt."""
        n, k = self.settings.n, self.settings.k
        if self.settings.kind == "mean":
            return mean_reward(samples)
        if self.reward.function:
            return _mean([expected_best([s.reward for s in own], k) for own in samples])
        solved = _mean([pass_at_k(n, sum(s.grade.strict for s in own), k) for own in samples])
        return self.reward.answer * solved + self.reward.format * _mean([s.grade.formatted for s in each(samples)])


def expected_best(values: Sequence[float], k: int) -> float:
    """The mean over all choices of k of the n values of the largest one; raises ValueError for k above n.

    The i-th smallest is the largest of C(i−1, k−1) choices.
    """
    if k > len(values):
        raise ValueError(f"the best of {k} needs {k} values or more, not {len(values)}")
    choices = math.comb(len(values), k)
    ranked = list(enumerate(sorted(values)))
    return math.fsum(value * (math.comb(below, k - 1) / choices) for below, value in ranked)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
