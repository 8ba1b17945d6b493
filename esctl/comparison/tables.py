"""A comparison as text: the same rows and pairs for a terminal, Markdown, LaTeX, CSV and JSON.

People get percent and points with intervals; programs get every number in full. Labels, tasks and paths may hold any
text, so each format escapes control characters and its own markup.
"""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import asdict

from esctl.comparison.compare import Comparison
from esctl.comparison.references import Reference
from esctl.comparison.rows import Pair, Row
from esctl.plain import one_line, plain
from esctl.runs.files import adapter
from esctl.stats import Estimate

Cells = list[str]
COSTS = ("rollouts", "tokens", "FLOPs", "seconds", "peak GiB host/device")
PAIR_HEADERS = ("pair", "metric", "points (95 %)", "over", "won/lost", "McNemar p")


def terminal(comparison: Comparison) -> str:
    """Aligned blocks: scores, pass@k and sharpness where measured, costs, scores by seed, pairs; then notes."""
    blocks = [_banner(comparison), title(comparison), _ruled(_scores(comparison), 1)]
    if comparison.columns or comparison.sigma is not None:
        blocks.append(_ruled(_more_scores(comparison), 1))
    blocks.append(_ruled(_costs(comparison), 1))
    if _has_seeds(comparison):
        blocks.append(_ruled(_by_seed(comparison), 1))
    if comparison.pairs:
        blocks.append(_ruled([list(PAIR_HEADERS), *(_pair_cells(p) for p in comparison.pairs)], 2))
    notes = "\n".join(_notes(comparison))
    return plain("\n\n".join(block for block in (*blocks, notes) if block))


def markdown(comparison: Comparison) -> str:
    """GitHub tables of rows, scores by seed and pairs, and the notes."""
    texts = [*_banner(comparison).splitlines(), title(comparison)]
    blocks = [*map(markdown_text, texts), _bars(_whole(comparison))]
    if _has_seeds(comparison):
        blocks.append(_bars(_by_seed(comparison)))
    if comparison.pairs:
        blocks.append(_bars([list(PAIR_HEADERS), *(_pair_cells(p) for p in comparison.pairs)]))
    return "\n\n".join(block for block in (*blocks, *map(markdown_text, _notes(comparison))) if block) + "\n"


def latex(comparison: Comparison) -> str:
    """`tabular`s of rows, scores by seed and pairs with the rules of booktabs, after the notes as comments."""
    comments = [
        f"% {one_line(line)}" for line in (*_banner(comparison).splitlines(), title(comparison), *_notes(comparison))
    ]
    parts = ["\n".join(["% \\usepackage{booktabs}", *comments]), _tabular(_whole(comparison))]
    if _has_seeds(comparison):
        parts.append(_tabular(_by_seed(comparison)))
    if comparison.pairs:
        parts.append(_tabular([list(PAIR_HEADERS), *(_pair_cells(p) for p in comparison.pairs)]))
    return "\n\n".join(parts) + "\n"


def csv_text(comparison: Comparison) -> str:
    """A line per row and, after an empty line, a line per pair; shares between 0 and 1, bytes, seconds, in full."""
    rows = [_flat(row, comparison) for row in comparison.rows]
    rows += [_flat_reference(reference) for reference in comparison.references]
    blocks = [rows, [_flat_pair(pair) for pair in comparison.pairs]]
    comments = "".join(f"# {one_line(line)}\n" for line in _banner(comparison).splitlines())
    return comments + "\n".join(_csv(block) for block in blocks if block)


def json_text(comparison: Comparison) -> str:
    """The comparison as it is, with the names of the code."""
    return plain(adapter(Comparison).dump_json(comparison, indent=1).decode()) + "\n"


def title(comparison: Comparison) -> str:
    """What the numbers are about."""
    within = "" if comparison.at is None else f", at most {comparison.at:,} training rollouts"
    problems = f"{comparison.problems:,} problems"
    return f"{one_line(comparison.task)}, {one_line(comparison.split)} split, {problems}, {comparison.sampling}{within}"


def _banner(comparison: Comparison) -> str:
    return "\n".join(f"NOT COMPARABLE: {one_line(difference)}" for difference in comparison.differences)


def _notes(comparison: Comparison) -> list[str]:
    """The notes, and the sources of published rows."""
    sources = {r.citation: r.setting for r in comparison.references}
    return [
        *map(one_line, comparison.notes),
        *(f"published, {citation}: {setting}" for citation, setting in sources.items()),
    ]


def _scores(comparison: Comparison) -> list[Cells]:
    """Accuracies, and what changed against the base."""
    headers = ["method", "seeds", "strict % (95 %)", "sd", "flexible %", "format %", "gain over base", "won/lost", "p"]
    rows = [[r.label, str(r.seeds), *_score_cells(r)] for r in comparison.rows]
    published = [
        [_named(r), "", _published(r, "accuracy"), "", "", "", "", _published_changes(r), ""]
        for r in comparison.references
    ]
    return [headers, *rows, *published]


