"""Laws of coverage: what many samples of each problem say, counted by hand."""

import itertools
import math
from dataclasses import replace

import pytest
from miniature import evaluation

from esctl.evaluation.coverage import (
    coverage,
    entropy,
    majority,
    majority_right,
    majority_share,
    passk_report,
    problem_counts,
)
from esctl.runs.records import EvalSample, ProblemCounts
from esctl.stats import solved_histogram, wilson


def sample(answer: str | None, strict: bool = False, tokens: int = 5, formatted: bool = True) -> EvalSample:
    """One sample of problem p; formatted where it has an answer, unless said otherwise."""
    marked = formatted and answer is not None
    return EvalSample("p", 0, "text", tokens, answer, strict, strict, marked, truncated=answer is None)


def counts(strict: list[int], n: int) -> ProblemCounts:
    zeros = [0] * len(strict)
    return ProblemCounts([f"p{i}" for i in range(len(strict))], [""] * len(strict), [n] * len(strict), strict,
                         strict, zeros, zeros)  # fmt: skip


@pytest.mark.parametrize("n", [1, 3, 10, 128])
def test_every_problem_is_in_one_bin_and_only_unsolved_ones_in_the_first(n):
    for c in range(n + 1):
        found = solved_histogram([n], [c])
        [place] = [i for i, count in enumerate(found) if count]
        assert (place == 0) == (c == 0)
        assert 10 * c / n <= place < 10 * c / n + 1


def test_a_share_on_an_edge_is_in_the_bin_that_ends_there():
    assert [solved_histogram([10], [c]).index(1) for c in range(11)] == list(range(11))


def test_entropy_counts_no_answer_as_an_answer():
    assert entropy(["4", "4", "4"]) == 0.0
    assert entropy(["4", None]) == pytest.approx(math.log(2))
    assert entropy(["1", "2", "3", "4"]) == pytest.approx(math.log(4))


def test_majority_breaks_ties_by_first_seen_and_takes_no_answer_for_no_vote():
    assert majority(["2", "1", "1", "2"]) == "2"
    assert majority(["2", "1", "1"]) == "1"
    assert majority([None, None, "7"]) == "7"
    assert majority([None]) is None


def test_majority_is_right_where_most_votes_are_strictly_right():
    right, wrong = sample("4", strict=True), sample("5")
    assert majority_right([wrong, right, right])
    assert not majority_right([wrong, right])
    assert not majority_right([right, wrong, wrong])
    assert not majority_right([sample(None)])


RIGHT, ALSO_RIGHT = sample("4", strict=True), sample("4.0", strict=True)
A, B, NONE = sample("5"), sample("6"), sample(None)
UNMARKED = sample("4", formatted=False)


@pytest.mark.parametrize(
    ("own", "share"),
    [
        ([RIGHT], 1),
        ([A, RIGHT], 1 / 2),
        ([A, A, RIGHT, RIGHT], 1 / 2),
        ([A, RIGHT, B], 1 / 3),
        ([RIGHT, ALSO_RIGHT, A], 2 / 3),
        ([RIGHT, ALSO_RIGHT], 1),
        ([A, A, RIGHT], 0),
        ([RIGHT, RIGHT, A], 1),
        ([NONE, NONE, RIGHT], 1),
        ([UNMARKED, A], 0),
        ([UNMARKED, RIGHT, A], 1 / 2),
        ([NONE], 0),
        ([], 0),
    ],
)
def test_answers_that_tie_share_the_majority_in_every_order(own, share):
    for order in itertools.permutations(own):
        assert majority_share(order) == pytest.approx(share)


def test_an_old_evaluation_is_read_with_the_majority_it_stored():
    p = replace(problem_counts(["a", "b"], ["", ""], [[RIGHT, A], [A, A]]), majority_share=[])
    record = replace(evaluation([1, 0]), problems=p)
    assert coverage(record).majority == 0.5
    assert passk_report("r", record, [1]).majority == wilson(1, 2)


def test_only_samples_in_the_asked_for_format_vote():
    right, wrong = sample("4", strict=True), sample("5")
    unmarked_right, unmarked_wrong = sample("4", formatted=False), sample("5", formatted=False)
    assert majority_right([unmarked_wrong, unmarked_wrong, right])
    assert not majority_right([unmarked_right, unmarked_right, wrong])
    assert not majority_right([unmarked_right])


def test_counts_are_over_the_samples_of_each_problem():
    first, second = [sample("4", strict=True), sample("4", tokens=7)], [sample(None), sample("3")]
    p = problem_counts(["a", "b"], ["easy", "hard"], [first, second])
    assert (p.n, p.strict, p.formatted, p.truncated) == ([2, 2], [1, 0], [2, 1], [0, 1])
    assert (p.tokens, p.distinct, p.majority, p.majority_share) == ([12, 10], [1, 2], [1, 0], [1.0, 0.0])
    assert p.entropy == [0.0, pytest.approx(math.log(2))]


def test_coverage_is_means_over_problems_and_shares_over_samples():
    p = problem_counts(["a", "b"], ["", ""], [[sample("4", strict=True), sample("5")], [sample(None), sample("3")]])
    record = evaluation([1, 0])
    seen = coverage(replace(record, problems=p, sampling=replace(record.sampling, n=2)))
    assert (seen.samples, seen.strict, seen.unsolvable, seen.majority) == (2, 0.25, 0.5, 0.25)
    assert (seen.distinct, seen.length, seen.truncated, seen.formatted) == (2.0, 5.0, 0.25, 0.75)
    assert seen.entropy == pytest.approx(math.log(2))
    assert seen.histogram == [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
