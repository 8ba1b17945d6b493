"""`esctl eval`: one greedy evaluation of a run's kept weights, or of a plain model in a run directory of kind base."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from esctl.display import eval_line
from esctl.errors import RunError, UsageError
from esctl.evaluate import EvalRequest, evaluate
from esctl.experiment import Experiment
from esctl.peak import peak_bytes
from esctl.recipe import EMBEDDED, Plain, Recipe, dump_recipe, load_recipe, read_recipe_file, recipes
from esctl.records import Cost, EvalRecord
from esctl.rundir import RunDir, write_atomic
from esctl.session import engine_of, new_record, read_recipe
from esctl.stats import wilson

BASE = "base"


def assess(
    target: str, flags: Mapping[str, Plain], sets: Sequence[str], split: str, n: int | None, run: Path | None
) -> tuple[Path, EvalRecord]:
    """Evaluate, store, and return where and what; an evaluation that is stored already is read instead."""
    if n is not None and n < 1:
        raise UsageError(f"-n {n}: give 1 problem or more, or leave it out for all")
    trained = (Path(target) / "run.json").is_file()
    recipe = _run_recipe(Path(target), flags, sets) if trained else _model_recipe(target, flags, sets)
    folder = RunDir(Path(target) if trained else run or default_base(recipe))
    experiment = Experiment(recipe)
    chosen = experiment.split(split).first(n)
    with folder.lock(), engine_of(experiment) as engine:
        if not folder.exists:
            write_atomic(folder.recipe, dump_recipe(recipe).encode())
            folder.write_record(replace(new_record(experiment, engine, BASE), status="finished", kept_generation=0))
        record = folder.read_record()
        if not trained and record.base.weights_sha256 != engine.center_sha256():
            raise RunError(f"{folder.path}: holds another model's evaluations; choose another directory with --run")
        request = EvalRequest(chosen, record.kept_generation or 0, record.train.rollouts)
        evaluate(experiment, folder, engine, request)
        spent = sum((e.cost for e in folder.read_evals()), Cost())
        # A run's peak is its training's; evaluating it later must not count against its method.
        peak = record.peak_bytes if trained else peak_bytes(engine, record.peak_bytes)
        folder.write_record(replace(record, eval=spent, peak_bytes=peak))
    return folder.path, _stored(folder, experiment, request)


def _stored(folder: RunDir, experiment: Experiment, request: EvalRequest) -> EvalRecord:
    same = [
        e
        for e in folder.read_evals()
        if e.problems_sha256 == request.split.sha256
        and e.prompt_sha256 == experiment.prompt_sha256
        and e.step == request.step
        and e.sampling.max_tokens == experiment.recipe.sampling.max_tokens
    ]
    return same[-1]


def _run_recipe(path: Path, flags: Mapping[str, Plain], sets: Sequence[str]) -> Recipe:
    """A run's own recipe with what was asked on top, on the weights that it kept."""
    read_recipe(RunDir(path))
    if not (path / "weights").is_dir():
        raise UsageError(f"{path}: has no weights yet; finish it with `esctl train --resume --run {path}`")
    return load_recipe(str(path / "recipe.yaml"), {**flags, "model": str(path)}, sets)


def _model_recipe(target: str, flags: Mapping[str, Plain], sets: Sequence[str]) -> Recipe:
    """The settings a plain model is evaluated with: those of the embedded recipe for it, else the schema's."""
    name = f"{flags.get('task.name', 'arithmetic')}/es"
    source = name if target == EMBEDDED and name in recipes() else None
    overrides = {"label": "base", **({} if source else {"method.kind": "es"}), **flags, "model": target}
    return load_recipe(source, overrides, sets)


def sections(source: str | None) -> dict[str, Plain]:
    """What a recipe says of the evaluation alone: task, prompt, sampling and grading."""
    tree = read_recipe_file(source)[0] if source else {}
    return {key: tree[key] for key in ("task", "prompt", "sampling", "grader", "reward") if key in tree}


def default_base(recipe: Recipe) -> Path:
    """runs/base-<model>: one directory collects a plain model's evaluations."""
    return Path("runs") / f"base-{recipe.model.strip('/').replace('/', '-').lower()}"


def report_text(record: EvalRecord) -> str:
    """The evaluation for a person: the whole, then by difficulty."""
    lines = [eval_line(record)]
    groups = sorted({d for d in record.problems.difficulty if d})
    for group in groups:
        rows = [i for i, d in enumerate(record.problems.difficulty) if d == group]
        right, n = sum(record.problems.strict[i] for i in rows), sum(record.problems.n[i] for i in rows)
        e = wilson(right, n)
        lines.append(
            f"  {group:10} strict {100 * e.value:.1f} % ({100 * e.low:.1f}–{100 * e.high:.1f}), {len(rows)} problems"
        )
    truncated = sum(record.problems.truncated)
    if truncated:
        lines.append(f"  {truncated} completions were cut at {record.sampling.max_tokens} tokens")
    return "\n".join(lines)
