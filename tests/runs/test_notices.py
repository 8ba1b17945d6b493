"""A notice is said when it begins, is true of more than one batch, and names the key to change."""

import random

import pytest

from esctl.runs.notices import es_advice, notices, rl_advice

ES = es_advice(members=16, max_tokens=4)
RL = rl_advice(groups=16, max_tokens=4)
USUAL = {"reward/mean": 0.5, "reward/sd": 0.1, "truncated/rate": 0.0, "length/mean": 20.0, "candidates/non_finite": 0.0}


def run_of(*generations: dict[str, float]) -> list[dict[str, float]]:
    return [USUAL | own for own in generations]


def rewards(*means: float) -> list[dict[str, float]]:
    return run_of(*({"reward/mean": m} for m in means))


FLAT = {"reward/mean": 0.3, "reward/sd": 0.0}
CUT = {"reward/mean": 0.0, "reward/sd": 0.0, "truncated/rate": 1.0}
CUT_TEXT = "100 % of rollouts were cut at 4 tokens; raise sampling.max_tokens"
CASES = [
    ([{}], ES, []),
    ([FLAT] * 2, ES, []),
    ([FLAT] * 3, ES, ["no signal: every member scored 0.3 for 3 generations; raise method.sigma or ease the task"]),
    ([FLAT] * 4, ES, []),  # said already
    ([FLAT] * 3, RL, ["no signal: every rollout scored 0.3 for 3 steps; raise method.samples or ease the task"]),
    (
        [{"signal/groups": 0}] * 3, RL,
        ["no signal: the samples of each prompt had equal rewards for 3 steps; raise method.samples or ease the task"],
    ),
    ([CUT], ES, [CUT_TEXT]),
    ([CUT], RL, [CUT_TEXT]),
    ([CUT] * 2, ES, []),
    ([CUT] * 3, ES, [f"no signal: every member scored 0 for 3 generations, and {CUT_TEXT}"]),
    ([CUT] * 3, RL, [f"no signal: every rollout scored 0 for 3 steps, and {CUT_TEXT}"]),
    (
        [{}, {"truncated/rate": 0.625}], ES,
        ["62 % of rollouts were cut at 4 tokens; raise sampling.max_tokens"],
    ),
    ([{"truncated/rate": 0.4}], ES, []),
    (
        [{"signal/members": 1}], ES,
        ["1 of 16 members differs: the step is mostly noise; raise prompts or method.sigma"],
    ),
    (
        [{"signal/groups": 2}], RL,
        ["2 of 16 groups differ: the step is mostly noise; raise method.samples or prompts"],
    ),
    ([{"signal/members": 15}], ES, []),
    ([{"signal/members": 1}], es_advice(2, 4), []),  # of two members that differ, one has the commoner score
    ([{"candidates/non_finite": 2}], ES, ["2 members had logits that were not finite; lower method.sigma"]),
    (
        [{}, {"length/mean": 3.0}], RL,
        [
            "completions are under a fifth of their first length: read samples/ for a degenerate answer;"
            " lower method.lr"
        ],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("generations", "advice", "said"), CASES)
def test_each_notice_says_what_is_wrong_and_the_key_to_change(generations, advice, said):
    assert notices(run_of(*generations), advice) == said


def all_notices(metrics: list[dict[str, float]]) -> list[str]:
    """Everything that a run says from its first generation to its last."""
    return [text for end in range(1, len(metrics) + 1) for text in notices(metrics[:end], ES)]


@pytest.mark.parametrize(
    "means",
    [
        (0.256, 0.094, 0.196),  # 24 problems a batch, at a flat trend
        (0.256, 0.094, 0.196, 0.21, 0.09, 0.24, 0.1, 0.22, 0.12),
        (0.5, 0.5, 0.5, 0.5, 0.5, 0.0, 0.5, 0.5),  # one hard batch
        (-1.0, -1.0, -1.0, -2.0, -2.0, -2.0),  # an own reward below 0 has no half
    ],
)
def test_a_change_of_batch_is_no_collapse(means):
    assert all_notices(rewards(*means)) == []


@pytest.mark.parametrize("prompts", [4, 24, 64])
def test_batches_of_any_size_cry_wolf_less_than_once_in_ten_runs(prompts):
    """Runs of 40 generations at a flat accuracy of 30 %."""
    rng = random.Random(0)
    said = 0
    for _ in range(100):
        means = [sum(rng.random() < 0.3 for _ in range(prompts)) / prompts for _ in range(40)]
        said += bool(all_notices(rewards(*means)))
    assert said < 10


@pytest.mark.parametrize(
    "means",
    [
        (0.5, 0.7, 0.8, 0.8, 0.8, 0.1, 0.1, 0.1),  # at once
        (0.8, 0.8, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1),  # by and by
        (0.05, 0.06, 0.05, 0.06, 0.01, 0.0, 0.01, 0.0),  # of a small reward
    ],
)
def test_a_collapse_is_said_once(means):
    [text] = all_notices(rewards(*means))
    assert text.startswith("reward fell from ")
    assert text.endswith("lower method.alpha")