def _score_cells(row: Row) -> Cells:
    return [
        percent(row.strict),
        f"{100 * row.strict_sd:.1f}" if row.seeds > 1 else "",
        percent(row.flexible),
        percent(row.formatted),
        points(row.gain) if row.gain else "",
        _changes(row.progressions, row.regressions),
        "" if row.p_value is None else f"{row.p_value:.2g}",
    ]


def _more_scores(comparison: Comparison) -> list[Cells]:
    """pass@k and sharpness: what was sampled or perturbed."""
    sharp = [] if comparison.sigma is None else [f"sharpness at {comparison.sigma:g}"]
    headers = ["method", *(f"{name} %" for name in comparison.columns), *sharp]
    rows = []
    for row in comparison.rows:
        passes = [percent(row.pass_at[name]) if name in row.pass_at else "" for name in comparison.columns]
        rows.append([row.label, *passes, *([points(row.sharpness) if row.sharpness else ""] if sharp else [])])
    published = [
        [_named(r), *(_published(r, n) for n in comparison.columns), *[""] * len(sharp)] for r in comparison.references
    ]
    return [headers, *rows, *published]


def _costs(comparison: Comparison) -> list[Cells]:
    """What the training cost, beside the score that it bought."""
    rows = [[row.label, f"{100 * row.strict.value:.1f}", *_cost_cells(row)] for row in comparison.rows]
    return [["method", "strict %", *COSTS], *rows]


def _cost_cells(row: Row) -> Cells:
    peaks = (row.host_bytes, row.device_bytes)
    memory = "/".join(f"{peak / 2**30:.2f}" for peak in peaks) if any(peaks) else ""
    return [f"{row.rollouts:,.0f}", _number(row.generated_tokens), _flops(row.flops), _number(row.seconds), memory]


def _flops(flops: float | None) -> str:
    if flops is None:
        return ""
    return f"{flops:.1e}" if flops else "0"


def _has_seeds(comparison: Comparison) -> bool:
    """Whether a row has several runs, so that its mean is not their score."""
    return any(len(row.by_seed) > 1 for row in comparison.rows)


def _by_seed(comparison: Comparison) -> list[Cells]:
    """A line per run: the scores that the means and spreads of the rows are made of."""
    lines = [["method", "seed", "strict %", "flexible %", "format %"]]
    for row in comparison.rows:
        for score in row.by_seed:
            shares = (score.strict, score.flexible, score.formatted)
            lines.append([row.label, str(score.seed), *(f"{100 * share:.2f}" for share in shares)])
    return lines


def _whole(comparison: Comparison) -> list[Cells]:
    """Scores, samples and costs in one table."""
    found = _scores(comparison)
    if comparison.columns or comparison.sigma is not None:
        found = [a + b[1:] for a, b in zip(found, _more_scores(comparison), strict=True)]
    costs = [row[2:] for row in _costs(comparison)]
    costs += [[""] * len(COSTS)] * len(comparison.references)
    return [a + b for a, b in zip(found, costs, strict=True)]


def _pair_cells(pair: Pair) -> Cells:
    p_value = "" if pair.p_value is None else f"{pair.p_value:.2g}"
    names = f"{pair.row} − {pair.against}"
    return [names, pair.metric, points(pair.difference), pair.over, _changes(pair.won, pair.lost), p_value]


def _changes(won: float | None, lost: float | None) -> str:
    """Problems won and lost: whole for single runs, to one decimal for means over pairs of runs."""
    if won is None or lost is None:
        return ""
    digits = 0 if won == int(won) and lost == int(lost) else 1
    return f"+{won:,.{digits}f}/−{lost:,.{digits}f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _named(reference: Reference) -> str:
    return f"{reference.label}, {reference.model} (published, {reference.citation})"


def _published(reference: Reference, metric: str) -> str:
    return f"{reference.percent[metric]:.1f}" if metric in reference.percent else ""


def _published_changes(reference: Reference) -> str:
    return _changes(reference.counts.get("progressions"), reference.counts.get("regressions"))


def _ruled(rows: Sequence[Cells], left: int) -> str:
    """Aligned columns, with a rule under the headers."""
    lines = aligned(rows, left)
    return "\n".join([lines[0], "─" * len(lines[0]), *lines[1:]])


# What Markdown or the HTML in it would read: links, emphasis, code, mathematics. An underscore within a word is none.
_MARKUP = re.compile(r"[\\`*\[\]|~$]|(?<!\w)_|_(?!\w)")
_HTML = str.maketrans({"<": "&lt;", ">": "&gt;"})


