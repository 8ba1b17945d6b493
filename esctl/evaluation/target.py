"""What RUN|MODEL on a command line means: which weights, under which recipe, and where results about them go.

`evaluate` and `sharpness_run` measure the weights that are found here.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from esctl.engines import Engine, open_engine
from esctl.errors import RunError, UsageError
from esctl.experiment.experiment import Experiment
from esctl.experiment.loading import dump_recipe, load_recipe, read_recipe, read_recipe_file, recipes
from esctl.experiment.provenance import new_record
from esctl.experiment.rebuild import center_at
from esctl.experiment.recipe import EMBEDDED, Plain, Recipe
from esctl.methods import BASELINES, METHODS
from esctl.runs.directory import RunDir, default_folder
from esctl.runs.records import BASE, EXTERNAL, RunRecord

SCRATCH = ".center-"  # folders for weights of one generation, until an engine has read them


@dataclass(frozen=True)
class TargetRequest:
    """What a command line says of weights and setting."""

    target: str  # a run directory or a model
    flags: Mapping[str, Plain]  # recipe keys
    sets: Sequence[str] = ()
    run: Path | None = None  # where a plain model's results go
    step: int | None = None  # of a run; None is what it kept


@dataclass(frozen=True)
class Target:
    """One set of weights and the recipe that it is used with."""

    folder: RunDir  # of the run itself, or of a plain model's results
    recipe: Recipe
    step: int
    rollouts_spent: int  # training rollouts before these weights
    trained: bool  # False: a plain model
    rebuilt: bool = False  # the weights follow from the recorded scores; otherwise they lie in a folder

    @contextmanager
    def engine(self, experiments: Sequence[Experiment]) -> Iterator[Engine]:
        """An engine with these weights, with room for the prompts of every experiment; closed whatever happens."""
        specs = [experiment.engine_spec() for experiment in experiments]
        room = max(spec.max_model_len or 0 for spec in specs)
        for left in self.folder.path.glob(f"{SCRATCH}*"):  # by a kill: the lock is held, so nobody else's
            shutil.rmtree(left)
        with TemporaryDirectory(prefix=SCRATCH, dir=self.folder.path) as scratch:
            center = Path(scratch) / "center.safetensors"
            if self.rebuilt:
                center_at(self.folder, self.step).save_center(center)
            engine = open_engine(replace(specs[0], max_model_len=room, probes=False))
            try:
                if self.rebuilt:
                    engine.load_center(center)  # the file stays until the end: an engine of a fleet may start anew
                yield engine
            finally:
                engine.close()

    def experiment(self) -> Experiment:
        """The recipe opened; refuses a tokenizer unlike the one that the run recorded, before weights are loaded.

        An adopted model's record is of its base, whose tokenizer may differ from the model's own.
        """
        experiment = Experiment(self.recipe)
        record = self.folder.read_record() if self.folder.exists else None
        if record is None or record.method == EXTERNAL:
            return experiment
        if self.trained and record.base.tokenizer_sha256 != experiment.tokenizer_sha256:
            raise RunError(
                f"{experiment.model}: its tokenizer or chat template is not the one that {self.folder.path} recorded;"
                " restore its tokenizer files, or evaluate the folder as a model of its own"
            )
        return experiment

    def weights_sha256(self, experiment: Experiment) -> str:
        """The hash of these weights, read or rebuilt now; no engine starts."""
        center = center_at(self.folder, self.step) if self.rebuilt else experiment.center()
        return center.weights_sha256()

    def begin(self, experiment: Experiment, engine: Engine) -> RunRecord:
        """The record of the run; a plain model's directory is made now. Refuses one that is another model's."""
        if not self.folder.exists:
            fresh = new_record(experiment, engine, BASE)
            self.folder.begin(dump_recipe(self.recipe), replace(fresh, status="finished", kept_generation=0))
        record = self.folder.read_record()
        self.refuse_other_model(engine.center_sha256())
        return record

    def refuse_other_model(self, weights_sha256: str) -> None:
        """Refuse weights that are not those of this directory, known by their hash and not by a name."""
        kept = self.folder.read_record().kept_sha256
        if self.trained and not self.rebuilt and kept and weights_sha256 not in kept:
            raise RunError(
                f"{self.folder.weights}: holds weights {weights_sha256[:8]}, and the run recorded {kept[-1][:8]};"
                " restore them, or evaluate this folder as a model of its own"
            )
        if not self.trained and self.folder.read_record().base.weights_sha256 != weights_sha256:
            raise RunError(
                f"{self.folder.path}: holds another model's evaluations; choose another directory with --run"
            )


def find_target(request: TargetRequest) -> Target:
    """The weights that were requested; raises UsageError where there are none such. Loads nothing."""
    path = Path(request.target)
    if not (path / "run.json").is_file():
        if request.step is not None:
            raise UsageError(
                f"--step {request.step}: {request.target} is no run directory, and only a run has generations"
            )
        _refuse_missing_run(path)
        recipe = _model_recipe(request)
        return Target(RunDir(request.run or default_base(recipe)), recipe, 0, 0, trained=False)
    if request.run is not None:
        raise UsageError(f"--run {request.run}: results of {path} stay in it; leave --run out")
    record = RunDir(path).read_record()
    if record.method == BASE:
        recipe = _load(request, {})
        return Target(RunDir(path), recipe, 0, 0, trained=False)
    return _trained(request, RunDir(path), record)


def _refuse_missing_run(path: Path) -> None:
    """Say that a run is missing where a hub id is unlikely: below runs/, or next to runs."""
    if path.exists() or len(path.parts) < 2:
        return
    if path.parts[0] == "runs" or any(path.parent.glob("*/run.json")):
        raise UsageError(f"{path}: no run and no model folder here; `esctl show {path.parent}` lists the runs there")


def _trained(request: TargetRequest, run: RunDir, record: RunRecord) -> Target:
    kept = record.kept_generation
    step = kept if request.step is None else request.step
    replayable = record.method in METHODS
    if step is None or (request.step is None and not run.weights.is_dir()):
        raise UsageError(
            f"{run.path}: has no weights yet; finish it with `esctl train --resume --run {run.path}`,"
            " or name a generation with --step"
        )
    if step != kept and not replayable:
        raise UsageError(f"--step {step}: {run.path} ({record.method}) can only be had at generation {kept}")
    if not 0 <= step <= record.generation:
        raise UsageError(f"--step {step}: {run.path} has generations 0 to {record.generation}")
    rebuilt = request.step is not None and replayable
    # The engine that drew RL's rollouts need not serve its weights: they are evaluated like those of ES runs.
    served: dict[str, Plain] = {"engine.kind": "auto"} if record.method in BASELINES else {}
    recipe = _load(replace(request, flags={**served, **request.flags}), {} if rebuilt else {"model": str(run.path)})
    return Target(run, recipe, step, _spent(run, record, step), trained=True, rebuilt=rebuilt)


def _spent(run: RunDir, record: RunRecord, step: int) -> int:
    """Training rollouts before these weights: by the scores, else by an evaluation of them, else all of the run's."""
    scores = run.read_scores()
    if scores:
        return sum(r.rollouts for r in scores if r.generation < step)
    return next((e.rollouts_spent for e in run.read_evals() if e.step == step), record.train.rollouts)


