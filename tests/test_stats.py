"""Laws of the intervals and tests, against scipy as an independent source."""

import random

import pytest

from esctl.stats import mcnemar, over_seeds, sd, t95, wilson


@pytest.mark.parametrize(("right", "n"), [(0, 10), (1, 10), (7, 10), (10, 10), (480, 1319), (1319, 1319)])
def test_wilson_is_scipys(right, n):
    from scipy.stats import binomtest

    expected = binomtest(right, n).proportion_ci(method="wilson")
    assert wilson(right, n).low == pytest.approx(expected.low, abs=1e-12)
    assert wilson(right, n).high == pytest.approx(expected.high, abs=1e-12)


@pytest.mark.parametrize("freedom", [1, 2, 5, 29, 30])
def test_t95_is_scipys(freedom):
    from scipy.stats import t

    assert t95(freedom) == pytest.approx(t.ppf(0.975, freedom), abs=5e-4)


def test_over_seeds_is_the_t_interval():
    estimate = over_seeds([0.5, 0.6, 0.7])
    assert estimate.value == pytest.approx(0.6)
    assert sd([0.5, 0.6, 0.7]) == pytest.approx(0.1)
    assert estimate.high - estimate.value == pytest.approx(4.303 * 0.1 / 3**0.5)


@pytest.mark.parametrize("n", [20, 400, 5000])
def test_mcnemar_is_the_exact_binomial_test_on_discordant_pairs(n):
    from scipy.stats import binomtest

    rng = random.Random(n)
    first = [int(rng.random() < 0.7) for _ in range(n)]
    second = [int(rng.random() < 0.65) for _ in range(n)]
    won = sum(a > b for a, b in zip(first, second, strict=True))
    lost = sum(a < b for a, b in zip(first, second, strict=True))
    assert mcnemar(first, second) == pytest.approx(binomtest(won, won + lost).pvalue, rel=1e-9)


def test_mcnemar_of_equal_answers_claims_nothing():
    assert mcnemar([1, 0, 1], [1, 0, 1]) == 1.0
