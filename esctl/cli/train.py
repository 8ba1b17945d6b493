"""Commands that make runs: one run, a grid of runs, a whole table."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from esctl.cli.app import Sets, app, out, progress
from esctl.errors import EsctlError, UsageError

if TYPE_CHECKING:
    from esctl.experiment.recipe import Plain, Recipe


@app.command()
def train(
    recipe: Annotated[str | None, typer.Option(help="A recipe file, or the name of a shipped one.")] = None,
    method: Annotated[
        str | None, typer.Option(help="es, essam, essam-f, grpo or ppo.", show_default="the recipe's; es for embedded")
    ] = None,
    model: Annotated[str | None, typer.Option(help="embedded, a folder, a hub id, or a run directory.")] = None,
    task: Annotated[str | None, typer.Option(help="The task to train on.", show_default="the recipe's")] = None,
    data: Annotated[str | None, typer.Option(help="Local files in place of the hub.")] = None,
    engine: Annotated[str | None, typer.Option(help="auto, vllm or transformers.")] = None,
    generations: Annotated[int | None, typer.Option(help="Steps of training.", show_default="the recipe's")] = None,
    label: Annotated[str | None, typer.Option(help="The row's name in tables.")] = None,
    run: Annotated[
        Path | None, typer.Option(help="The run directory.", show_default="runs/<label>-<task>-s<seed>")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Everything random follows from it.", show_default="the recipe's, 0")
    ] = None,
    sets: Sets = None,
    resume: Annotated[bool, typer.Option("--resume", metavar="", help="Continue an interrupted run.")] = False,
    track: Annotated[str | None, typer.Option(help="tensorboard: copy the metrics to RUN/tensorboard.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", metavar="", help="Print recipe, prompt and cost; train nothing.")
    ] = False,
) -> None:
    """Fine-tune a model. Without --model and --recipe: the embedded model on its own task, on any laptop."""
    if track is not None:
        from esctl.training.tensorboard import check_sink

        check_sink(track)
    flags: dict[str, Plain] = {
        "method.kind": method, "model": model, "task.name": task, "task.data": data, "engine.kind": engine,
        "generations": generations, "label": label, "seed": seed,
    }  # fmt: skip
    given: dict[str, Plain] = {key: value for key, value in flags.items() if value is not None}
    wanted = _recipe(recipe, given, sets or [], run if resume else None)
    folder = run or default_run(wanted)
    if dry_run:
        from esctl.cli.estimates import plan_text

        out(plan_text(wanted))
        return
    _train(wanted, folder, resume, track)


def _recipe(source: "str | None", given: "dict[str, Plain]", sets: list[str], resumed: Path | None) -> "Recipe":
    """The recipe asked for: a file, a shipped one, the resumed run's own, or the embedded default of a method."""
    from esctl.experiment.loading import load_recipe, recipes
    from esctl.experiment.recipe import EMBEDDED

    if source is None and resumed is not None and (resumed / "recipe.yaml").is_file():
        source = str(resumed / "recipe.yaml")
    if source is None and given.get("model", EMBEDDED) == EMBEDDED:
        name = f"{given.get('task.name', 'arithmetic')}/{given.get('method.kind', 'es')}"
        source = name if name in recipes() else None
    return load_recipe(source, given, sets)


def default_run(recipe: "Recipe") -> Path:
    """runs/<label>-<task>-s<seed>."""
    from esctl.runs.directory import folder_name

    return Path("runs") / folder_name(f"{recipe.label}-{recipe.task.name}-s{recipe.seed}")


def _train(recipe: "Recipe", folder: Path, resume: bool, track: str | None) -> None:
    from esctl.cli.progress import TrainingDisplay
    from esctl.runs.directory import RunDir
    from esctl.training import session
    from esctl.training.tensorboard import tracked

    go_on, run = f"esctl train --resume --run {folder}" + (f" --track {track}" if track else ""), RunDir(folder)
    with TrainingDisplay(progress(), f"{recipe.label} s{recipe.seed}") as display:
        try:
            with tracked(track, run, display) as report:
                record = session.train(recipe, run, resume, report)
        except KeyboardInterrupt:
            if not run.exists:
                raise EsctlError("interrupted before anything was recorded; the same command starts again") from None
            raise EsctlError(f"interrupted; nothing recorded is lost, go on with: {go_on}") from None
    if record.grader_failures:
        causes = ", ".join(f"{n} {cause}" for cause, n in record.grader_failures.items())
        out(f"{folder}: gradings that failed: {causes}")
    out(f"{folder}: finished {record.generation} generations, weights of {record.kept_generation} in {folder}/weights")


@app.command()
def sweep(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A recipe file, or the name of a shipped one.", show_default=False)
    ],
    grid: Annotated[list[str] | None, typer.Option(metavar="KEY=A,B,C", help="One axis; may be repeated.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of every cell: 0, 1, …")] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Runs side by side, on equal shares of the cores.")] = 1,
    root: Annotated[Path | None, typer.Option(help="Where the runs lie.", show_default="runs/sweep-<recipe>")] = None,
    split: Annotated[str, typer.Option(help="The split that the table at the end is about.")] = "test",
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
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: it ends the jobs before it ends
    try:
        failures = run_sweep(found, folder, jobs, lambda p: console.print(jobs_line(p), highlight=False))
    except KeyboardInterrupt:
        raise EsctlError("interrupted; nothing recorded is lost: the same command goes on") from None
    if failures:
        raise EsctlError("\n".join(failure_lines(failures)))
    runs = find_runs([cell.run.path for cell in found])
    out(tables.terminal(compare_runs(runs, CompareOptions(Request(split)))).rstrip("\n"))


@app.command()
def reproduce(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A shipped table (cpu, gpu) or a file.")] = "cpu",
    full: Annotated[
        bool, typer.Option("--full", metavar="", help="Add the rows and seeds of the table's `full`.")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Runs at once.", show_default="one per core; 1 where models are not embedded"),
    ] = None,
    root: Annotated[Path | None, typer.Option(help="Where all of it goes.", show_default="results/<table>")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", metavar="", help="Print every run and its cost; run nothing.")
    ] = False,
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
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: it ends the jobs before it ends
    try:
        at_once = jobs or tables_.side_by_side(definition)
        failures = tables_.run_table(planned, folder, at_once, lambda p: console.print(jobs_line(p), highlight=False))
        stopped = failure_lines(failures)
    except KeyboardInterrupt:
        stopped = ["interrupted; nothing recorded is lost: the same command goes on"]
    if stopped:
        raise EsctlError("\n".join([*stopped, *tables_.finished_lines(planned, folder)]))
    out("\n".join(map(str, tables_.write_results(planned, folder))))


@app.command(hidden=True)
def row(job: Annotated[str, typer.Argument(metavar="JSON", show_default=False)]) -> None:
    """One run of a table, with all that is measured of it; `reproduce` starts these."""
    from pydantic import ValidationError

    from esctl.cli.progress import TrainingDisplay
    from esctl.reproduce.row import RowJob, make_row
    from esctl.runs.files import adapter

    try:
        asked = adapter(RowJob).validate_json(job)
    except ValidationError:
        raise UsageError("row: no row of a table; `esctl reproduce` starts these") from None
    try:
        make_row(asked, lambda label: TrainingDisplay(progress(), label))
    except KeyboardInterrupt:
        raise EsctlError("interrupted; nothing recorded is lost") from None