def _load(request: TargetRequest, more: Mapping[str, Plain]) -> Recipe:
    """A run's own recipe with the requested keys on top; another task starts without the run's data."""
    recorded = read_recipe(RunDir(Path(request.target)))
    name = request.flags.get("task.name")
    other: dict[str, Plain] = {} if name in (None, recorded.task.name) or "task" in request.flags else {"task": {}}
    return load_recipe(f"{request.target}/recipe.yaml", {**other, **request.flags, **more}, request.sets)


def _model_recipe(request: TargetRequest) -> Recipe:
    """The settings a plain model is evaluated with: those of the embedded recipe for it, else the schema's."""
    name = f"{request.flags.get('task.name', 'arithmetic')}/es"
    source = name if request.target == EMBEDDED and name in recipes() else None
    overrides = {"label": BASE, **({} if source else {"method.kind": "es"}), **request.flags, "model": request.target}
    return load_recipe(source, overrides, request.sets)


def sections(source: str | None) -> dict[str, Plain]:
    """What a recipe says of the evaluation alone: task, prompt, sampling and grading."""
    tree = read_recipe_file(source)[0] if source else {}
    return {key: tree[key] for key in ("task", "prompt", "sampling", "grader", "reward") if key in tree}


def default_base(recipe: Recipe) -> Path:
    """runs/base-<model>: one directory collects a plain model's evaluations."""
    return default_folder(f"base-{recipe.model.strip('/')}")
