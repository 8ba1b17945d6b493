"""Laws of pass@k: the estimator is unbiased, and nothing without an estimate or a spread is asked for."""

from dataclasses import replace
from itertools import combinations

import pytest
from miniature import evaluation

from esctl.cli.app import read_ks, read_temperatures
from esctl.cli.texts import passk_json, passk_text, report_text
from esctl.errors import UsageError
from esctl.evaluation.coverage import passk_report, problem_counts
from esctl.evaluation.sampling import decodings
from esctl.runs.records import EvalRecord, EvalSample, Mode
from esctl.stats import pass_at_k


def record(right: list[int], n: int) -> EvalRecord:
    """An evaluation with n samples per problem, of which so many are right."""
    samples = [
        [EvalSample(f"p{i}", s, "", 3, str(s < c), s < c, s < c, True, False) for s in range(n)]
        for i, c in enumerate(right)
    ]
    base = evaluation([1])
    ids = [f"p{i}" for i in range(len(right))]
    counts = problem_counts(ids, [""] * len(right), samples)
    return replace(base, problems=counts, sampling=replace(base.sampling, n=n, temperature=0.6, top_p=0.95))


@pytest.mark.parametrize("n", range(1, 13))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(n):
    for c in range(n + 1):
        for k in range(1, n + 1):
            subsets = [any(i < c for i in chosen) for chosen in combinations(range(n), k)]
            assert pass_at_k(n, c, k) == pytest.approx(sum(subsets) / len(subsets), abs=1e-12)


def test_pass_at_k_at_its_edges():
    assert pass_at_k(4, 1, 4) == 1.0
    assert pass_at_k(4, 0, 4) == 0.0
    assert pass_at_k(10_000, 1, 1_000) == pytest.approx(0.1, abs=1e-12)
    assert pass_at_k(1024, 1, 512) == pytest.approx(0.5, abs=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(1, 0, 4), (4, 5, 1), (4, -1, 1), (4, 1, 0)])
def test_pass_at_k_without_an_estimate_is_an_error(n, c, k):
    with pytest.raises(ValueError, match=f"pass@{k}"):
        pass_at_k(n, c, k)


def test_report_is_the_mean_over_problems_inside_its_interval():
    found = passk_report("run", record([0, 1, 4, 8], 8), [1, 4, 8])
    assert [p.strict.value for p in found.passk] == pytest.approx(
        [13 / 32, sum(pass_at_k(8, c, 4) for c in (0, 1, 4, 8)) / 4, 0.75]
    )
    assert all(p.strict.low < p.strict.value < p.strict.high for p in found.passk)
    assert found.unsolvable.value == 0.25
    assert [p.coin for p in found.passk] == [False, False, True]


def test_intervals_keep_a_width_where_every_problem_is_solved_or_none_is():
    for right, value in (([4] * 20, 1.0), ([0] * 20, 0.0)):
        [point] = passk_report("run", record(right, 4), [2]).passk
        assert point.strict.value == value
        assert 0.1 < point.strict.high - point.strict.low < 0.3


def test_text_marks_k_equal_n_and_says_what_would_be_steadier():
    shown = passk_text([passk_report("run", record([0, 1, 4], 4), [1, 4])])
    assert "  4*  " in shown.replace("\n", "\n  ")
    assert "* k = n: " in shown
    assert "--samples 8" in shown
    assert "k = n" not in passk_text([passk_report("run", record([0, 1, 4], 4), [1, 2])])


@pytest.mark.parametrize("count", [0, 3])
def test_samples_that_were_not_finite_are_counted_in_the_text(count):
    found = replace(record([0, 1, 4], 4), non_finite=count)
    for shown in (report_text(found), passk_text([passk_report("run", found, [1])])):
        assert (f"{count} samples came from logits that were not finite" in shown) == bool(count)


def test_json_holds_the_numbers_in_full():
    assert '"value":0.40625' in passk_json([passk_report("run", record([0, 1, 4, 8], 8), [1])]).replace(" ", "")


def test_samples_are_twice_the_largest_k_and_one_evaluation_per_temperature():
    found = decodings([1, 64], temperatures=[0.6, 1.0])
    assert [(d.temperature, d.top_p, d.n) for d in found] == [(0.6, 0.95, 128), (1.0, 0.95, 128)]
    assert decodings([1, 64], samples=64)[0].n == 64


def test_equal_decodings_are_one_whatever_was_said_of_what_greedy_has_not():
    assert decodings([1], 1, [0.0], top_p=0.5, seed=3) == decodings([1], 1, [0.0])
    [noisy] = decodings([1], 2, [0.0], noise=0.01, seed=3)
    assert (noisy.seed, noisy.top_p, noisy.mode) == (3, 1.0, Mode("weight", 0.01))


def test_lists_are_read_in_order_once_each():
    assert read_ks("8,1,8") == [1, 8]
    assert read_temperatures("1.0,0.6", None) == [0.6, 1.0]
    assert (read_temperatures(None, None), read_temperatures(None, 0.01)) == ([0.6], [0.0])


@pytest.mark.parametrize(
    ("ks", "samples", "temperatures", "top_p", "noise", "says"),
    [
        ([8], 4, [0.6], 0.95, None, "--samples 4: pass@8 needs 8"),
        ([4], None, [0.0], 0.95, None, "--temperature 0: 8 greedy samples would be one"),
        ([4], None, [0.0, 1.0], 0.95, None, "--temperature 0"),
        ([4], None, [0.6], 0.0, None, "--top-p 0"),
        ([4], None, [0.0], 0.95, 0.0, "--noise 0"),
        ([4], None, [0.0], 0.95, float("nan"), "--noise nan"),
    ],
)
def test_what_has_no_estimate_or_no_spread_is_refused(ks, samples, temperatures, top_p, noise, says):
    with pytest.raises(UsageError, match=says):
        decodings(ks, samples, temperatures, top_p, noise)
