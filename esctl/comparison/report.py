"""What a finished table answers, in sentences no stronger than its intervals.

A question whose rows are missing is answered by naming them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from esctl.comparison.compare import Comparison
from esctl.comparison.groups import ENOUGH_SEEDS, Group
from esctl.comparison.questions import DEFAULT_QUESTIONS, Kind, Question
from esctl.comparison.rows import Pair, Row, common_sigmas, drops_at, pair_of
from esctl.comparison.tables import is_zero, markdown_text, percent, points, signed
from esctl.runs.records import SharpnessRecord
from esctl.stats import Z95, Estimate, Floats, over_seeds, seeds_half_width


@dataclass(frozen=True)
class Evidence:
    """The main table with its runs, tables on other tasks, and what FULL=1 would add."""

    table: Comparison
    groups: tuple[Group, ...]
    others: tuple[Comparison, ...] = ()
    full_rows: frozenset[str] = frozenset()  # labels that only the full table has
    full_tasks: bool = False  # whether the full table has tasks that this one lacks


def report(evidence: Evidence, questions: Sequence[Question] = ()) -> str:
    """The answers as Markdown; a table without questions gets those that every table has."""
    table = evidence.table
    head = (
        f"# Report: {markdown_text(table.task)}, {markdown_text(table.split)} split, {table.problems:,} problems\n\n"
        "Differences are paired over problems, in points, with 95 % intervals that also speak for other seeds where"
        f" every trained row in them has {ENOUGH_SEEDS} or more. Those of flatness are over directions of noise, with"
        ' the problems as they are. "Not shown" means that the interval holds 0: it is no proof of equality. The'
        " intervals are not corrected for their number: where nothing differs, one in twenty says otherwise.\n"
    )
    sections = [
        f"\n## {markdown_text(q.ask)}\n\n{_list(answer(evidence, q))}\n" for q in questions or DEFAULT_QUESTIONS
    ]
    return head + "".join(sections)


def answer(evidence: Evidence, question: Question) -> list[str]:
    """The sentences that answer a question."""
    return ANSWERS[question.kind](evidence, question)


def gains(evidence: Evidence, _: Question) -> list[str]:
    """Every row against the base."""
    return [
        f"{_seeded(row)} {verdict(row.gain, 'the base')}; strict {percent(row.strict)} %"
        for row in evidence.table.rows
        if row.gain is not None
    ] or [_missing("the base")]


def strict_differences(evidence: Evidence, question: Question) -> list[str]:
    """Strict accuracy of one row against another, with what the other spent on training."""
    lines = []
    for row, against in question.pairs:
        pair = pair_of(evidence.table.pairs, row, against)
        if pair is None:
            lines.append(_missing(row, against, full=not evidence.full_rows.isdisjoint((row, against))))
        else:
            lines.append(sentence(pair) + _spent(evidence.table, row, against))
    return lines


def flatness(evidence: Evidence, question: Question) -> list[str]:
    """S_avg of two rows under the same noise, at every sigma; then flatness against accuracy."""
    groups = {g.label: g for g in evidence.groups}
    lines = []
    for row, against in question.pairs:
        both = row in groups and against in groups
        found = sharpness_differences(groups[row], groups[against]) if both else []
        for sigma, difference in found:
            word = verdict(difference, against, ("sharper", "flatter"))
            lines.append(f"σ = {sigma:g}: {row} {word}, in accuracy lost under noise")
        if not found:
            lines.append(_missing(f"the sharpness of {row} and {against} at one σ"))
    return [*lines, flatness_and_accuracy(evidence.groups)]


def sharpness_differences(row: Group, against: Group) -> list[tuple[float, Estimate]]:
    """(sigma, S_avg of row − S_avg of against): directions of noise are common, so they are paired; runs are not."""
    ours, theirs = _measured(row), _measured(against)
    if not ours or not theirs:
        return []
    sigmas = common_sigmas([*ours, *theirs])
    drops = [drops_at([*ours, *theirs], sigma) for sigma in sigmas]
    return [(s, _drop_difference(d[: len(ours)], d[len(ours) :])) for s, d in zip(sigmas, drops, strict=True)]


def _drop_difference(ours: Floats, theirs: Floats) -> Estimate:
    """Both are runs × directions; one direction alone leaves every difference possible."""
    if ours.shape[1] == 1:
        return Estimate(float(ours.mean() - theirs.mean()), -1.0, 1.0)
    over_noise = over_seeds((ours.mean(axis=0) - theirs.mean(axis=0)).tolist())
    half = over_noise.high - over_noise.value
    if min(len(ours), len(theirs)) >= ENOUGH_SEEDS:
        half = math.hypot(half, seeds_half_width(ours.mean(axis=1).tolist(), theirs.mean(axis=1).tolist()))
    return Estimate(over_noise.value, over_noise.value - half, over_noise.value + half)


def _measured(group: Group) -> list[SharpnessRecord]:
    """One record per run; none at all unless every run was measured."""
    return group.sharpness if len(group.sharpness) == len(group.items) else []


def flatness_and_accuracy(groups: Sequence[Group]) -> str:
    """Spearman's rank correlation over trained runs, with Fisher's interval (Fieller, Hartley & Pearson 1957)."""
    measured = [(group, records) for group in groups if group.trained and (records := _measured(group))]
    sigmas = common_sigmas([r for _, records in measured for r in records])
    lost = [d for _, records in measured for d in drops_at(records, sigmas[-1]).mean(axis=1)] if sigmas else []
    if len(lost) < 6:
        return f"flatness and accuracy: {len(lost)} trained runs with sharpness at one σ, too few to tell"
    r = spearman(lost, [share for group, _ in measured for share in group.shares("strict").mean(axis=1)])
    centre, half = math.atanh(max(-0.999, min(0.999, r))), Z95 * math.sqrt(1.06 / (len(lost) - 3))
    low, high = math.tanh(centre - half), math.tanh(centre + half)
    if low <= 0 <= high:
        way = "no relation shown"
    else:
        way = f"among these, the sharper are {'less' if r < 0 else 'more'} accurate"
    return (
        f"over {len(lost)} trained runs, rank correlation of accuracy lost at σ = {sigmas[-1]:g} with accuracy {r:+.2f}"
        f" ({low:+.2f} to {high:+.2f}): {way}. Runs of one method are alike, so the interval is too narrow; and"
        " accuracy at θ is part of the loss, which by itself pulls the correlation up"
    )


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Rank correlation, ties averaged; 0 where one side is constant."""
    x = _ranks(a) - _ranks(a).mean()
    y = _ranks(b) - _ranks(b).mean()
    norm = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / norm if norm else 0.0


