"""Which evaluation of which run stands in a comparison, and in what two of them differ in kind.

Reads whole run directories and names every damaged file at once.
"""

import math
import operator
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from esctl.comparison.settings import Difference, EvalSetting, SharpnessSetting
from esctl.errors import RunError, UsageError
from esctl.plain import one_line
from esctl.runs.directory import RunDir
from esctl.runs.files import read_json
from esctl.runs.metrics import cost_of
from esctl.runs.plain_yaml import read_yaml
from esctl.runs.records import BASE, Cost, EvalRecord, Peak, RunRecord, SharpnessRecord, is_greedy

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """What to compare: a split, a task where runs hold several, and an upper limit on training rollouts."""

    split: str = "test"
    task: str | None = None
    at: int | None = None


@dataclass(frozen=True)
class Loaded:
    """One run directory as read; `settings` are the leaves of its recipe except seed and engine."""

    run: RunDir
    record: RunRecord
    evals: tuple[EvalRecord, ...]
    sharpness: tuple[SharpnessRecord, ...]
    settings: dict[str, str]


@dataclass(frozen=True)
class Chosen:
    """One run with the evaluations that represent it, all of the same weights."""

    loaded: Loaded
    eval: EvalRecord
    sampled: dict[EvalSetting, EvalRecord]  # for pass@k
    sharpness: SharpnessRecord | None
    spent: Cost | None  # training up to these weights; None where no file has it

    @property
    def name(self) -> str:
        """The run as messages call it."""
        return str(self.loaded.run.path)

    @property
    def base(self) -> str:
        """Hash of the weights it started from."""
        return self.loaded.record.base.weights_sha256

    @property
    def setting(self) -> EvalSetting:
        """What its accuracy means."""
        return EvalSetting.of(self.eval)


@dataclass(frozen=True)
class Selection:
    """The runs of a comparison, in what they differ in kind, and what a reader must know of the choice."""

    items: tuple[Chosen, ...]
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
    """Choose the evaluations to compare: of the kept weights, or the last within the limit on rollouts."""
    # Greedy answers first: every run has them, they have no seed, and most published accuracies are greedy.
    everything = [_pool(run, request) for run in loaded]
    greedy = any(is_greedy(e) for pool in everything for e in pool) or not any(everything)
    pools = [[e for e in pool if is_greedy(e) == greedy] for pool in everything]

    # Of each run the newest evaluation per setting; then one setting for all runs, if they share any.
    options = [_by_setting(run, pool, request.at) for run, pool in zip(loaded, pools, strict=True)]
    _refuse_missing(loaded, options, request, greedy)
    aligned = _aligned(options, loaded[0].record.prompt_sha256)
    chosen = [_chosen(run, e, request) for run, e in zip(loaded, aligned, strict=True)]

    # What still differs in kind is refused by the caller, or printed under a banner.
    items, unlike = _common_sampling(chosen)
    differences = [*_eval_differences(items), *_other_problems(items), *_sharpness_differences(items), *unlike]
    notes = [*_choice_notes(items, options, request), *_interrupted(items)]
    return Selection(tuple(items), tuple(differences), tuple(notes))


def eval_command(target: Path | str, split: str, *flags: str) -> str:
    """The command that makes an evaluation, as a person can copy it."""
    return f"`{shlex.join(['esctl', 'eval', str(target), '--split', split, *flags])}`"


def _load(run: RunDir, problems: list[str]) -> Loaded | None:
    """One run; what is wrong with it is added to `problems`."""
    record = _attempt(partial(_read_record, run), problems)
    evals = [_attempt(partial(_consistent, path), problems) for path in run.eval_files()]
    files = sorted(run.sharpness.glob("*.json"))
    sharpness = [_attempt(partial(_read_sharpness, path), problems) for path in files]
    settings = _attempt(partial(read_settings, run), problems)
    if record is not None:
        _attempt(partial(run.refuse_edited_recipe, record), problems)
    if record is None or settings is None:
        return None
    return Loaded(run, record, tuple(filter(None, evals)), tuple(filter(None, sharpness)), settings)


def _attempt(read: Callable[[], T], problems: list[str]) -> T | None:
    try:
        return read()
    except RunError as error:
        problems.append(str(error))
        return None


MOST = 2**63  # no count of a run is larger, and no float overflows


def _read_record(run: RunDir) -> RunRecord:
    record = run.read_record()
    _refuse_impossible(run.record, {"train": record.train, "eval": record.eval, "peak_bytes": record.peak_bytes})
    return record


def _read_sharpness(path: Path) -> SharpnessRecord:
    record = read_json(path, SharpnessRecord)
    _refuse_impossible(path, {"cost": record.cost})
    for place, point in enumerate(record.average):
        if not all(map(math.isfinite, (point.sigma, *point.drops, *point.nll_rises))):
            raise RunError(f"{path}: average.{place}: holds a number that is not finite; measure again")
    return record


