"""Which evaluation of which run stands in a comparison, and in what two of them differ in kind.

Reads run directories whole and names every damaged file at once; leaves what the numbers say to `rows` and `pairs`.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import yaml

from esctl.errors import RunError, UsageError
from esctl.runs.directory import RunDir
from esctl.runs.files import read_json
from esctl.runs.metrics import cost_of
from esctl.runs.records import BASE, Cost, EvalRecord, RunRecord, SharpnessRecord, is_greedy

T = TypeVar("T")
Kind = tuple[tuple[str, str], ...]  # the fields that decide what a number means, with their values


# Both are safe; the one in C reads a recipe in under 1 ms instead of 5, and a table may hold a hundred.
LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


@dataclass(frozen=True)
class Request:
    """What is to be compared: a split, a task where runs hold several, and an upper limit on training rollouts."""

    split: str = "test"
    task: str | None = None
    at: int | None = None


@dataclass(frozen=True)
class Loaded:
    """One run directory as read; `settings` are the leaves of its recipe but for seed and engine."""

    run: RunDir
    record: RunRecord
    evals: tuple[EvalRecord, ...]
    sharpness: tuple[SharpnessRecord, ...]
    settings: dict[str, str]


@dataclass(frozen=True)
class Evaluated:
    """One run with the evaluations that stand for it, all of the same weights."""

    loaded: Loaded
    eval: EvalRecord
    sampled: dict[Kind, EvalRecord]  # for pass@k, by what is comparable
    sharpness: SharpnessRecord | None
    spent: Cost | None  # training up to these weights; None where no file tells

    @property
    def name(self) -> str:
        """The run as messages call it."""
        return str(self.loaded.run.path)


@dataclass(frozen=True)
class Selection:
    """The runs of a comparison, in what they differ in kind, and what a reader must know of the choice."""

    items: tuple[Evaluated, ...]
    differences: tuple[str, ...]
    notes: tuple[str, ...]


def load_runs(runs: Sequence[RunDir]) -> list[Loaded]:
    """Read every run; raises one RunError with a line for each file that is missing, damaged or of another schema."""
    problems: list[str] = []
    loaded = [_load(run, problems) for run in runs]
    if problems:
        raise RunError("\n".join(problems))
    return _one_base_each([run for run in loaded if run is not None])


def select(loaded: Sequence[Loaded], request: Request) -> Selection:
    """The evaluations to put side by side: of the kept weights, or the last within the limit on rollouts."""
    pools = [_pool(run, request) for run in loaded]
    greedy = any(is_greedy(e) for pool in pools for e in pool) or not any(pools)
    pools = [[e for e in pool if is_greedy(e) == greedy] for pool in pools]
    options = [_by_kind(run, pool, request.at) for run, pool in zip(loaded, pools, strict=True)]
    missing = [_missing(run, request, greedy) for run, found in zip(loaded, options, strict=True) if not found]
    if missing:
        raise RunError("\n".join(missing))
    chosen = _alike(options, loaded[0].record.prompt_sha256)
    items = tuple(_evaluated(run, e, request) for run, e in zip(loaded, chosen, strict=True))
    differences = [*_differences(items, lambda i: kind(i.eval)), *_other_problems(items)]
    differences += _differences([i for i in items if i.sharpness], lambda i: _sharpness_kind(i.sharpness))
    items, unlike = _common_sampling(items)
    return Selection(items, (*differences, *unlike), (*_choice_notes(items, options, request), *_left_over(items)))


def kind(record: EvalRecord) -> Kind:
    """The fields that decide what an accuracy means; how many samples, and their seed, do not."""
    sampling, mode = record.sampling, record.mode
    return (
        ("task.name", record.task.name),
        ("task.version", str(record.task.version)),
        ("split", record.split),
        ("sampling.temperature", f"{sampling.temperature:g}"),
        ("sampling.top_p", f"{sampling.top_p:g}"),
        ("sampling.max_tokens", str(sampling.max_tokens)),
        ("mode.kind", mode.kind),
        ("mode.sigma", f"{mode.sigma:g}"),
        ("prompt_sha256", record.prompt_sha256),
        ("problems_sha256", record.problems_sha256),
    )


def _sharpness_kind(record: SharpnessRecord | None) -> Kind:
    assert record is not None
    sampling = record.sampling
    return (
        ("sharpness: task.name", record.task.name),
        ("sharpness: task.version", str(record.task.version)),
        ("sharpness: split", record.split),
        ("sharpness: sampling.temperature", f"{sampling.temperature:g}"),
        ("sharpness: sampling.max_tokens", str(sampling.max_tokens)),
        ("sharpness: prompt_sha256", record.prompt_sha256),
        ("sharpness: problems_sha256", record.problems_sha256),
    )


def _load(run: RunDir, problems: list[str]) -> Loaded | None:
    """One run; what is wrong with it goes to `problems`."""
    record = _attempt(run.read_record, problems)
    evals = [_attempt(partial(_consistent, path), problems) for path in run.eval_files()]
    files = sorted(run.sharpness.glob("*.json"))
    sharpness = [_attempt(partial(read_json, path, SharpnessRecord), problems) for path in files]
    settings = _attempt(partial(read_settings, run), problems)
    if record is None or settings is None:
        return None
    return Loaded(run, record, tuple(filter(None, evals)), tuple(filter(None, sharpness)), settings)


def _attempt(read: Callable[[], T], problems: list[str]) -> T | None:
    try:
        return read()
    except RunError as error:
        problems.append(str(error))
        return None


def _consistent(path: Path) -> EvalRecord:
    """An evaluation whose arrays fit together."""
    record = read_json(path, EvalRecord)
    counts = record.problems
    arrays = {
        "strict": counts.strict,
        "flexible": counts.flexible,
        "formatted": counts.formatted,
        "truncated": counts.truncated,
    }
    if not counts.id or len(set(counts.id)) < len(counts.id) or min(counts.n, default=0) < 1:
        raise RunError(f"{path}: problems.id: must name each problem once, with one sample or more; evaluate again")
    for name, values in arrays.items():
        if not len(counts.id) == len(counts.n) == len(values):
            raise RunError(
                f"{path}: problems.{name}: {len(values)} values for {len(counts.id)} problems; evaluate again"
            )
        if min(values) < 0 or any(map(operator.gt, values, counts.n)):
            raise RunError(f"{path}: problems.{name}: a count below 0 or above its n; evaluate again")
    return record


def read_settings(run: RunDir) -> dict[str, str]:
    """The leaves of a run's recipe but for seed and engine; empty for a model trained elsewhere, which has none."""
    if not run.recipe.exists():
        return {}
    try:
        tree = yaml.load(run.recipe.read_text(), LOADER)
    except OSError as error:
        raise RunError(f"{run.recipe}: cannot be read ({error.strerror}); restore it from a copy") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        tree = None
    if not isinstance(tree, dict):
        raise RunError(f"{run.recipe}: not a recipe; restore it from a copy")
    return dict(_leaves({key: value for key, value in tree.items() if key not in ("seed", "engine")}))


