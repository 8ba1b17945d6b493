"""What a finished table answers, in sentences no stronger than its intervals.

Reads comparisons and rows, as `compare` makes them; leaves which runs there are to `reproduce`. The labels are those
of `recipes/tables/cpu.yaml`: a question whose rows are not there is answered with what is missing. No torch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from esctl.compare import Comparison
from esctl.groups import ENOUGH_SEEDS, Group
from esctl.pairs import Pair, turned
from esctl.resampling import Floats
from esctl.rows import Row
from esctl.stats import Estimate, over_seeds, seeds_half_width

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
        f"# Report: {table.task}, {table.split} split, {table.problems:,} problems\n\n"
        "Differences are paired over problems, in points, with 95 % intervals that also speak for other seeds where"
        f' both sides have {ENOUGH_SEEDS} or more. "Not shown" means that the interval holds 0: it is no proof of'
        " equality.\n"
    )
    return head + "".join(f"\n## {title}\n\n{_list(lines)}\n" for title, lines in sections)


def gains(table: Comparison) -> list[str]:
    """Every row against the base."""
    return [
        f"{_seeded(row)}: {verdict(row.gain)} than the base ({_percent(row.strict)} strict)"
        for row in table.rows
        if row.gain is not None
    ] or [_missing(BASE)]


def equal_cost(table: Comparison) -> list[str]:
    """ESSAM against ES that spends as much, and against its own controls."""
    found = []
    for other in (ES_2N, ES_2G, ES, *CONTROLS):
        pair = pair_of(table, ESSAM, other)
        found.append(
            _missing(other) if pair is None else f"ESSAM {verdict(pair.difference)} than {other}{_spent(table, other)}"
        )
    return found


def flatness(evidence: Evidence) -> list[str]:
    """S_avg of ESSAM minus that of ES under the same noise, at every sigma; then flatness against accuracy."""
    groups = {g.label: g for g in evidence.groups}
    lines = []
    for other in (ES, ES_2N):
        if ESSAM not in groups or other not in groups:
            lines.append(_missing(other))
            continue
        for sigma, difference in sharpness_differences(groups[ESSAM], groups[other]):
            word = verdict(difference, ("sharper", "flatter"))
            lines.append(f"σ = {sigma:g}: ESSAM {word} than {other} (accuracy lost under noise)")
    return [*lines, *_flatness_and_accuracy(evidence.groups)]


def sharpness_differences(row: Group, against: Group) -> list[tuple[float, Estimate]]:
    """(sigma, S_avg of row − S_avg of against): seeds of noise are common, so they are paired; runs are not."""
    ours, theirs = _drops(row), _drops(against)
    return [(sigma, _drop_difference(ours[sigma], theirs[sigma])) for sigma in sorted(ours.keys() & theirs.keys())]


def _drop_difference(ours: Floats, theirs: Floats) -> Estimate:
    """Both are runs × noise seeds."""
    over_noise = over_seeds((ours.mean(axis=0) - theirs.mean(axis=0)).tolist())
    half = over_noise.high - over_noise.value
    if min(len(ours), len(theirs)) >= ENOUGH_SEEDS:
        half = math.hypot(half, seeds_half_width(ours.mean(axis=1).tolist(), theirs.mean(axis=1).tolist()))
    return Estimate(over_noise.value, over_noise.value - half, over_noise.value + half)


def _drops(group: Group) -> dict[float, Floats]:
    """S_avg's terms by sigma, runs × noise seeds; only sigmas that every run was measured at."""
    records = [item.sharpness for item in group.items]
    if not records or any(r is None for r in records):
        return {}
    found: dict[float, list[list[float]]] = {}
    for record in records:
        for point in record.average if record else ():
            found.setdefault(point.sigma, []).append(point.drops)
    return {sigma: np.array(drops) for sigma, drops in found.items() if len(drops) == len(records)}


def _flatness_and_accuracy(groups: Sequence[Group]) -> list[str]:
    """Spearman's rank correlation over trained runs, with Fisher's interval."""
    points = [(drop, accuracy) for g in groups if g.trained for drop, accuracy in _points(g)]
    if len(points) < 6:
        return [f"flatness and accuracy: {len(points)} trained runs with sharpness, too few to tell"]
    r = spearman([p[0] for p in points], [p[1] for p in points])
    centre, half = math.atanh(max(-0.999, min(0.999, r))), 1.96 * 1.03 / math.sqrt(len(points) - 3)
    low, high = math.tanh(centre - half), math.tanh(centre + half)
    word = (
        "no relation shown"
        if low <= 0 <= high
        else "sharper runs are less accurate"
        if r < 0
        else "sharper runs are more accurate"
    )
    return [
        f"over {len(points)} trained runs, rank correlation of sharpness (largest common σ) and accuracy {r:+.2f}"
        f" ({low:+.2f} to {high:+.2f}): {word}; runs of one method are alike, so this interval is too narrow"
    ]


