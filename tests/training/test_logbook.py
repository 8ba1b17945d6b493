"""What a run's record says while it is trained."""

from dataclasses import replace

import pytest
from miniature import RECORD, evaluation, write_run

from esctl.experiment.experiment import Experiment
from esctl.experiment.loading import load_recipe
from esctl.runs.records import Cost
from esctl.training.logbook import Logbook, doubts


def test_time_left_counts_training_and_every_evaluation_to_come(tmp_path):
    """After 4 of 10 generations: 6 to train, validation after 5 and 10, and the test at the end."""
    recipe = load_recipe("arithmetic/es", {"generations": 10}, ["eval.every=5", "eval.n=100"])
    run = write_run(tmp_path / "run")
    run.write_record(replace(RECORD, train=Cost(seconds=40.0), eval=Cost(rollouts=200, seconds=10.0)))
    book = Logbook(Experiment(recipe), run, engine=None)
    assert book.seconds_left(4) == pytest.approx(6 * 10.0 + (2 * 100 + 2048) * 0.05)
    assert book.seconds_left(10) == pytest.approx((100 + 2048) * 0.05)


@pytest.mark.parametrize(
    ("right", "step", "said"),
    [([0, 0, 0], 0, True), ([0, 1, 0], 0, False), ([0, 0, 0], 5, False), ([1, 1, 1], 0, False)],
)
def test_a_base_that_solves_nothing_is_said(right, step, said):
    found = doubts(evaluation(right, step))
    assert bool(found) == said
    assert all("the base solves none of 3 test problems" in text for text in found)