def _leaves(tree: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, str(tree)


def _one_base_each(loaded: Sequence[Loaded]) -> list[Loaded]:
    """Directories that evaluate the same untrained weights are one model: their evaluations go together."""
    found: dict[str, Loaded] = {}
    for run in loaded:
        same = run.record.base.weights_sha256 if run.record.method == BASE else str(run.run.path)
        if same in found:
            first = found[same]
            sharpness = first.sharpness + run.sharpness
            found[same] = replace(first, evals=first.evals + run.evals, sharpness=sharpness)
        else:
            found[same] = run
    return list(found.values())


def _pool(run: Loaded, request: Request) -> list[EvalRecord]:
    return [e for e in run.evals if e.split == request.split and request.task in (None, e.task.name)]


def _by_kind(run: Loaded, pool: Iterable[EvalRecord], at: int | None) -> dict[Kind, EvalRecord]:
    """Of each kind, the evaluation of the weights that stand for the run; of several, the one with most samples."""
    found: dict[Kind, EvalRecord] = {}
    for record in sorted(pool, key=lambda e: (*_preference(run, e, at), e.sampling.n)):
        if at is None or record.rollouts_spent <= at:
            found[kind(record)] = record
    return found


def _preference(run: Loaded, record: EvalRecord, at: int | None) -> tuple[bool, int]:
    """The kept generation before all others where cost is free, else the latest."""
    return (at is None and record.step == run.record.kept_generation, record.step)


def _missing(run: Loaded, request: Request, greedy: bool) -> str:
    path = run.run.path
    of = f" of {request.task}" if request.task else ""
    what = f"no {'greedy' if greedy else 'sampled'} evaluation{of} on {request.split}"
    if request.at is not None and _pool(run, request):
        return f"{path}: {what} within {request.at:,} rollouts; evaluate an earlier generation with --step"
    return f"{path}: {what}; make one with `esctl eval {path} --split {request.split}`"


def _alike(options: Sequence[dict[Kind, EvalRecord]], own_prompt: str) -> list[EvalRecord]:
    """Of each run one evaluation: of a kind that all have, with most problems; else each run's own with most."""
    common = [k for k in options[0] if all(k in found for found in options[1:])]
    if len({dict(k)["task.name"] for k in common}) > 1:
        tasks = ", ".join(sorted({dict(k)["task.name"] for k in common}))
        raise UsageError(f"runs hold evaluations of several tasks ({tasks}); choose one with --task")
    if common:
        best = max(common, key=lambda k: (len(options[0][k].problems.id), options[0][k].prompt_sha256 == own_prompt))
        return [found[best] for found in options]
    return [max(found.values(), key=lambda e: len(e.problems.id)) for found in options]


def _evaluated(run: Loaded, chosen: EvalRecord, request: Request) -> Evaluated:
    """The chosen evaluation with what else was measured of the same weights; sharpness on its split if possible."""
    same = [e for e in run.evals if (e.step, e.split, e.task.name) == (chosen.step, chosen.split, chosen.task.name)]
    sampled = {kind(e): e for e in sorted(same, key=lambda e: e.sampling.n) if not is_greedy(e)}
    sharpness = [s for s in run.sharpness if s.step == chosen.step and s.task.name == chosen.task.name]
    best = max(sharpness, key=lambda s: (s.split == chosen.split, s.cost.rollouts), default=None)  # names are hashes
    spent = run.record.train if request.at is None else _spent(run, chosen)
    return Evaluated(run, chosen, sampled, best, spent)


def _spent(run: Loaded, chosen: EvalRecord) -> Cost | None:
    """Training up to an evaluation: from the scores, where the run went on after it."""
    if chosen.rollouts_spent == run.record.train.rollouts:
        return run.record.train
    before = [r for r in run.run.read_scores() if r.generation < chosen.step]
    return cost_of(before, run.record.dim) if before or chosen.rollouts_spent == 0 else None


def _differences(items: Sequence[Evaluated], kind_of: Callable[[Evaluated], Kind]) -> list[str]:
    """The fields in which an item differs from the first, with both values and both runs."""
    found = []
    for other in items[1:]:
        pairs = zip(kind_of(items[0]), kind_of(other), strict=True)
        found += [_difference(field, items[0], a, other, b) for (field, a), (_, b) in pairs if a != b]
    return found


def _difference(field: str, first: Evaluated, value: str, other: Evaluated, another: str) -> str:
    told = f"{field} is {value} in {first.name} but {another} in {other.name}"
    if not field.endswith("prompt_sha256"):
        return told
    keys = {k for k in (*first.loaded.settings, *other.loaded.settings) if k.startswith("prompt.")}
    a, b = first.loaded.settings, other.loaded.settings
    unlike = [f"{k} {a.get(k)} or {b.get(k)}" for k in sorted(keys) if a.get(k) != b.get(k)]
    return f"the prompts differ: {told}" + (f" ({', '.join(unlike)})" if unlike else "")


def _other_problems(items: Sequence[Evaluated]) -> list[str]:
    """Equal hashes that stand for other problems: files made elsewhere can say anything."""
    first = items[0]
    return [
        f"problems.id differ between {first.name} and {other.name} although problems_sha256 is equal"
        for other in items[1:]
        if other.eval.problems_sha256 == first.eval.problems_sha256 and other.eval.problems.id != first.eval.problems.id
    ]


def _common_sampling(items: Sequence[Evaluated]) -> tuple[tuple[Evaluated, ...], list[str]]:
    """The items with the samplings that all sampled ones share, and in what they differ where they share none."""
    having = [item for item in items if item.sampled]
    if not having:
        return tuple(items), []
    common = [k for k in having[0].sampled if all(k in item.sampled for item in having)]
    if not common:
        return tuple(items), [f"pass@k: {d}" for d in _differences(having, lambda i: next(iter(i.sampled)))]
    best: dict[str, Kind] = {}  # of each sampling, the kind with most problems
    for k in sorted(common, key=lambda k: len(having[0].sampled[k].problems.id)):
        best[sampling_text(k)] = k
    kept = [best[text] for text in sorted(best)]
    return tuple(replace(i, sampled={k: i.sampled[k] for k in kept if k in i.sampled}) for i in items), []


def sampling_text(of: Kind) -> str:
    """How answers were drawn, for a heading."""
    fields = dict(of)
    temperature = fields["sampling.temperature"]
    drawn = "greedy" if temperature == "0" else f"T = {temperature}, top-p {fields['sampling.top_p']}"
    weights = f", weight noise {fields['mode.sigma']}" if fields["mode.kind"] == "weight" else ""
    return f"{drawn}{weights}"


def _choice_notes(
    items: Sequence[Evaluated], options: Sequence[dict[Kind, EvalRecord]], request: Request
) -> Iterator[str]:
    """Where the choice was not the obvious one."""
    for item, found in zip(items, options, strict=True):
        kept, step = item.loaded.record.kept_generation, item.eval.step
        if request.at is None and kept not in (None, step):
            yield f"{item.name}: no such evaluation of generation {kept}, whose weights it keeps; {step} stands for it"
        if request.at is not None and step == 0 and item.loaded.record.generation:
            yield f"{item.name}: evaluated within {request.at:,} rollouts only before training; the row is its base"
        if len(found) > 1:
            yield f"{item.name}: {len(found)} evaluations fit; compared is {_short(item.eval)}"
        elsewhere = {e.step for e in item.loaded.evals if not is_greedy(e) and e.split == request.split} - {step}
        if elsewhere and not item.sampled:
            yield f"{item.name}: sampled evaluations of generation {min(elsewhere)} left out, {step} is compared"


def _short(record: EvalRecord) -> str:
    sampling = record.sampling
    return f"{len(record.problems.id)} problems, {sampling.max_tokens} tokens, prompt {record.prompt_sha256[:8]}"


def _left_over(items: Sequence[Evaluated]) -> Iterator[str]:
    """Evaluations that were interrupted and hold no result yet."""
    for item in items:
        for part in sorted(item.loaded.run.evals.glob("*.part*")):
            yield f"{part}: an evaluation that was interrupted is left out; give its command again to finish it"
