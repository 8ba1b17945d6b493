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


@pytest.mark.parametrize(
    ("formatted", "truncated", "why"),
    [
        (0, 1, "100 % of completions were cut at 64 tokens; raise sampling.max_tokens"),
        (0, 0, "no answer is in that format; read its first prompt with --dry-run, or change prompt.*"),
        (1, 0, "its answers are in that format; read its first prompt with --dry-run, or ease the task"),
    ],
)
def test_a_base_that_solves_nothing_is_said_with_what_to_look_at(formatted, truncated, why):
    record = evaluation([0, 0], 0)
    counts = replace(record.problems, formatted=[formatted] * 2, truncated=[truncated] * 2)
    [text] = doubts(replace(record, problems=counts))
    assert text == f"the base solves none of 2 test problems in the asked-for format: {why}"