def _points(group: Group) -> list[tuple[float, float]]:
    drops = _drops(group)
    if not drops:
        return []
    worst = drops[max(drops)].mean(axis=1).tolist()
    return list(zip(worst, group.shares("strict").mean(axis=1).tolist(), strict=True))


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
    """pass@k of every sampled row against the base, then ES against RL, at the smallest and the largest k."""
    if not table.columns:
        return ["no row has sampled evaluations"]
    found = []
    for column in dict.fromkeys((table.columns[0], table.columns[-1])):
        for row, against in [(r, BASE) for r in (ES, ESSAM, *RL)] + [(ES, r) for r in RL]:
            pair = pair_of(table, row, against, column)
            if pair is not None:
                found.append(f"{column}: {row} {verdict(pair.difference)} than {against}")
    return found or [_missing("pass@k of two rows")]


def format_share(table: Comparison) -> list[str]:
    """The gain in strict accuracy beside that in flexible accuracy, which needs no format, and in the format's rate."""
    base = next((row for row in table.rows if row.label == BASE), None)
    if base is None:
        return [_missing(BASE)]
    found = []
    for row in table.rows:
        if row.gain is None:
            continue
        ability = row.flexible.value - base.flexible.value
        found.append(
            f"{row.label}: strict {_points_text(row.gain.value)}, flexible {_points_text(ability)}, format"
            f" {_points_text(row.formatted.value - base.formatted.value)}"
            + (f"; so {_share(row.gain.value - ability, row.gain.value)} of the strict gain is format")
            * (row.gain.value > 0 and row.gain.low > 0)
        )
    return found


def second(evidence: Evidence) -> list[str]:
    """Mirrored pairs against ES; then every table on another task, row by row against its base."""
    mirrored = pair_of(evidence.table, "ES mirrored", ES)
    lines = [
        _missing("ES mirrored", full=True)
        if mirrored is None
        else f"ES mirrored {verdict(mirrored.difference)} than ES"
    ]
    for other in evidence.others:
        lines += [f"on {other.task}: {row.label} {verdict(row.gain)} than its base" for row in other.rows if row.gain]
    return lines if evidence.others else [*lines, _missing("a second benchmark", full=True)]


def pair_of(table: Comparison, row: str, against: str, metric: str = "strict") -> Pair | None:
    """Row minus against, whichever way the table has it."""
    for pair in table.pairs:
        if pair.metric == metric and (pair.row, pair.against) == (row, against):
            return pair
        if pair.metric == metric and (pair.row, pair.against) == (against, row):
            return turned(pair)
    return None


def verdict(difference: Estimate | None, words: tuple[str, str] = ("higher", "lower")) -> str:
    """`12.3 points higher (10.0 to 14.6)`, or that no difference is shown."""
    if difference is None:
        return "was not compared"
    interval = f"({100 * difference.low:+.1f} to {100 * difference.high:+.1f})"
    if difference.low <= 0 <= difference.high:
        return f"is not shown to be {words[0]} or {words[1]}: {_points_text(difference.value)} {interval}"
    return f"is {100 * abs(difference.value):.1f} points {words[difference.value < 0]} {interval}"


def _seeded(row: Row) -> str:
    return f"{row.label} ({row.seeds} seed{'s' if row.seeds != 1 else ''})"


def _spent(table: Comparison, label: str) -> str:
    row = next((r for r in table.rows if r.label == label), None)
    essam = next((r for r in table.rows if r.label == ESSAM), None)
    if row is None or essam is None or not essam.rollouts:
        return ""
    return f", which spends {row.rollouts / essam.rollouts:.2g} × its rollouts"


def _missing(what: str, full: bool = False) -> str:
    return f"not measured: {what}" + (" (FULL=1 adds it)" if full else "")


def _points_text(share: float) -> str:
    return f"{100 * share:+.1f}"


def _share(part: float, whole: float) -> str:
    return "all" if part >= whole else f"{100 * part / whole:.0f} %"


def _percent(e: Estimate) -> str:
    return f"{100 * e.value:.1f} %, {100 * e.low:.1f} to {100 * e.high:.1f}"


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
