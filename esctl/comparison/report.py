"""What a finished table answers, in sentences no stronger than its intervals.

The labels are those of `recipes/tables/cpu.yaml`: a question whose rows are missing is answered by what is
missing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from esctl.comparison.compare import Comparison
from esctl.comparison.groups import ENOUGH_SEEDS, Group
from esctl.comparison.rows import Pair, Row, common_sigmas, drops_at, pair_of
from esctl.comparison.tables import is_zero, markdown_text, percent, points, signed
from esctl.runs.records import SharpnessRecord
from esctl.stats import Z95, Estimate, Floats, over_seeds, seeds_half_width

BASE, ES, ES_2N, ES_2G, ESSAM = "base", "ES", "ES 2N", "ES 2× generations", "ESSAM"
CONTROLS = ("ESSAM random probe", "ESSAM flipped probe")
RL = ("GRPO", "PPO")


@dataclass(frozen=True)
class Evidence:
    """The main table with its runs, and tables on other tasks where there are any."""

    table: Comparison
    groups: tuple[Group, ...]
    others: tuple[Comparison, ...] = ()


def report(evidence: Evidence) -> str:
    """The answers as Markdown."""
    table = evidence.table
    sections = (
        ("Does each method beat the base?", gains(table)),
        ("(a) Does ESSAM beat ES at equal evaluations?", equal_cost(table)),
        ("(b) Is ESSAM flatter than ES at equal σ, and does flatness go with accuracy?", flatness(evidence)),
        ("(c) Does ES keep pass@k where RL narrows it?", coverage(table)),
        ("(d) How much of each gain is format?", format_share(table)),
        ("(e) Mirrored pairs, and a second benchmark", second(evidence)),
    )
    head = (
        f"# Report: {markdown_text(table.task)}, {markdown_text(table.split)} split, {table.problems:,} problems\n\n"
        "Differences are paired over problems, in points, with 95 % intervals that also speak for other seeds where"
        f" every trained row in them has {ENOUGH_SEEDS} or more. Those of flatness are over directions of noise, with"
        ' the problems as they are. "Not shown" means that the interval holds 0: it is no proof of equality. The'
        " intervals are not corrected for their number: where nothing differs, one in twenty says otherwise.\n"
    )
    return head + "".join(f"\n## {title}\n\n{_list(lines)}\n" for title, lines in sections)


def gains(table: Comparison) -> list[str]:
    """Every row against the base."""
    return [
        f"{_seeded(row)} {verdict(row.gain, 'the base')}; strict {percent(row.strict)} %"
        for row in table.rows
        if row.gain is not None
    ] or [_missing(BASE)]


def equal_cost(table: Comparison) -> list[str]:
    """ESSAM against ES that spends as much, and against its own controls."""
    found = []
    for other in (ES_2N, ES_2G, ES, *CONTROLS):
        pair = pair_of(table.pairs, ESSAM, other)
        found.append(_missing(ESSAM, other) if pair is None else sentence(pair) + _spent(table, other))
    return found


def flatness(evidence: Evidence) -> list[str]:
    """S_avg of ESSAM minus that of ES under the same noise, at every sigma; then flatness against accuracy."""
    groups = {g.label: g for g in evidence.groups}
    lines = []
    for other in (ES, ES_2N):
        both = ESSAM in groups and other in groups
        found = sharpness_differences(groups[ESSAM], groups[other]) if both else []
        for sigma, difference in found:
            word = verdict(difference, other, ("sharper", "flatter"))
            lines.append(f"σ = {sigma:g}: ESSAM {word}, in accuracy lost under noise")
        if not found:
            lines.append(_missing(f"the sharpness of {ESSAM} and {other} at one σ"))
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
    """Both are runs × directions; one direction alone says nothing."""
    if ours.shape[1] == 1:
        return Estimate(float(ours.mean() - theirs.mean()), -1.0, 1.0)
    over_noise = over_seeds((ours.mean(axis=0) - theirs.mean(axis=0)).tolist())
    half = over_noise.high - over_noise.value
    if min(len(ours), len(theirs)) >= ENOUGH_SEEDS:
        half = math.hypot(half, seeds_half_width(ours.mean(axis=1).tolist(), theirs.mean(axis=1).tolist()))
    return Estimate(over_noise.value, over_noise.value - half, over_noise.value + half)


def _measured(group: Group) -> list[SharpnessRecord]:
    """One record per run; none at all unless every run was measured."""
    records = [item.sharpness for item in group.items if item.sharpness is not None]
    return records if len(records) == len(group.items) else []


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
    way = (
        "no relation shown"
        if low <= 0 <= high
        else f"among these, the sharper are {'less' if r < 0 else 'more'} accurate"
    )
    return (
        f"over {len(lost)} trained runs, rank correlation of accuracy lost at σ = {sigmas[-1]:g} with accuracy {r:+.2f}"
        f" ({low:+.2f} to {high:+.2f}): {way}. Runs of one method are alike, so the interval is too narrow; and"
        " accuracy at θ is part of the loss, which by itself pulls the correlation up"
    )


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Rank correlation, ties averaged; 0 where one side is constant."""
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    norm = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / norm if norm else 0.0


