"""pass@k: what `esctl passk` may be asked for, and what stored evaluations answer, as a table or JSON.

Leaves drawing samples to `assess`, and coverage to `coverage`. No torch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from esctl.cells import aligned, percent
from esctl.coverage import BINS, Coverage, coverage
from esctl.errors import UsageError
from esctl.records import EvalRecord, Mode, ProblemCounts, SamplingRecord, TaskRecord
from esctl.rundir import adapter
from esctl.samples import WEIGHT, Decoding, decoding_text
from esctl.stats import Estimate, over_problems, pass_at_k, wilson

DEFAULT_TEMPERATURE, DEFAULT_TOP_P = 0.6, 0.95  # of Yue et al. 2025 (arXiv 2504.13837)
NARROW = 12  # characters of a histogram's bar


@dataclass(frozen=True)
class PassAtK:
    """The chance that k samples hold a right one: mean over problems of the unbiased estimate, with 95 % intervals."""

    k: int
    strict: Estimate
    flexible: Estimate
    coin: bool  # k = n: each problem counts as solved or not by a single draw of n samples


@dataclass(frozen=True)
class Report:
    """One evaluation's pass@k curve and coverage."""

    run: str
    task: TaskRecord
    split: str
    problems: int
    step: int
    rollouts_spent: int
    sampling: SamplingRecord
    mode: Mode
    weights_sha256: str
    passk: list[PassAtK]
    unsolvable: Estimate
    majority: Estimate
    coverage: Coverage


def report(run: str, record: EvalRecord, ks: Sequence[int]) -> Report:
    """What an evaluation says for these k; each must be at most its n."""
    p, seen = record.problems, coverage(record)
    problems = len(p.id)
    return Report(
        run=run,
        task=record.task,
        split=record.split,
        problems=problems,
        step=record.step,
        rollouts_spent=record.rollouts_spent,
        sampling=record.sampling,
        mode=record.mode,
        weights_sha256=record.weights_sha256,
        passk=[PassAtK(k, _estimate(p, p.strict, k), _estimate(p, p.flexible, k), k == min(p.n)) for k in ks],
        unsolvable=wilson(round(seen.unsolvable * problems), problems),
        majority=wilson(sum(p.majority), problems),
        coverage=seen,
    )


def _estimate(problems: ProblemCounts, right: Sequence[int], k: int) -> Estimate:
    """Problems are independent, a problem's samples are alike; n samples are worth n // k independent draws of k."""
    values = [pass_at_k(n, c, k) for n, c in zip(problems.n, right, strict=True)]
    return over_problems(values, min(problems.n) // k)


def read_ks(text: str) -> list[int]:
    """`1,8,64`, in order and once each."""
    try:
        ks = sorted({int(k) for k in text.split(",")})
    except ValueError:
        ks = [0]
    if ks[0] < 1:
        raise UsageError(f"--k {text}: write numbers of samples, 1 or more, such as --k 1,8,64")
    return ks


def read_temperatures(text: str | None, noise: float | None) -> list[float]:
    """`0.6,1.0`; by default 0.6, and under weight noise 0: greedy."""
    if text is None:
        return [DEFAULT_TEMPERATURE if noise is None else 0.0]
    try:
        found = sorted({float(t) for t in text.split(",")})
    except ValueError:
        found = [-1.0]
    if not all(t >= 0 and math.isfinite(t) for t in found):
        raise UsageError(f"--temperature {text}: write numbers of 0 or more, such as --temperature 0.6,1.0")
    return found


def decodings(
    ks: Sequence[int],
    samples: int | None = None,
    temperatures: Sequence[float] = (DEFAULT_TEMPERATURE,),
    top_p: float = DEFAULT_TOP_P,
    noise: float | None = None,
    seed: int = 0,
) -> list[Decoding]:
    """One decoding per temperature, with 2·max k samples by default; refuses what has no estimate or no spread."""
    n = 2 * max(ks) if samples is None else samples
    if n < max(ks):
        raise UsageError(f"--samples {n}: pass@{max(ks)} needs {max(ks)} samples or more; better 2 × k, the default")
    if not 0 < top_p <= 1:
        raise UsageError(f"--top-p {top_p:g}: give a share above 0 and at most 1")
    if noise is not None and not (math.isfinite(noise) and noise > 0):
        raise UsageError(f"--noise {noise:g}: give a standard deviation of the weights above 0, such as 0.015")
    if noise is None and n > 1 and min(temperatures) == 0:
        raise UsageError(
            f"--temperature 0: {n} greedy samples would be one; give a temperature above 0, or spread weights with"
            " --noise SIGMA"
        )
    if not -(2**63) <= seed < 2**63:
        raise UsageError(f"--seed {seed}: give a whole number of 64 bits")
    mode = Mode() if noise is None else Mode(WEIGHT, noise)
    # Greedy decoding has no top-p, and without noise no seed: equal evaluations are one.
    return [
        Decoding(t, top_p if t > 0 else 1.0, n, seed if t > 0 or noise is not None else 0, mode) for t in temperatures
    ]


def json_text(reports: Sequence[Report]) -> str:
    """The reports as they are, with the names of the code."""
    return adapter(list[Report]).dump_json(list(reports), indent=1).decode()


def text(reports: Sequence[Report]) -> str:
    """For a person, one block for each."""
    return "\n\n".join(_block(r) for r in reports)


def _block(report: Report) -> str:
    s = report.sampling
    head = (
        f"{report.task.name} v{report.task.version}, {report.split} split, {report.problems:,} problems ×"
        f" {s.n:,} samples, generation {report.step}\n{decoding_text(s.temperature, s.top_p, report.mode)},"
        f" at most {s.max_tokens:,} tokens, seed {s.seed}"
    )
    rows = [["k", "pass@k strict % (95 %)", "flexible %"], *(_row(p) for p in report.passk)]
    lines = aligned(rows)
    rule = "─" * len(lines[0])
    marks = [f"* k = n: a problem counts as solved by one draw of {s.n} samples; steadier with --samples {2 * s.n}"]
    coin = marks if any(p.coin for p in report.passk) and s.n > 1 else []
    return "\n".join([head, rule, lines[0], rule, *lines[1:], rule, *coin, *_coverage_lines(report)])


def _row(point: PassAtK) -> list[str]:
    return [f"{point.k}{'*' if point.coin else ''}", percent(point.strict), percent(point.flexible)]


def _coverage_lines(report: Report) -> list[str]:
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
    return bars if seen.samples == 1 else [*bars, "  problems by share of right samples", *_bars(seen.histogram)]


def _bars(histogram: Sequence[int]) -> list[str]:
    names = ["0", *(f"{i / BINS:.1f}–{(i + 1) / BINS:.1f}" for i in range(BINS))]
    most = max(histogram)
    return [
        f"    {name:8} {count:5}  {'█' * round(NARROW * count / most)}".rstrip()
        for name, count in zip(names, histogram, strict=True)
    ]
