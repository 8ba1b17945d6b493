"""Rewards, and graders that hang, crash or write into their pipe: counted by cause, never a silent 0."""

import gc
import os
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from esctl.errors import UsageError
from esctl.tasks import Grade, Limits, Problem, TaskSpec, open_task
from esctl.tasks.grading.pool import GraderPool, Outcome
from esctl.tasks.grading.reward import Grader, Reward

PROBLEM = Problem("p", "how many?", "3", data=(("bonus", "0.5"),))
TASK = open_task(TaskSpec("gsm8k"))
QUICK = Limits(timeout_seconds=0.5, workers=2)


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))


def pool(name, limits=QUICK):
    return closing(GraderPool(f"user_rewards:{name}", limits))


def rewards(function, texts, limits=QUICK):
    return Grader(TASK, Reward(function=function), limits).rewards([PROBLEM] * len(texts), texts)


def test_the_reward_weighs_answer_and_format():
    grader = Grader(TASK, Reward(answer=2.0, format=0.5), QUICK)
    texts = ["#### 3", "#### 4", "3", "none"]
    assert [value for value, _ in grader.rewards([PROBLEM] * 4, texts)] == [2.5, 0.5, 0.0, 0.0]
    grader.check()


def test_a_users_function_sees_the_problem_the_completion_and_the_grade():
    [(right, _), (wrong, grade)] = rewards("user_rewards:short", ["#### 3", "#### 4"])
    assert (right, wrong) == (pytest.approx(1 - 0.06 + 0.5), pytest.approx(-0.06 + 0.5))
    assert grade == Grade(strict=False, flexible=False, formatted=True, answer="4")


def test_failures_of_a_users_function_are_named_and_do_not_hide_the_grade():
    found = rewards("user_rewards:hang_on_request", ["3 hang", "die", "raise", "nan", "is 3"])
    assert [g.failure for _, g in found] == ["timeout", "crash", "raised KeyError", "reward not finite", None]
    assert [value for value, _ in found] == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("user_rewards:nope", "module user_rewards has no function nope"),
        ("user_rewards", "is not package.module:name"),
    ],
)
def test_a_reward_that_cannot_be_imported_is_known_before_training(name, message):
    grader = Grader(TASK, Reward(function=name), QUICK)
    with pytest.raises(UsageError, match=rf"{name}: .*{message}.*importable from the current folder"):
        grader.check()


def test_twenty_that_hang_do_not_keep_the_right_one_from_its_score():
    begun = time.monotonic()
    found = rewards("user_rewards:hang_on_request", ["hang"] * 20 + ["is 3"])
    assert [g.failure for _, g in found] == ["timeout"] * 20 + [None]
    assert found[-1][0] == 1.0
    # 20 x 0.5 s by two workers, and as many starts of a worker, which a busy machine makes slow.
    assert time.monotonic() - begun < 20 * 0.5 / 2 + 25


def test_a_grader_that_never_lets_go_of_its_interpreter_is_killed():
    with pool("spin") as graders:
        assert graders.run([["spin"], ["a"]]) == [Outcome(failure="timeout"), Outcome("a")]


def test_a_killed_grader_takes_its_own_processes_with_it(tmp_path):
    note = tmp_path / "child"
    with pool("starts_a_child", Limits(1.5, workers=1)) as graders:
        [outcome] = graders.run([[str(note)]])
    assert outcome.failure == "timeout"
    child = Path(f"/proc/{note.read_text()}/status")
    deadline = time.monotonic() + 5
    while child.exists() and "zombie" not in child.read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not child.exists() or "zombie" in child.read_text()


def test_graders_are_processes_that_serve_again():
    with pool("started_from", Limits(timeout_seconds=20, workers=2)) as graders:
        first = {o.value for o in graders.run([["a"]] * 20)}
        again = {o.value for o in graders.run([["a"]] * 20)}
    assert os.getpid() not in first
    assert first & again
    assert 1 <= len(first | again) <= 2  # forty gradings, two processes; the second may start late
    for pid in first | again:
        assert not Path(f"/proc/{pid}").exists()


def test_grading_works_off_the_main_thread():
    found = []
    thread = threading.Thread(target=lambda: found.extend(rewards("user_rewards:hang_on_request", ["hang", "is 3"])))
    thread.start()
    thread.join(30)
    assert [g.failure for _, g in found] == ["timeout", None]


def test_math_verify_runs_off_the_main_thread():
    task = open_task(TaskSpec("math"))
    problems, texts = [Problem("p", "?", "x+1")] * 2, ["\\boxed{1+x}", "\\boxed{x-1}"]
    found = []
    thread = threading.Thread(target=lambda: found.extend(task.grade(problems, texts)))
    thread.start()
    thread.join(60)
    assert [g.strict for g in found] == [True, False]


def test_an_interrupted_round_leaves_no_grader_busy(monkeypatch):
    with pool("started_from") as graders:
        graders.run([["a"]])
        with monkeypatch.context() as broken:
            broken.setattr(GraderPool, "_collect", interrupt)
            with pytest.raises(KeyboardInterrupt):
                graders.run([["a"]] * 4)
        assert all(o.failure is None for o in graders.run([["a"]] * 4))


def interrupt(pool, selector, outcomes):
    raise KeyboardInterrupt


def test_long_requests_and_answers_pass_whole():
    with pool("spin", Limits(10, workers=1)) as graders:
        long = '\n"é\\' * 200_000
        assert graders.run([[long], [""]]) == [Outcome(long), Outcome("")]


def test_workers_end_with_the_last_reference_to_their_pool():
    graders = GraderPool("user_rewards:started_from", Limits(timeout_seconds=20, workers=1))
    [outcome] = graders.run([["a"]])
    assert Path(f"/proc/{outcome.value}").exists()
    del graders
    gc.collect()
    assert not Path(f"/proc/{outcome.value}").exists()


@pytest.mark.parametrize("noise", ["noise\n", '{"value": 1.0}\nnoise\n', "\n", "3\n", "[1, 2]\n"])
def test_code_that_writes_into_the_answers_pipe_is_a_crash_of_its_sample(noise):
    found = rewards("user_rewards:write_to_pipes", [noise, "is 3"], Limits(timeout_seconds=20, workers=1))
    assert [g.failure for _, g in found] == ["crash", None]
    assert [value for value, _ in found] == [0, 1]


def test_an_empty_round_starts_nothing():
    with pool("started_from") as graders:
        assert graders.run([]) == []