def _refuse_impossible(path: Path, sections: dict[str, Cost | Peak]) -> None:
    """Costs and peaks are finite and not negative: one NaN would make a whole row of a table wrong."""
    for section, values in sections.items():
        for name, value in asdict(values).items():
            if not 0 <= value < (MOST if isinstance(value, int) else math.inf):
                raise RunError(f"{path}: {section}.{name}: {value!s:.20} is no cost; restore the file from a copy")


def _consistent(path: Path) -> EvalRecord:
    """An evaluation whose arrays fit together."""
    record = read_json(path, EvalRecord)
    _refuse_impossible(path, {"cost": record.cost})
    counts = record.problems
    arrays = {
        "strict": counts.strict,
        "flexible": counts.flexible,
        "formatted": counts.formatted,
        "truncated": counts.truncated,
    }
    if (
        not counts.id
        or len(set(counts.id)) < len(counts.id)
        or not 1 <= min(counts.n, default=0) <= max(counts.n, default=0) < MOST
    ):
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
    """The leaves of a run's recipe except seed and engine; empty for a model trained elsewhere, which has no recipe."""
    if not run.recipe.exists():
        return {}
    try:
        tree = read_yaml(run.recipe)
    except ValueError as error:
        raise RunError(f"{run.recipe}: not a recipe ({error}); restore it from a copy") from None
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
    """Directories that evaluate the same untrained weights are one model: their evaluations are merged."""
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


def _by_setting(run: Loaded, pool: Iterable[EvalRecord], at: int | None) -> dict[EvalSetting, EvalRecord]:
    """Per setting, the evaluation of the weights that represent the run; of several, the one with most samples."""

    def preference(record: EvalRecord) -> tuple[bool, int, int]:
        kept = at is None and record.step == run.record.kept_generation
        return kept, record.step, record.sampling.n

    affordable = [e for e in pool if at is None or e.rollouts_spent <= at]
    return {EvalSetting.of(record): record for record in sorted(affordable, key=preference)}


def _refuse_missing(
    loaded: Sequence[Loaded], options: Sequence[dict[EvalSetting, EvalRecord]], request: Request, greedy: bool
) -> None:
    """Name every run without a fitting evaluation, and the command that makes one."""
    sizes = {len(e.problems.id) for found in options for e in found.values()}
    size = ["-n", str(sizes.pop())] if len(sizes) == 1 else []  # as many problems as the other runs have
    missing = [_missing(run, request, greedy, size) for run, found in zip(loaded, options, strict=True) if not found]
    if missing:
        raise RunError("\n".join(missing))


def _missing(run: Loaded, request: Request, greedy: bool, size: Sequence[str]) -> str:
    path = run.run.path
    of = f" of {request.task}" if request.task else ""
    what = f"no {'greedy' if greedy else 'sampled'} evaluation{of} on {request.split}"
    if request.at is not None and _pool(run, request):
        return f"{path}: {what} within {request.at:,} rollouts; evaluate an earlier generation with --step"
    task = ["--task", request.task] if request.task else []
    return f"{path}: {what}; make one with {eval_command(path, request.split, *task, *size)}"


def _aligned(options: Sequence[dict[EvalSetting, EvalRecord]], own_prompt: str) -> list[EvalRecord]:
    """Prefer a setting that every run was evaluated under; otherwise take each run's largest evaluation."""
    common = [setting for setting in options[0] if all(setting in found for found in options[1:])]
    tasks = sorted({setting.task for setting in common})
    if len(tasks) > 1:
        raise UsageError(f"runs hold evaluations of several tasks ({', '.join(tasks)}); choose one with --task")
    if not common:
        return [max(found.values(), key=lambda e: len(e.problems.id)) for found in options]
    best = max(common, key=lambda s: (len(options[0][s].problems.id), s.prompt_sha256 == own_prompt))
    return [found[best] for found in options]


def _chosen(run: Loaded, evaluation: EvalRecord, request: Request) -> Chosen:
    """The chosen evaluation with what else was measured of the same weights; sharpness on its split if possible."""
    weights = (evaluation.step, evaluation.split, evaluation.task.name)
    same = [e for e in run.evals if (e.step, e.split, e.task.name) == weights]
    sampled = {EvalSetting.of(e): e for e in sorted(same, key=lambda e: e.sampling.n) if not is_greedy(e)}
    sharpness = [s for s in run.sharpness if s.step == evaluation.step and s.task.name == evaluation.task.name]
    best = max(sharpness, key=lambda s: (s.split == evaluation.split, s.cost.rollouts), default=None)
    spent = run.record.train if request.at is None else _spent(run, evaluation)
    return Chosen(run, evaluation, sampled, best, spent)


def _spent(run: Loaded, evaluation: EvalRecord) -> Cost | None:
    """Training up to an evaluation: from the scores, where the run continued after it."""
    if evaluation.rollouts_spent == run.record.train.rollouts:
        return run.record.train
    before = [r for r in run.run.read_scores() if r.generation < evaluation.step]
    return cost_of(before, run.record.dim) if before or evaluation.rollouts_spent == 0 else None