def _ranks(values: Sequence[float]) -> Floats:
    v = np.asarray(values)
    below, equal = (v[:, None] > v[None, :]).sum(axis=1), (v[:, None] == v[None, :]).sum(axis=1)
    return np.asarray(below + (equal - 1) / 2, dtype=np.float64)


def coverage(table: Comparison) -> list[str]:
    """pass@k of every sampled row against the base, then ES against RL, in the first and the last column."""
    if not table.columns:
        return ["no row has sampled evaluations"]
    found = []
    for column in dict.fromkeys((table.columns[0], table.columns[-1])):
        for row, against in [(r, BASE) for r in (ES, ESSAM, *RL)] + [(ES, r) for r in RL]:
            pair = pair_of(table.pairs, row, against, column)
            if pair is not None:
                found.append(f"{column}: {sentence(pair)}")
    return found or [_missing("pass@k of two rows")]


def format_share(table: Comparison) -> list[str]:
    """The gain in strict accuracy beside that in flexible accuracy, which needs no format, and in the format's rate."""
    base = next((row for row in table.rows if row.label == BASE), None)
    if base is None:
        return [_missing(BASE)]
    return [_format_line(row, row.gain, base) for row in table.rows if row.gain is not None]


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


def second(evidence: Evidence) -> list[str]:
    """Mirrored pairs against ES; then every table on another task, row by row against its base."""
    mirrored = pair_of(evidence.table.pairs, "ES mirrored", ES)
    lines = [sentence(mirrored) if mirrored else _missing("ES mirrored", full=True)]
    for other in evidence.others:
        lines += [f"on {other.task}: {row.label} {verdict(row.gain, 'its base')}" for row in other.rows if row.gain]
    return lines if evidence.others else [*lines, _missing("a second benchmark", full=True)]


def sentence(pair: Pair) -> str:
    """The verdict on a pair, and what its interval speaks for."""
    return f"{pair.row} {verdict(pair.difference, pair.against)}, over {pair.over}"


def verdict(difference: Estimate, other: str, words: tuple[str, str] = ("higher", "lower")) -> str:
    """`is higher than …: +12.3 (+10.0 to +14.6)` points, or that no difference is shown."""
    limits = (difference.low, difference.high)
    if difference.low <= 0 <= difference.high or any(map(is_zero, limits)):
        return f"is not shown to be {words[0]} or {words[1]} than {other}: {points(difference)}"
    word = words[0] if difference.value > 0 else words[1]
    return f"is {word} than {other}: {points(difference)}"


def _seeded(row: Row) -> str:
    return f"{row.label} ({row.seeds} seed{'s' if row.seeds != 1 else ''})"


def _spent(table: Comparison, label: str) -> str:
    row = next((r for r in table.rows if r.label == label), None)
    essam = next((r for r in table.rows if r.label == ESSAM), None)
    if row is None or essam is None or not essam.rollouts:
        return ""
    return f"; {label} spends {row.rollouts / essam.rollouts:.2g} × its rollouts"


def _missing(*what: str, full: bool = False) -> str:
    return f"not in this table: {' against '.join(what)}" + (" (FULL=1 adds it)" if full else "")


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {markdown_text(line)}" for line in lines)
