"""The comparison of run directories: rows, pairs, scores and costs; refuses numbers that do not mean the same thing."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from esctl.comparison.groups import ENOUGH_SEEDS, Group, grouped
from esctl.comparison.references import Reference, references
from esctl.comparison.rows import Pair, Row, middle_sigma, pair_of, pass_estimate, row_of, sampled_pairs, strict_pairs
from esctl.comparison.selection import Loaded, Request, Selection, eval_command, load_runs, select
from esctl.comparison.settings import EvalSetting
from esctl.errors import UsageError
from esctl.runs.directory import RunDir
from esctl.runs.records import SharpnessRecord
from esctl.stats import f_test

DEFAULT_KS = (1, 8, 64)


@dataclass(frozen=True)
class PassColumn:
    """A column of pass@k."""

    name: str
    setting: EvalSetting
    k: int


@dataclass(frozen=True)
class Comparison:
    """Rows and pairs, what they are about, and notes on how to read them."""

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
class CompareOptions:
    """How to compare runs."""

    request: Request = field(default_factory=Request)
    ks: tuple[int, ...] = ()  # of pass@k; empty: those of DEFAULT_KS with enough samples
    base: RunDir | None = None  # gains are measured against it; None: each run's own base
    published: str | None = None  # a set of published rows, or `all` about the task
    force: bool = False  # compare also numbers whose settings differ


def compare(runs: Sequence[RunDir], options: CompareOptions) -> Comparison:
    """Compare runs; raises UsageError naming each setting in which they differ."""
    return compare_loaded(load(runs, options), options)


def load(runs: Sequence[RunDir], options: CompareOptions) -> list[Loaded]:
    """Read the runs, and the base of the options if it is not one of them."""
    given = [*([options.base] if options.base else []), *runs]
    return load_runs(list({run.path.resolve(): run for run in given}.values()))


def compare_loaded(loaded: Sequence[Loaded], options: CompareOptions) -> Comparison:
    """Compare runs that have been read."""
    selection = select(loaded, options.request)
    first = selection.items[0].eval
    published = references(options.published, first.task.name) if options.published else ()
    differences = [*selection.differences, *_foreign(published, first.task.name)]
    if differences and not options.force:
        lines = "\n".join(f"not comparable: {d}" for d in differences)
        raise UsageError(f"{lines}; evaluate them alike, or print anyway with --force")
    groups = grouped(selection.items)
    columns = _columns(selection, options.ks)
    sigma = middle_sigma(_sharpness(groups))
    strict = strict_pairs(groups)
    bases = _bases(groups, options.base)
    rows = [_row(group, bases, strict, columns, sigma) for group in groups]
    return Comparison(
        task=f"{first.task.name} v{first.task.version}",
        split=first.split,
        problems=len(first.problems.id),
        sampling=selection.items[0].setting.decoding,
        at=options.request.at,
        columns=tuple(c.name for c in columns),
        sigma=sigma,
        rows=tuple(rows),
        pairs=(*strict, *(pair for c in columns for pair in sampled_pairs(groups, c.name, c.setting, c.k))),
        references=tuple(published),
        differences=tuple(differences),
        notes=(
            *selection.notes,
            *_notes(groups, bases),
            *_omnibus_note(groups),
            *_sampling_notes(groups, columns),
            *_sigma_note(groups, sigma),
        ),
    )


def _row(
    group: Group, bases: dict[str, Group], pairs: Sequence[Pair], columns: Sequence[PassColumn], sigma: float | None
) -> Row:
    passes = {c.name: pass_estimate(group, c.setting, c.k) for c in columns if group.sampled(c.setting)}
    base = bases.get(group.base)
    return row_of(group, pair_of(pairs, group.label, base.label) if base else None, passes, sigma)


def _bases(groups: Sequence[Group], base: RunDir | None) -> dict[str, Group]:
    """The base of each row, by hash of the weights it started from: the untrained model, or `base`."""
    found = {group.base: group for group in groups if not group.trained}
    if base is None:
        return found
    [given] = [g for g in groups if any(i.loaded.run.path.resolve() == base.path.resolve() for i in g.items)]
    if not any(g.base == given.base for g in groups if g is not given):
        raise UsageError(f"--base {base.path}: starts from weights {given.base[:8]}, as no run here does; leave it out")
    return found | {given.base: given}


def _columns(selection: Selection, ks: Sequence[int]) -> list[PassColumn]:
    """One column per sampling and k; every run in it must have k samples of each problem."""
    settings = list(dict.fromkeys(s for item in selection.items for s in item.sampled))
    if ks and not settings:
        raise UsageError(
            f"--k {','.join(map(str, ks))}: no run has a sampled evaluation; make one with `esctl passk RUN`"
        )
    found = []
    for sampled in settings:
        counts = {min(i.sampled[sampled].problems.n): i.name for i in selection.items if sampled in i.sampled}
        least = min(counts)
        for k in ks:
            if not 1 <= k <= least:
                raise UsageError(f"--k {k}: {counts[least]} has {least} samples per problem; give 1 to {least}")
        where = _apart(sampled, settings)
        found += [PassColumn(f"pass@{k}{where}", sampled, k) for k in ks or DEFAULT_KS if k <= least]
    return found


def _apart(of: EvalSetting, settings: Sequence[EvalSetting]) -> str:
    """The settings in which a sampling differs from the others, for the names of its columns."""
    unlike = {d.key for other in settings for d in of.differences(other)}
    texts = []
    if "sampling.temperature" in unlike:
        texts.append(f"T = {of.temperature:g}")
    if "sampling.top_p" in unlike and of.top_p != 1:
        texts.append(f"top-p {of.top_p:g}")
    if "sampling.max_tokens" in unlike:
        texts.append(f"max tokens {of.max_tokens}")
    if "mode.sigma" in unlike and of.sigma:
        texts.append(f"σ = {of.sigma:g}")
    return f" ({', '.join(texts)})" if texts else ""


def _foreign(published: Sequence[Reference], task: str) -> list[str]:
    """Published rows of another task."""
    others = sorted({f"{r.source} is about {r.task}" for r in published if r.task != task})
    return [f"published rows: {other}, these runs about {task}" for other in others]


def _notes(groups: Sequence[Group], bases: dict[str, Group]) -> list[str]:
    """Notes on seeds that stand twice, missing bases and few seeds."""
    notes = []
    for group in groups:
        if len({item.loaded.record.seed for item in group.items}) < len(group.items):
            notes.append(f"{group.label}: two runs have the same seed, so the interval is too narrow")
        if group.trained and group.base not in bases:
            notes.append(f"{group.label}: no row for its base, so no gain; {_base_command(group)} makes one")
    few = [group.label for group in groups if group.trained and len(group.items) < ENOUGH_SEEDS]
    if few:
        notes.append(f"{', '.join(few)}: fewer than {ENOUGH_SEEDS} seeds, intervals are conditional on these runs")
    return notes


def _omnibus_note(groups: Sequence[Group]) -> list[str]:
    """One test for all rows at once, before anybody picks the largest of many differences."""
    trained = [g for g in groups if g.trained and g.paired and len(g.items) >= ENOUGH_SEEDS]
    found = f_test([g.shares("strict").mean(axis=1).tolist() for g in trained if g.ids == trained[0].ids])
    if found is None:
        return []
    return [
        f"do the {found.between + 1} trained rows with {ENOUGH_SEEDS} seeds or more differ at all in strict accuracy?"
        f" F({found.between}, {found.within}) = {found.f:.1f}, p = {found.p_value:.2g}, over seeds, on these problems"
    ]


def _base_command(group: Group) -> str:
    """The command that evaluates the base like the group's first run: same task, prompt, data and problems."""
    first = group.items[0]
    recipe = first.loaded.run.recipe
    task = ["--recipe", str(recipe)] if recipe.exists() else ["--task", first.eval.task.name]
    size = ["-n", str(len(first.eval.problems.id))]
    return eval_command(first.loaded.record.base.name, first.eval.split, *task, *size)


def _sampling_notes(groups: Sequence[Group], columns: Sequence[PassColumn]) -> list[str]:
    """How the samples behind pass@k were drawn, and whether k is all of them."""
    notes = []
    for sampled in dict.fromkeys(column.setting for column in columns):
        ks = [column.k for column in columns if column.setting == sampled]
        evals = [item.sampled[sampled] for group in groups for item in group.items if sampled in item.sampled]
        n = sorted({min(e.problems.n) for e in evals})
        many = f"{n[0]}" if len(n) == 1 else f"{n[0]} to {n[-1]}"
        notes.append(f"pass@k: {sampled.decoding}, {len(evals[0].problems.id):,} problems, {many} samples of each")
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
    return [record for group in groups for record in group.sharpness]
