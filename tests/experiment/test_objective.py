"""Laws of objectives: a score is what its docstring says, and several samples per prompt stay reproducible."""

import math
import os
import signal
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

from esctl.engines import Completion
from esctl.errors import RunError
from esctl.experiment.loading import load_recipe
from esctl.experiment.scoring import Objective, ObjectiveSettings, Rewarded, expected_best, mean_reward
from esctl.runs.directory import RunDir
from esctl.stats import pass_at_k
from esctl.tasks import Grade
from esctl.tasks.grading.reward import Reward
from esctl.training import session

REWARD = Reward(answer=1.0, format=0.1)


def sample(strict: bool, formatted: bool = True, reward: float | None = None) -> Rewarded:
    grade = Grade(strict, strict, formatted, "1")
    return Rewarded(Completion("", (1, 2), "stop", True), grade, REWARD.weigh(grade) if reward is None else reward)


# Three prompts of four samples: 1, 0 and 2 right; 2, 4 and 3 in the format.
SAMPLES = [
    [sample(True), sample(False), sample(False, False), sample(False, False)],
    [sample(False)] * 4,
    [sample(True), sample(True), sample(False), sample(False, False)],
]


def test_pass_at_k_is_the_mean_estimate_over_prompts_plus_the_weighted_share_of_formatted_samples():
    # k = 2 of n = 4: one right is in 3 of 6 pairs, two right in 5 of 6.
    expected = (3 / 6 + 0 + 5 / 6) / 3 + 0.1 * (2 + 4 + 3) / 12
    assert Objective(REWARD, ObjectiveSettings("pass@k", n=4, k=2)).score(SAMPLES) == pytest.approx(expected, rel=1e-15)


def test_the_answer_weight_scales_what_is_solved_and_not_the_format():
    scores = [
        Objective(Reward(answer, 0.1), ObjectiveSettings("pass@k", n=4, k=4)).score(SAMPLES) for answer in (1.0, 3.0)
    ]
    assert scores[1] - scores[0] == pytest.approx(2 * 2 / 3)


def test_the_mean_counts_every_sample():
    assert (
        Objective(REWARD, ObjectiveSettings("mean", n=4)).score(SAMPLES)
        == mean_reward(SAMPLES)
        == pytest.approx((3 + 0.9) / 12)
    )


def test_one_try_of_one_sample_is_the_mean():
    single = [[s] for own in SAMPLES for s in own]
    one = Objective(REWARD, ObjectiveSettings("pass@k", n=1, k=1)).score(single)
    assert one == pytest.approx(Objective(REWARD).score(single), rel=1e-15)


def test_one_try_is_the_mean_whatever_n():
    by_pass = Objective(REWARD, ObjectiveSettings("pass@k", n=4, k=1)).score(SAMPLES)
    assert by_pass == pytest.approx(Objective(REWARD, ObjectiveSettings("mean", n=4)).score(SAMPLES))


def test_expected_best_is_the_mean_over_all_choices():
    values = [0.3, -1.0, 2.5, 0.3, 0.7, 0.0]
    for k in range(1, 7):
        choices = [max(chosen) for chosen in combinations(values, k)]
        assert expected_best(values, k) == pytest.approx(math.fsum(choices) / len(choices))


@pytest.mark.parametrize("n", range(1, 9))
def test_expected_best_of_right_and_wrong_is_pass_at_k(n):
    for c in range(n + 1):
        for k in range(1, n + 1):
            assert expected_best([1.0] * c + [0.0] * (n - c), k) == pytest.approx(pass_at_k(n, c, k))


def test_expected_best_refuses_too_few_values():
    with pytest.raises(ValueError, match="the best of 3 needs 3 values or more, not 2"):
        expected_best([1.0, 2.0], 3)


def test_a_reward_function_replaces_answer_and_format_in_pass_at_k():
    samples = [[sample(True, reward=r) for r in own] for own in ((0.5, 2.0), (0.0, 1.0))]
    score = Objective(Reward(function="any:function"), ObjectiveSettings("pass@k", n=2, k=2)).score(samples)
    assert score == (2.0 + 1.0) / 2


def test_a_recipe_without_an_objective_draws_one_sample_for_the_mean():
    section = load_recipe("arithmetic/es", {}).objective
    assert section == ObjectiveSettings("mean", 1, 1)


SMALL = (
    "prompts=6", "method.population=3", "generations=2", "eval.every=0", "eval.final=null", "sampling.max_tokens=32",
    "engine.kind=transformers",
)  # fmt: skip


def train(run: Path, *sets: str, resume: bool = False) -> None:
    session.train(load_recipe("arithmetic/es-passk", {}, [*SMALL, *sets]), RunDir(run), resume, lambda event: None)


def train_until(fault: str, run: Path) -> int:
    """Train in a process that dies at a fault point; its exit status."""
    line = [sys.executable, "-m", "esctl", "train", "--recipe", "arithmetic/es-passk", "--run", str(run)]
    sets = [item for s in SMALL for item in ("--set", s)]
    return subprocess.run([*line, *sets], env=os.environ | {"ESCTL_FAULT": fault}, timeout=300).returncode


def outcome(run: Path) -> tuple[list[tuple[object, ...]], bytes]:
    scores = [(r.generation, r.member, r.score, r.parts, r.generated_tokens) for r in RunDir(run).read_scores()]
    return scores, (run / "weights/model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_kill_changes_nothing_with_four_samples_per_prompt(tmp_path):
    whole, run = tmp_path / "whole", tmp_path / "run"
    train(whole)
    assert train_until("mid-append:5", run) == -signal.SIGKILL
    assert len(RunDir(run).read_scores()) == 1  # and a torn second
    with pytest.raises(RunError, match=r"--resume cannot change objective\.k: 4 → 2"):
        train(run, "objective.k=2", resume=True)
    train(run, resume=True)
    assert outcome(run) == outcome(whole)
    records = RunDir(run).read_scores()
    assert [r.rollouts for r in records] == [6 * 4] * 6
    assert len({r.score for r in records}) > 1


@pytest.mark.slow
def test_samples_of_a_prompt_differ_and_are_drawn_alike_for_every_member(tmp_path):
    # So little noise that all members are one model: what is left of their spread would be token sampling.
    train(tmp_path / "run", "method.sigma=1e-12", "objective.kind=mean", "objective.k=1")
    records = RunDir(tmp_path / "run").read_scores()
    assert [len({r.score for r in records if r.generation == g}) for g in (0, 1)] == [1, 1]
    assert any(r.parts["length"] * 6 % 1 for r in records)  # four equal samples would be whole tokens per prompt