def markdown_text(text: str) -> str:
    """A line of text that Markdown shows as it is; a command of ours between backticks stays code."""
    parts = one_line(text).translate(_HTML).split("`")
    whole = len(parts) % 2 == 1 and all(parts[1::2])
    if not whole:
        return _MARKUP.sub(r"\\\g<0>", "`".join(parts))
    return "`".join(part if place % 2 else _MARKUP.sub(r"\\\g<0>", part) for place, part in enumerate(parts))


def markdown_cell(text: str) -> str:
    """As `markdown_text`, without any code: a label has none."""
    return _MARKUP.sub(r"\\\g<0>", one_line(text).translate(_HTML))


def _bars(rows: Sequence[Cells]) -> str:
    texts = [[markdown_cell(cell) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [texts[0], ["---"] * len(texts[0]), *texts[1:]])


LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "−": "$-$", "–": "--", "×": r"$\times$",
    "σ": r"$\sigma$", "<": "$<$", ">": "$>$", "|": "$|$",
    "[": "{[}", "]": "{]}", "*": "{*}",  # at the start of a line they would be arguments of the \\\\ before it
}  # fmt: skip


def escaped(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(LATEX.get(character, character) for character in one_line(text))


def _tabular(rows: Sequence[Cells]) -> str:
    lines = [" & ".join(map(escaped, row)) + r" \\" for row in rows]
    columns = "l" + "r" * (len(rows[0]) - 1)
    head = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", lines[0], r"\midrule"]
    return "\n".join([*head, *lines[1:], r"\bottomrule", r"\end{tabular}"])


def _csv(rows: Sequence[dict[str, object]]) -> str:
    """Lines under the union of the rows' keys."""
    names = list({name: None for row in rows for name in row})
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=names, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows({name: _inert(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


_FORMULA = re.compile(r"(^|;)(?=\s*[=+\-@＝＋－＠])")


def _inert(value: object) -> object:
    """Text that a spreadsheet would run as a formula gets an apostrophe; numbers stay.

    Where a comma is the decimal sign, spreadsheets cut lines at semicolons: there a formula may start as well.
    """
    return _FORMULA.sub(r"\1'", one_line(value)) if isinstance(value, str) else value


def _flat(row: Row, comparison: Comparison) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in asdict(row).items():
        if key == "pass_at":
            for name in comparison.columns:
                found |= _flat_estimate(name, row.pass_at.get(name))
        elif key == "by_seed":
            found["seed_list"] = " ".join(str(score.seed) for score in row.by_seed)
            found["strict_by_seed"] = " ".join(str(score.strict) for score in row.by_seed)
            found["flexible_by_seed"] = " ".join(str(score.flexible) for score in row.by_seed)
        elif key in ("strict", "flexible", "formatted", "gain", "sharpness"):
            found |= _flat_estimate(key, None if value is None else Estimate(**value))
        else:
            found[key] = value
    return found | {"published": ""}


def _flat_estimate(name: str, estimate: Estimate | None) -> dict[str, object]:
    if estimate is None:
        return {name: "", f"{name}_low": "", f"{name}_high": ""}
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def _flat_pair(pair: Pair) -> dict[str, object]:
    whole = asdict(pair) | _flat_estimate("difference", pair.difference)
    order = (
        "row",
        "against",
        "metric",
        "difference",
        "difference_low",
        "difference_high",
        "over",
        "won",
        "lost",
        "p_value",
    )
    return {name: whole[name] for name in order}


def _flat_reference(reference: Reference) -> dict[str, object]:
    shares = {"strict" if m == "accuracy" else m: p / 100 for m, p in reference.percent.items()}
    label = f"{reference.label}, {reference.model}"
    return {"label": label, **shares, **reference.counts, "published": reference.citation}


def percent(e: Estimate) -> str:
    """A share as percent with its interval."""
    return f"{100 * e.value:.1f} ({100 * e.low:.1f}–{100 * e.high:.1f})"


def points(e: Estimate) -> str:
    """A difference of shares as percentage points with its interval, signed."""
    return f"{signed(e.value)} ({signed(e.low)} to {signed(e.high)})"


def signed(share: float) -> str:
    """A difference of shares as percentage points; zero has no sign, and what is not zero never reads 0.0."""
    if is_zero(share):
        return "0.0"
    digits = next((d for d in (1, 2, 3) if round(100 * abs(share), d) > 0), 4)
    return f"{100 * share:+.{digits}f}".replace("-", "−")


def is_zero(share: float) -> bool:
    """Whether a difference is less than rounding can show: below 0.0001 points."""
    return round(100 * share, 4) == 0


def aligned(rows: Sequence[Sequence[str]], left: int = 0) -> list[str]:
    """One line per row: columns as wide as their widest cell, the first `left` of them flush left."""
    texts = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return [
        "  ".join(c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in texts
    ]
