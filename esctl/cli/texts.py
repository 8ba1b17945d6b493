"""The texts of measurements: `esctl eval`, `esctl passk` and `esctl sharpness`, for a person or as JSON."""

import math
from collections.abc import Sequence

from esctl.cli.progress import eval_line
from esctl.comparison.tables import aligned, percent
from esctl.evaluation.coverage import PassAtK, PassKReport
from esctl.runs.files import adapter
from esctl.runs.records import EvalRecord, SharpnessRecord, decoding_text
from esctl.stats import BINS, over_seeds, wilson


def sharpness_json(record: SharpnessRecord) -> str:
    """The measurement as it is stored."""
    return adapter(SharpnessRecord).dump_json(record, indent=1).decode()


def sharpness_text(record: SharpnessRecord, dim: int) -> str:
    """θ itself, then what noise and steps cost it, in points of strict accuracy and nats per reference token."""
    return "\n\n".join([_sharpness_head(record), _average(record, dim), _direction(record)])


def _sharpness_head(record: SharpnessRecord) -> str:
    n = record.cost.rollouts // _candidates(record)
    score = wilson(round(record.score * n), n)
    lines = [
        f"{record.task.name} v{record.task.version}, {record.split} split, {n:,} problems, generation {record.step},"
        f" greedy, at most {record.sampling.max_tokens:,} tokens",
        f"at θ: strict {100 * score.value:.1f} % ({100 * score.low:.1f}–{100 * score.high:.1f}), one problem is"
        f" {100 / n:.1f} points"
        + ("" if record.nll is None else f", reference solutions {record.nll:.4f} nats per token"),
    ]
    return "\n".join(lines)


def _candidates(record: SharpnessRecord) -> int:
    """How often every problem was answered."""
    average = sum(len(point.drops) for point in record.average)
    return 1 + average + record.estimate_members + sum(1 + len(point.random) for point in record.direction)


def _average(record: SharpnessRecord, dim: int) -> str:
    seeds = len(record.average[0].drops)
    rows = [["σ", "‖σε‖", "points lost", "nats per token risen"]]
    for point in record.average:
        risen = _mean(point.nll_rises, 1, 4) if point.nll_rises else "no references"
        rows.append([f"{point.sigma:g}", f"{point.sigma * math.sqrt(dim):.3g}", _mean(point.drops, 100, 1), risen])
    return f"average: θ + σε, mean over {_count(seeds, 'noise seed')}{_interval(seeds)}\n{_indented(rows)}"


def _direction(record: SharpnessRecord) -> str:
    members, sigma = record.estimate_members, record.estimate_sigma
    if not record.direction:
        return f"direction: none to follow, all {members} members at σ = {sigma:g} scored alike; raise --sigma or -n"
    n = len(record.direction[0].random)
    rows = [["c", "norm", "points lost against g", "points lost at random"]]
    rows += [
        [f"{p.scale:g}", f"{p.norm:.3g}", f"{100 * p.against:+.1f}", _mean(p.random, 100, 1)] for p in record.direction
    ]
    return (
        f"direction: a step of norm c·ρ√(d/N), ρ = {record.rho:g}, against a fresh ES estimate g (N = {members},"
        f" σ = {sigma:g}),\nand along {_count(n, 'random direction')} of equal norm{_interval(n)}\n{_indented(rows)}"
    )


def _mean(values: Sequence[float], factor: float, places: int) -> str:
    if len(values) == 1:
        return f"{factor * values[0]:+.{places}f}"
    e = over_seeds([factor * v for v in values])
    return f"{e.value:+.{places}f} ({e.low:+.{places}f} to {e.high:+.{places}f})"


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _interval(n: int) -> str:
    return ", no interval from one" if n == 1 else " (95 %, Student's t)"


def _indented(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"  {line}" for line in aligned(rows))


def report_text(record: EvalRecord) -> str:
    """A greedy evaluation for a person: the whole, then by difficulty."""
    p, lines = record.problems, [eval_line(record)]
    for group in sorted({d for d in p.difficulty if d}):
        rows = [i for i, d in enumerate(p.difficulty) if d == group]
        e = wilson(sum(p.strict[i] for i in rows), sum(p.n[i] for i in rows))
        interval = f"({100 * e.low:.1f}–{100 * e.high:.1f})"
        lines.append(f"  {group:10} strict {100 * e.value:.1f} % {interval}, {len(rows)} problems")
    if sum(p.truncated):
        lines.append(f"  {sum(p.truncated)} completions were cut at {record.sampling.max_tokens} tokens")
    lines += [f"  {text}" for text in _non_finite(record.non_finite)]
    return "\n".join(lines)


def _non_finite(samples: int) -> list[str]:
    if not samples:
        return []
    return [f"{samples} samples came from logits that were not finite, and mean nothing; lower --noise"]


NARROW = 12  # characters of a histogram's bar


def passk_json(reports: Sequence[PassKReport]) -> str:
    """The reports as they are, with the names of the code."""
    return adapter(list[PassKReport]).dump_json(list(reports), indent=1).decode()


def passk_text(reports: Sequence[PassKReport]) -> str:
    """For a person, one block for each."""
    return "\n\n".join(_passk_block(r) for r in reports)


def _passk_block(report: PassKReport) -> str:
    s = report.sampling
    head = (
        f"{report.task.name} v{report.task.version}, {report.split} split, {report.problems:,} problems ×"
        f" {s.n:,} samples, generation {report.step}\n{decoding_text(s.temperature, s.top_p, report.mode)},"
        f" at most {s.max_tokens:,} tokens, seed {s.seed}"
    )
    rows = [["k", "pass@k strict % (95 %)", "flexible %"], *(_passk_row(p) for p in report.passk)]
    lines = aligned(rows)
    rule = "─" * len(lines[0])
    marks = [f"* k = n: a problem counts as solved by one draw of {s.n} samples; steadier with --samples {2 * s.n}"]
    coin = marks if any(p.coin for p in report.passk) and s.n > 1 else []
    notes = _non_finite(report.non_finite)
    return "\n".join([head, rule, lines[0], rule, *lines[1:], rule, *coin, *notes, *_coverage_lines(report)])


def _passk_row(point: PassAtK) -> list[str]:
    return [f"{point.k}{'*' if point.coin else ''}", percent(point.strict), percent(point.flexible)]


def _coverage_lines(report: PassKReport) -> list[str]:
    seen = report.coverage
    facts = {
        "unsolvable": f"{percent(report.unsolvable)} % of problems: none of {seen.samples} samples is right",
        "majority vote": f"{percent(report.majority)} % right",
        "mean accuracy": f"{100 * seen.strict:.1f} % strict, {100 * seen.flexible:.1f} % flexible",
        "answers": f"{seen.distinct:.2f} different per problem, entropy {seen.entropy:.3f} nats",
        "format": f"{100 * seen.formatted:.1f} % of samples",
        "length": f"{seen.length:.1f} tokens, {100 * seen.truncated:.1f} % cut at {report.sampling.max_tokens}",
    }
    bars = [f"  {name:14} {value}" for name, value in facts.items()]
    return (
        bars if seen.samples == 1 else [*bars, "  problems by share of right samples", *_histogram_bars(seen.histogram)]
    )


def _histogram_bars(histogram: Sequence[int]) -> list[str]:
    names = ["0", *(f"{i / BINS:.1f}–{(i + 1) / BINS:.1f}" for i in range(BINS))]
    most = max(histogram)
    return [
        f"    {name:8} {count:5}  {'█' * round(NARROW * count / most)}".rstrip()
        for name, count in zip(names, histogram, strict=True)
    ]
