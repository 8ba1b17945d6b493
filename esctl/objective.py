"""What a candidate's score is, from n samples of each prompt: their mean reward, or how often k tries are enough.

Leaves the reward of one sample to `tasks.grading`, and what a score does to the methods.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from esctl.grades import Scored, mean_reward
from esctl.stats import pass_at_k
from esctl.tasks.grading import Reward


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

    kind: str = "mean"  # mean | pass@k
    n: int = 1  # samples per prompt
    k: int = 1  # tries

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