def _eval_differences(items: Sequence[Chosen]) -> Iterator[str]:
    """The fields in which a run's evaluation differs from the first one's."""
    first = items[0]
    for other in items[1:]:
        for difference in first.setting.differences(other.setting):
            yield _difference(difference, first, other) + _way_out(difference, first.eval, other)


def _way_out(difference: Difference, first: EvalRecord, other: Chosen) -> str:
    """Other problems are often fewer or more of the same ones: how many, and the command that makes them equal."""
    here, there = len(first.problems.id), len(other.eval.problems.id)
    if difference.key != "problems_sha256" or here == there:
        return ""
    fewer = min(here, there)
    return f" ({here:,} problems and {there:,}: give `esctl eval` of the larger `--split {first.split} -n {fewer}`)"


def _sharpness_differences(items: Sequence[Chosen]) -> Iterator[str]:
    measured = [(item, SharpnessSetting.of(item.sharpness)) for item in items if item.sharpness]
    for other, setting in measured[1:]:
        first, own = measured[0]
        for difference in own.differences(setting):
            yield f"sharpness: {_difference(difference, first, other)}"


def _difference(difference: Difference, first: Chosen, other: Chosen) -> str:
    """One field with both values and both runs; hashes as their first digits."""
    key, values = difference.key, [str(difference.value), str(difference.other)]
    if key.endswith("sha256"):
        values = [value[:8] for value in values]
    text = one_line(f"{key} is {values[0]} in {first.name} but {values[1]} in {other.name}")
    if key != "prompt_sha256":
        return text
    a, b = first.loaded.settings, other.loaded.settings
    keys = sorted(k for k in {*a, *b} if k.startswith("prompt.") and a.get(k) != b.get(k))
    unlike = ", ".join(f"{k} {a.get(k)} or {b.get(k)}" for k in keys)
    return f"the prompts differ: {text}" + (one_line(f" ({unlike})") if unlike else "")


def _other_problems(items: Sequence[Chosen]) -> list[str]:
    """Equal hashes of different problems: files made elsewhere can claim anything."""
    first = items[0]
    return [
        f"problems.id differ between {first.name} and {other.name} although problems_sha256 is equal"
        for other in items[1:]
        if other.eval.problems_sha256 == first.eval.problems_sha256 and other.eval.problems.id != first.eval.problems.id
    ]


def _common_sampling(items: Sequence[Chosen]) -> tuple[list[Chosen], list[str]]:
    """The items with the samplings that all sampled ones share, and in what they differ where they share none."""
    having = [item for item in items if item.sampled]
    if not having:
        return list(items), []
    first = having[0]
    common = [s for s in first.sampled if all(s in item.sampled for item in having)]
    if not common:
        own = next(iter(first.sampled))
        unlike = [(other, own.differences(next(iter(other.sampled)))) for other in having[1:]]
        return list(items), [f"pass@k: {_difference(d, first, other)}" for other, found in unlike for d in found]
    best: dict[str, EvalSetting] = {}  # per decoding, the setting with most problems
    for setting in sorted(common, key=lambda s: len(first.sampled[s].problems.id)):
        best[setting.decoding] = setting
    kept = [best[text] for text in sorted(best)]
    return [replace(i, sampled={s: i.sampled[s] for s in kept if s in i.sampled}) for i in items], []


def _choice_notes(
    items: Sequence[Chosen], options: Sequence[dict[EvalSetting, EvalRecord]], request: Request
) -> Iterator[str]:
    """Where the choice was not the obvious one."""
    for item, found in zip(items, options, strict=True):
        kept, step = item.loaded.record.kept_generation, item.eval.step
        if request.at is None and kept not in (None, step):
            yield f"{item.name}: no such evaluation of generation {kept}, whose weights it keeps; {step} is used"
        if request.at is not None and step == 0 and item.loaded.record.generation:
            yield f"{item.name}: evaluated within {request.at:,} rollouts only before training; the row is its base"
        if len(found) > 1:
            yield f"{item.name}: {len(found)} evaluations fit; {_short(item.eval)} is compared"
        elsewhere = {e.step for e in item.loaded.evals if not is_greedy(e) and e.split == request.split} - {step}
        if elsewhere and not item.sampled:
            yield f"{item.name}: sampled evaluations of generation {min(elsewhere)} left out, {step} is compared"


def _short(record: EvalRecord) -> str:
    sampling = record.sampling
    return f"{len(record.problems.id)} problems, {sampling.max_tokens} tokens, prompt {record.prompt_sha256[:8]}"


def _interrupted(items: Sequence[Chosen]) -> Iterator[str]:
    """Evaluations that were interrupted and hold no result yet."""
    for item in items:
        for part in sorted(item.loaded.run.evals.glob("*.part*")):
            yield f"{part}: an evaluation that was interrupted is left out; give its command again to finish it"
