"""One training command on one run: check its directory, lock it, start the engine, and record how the command ended.

The loop itself is `evolution.Training` for ES and `rl.recorder.Recorder` for RL.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

from esctl import interrupts
from esctl.engines import Engine, chosen_kind, open_engine
from esctl.errors import RunError
from esctl.experiment.experiment import Experiment
from esctl.experiment.loading import changes, dump_recipe, read_recipe
from esctl.experiment.provenance import new_record, refuse_other_origin
from esctl.experiment.recipe import Recipe
from esctl.runs.directory import RunDir
from esctl.runs.records import RunRecord
from esctl.training.events import Notice, Report
from esctl.training.evolution import Training
from esctl.training.rl import open_trainer
from esctl.training.rl.recorder import Recorder


def train(recipe: Recipe, run: RunDir, resume: bool, report: Report) -> RunRecord:
    """Train a recipe in a run directory to its end, from nothing or from what is recorded there.

    A resumed run that is finished is left alone: no model is loaded, and its record keeps the command that made it.
    """
    if resume:
        refuse_changes(run, read_recipe(run), recipe)
        if has_nothing_to_do(recipe, run):
            return run.read_record()
    elif run.path.exists():
        run.refuse_used()
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
        run.begin(dump_recipe(recipe), now)
    refuse_other_origin(run, now)
    training = continued()
    return _guarded(run, training, now)


def _guarded(run: RunDir, training: Training | Recorder, now: RunRecord) -> RunRecord:
    """Leave the record saying how the session ended."""
    try:
        training.begin(now)
        return training.finish()
    except BaseException as error:
        # What fails after a signal fails because of it, such as a worker that received the signal too.
        interrupted = isinstance(error, KeyboardInterrupt) or interrupts.requested()
        status = "interrupted" if interrupted else "failed"
        with suppress(RunError):  # a full disk refuses this too, and what failed first is what to tell
            run.write_record(replace(run.read_record(), status=status))
        raise


def has_nothing_to_do(recipe: Recipe, run: RunDir) -> bool:
    """Whether the run was finished as the recipe says, with its weights and whole history; starts no engine."""
    if not (run.exists and run.recipe.is_file() and run.weights.is_dir()):
        return False
    record = run.read_record()
    if record.status != "finished" or record.generation != recipe.generations:
        return False
    if dump_recipe(read_recipe(run)) != dump_recipe(recipe):
        return False
    return recipe.baseline is not None or len({r.generation for r in run.read_scores()}) == record.generation


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
    if experiment.own_system_line:
        line = experiment.own_system_line[:80]
        report(Notice(f"prompt.system is empty, so the model's chat template writes its own system line: {line!r}"))
    engine = open_engine(spec, lambda text: report(Notice(text)))
    try:
        yield engine
    finally:
        engine.close()
