"""Commands that make runs: one run, a grid of runs, a whole table."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from esctl.cli.app import (
    AGAIN,
    TRAIN,
    Data,
    DryRun,
    EngineKind,
    Jobs,
    Model,
    RecipeSource,
    Sets,
    app,
    given,
    interruptible,
)
from esctl.cli.output import note, out, progress
from esctl.errors import EsctlError, UsageError

if TYPE_CHECKING:
    from esctl.experiment.recipe import Plain, Recipe
    from esctl.runs.directory import RunDir
    from esctl.runs.records import RunRecord

KEPT = "nothing recorded is lost: the same command goes on"


class ResumeCommand(TyperCommand):
    """Takes `--resume` alone and `--resume auto`: typer has no option with an optional value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  typer's own type, which is private
        """Write `--resume auto` as the flag that it means."""
        words = list[str]()
        for word in args:
            if word == "--resume=auto" or (word == "auto" and words[-1:] == ["--resume"]):
                words = words[:-1] if word == "auto" else words
                words.append("--resume-auto")
            else:
                words.append(word)
        return super().parse_args(ctx, words)


@app.command(
    cls=ResumeCommand, rich_help_panel=TRAIN, epilog="Next: esctl show RUN, esctl eval RUN, esctl compare runs"
)
def train(
    recipe: RecipeSource = None,
    method: Annotated[
        str | None, typer.Option(help="es, essam, essam-f, grpo or ppo.", show_default="the recipe's; es for embedded")
    ] = None,
    model: Model = None,
    task: Annotated[str | None, typer.Option(help="The task to train on.", show_default="the recipe's")] = None,
    data: Data = None,
    engine: EngineKind = None,
    generations: Annotated[int | None, typer.Option(help="Steps of training.", show_default="the recipe's")] = None,
    label: Annotated[
        str | None, typer.Option(help="The row's name in tables.", show_default="the recipe's; the method")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="The run directory.", show_default="runs/<label>-<task>-s<seed>")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Everything random follows from it.", show_default="the recipe's; 0")
    ] = None,
    sets: Sets = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", metavar="[auto]", help="Continue an interrupted run; auto: start it, or continue what is there."
        ),
    ] = False,
    resume_auto: Annotated[bool, typer.Option("--resume-auto", hidden=True)] = False,
    track: Annotated[
        str | None,
        typer.Option(help="tensorboard: copy the metrics to RUN/tensorboard."),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Fine-tune a model. Without --model and --recipe: the embedded model on its own task, on any laptop."""
    if track is not None:
        from esctl.training.tensorboard import check_sink

        check_sink(track)
    flags: dict[str, Plain | None] = {
        "method.kind": method, "model": model, "task.name": task, "task.data": data, "engine.kind": engine,
        "generations": generations, "label": label, "seed": seed,
    }  # fmt: skip
    wanted = recipe_from(recipe, given(flags), sets or [], run if resume or resume_auto else None)
    if dry_run:
        from esctl.cli.estimates import plan_text

        out(plan_text(wanted))
        return
    folder = run or default_run(wanted)
    _train(wanted, folder, resume or (resume_auto and _is_begun(folder)), track)


def recipe_from(
    source: "str | None", flags: "dict[str, Plain]", sets: list[str], resumed: Path | None = None
) -> "Recipe":
    """The recipe asked for: a file, a shipped one, the resumed run's own, or the embedded default of a method."""
    from esctl.experiment.loading import load_recipe, recipes
    from esctl.experiment.recipe import EMBEDDED

    if source is None and resumed is not None and (resumed / "recipe.yaml").is_file():
        source = str(resumed / "recipe.yaml")
    if source is None and flags.get("model", EMBEDDED) == EMBEDDED:
        name = f"{flags.get('task.name', 'arithmetic')}/{flags.get('method.kind', 'es')}"
        source = name if name in recipes() else None
    return load_recipe(source, flags, sets)


def default_run(recipe: "Recipe") -> Path:
    """runs/<label>-<task>-s<seed>."""
    from esctl.runs.directory import default_folder

    return default_folder(f"{recipe.label}-{recipe.task.name}-s{recipe.seed}")


def _is_begun(folder: Path) -> bool:
    """Whether a run was begun there; its recipe is written first."""
    return (folder / "recipe.yaml").exists() or (folder / "run.json").exists()


def _train(recipe: "Recipe", folder: Path, resume: bool, track: str | None) -> None:
    from esctl.cli.progress import TrainingDisplay
    from esctl.runs.directory import RunDir
    from esctl.training import session
    from esctl.training.tensorboard import tracked

    run = RunDir(folder)
    if resume and session.has_nothing_to_do(recipe, run):
        with tracked(track, run, lambda event: None):
            pass  # copies what is recorded to the tracker
        out(f"{folder}: already finished; --generations N goes on, `esctl show {folder}` shows what it did")
        _say_finished(run, run.read_record())
        return

    def go_on() -> str:
        if not run.exists:
            return f"nothing was recorded yet: {AGAIN}"
        return f"nothing recorded is lost, go on with: esctl train --resume --run {folder}" + (
            f" --track {track}" if track else ""
        )

    bar = TrainingDisplay(progress(), f"{recipe.label} s{recipe.seed}")
    with interruptible(go_on), bar as display, tracked(track, run, display) as report:
        record = session.train(recipe, run, resume, report)
    _say_finished(run, record)


def _say_finished(run: "RunDir", record: "RunRecord") -> None:
    if record.grader_failures:
        causes = ", ".join(f"{n} {cause}" for cause, n in record.grader_failures.items())
        out(f"{run.path}: gradings that failed: {causes}")
    out(f"{run.path}: finished {record.generation} generations, weights of {record.kept_generation} in {run.weights}")


@app.command(
    rich_help_panel=TRAIN, epilog="Example: esctl sweep arithmetic/essam --grid method.rho=0.005,0.015 --jobs 2"
)
def sweep(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A recipe file, or the name of a shipped one.", show_default=False)
    ],
    grid: Annotated[list[str] | None, typer.Option(metavar="KEY=A,B,C", help="One axis; may be repeated.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of every cell: 0, 1, …")] = 3,
    jobs: Jobs = 1,
    root: Annotated[Path | None, typer.Option(help="Folder of the runs.", show_default="runs/sweep-<recipe>")] = None,
    split: Annotated[str, typer.Option(help="Split of the table at the end.")] = "test",
    sets: Sets = None,
) -> None:
    """Train a grid of settings times seeds, skip what is finished, and compare."""
    from esctl.cli.progress import jobs_line
    from esctl.comparison import tables
    from esctl.comparison.compare import CompareOptions
    from esctl.comparison.compare import compare as compare_runs
    from esctl.comparison.selection import Request
    from esctl.runs.directory import find_runs
    from esctl.training.sweep import cells, failure_lines, parse_grid, refuse_split, run_sweep

    folder = root or Path("runs") / f"sweep-{Path(recipe).with_suffix('').name}"
    found = cells(recipe, {}, sets or [], parse_grid(grid or []), seeds, folder)
    refuse_split(found[0], split)
    console = progress()
    with interruptible(KEPT):
        failures = run_sweep(found, folder, jobs, lambda p: note(console, jobs_line(p)))
    if failures:
        raise EsctlError("\n".join(failure_lines(failures)))
    runs = find_runs([cell.run.path for cell in found])
    out(tables.terminal(compare_runs(runs, CompareOptions(Request(split)))).rstrip("\n"))


