"""What a person should know after a generation, as a pure function of the metrics so far; the same for ES and RL.

Each notice names the recipe key to change. What lasts is said once, when it begins, and not after every generation.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean

from esctl.runs.metrics import Metrics

PATIENCE = 3  # generations that must agree before a trend is said
MOSTLY_CUT = 0.5  # share of rollouts cut at max_tokens from which their length limits the reward
FEW = 1 / 8  # share of the members (of RL: groups) that must differ for a step to be more than noise
ERRORS = 4.5  # standard errors by which a reward must fall to be no change of batch; many windows are compared


@dataclass(frozen=True)
class Advice:
    """The words of a family of methods, and the keys that it has."""

    source: str  # of a reward: "member" or "rollout"
    steps: str  # "generations" or "steps"
    parts: str  # what a step compares: "members" or "groups"
    count: int  # of them
    max_tokens: int
    no_signal: str
    thin: str
    collapse: str


def es_advice(members: int, max_tokens: int) -> Advice:
    """The words of ES methods."""
    no_signal, thin = "raise method.sigma or ease the task", "raise prompts or method.sigma"
    return Advice("member", "generations", "members", members, max_tokens, no_signal, thin, "lower method.alpha")


def rl_advice(groups: int, max_tokens: int) -> Advice:
    """The words of RL methods; a group is the samples of one prompt."""
    no_signal, thin = "raise method.samples or ease the task", "raise method.samples or prompts"
    return Advice("rollout", "steps", "groups", groups, max_tokens, no_signal, thin, "lower method.lr")


def notices(metrics: Sequence[Metrics], advice: Advice) -> list[str]:
    """The notices of the newest generation."""
    newest = metrics[-1]
    found: list[str] = []
    if _begins(metrics, _is_mostly_cut):
        found.append(_cut_text(newest, advice))
    if _begins(metrics, _is_flat):
        found.append(_no_signal_text(newest, advice))
    if _begins(metrics, lambda some: _is_thin(some, advice)):
        found.append(_thin_text(newest, advice))
    if newest.get("candidates/non_finite"):
        count = newest["candidates/non_finite"]
        found.append(f"{count:.0f} members had logits that were not finite; lower method.sigma")
    if _begins(metrics, _has_collapsed):
        best, now = _best_and_now(metrics)
        found.append(
            f"reward fell from {best:.3f} to {now:.3f} (means of {PATIENCE} {advice.steps}), by more than batches"
            f" differ; {advice.collapse}"
        )
    if _begins(metrics, _is_short):
        found.append(
            "completions are under a fifth of their first length: read samples/ for a degenerate answer;"
            f" {advice.collapse}"
        )
    return found


def _begins(metrics: Sequence[Metrics], holds: Callable[[Sequence[Metrics]], bool]) -> bool:
    """Whether something holds now and did not before the newest generation."""
    return holds(metrics) and not (len(metrics) > 1 and holds(metrics[:-1]))


def _is_mostly_cut(metrics: Sequence[Metrics]) -> bool:
    return metrics[-1]["truncated/rate"] >= MOSTLY_CUT


def _cut_text(newest: Metrics, advice: Advice) -> str:
    share = 100 * newest["truncated/rate"]
    return f"{share:.0f} % of rollouts were cut at {advice.max_tokens} tokens; raise sampling.max_tokens"


def _is_flat(metrics: Sequence[Metrics]) -> bool:
    """Whether the newest generations had nothing to learn from."""
    recent = metrics[-PATIENCE:]
    return len(recent) == PATIENCE and all(m["reward/sd"] == 0 or m.get("signal/groups") == 0 for m in recent)


def _no_signal_text(newest: Metrics, advice: Advice) -> str:
    """No signal, and its likeliest cause: completions that were cut before their answer, or else a task too hard."""
    if newest["reward/sd"] > 0:
        what = f"the samples of each prompt had equal rewards for {PATIENCE} {advice.steps}"
    else:
        what = f"every {advice.source} scored {newest['reward/mean']:g} for {PATIENCE} {advice.steps}"
    if newest["truncated/rate"] >= MOSTLY_CUT:
        return f"no signal: {what}, and {_cut_text(newest, advice)}"
    return f"no signal: {what}; {advice.no_signal}"


def _is_thin(metrics: Sequence[Metrics], advice: Advice) -> bool:
    """Whether so few members (of GRPO: groups) differ that the step follows from hardly more than chance."""
    differing = metrics[-1].get(f"signal/{advice.parts}")
    few = max(1.0, FEW * advice.count)
    return differing is not None and advice.count > 2 and 0 < differing <= few


def _thin_text(newest: Metrics, advice: Advice) -> str:
    differing = round(newest[f"signal/{advice.parts}"])
    verb = "differs" if differing == 1 else "differ"
    return f"{differing} of {advice.count} {advice.parts} {verb}: the step is mostly noise; {advice.thin}"


def _best_and_now(metrics: Sequence[Metrics]) -> tuple[float, float]:
    """The best mean reward of so many generations in a row, and that of the newest, without overlap."""
    rewards = [m["reward/mean"] for m in metrics]
    before = rewards[:-PATIENCE]
    windows = [math.fsum(before[at : at + PATIENCE]) / PATIENCE for at in range(len(before) - PATIENCE + 1)]
    return max(windows), math.fsum(rewards[-PATIENCE:]) / PATIENCE


def _has_collapsed(metrics: Sequence[Metrics]) -> bool:
    """Whether the reward is below half of its best by more than batches of this size differ.

    The spread of a batch comes from the run itself: the mean step between neighbours, which a trend or one jump
    changes little. For two normal values the mean of |a − b| is 2/√π standard deviations.
    """
    if len(metrics) < 2 * PATIENCE:
        return False
    best, now = _best_and_now(metrics)
    steps = [abs(b["reward/mean"] - a["reward/mean"]) for a, b in pairwise(metrics)]
    spread = mean(steps) * math.sqrt(math.pi) / 2
    return best > 0 and now < best / 2 and best - now > ERRORS * spread * math.sqrt(2 / PATIENCE)


def _is_short(metrics: Sequence[Metrics]) -> bool:
    return metrics[-1]["length/mean"] < 0.2 * metrics[0]["length/mean"]
