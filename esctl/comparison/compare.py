"""The comparison: rows and pairs from run directories, scores beside costs, and no numbers that differ in kind.

Leaves reading and choosing to `selection`, arithmetic to `rows` and `pairs`, and text to `tables`. No torch, so it
runs on any laptop.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from esctl.comparison.groups import ENOUGH_SEEDS, Group, grouped
from esctl.comparison.references import Reference, references
from esctl.comparison.rows import Pair, Row, middle_sigma, pair_of, pass_estimate, row_of, sampled_pairs, strict_pairs
from esctl.comparison.selection import Kind, Loaded, Request, Selection, kind, load_runs, sampling_text, select
from esctl.errors import UsageError
from esctl.runs.directory import RunDir
from esctl.runs.records import SharpnessRecord

DEFAULT_KS = (1, 8, 64)


@dataclass(frozen=True)
class Sampled:
    """A column of pass@k."""

    name: str
    kind: Kind
    k: int


@dataclass(frozen=True)
class Comparison:
    """The tables, what they are about, and what a reader must know."""

    task: str
    split: str
    problems: int
    sampling: str  # of the accuracies
    at: int | None  # the limit on training rollouts
    columns: tuple[str, ...]  # of pass@k
    sigma: float | None  # of the sharpness
    rows: tuple[Row, ...]
    pairs: tuple[Pair, ...]
    references: tuple[Reference, ...]
    differences: tuple[str, ...]  # why these numbers do not mean the same thing; empty but where forced
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Wanted:
    """What is asked of a comparison beside the runs."""

    request: Request = field(default_factory=Request)
    ks: tuple[int, ...] = ()  # of pass@k; empty: those of DEFAULT_KS for which there are samples enough
    base: RunDir | None = None  # what gains are measured against; None: each run's own base
    published: str | None = None  # a set of published rows, or `all` about the task
    force: bool = False  # compare also what differs in kind


def compare(runs: Sequence[RunDir], wanted: Wanted) -> Comparison:
    """Put runs side by side; raises UsageError naming each field in which they differ in kind."""
    return compare_loaded(load(runs, wanted), wanted)


def load(runs: Sequence[RunDir], wanted: Wanted) -> list[Loaded]:
    """Read the runs, and the base that was asked for where it is not among them."""
    given = [*([wanted.base] if wanted.base else []), *runs]
    return load_runs(list({run.path.resolve(): run for run in given}.values()))


def compare_loaded(loaded: Sequence[Loaded], wanted: Wanted) -> Comparison:
    """The same of runs that are read already."""
    selection = select(loaded, wanted.request)
    first = selection.items[0].eval
    published = references(wanted.published, first.task.name) if wanted.published else ()
    differences = [*selection.differences, *_foreign(published, first.task.name)]
    if differences and not wanted.force:
        lines = "\n".join(f"not comparable: {d}" for d in differences)
        raise UsageError(f"{lines}; evaluate them alike, or print anyway with --force")
    groups = grouped(selection.items)
    columns = _columns(selection, wanted.ks)
    sigma = middle_sigma(_sharpness(groups))
    strict = strict_pairs(groups)
    bases = _bases(groups, wanted.base)
    rows = [_row(group, bases, strict, columns, sigma) for group in groups]
    return Comparison(
        task=f"{first.task.name} v{first.task.version}",
        split=first.split,
        problems=len(first.problems.id),
        sampling=sampling_text(kind(first)),
        at=wanted.request.at,
        columns=tuple(c.name for c in columns),
        sigma=sigma,
        rows=tuple(rows),
        pairs=(*strict, *(pair for c in columns for pair in sampled_pairs(groups, c.name, c.kind, c.k))),
        references=tuple(published),
        differences=tuple(differences),
        notes=(
            *selection.notes,
            *_notes(groups, bases),
            *_sampling_notes(groups, columns),
            *_sigma_note(groups, sigma),
        ),
    )


def _row(
    group: Group, bases: dict[str, Group], pairs: Sequence[Pair], columns: Sequence[Sampled], sigma: float | None
) -> Row:
    passes = {c.name: pass_estimate(group, c.kind, c.k) for c in columns if group.sampled(c.kind)}
    base = bases.get(group.base)
    return row_of(group, pair_of(pairs, group.label, base.label) if base else None, passes, sigma)


def _bases(groups: Sequence[Group], base: RunDir | None) -> dict[str, Group]:
    """What rows are held against, by hash of the weights they started from: the untrained, or what is asked."""
    found = {group.base: group for group in groups if not group.trained}
    if base is None:
        return found
    [asked] = [g for g in groups if any(i.loaded.run.path.resolve() == base.path.resolve() for i in g.items)]
    if not any(g.base == asked.base for g in groups if g is not asked):
        raise UsageError(f"--base {base.path}: starts from weights {asked.base[:8]}, as no run here does; leave it out")
    return found | {asked.base: asked}


def _columns(selection: Selection, ks: Sequence[int]) -> list[Sampled]:
    """One column per sampling and k; every run in it must have k samples of each problem."""
    kinds = list({k: None for item in selection.items for k in item.sampled})
    if ks and not kinds:
        raise UsageError(
            f"--k {','.join(map(str, ks))}: no run has a sampled evaluation; make one with `esctl passk RUN`"
        )
    found = []
    for sampled in kinds:
        counts = {min(i.sampled[sampled].problems.n): i.name for i in selection.items if sampled in i.sampled}
        least = min(counts)
        for k in ks:
            if not 1 <= k <= least:
                raise UsageError(f"--k {k}: {counts[least]} has {least} samples per problem; give 1 to {least}")
        where = _apart(sampled, kinds)
        found += [Sampled(f"pass@{k}{where}", sampled, k) for k in ks or DEFAULT_KS if k <= least]
    return found


def _apart(of: Kind, kinds: Sequence[Kind]) -> str:
    """What sets a sampling apart from the others, to be added to the names of its columns."""
    names = {
        "sampling.temperature": "T = ",
        "sampling.top_p": "top-p ",
        "sampling.max_tokens": "max tokens ",
        "mode.sigma": "σ = ",
    }
    unlike = [f"{name}{dict(of)[field]}" for field, name in names.items() if len({dict(k)[field] for k in kinds}) > 1]
    told = [text for text in unlike if text not in ("σ = 0", "top-p 1")]
    return f" ({', '.join(told)})" if told else ""


def _foreign(published: Sequence[Reference], task: str) -> list[str]:
    """Published rows of another task."""
    others = sorted({f"{r.source} is about {r.task}" for r in published if r.task != task})
    return [f"published rows: {other}, these runs about {task}" for other in others]


def _notes(groups: Sequence[Group], bases: dict[str, Group]) -> list[str]:
    """What the numbers of these rows do not say by themselves."""
    notes = []
    for group in groups:
        if len({item.loaded.record.seed for item in group.items}) < len(group.items):
            notes.append(f"{group.label}: a seed is there twice, so the interval is too narrow")
        if group.trained and group.base not in bases:
            model = group.items[0].loaded.record.base.name
            notes.append(f"{group.label}: no row for its base, so no gain; `esctl eval {model}` makes one")
    few = [group.label for group in groups if group.trained and len(group.items) < ENOUGH_SEEDS]
    if few:
        notes.append(f"{', '.join(few)}: fewer than {ENOUGH_SEEDS} seeds, intervals are conditional on these runs")
    return notes


def _sampling_notes(groups: Sequence[Group], columns: Sequence[Sampled]) -> list[str]:
    """How the answers behind pass@k were drawn, and where k is all there is."""
    notes = []
    for sampled in dict.fromkeys(column.kind for column in columns):
        ks = [column.k for column in columns if column.kind == sampled]
        evals = [item.sampled[sampled] for group in groups for item in group.items if sampled in item.sampled]
        n = sorted({min(e.problems.n) for e in evals})
        many = f"{n[0]}" if len(n) == 1 else f"{n[0]} to {n[-1]}"
        notes.append(
            f"pass@k: {sampling_text(sampled)}, {len(evals[0].problems.id):,} problems, {many} samples of each"
        )
        if n[0] in ks and n[0] > 1:
            notes.append(f"pass@{n[0]} of {n[0]} samples is right or wrong for each problem; draw more than k")
    return notes


def _sigma_note(groups: Sequence[Group], sigma: float | None) -> list[str]:
    records = _sharpness(groups)
    if sigma is None:
        return ["sharpness: no sigma that all runs share; measure them on one grid"] if records else []
    seeds = min(len(p.drops) for r in records for p in r.average if p.sigma == sigma)
    return [f"sharpness: S_avg at sigma {sigma:g}, accuracy lost under noise, mean of {seeds} directions"]


def _sharpness(groups: Sequence[Group]) -> list[SharpnessRecord]:
    return [item.sharpness for group in groups for item in group.items if item.sharpness is not None]