@app.command(rich_help_panel=TRAIN, epilog="Example: esctl reproduce cpu --dry-run")
def reproduce(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A shipped table (cpu, gpu) or a file.")] = "cpu",
    full: Annotated[
        bool, typer.Option("--full", metavar="", help="Add the table's extra rows and seeds (its section `full`).")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Runs at once.", show_default="one per core; 1 where models are not embedded"),
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="Folder of runs, tables, plots and report.", show_default="results/<table>")
    ] = None,
    dry_run: DryRun = False,
    gpus: Annotated[int | None, typer.Option(min=1, help="With --dry-run: estimate hours on so many GPUs.")] = None,
) -> None:
    """Run a whole table of methods and seeds, side by side; then write tables, plots and a report. Resumable."""
    from esctl.cli.progress import jobs_line
    from esctl.reproduce import table as tables_
    from esctl.training.sweep import failure_lines

    folder = root or Path("results") / Path(table).stem
    definition = tables_.read_table(table)
    planned = tables_.plan_table(definition, folder, full)
    if dry_run:
        out("\n".join(tables_.plan_lines(definition, planned, gpus)))
        return
    console = progress()

    def go_on() -> str:
        return "\n".join([KEPT, *tables_.finished_lines(definition, planned, folder)])

    with interruptible(go_on):
        at_once = jobs or tables_.side_by_side(definition)
        failures = tables_.run_table(planned, folder, at_once, lambda p: note(console, jobs_line(p)))
    if failures:
        raise EsctlError("\n".join([*failure_lines(failures), *tables_.finished_lines(definition, planned, folder)]))
    out("\n".join(map(str, tables_.write_results(definition, planned, folder))))


@app.command(hidden=True)
def row(job: Annotated[str, typer.Argument(metavar="JSON", show_default=False)]) -> None:
    """Make one run of a table and measure it: an internal command that `esctl reproduce` starts, once for each row."""
    from pydantic import ValidationError

    from esctl.cli.progress import TrainingDisplay
    from esctl.reproduce.row import RowJob, make_row
    from esctl.runs.files import adapter

    try:
        task = adapter(RowJob).validate_json(job)
    except ValidationError:
        raise UsageError(
            "row: JSON is not a job of a table; run the whole table with `esctl reproduce`, which starts these"
        ) from None
    with interruptible("nothing recorded is lost, go on with: esctl reproduce"):
        make_row(task, lambda label: TrainingDisplay(progress(), label))