def _ranks(values: Sequence[float]) -> Floats:
    v = np.asarray(values)
    below = (v[:, None] > v[None, :]).sum(axis=1)
    equal = (v[:, None] == v[None, :]).sum(axis=1)
    return np.asarray(below + (equal - 1) / 2, dtype=np.float64)


def coverage(evidence: Evidence, question: Question) -> list[str]:
    """pass@k of one row against another, at the smallest and the largest k of the table."""
    table = evidence.table
    if not table.columns:
        return ["no row has sampled evaluations"]
    found = []
    for column in dict.fromkeys((table.columns[0], table.columns[-1])):
        for row, against in question.pairs:
            pair = pair_of(table.pairs, row, against, column)
            if pair is not None:
                found.append(f"{column}: {sentence(pair)}")
    return found or [_missing("pass@k of two rows")]


def format_share(evidence: Evidence, _: Question) -> list[str]:
    """The gain in strict accuracy next to that in flexible accuracy, which needs no format, and in the format rate."""
    untrained = {group.label for group in evidence.groups if not group.trained}
    base = next((row for row in evidence.table.rows if row.label in untrained), None)
    if base is None:
        return [_missing("the base")]
    return [_format_line(row, row.gain, base) for row in evidence.table.rows if row.gain is not None]


def _format_line(row: Row, gain: Estimate, base: Row) -> str:
    flexible = row.flexible.value - base.flexible.value
    formatted = row.formatted.value - base.formatted.value
    line = f"{row.label}: strict {signed(gain.value)}, flexible {signed(flexible)}, format {signed(formatted)}"
    if gain.low <= 0:
        return line
    if flexible < 0 and not is_zero(flexible):
        return (
            f"{line}; flexible fell by {signed(-flexible)[1:]}, so that none of the strict gain is more right answers"
        )
    if flexible > gain.value:
        return f"{line}; flexible rose by more than strict"
    apart = 1 - flexible / gain.value
    return f"{line}; by these estimates {100 * apart:.0f} % of the strict gain goes beyond the flexible one"


def other_tasks(evidence: Evidence, _: Question) -> list[str]:
    """Every table on another task, row by row against its base."""
    found = []
    for other in evidence.others:
        found += [f"on {other.task}: {row.label} {verdict(row.gain, 'its base')}" for row in other.rows if row.gain]
    return found or [_missing("a second benchmark", full=evidence.full_tasks)]


ANSWERS: dict[Kind, Callable[[Evidence, Question], list[str]]] = {
    "pairs": strict_differences,
    "gains": gains,
    "flatness": flatness,
    "coverage": coverage,
    "format": format_share,
    "benchmarks": other_tasks,
}


def sentence(pair: Pair) -> str:
    """The verdict on a pair, and what its interval generalises to."""
    return f"{pair.row} {verdict(pair.difference, pair.against)}, over {pair.over}"


def verdict(difference: Estimate, other: str, words: tuple[str, str] = ("higher", "lower")) -> str:
    """Such as `is higher than ES: +12.3 (+10.0 to +14.6)`, in points; or that no difference is shown."""
    limits = (difference.low, difference.high)
    if difference.low <= 0 <= difference.high or any(map(is_zero, limits)):
        return f"is not shown to be {words[0]} or {words[1]} than {other}: {points(difference)}"
    word = words[0] if difference.value > 0 else words[1]
    return f"is {word} than {other}: {points(difference)}"


def _seeded(row: Row) -> str:
    return f"{row.label} ({row.seeds} seed{'s' if row.seeds != 1 else ''})"


def _spent(table: Comparison, row: str, against: str) -> str:
    """Training rollouts of the second row per rollout of the first; empty where the first was not trained."""
    rollouts = {r.label: r.rollouts for r in table.rows}
    if not rollouts.get(row):
        return ""
    return f"; {against} spends {rollouts[against] / rollouts[row]:.2g} × its rollouts"


def _missing(*what: str, full: bool = False) -> str:
    return f"not in this table: {' against '.join(what)}" + (" (FULL=1 adds it)" if full else "")


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {markdown_text(line)}" for line in lines)
