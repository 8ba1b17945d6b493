"""What completions are worth: grades joined with how they ended, and the shares that curves are drawn from.

Leaves how an answer is graded to `tasks`, and what a reward does to `train`.

What a candidate's score is, from n samples of each prompt: their mean reward, or how often k tries are enough.

Leaves the reward of one sample to `tasks.grading`, and what a score does to the methods.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from esctl.engines import Completion
from esctl.errors import GradingError
from esctl.stats import pass_at_k
from esctl.tasks import Grade
from esctl.tasks.grading.reward import Reward


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


@dataclass(frozen=True)
class Objective:
    """The recipe's `objective:` section.

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

    kind: str = "mean"  # the mean reward of a candidate's samples, or their unbiased pass@k
    n: int = 1  # samples per prompt
    k: int = 1  # tries of pass@k

    def score(self, samples: Sequence[Scored], reward: Reward) -> float:
        """The score of a candidate from its samples, prompt by prompt, n of each in a row."""
        if self.kind == "mean":
            return mean_reward(samples)
        prompts = [samples[i : i + self.n] for i in range(0, len(samples), self.n)]
        if reward.function:
            return _mean([expected_best([s.reward for s in own], self.k) for own in prompts])
        solved = _mean([pass_at_k(self.n, sum(s.grade.strict for s in own), self.k) for own in prompts])
        return reward.answer * solved + reward.format * _mean([s.grade.formatted for s in samples])


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
