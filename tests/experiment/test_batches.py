"""Laws of the batches."""

from collections import Counter

from esctl.experiment.batches import batch, permutation


def test_an_epoch_shows_every_problem_once():
    items = list(range(10))
    seen = [x for generation in range(5) for x in batch(3, generation, 4, items)]
    assert Counter(seen) == Counter(items * 2)


def test_batches_depend_on_seed_and_generation_only():
    items = list(range(100))
    assert batch(0, 7, 8, items) == batch(0, 7, 8, items)
    assert batch(0, 7, 8, items) != batch(1, 7, 8, items)
    assert batch(0, 7, 8, items) != batch(0, 8, 8, items)


def test_epochs_differ_and_the_order_is_a_published_constant():
    assert permutation(0, 0, 8) != permutation(0, 1, 8)
    assert permutation(0, 0, 8) == (5, 0, 7, 1, 2, 6, 3, 4)
