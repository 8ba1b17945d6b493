"""Coverage and diversity of many samples per problem: which problems are within reach, how much answers differ.

Also the report of `esctl passk`: pass@k with intervals. Pure arithmetic on stored samples and counts; `draw` draws
them, `stats` has the intervals. No torch.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from esctl.runs.records import EvalRecord, EvalSample, Mode, ProblemCounts, SamplingRecord, TaskRecord
from esctl.stats import Estimate, over_problems, pass_values, score_interval, solved_histogram, wilson


@dataclass(frozen=True)
class Coverage:
    """One evaluation's samples as a whole; shares are between 0 and 1."""

    samples: int  # per problem: n
    strict: float  # mean over problems of the share of strictly right samples
    flexible: float
    unsolvable: float  # share of problems that none of n samples solved
    distinct: float  # mean over problems: different final answers among n
    entropy: float  # mean over problems: of the final answers, in nats; at most log n
    majority: float  # share of problems whose most frequent answer is right; ties are shared, see `majority_share`
    formatted: float
    length: float  # mean tokens per completion
    truncated: float
    histogram: list[int]  # see `solved_histogram`


def coverage(record: EvalRecord) -> Coverage:
    """Summarize the per-problem arrays of an evaluation."""
    p = record.problems
    total, problems = sum(p.n), len(p.id)
    return Coverage(
        samples=record.sampling.n,
        strict=sum(p.strict) / total,
        flexible=sum(p.flexible) / total,
        unsolvable=sum(c == 0 for c in p.strict) / problems,
        distinct=sum(p.distinct) / problems,
        entropy=math.fsum(p.entropy) / problems,
        majority=math.fsum(majority_shares(p)) / problems,
        formatted=sum(p.formatted) / total,
        length=sum(p.tokens) / total,
        truncated=sum(p.truncated) / total,
        histogram=solved_histogram(p.n, p.strict),
    )


def problem_counts(
    ids: Sequence[str], difficulty: Sequence[str], samples: Sequence[Sequence[EvalSample]]
) -> ProblemCounts:
    """The per-problem arrays of an evaluation, from [problem][sample]."""
    answers = [[s.answer for s in own] for own in samples]
    return ProblemCounts(
        id=list(ids),
        difficulty=list(difficulty),
        n=[len(own) for own in samples],
        strict=[sum(s.strict for s in own) for own in samples],
        flexible=[sum(s.flexible for s in own) for own in samples],
        formatted=[sum(s.formatted for s in own) for own in samples],
        truncated=[sum(s.truncated for s in own) for own in samples],
        tokens=[sum(s.tokens for s in own) for own in samples],
        distinct=[len(set(own)) for own in answers],
        entropy=[entropy(own) for own in answers],
        majority=[int(majority_right(own)) for own in samples],
        majority_share=[majority_share(own) for own in samples],
    )


def entropy(answers: Sequence[str | None]) -> float:
    """Shannon entropy −Σ p log p of the answers as they are, in nats; no answer counts as a value of its own.

    This is the plug-in estimate, too low by some (distinct − 1)/2n: compare it at equal n only.
    """
    n = len(answers)
    return math.fsum(-count / n * math.log(count / n) for count in Counter(answers).values()) + 0.0


def majority(answers: Sequence[str | None]) -> str | None:
    """The most frequent answer, the first seen where there are several; None is no vote, and the result without any."""
    votes = Counter(a for a in answers if a is not None)  # keeps the order of first sight, and max the first
    return max(votes, key=lambda answer: votes[answer]) if votes else None


def majority_right(samples: Sequence[EvalSample]) -> bool:
    """Whether the most frequent answer is strictly right; only samples in the asked-for format have a vote."""
    chosen = majority([s.answer if s.formatted else None for s in samples])
    return any(s.strict and s.answer == chosen for s in samples)


def majority_share(samples: Sequence[EvalSample]) -> float:
    """The share of the most frequent answers that is strictly right, whatever the order of the samples.

    Two answers that tie, one of them right, give 1/2: the chance of a vote that breaks ties at random. Only samples in
    the asked-for format have a vote.
    """
    votes = Counter(s.answer for s in samples if s.formatted and s.answer is not None)
    if not votes:
        return 0.0
    most = max(votes.values())
    leading = [answer for answer, count in votes.items() if count == most]
    right = {s.answer for s in samples if s.strict}
    return sum(answer in right for answer in leading) / len(leading)


def majority_shares(problems: ProblemCounts) -> Sequence[float]:
    """Per problem; evaluations of esctl 0.1.0 stored ties as the first answer seen, and are read as they are."""
    return problems.majority_share or problems.majority


@dataclass(frozen=True)
class PassAtK:
    """The chance that k samples hold a right one: mean over problems of the unbiased estimate, with 95 % intervals."""

    k: int
    strict: Estimate
    flexible: Estimate
    coin: bool  # k = n: each problem counts as solved or not by a single draw of n samples


@dataclass(frozen=True)
class PassKReport:
    """One evaluation's pass@k curve and coverage."""

    run: str
    task: TaskRecord
    split: str
    problems: int
    step: int
    rollouts_spent: int
    sampling: SamplingRecord
    mode: Mode
    weights_sha256: str
    passk: list[PassAtK]
    unsolvable: Estimate
    majority: Estimate
    coverage: Coverage
    non_finite: int = 0  # samples of perturbed weights whose logits were not finite


def passk_report(run: str, record: EvalRecord, ks: Sequence[int]) -> PassKReport:
    """What an evaluation says for these k; each must be at most its n."""
    p, seen = record.problems, coverage(record)
    problems = len(p.id)
    return PassKReport(
        run=run,
        task=record.task,
        split=record.split,
        problems=problems,
        step=record.step,
        rollouts_spent=record.rollouts_spent,
        sampling=record.sampling,
        mode=record.mode,
        weights_sha256=record.weights_sha256,
        passk=[
            PassAtK(k, _passk_estimate(p, p.strict, k), _passk_estimate(p, p.flexible, k), k == min(p.n)) for k in ks
        ],
        unsolvable=wilson(round(seen.unsolvable * problems), problems),
        majority=score_interval(seen.majority, problems),
        coverage=seen,
        non_finite=record.non_finite,
    )


def _passk_estimate(problems: ProblemCounts, right: Sequence[int], k: int) -> Estimate:
    """Problems are independent, a problem's samples are alike; n samples are worth n // k independent draws of k."""
    return over_problems(pass_values(problems.n, right, k), min(problems.n) // k)
