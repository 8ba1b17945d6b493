"""Commands that read what is there: runs side by side, one run, recipes, this machine."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from esctl.cli.app import READ, SETUP, RunArgument, app, read_dtype, read_ks
from esctl.cli.output import note, out, progress
from esctl.errors import UsageError

if TYPE_CHECKING:
    from esctl.comparison.selection import Loaded, Request


recipes_app = typer.Typer(no_args_is_help=True, help="List, show and copy the recipes that ship.")
app.add_typer(recipes_app, name="recipes", rich_help_panel=SETUP)
RecipeName = Annotated[
    str, typer.Argument(metavar="NAME", help="One of those that `esctl recipes ls` lists.", show_default=False)
]


@app.command(rich_help_panel=READ, epilog="Example: esctl compare runs/demo --format markdown")
def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run directories, or folders of them.", show_default=False)
    ],
    split: Annotated[str, typer.Option(help="The split whose evaluations are compared.")] = "test",
    task: Annotated[str | None, typer.Option(help="The task, where runs hold several.")] = None,
    at: Annotated[str | None, typer.Option(metavar="rollouts=N", help="Each run's last evaluation within N.")] = None,
    k: Annotated[
        str,
        typer.Option("--k", metavar="K,…", help="Which pass@k to print, where it was measured.", show_default="1,8,64"),
    ] = "",
    base: Annotated[Path | None, typer.Option(help="Measure gains against this run.")] = None,
    style: Annotated[str, typer.Option("--format", help="table, markdown, csv, json or latex.")] = "table",
    published: Annotated[
        str | None, typer.Option("--references", help="Add published rows: a set's name, or all.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="DIR", help="Draw the pictures there, PNG and SVG.")] = None,
    force: Annotated[
        bool, typer.Option("--force", metavar="", help="Print also what is not comparable, under a banner.")
    ] = False,
) -> None:
    """One row per method, seeds together: scores with intervals beside what they cost; every pair tested."""
    from esctl.comparison import tables
    from esctl.comparison.compare import CompareOptions, compare_loaded, load
    from esctl.comparison.selection import Request
    from esctl.runs.directory import RunDir, find_runs

    writers: dict[str, Callable[..., str]] = {
        "table": tables.terminal, "markdown": tables.markdown, "csv": tables.csv_text, "json": tables.json_text,
        "latex": tables.latex,
    }  # fmt: skip
    if style not in writers:
        raise UsageError(f"--format {style}: choose {', '.join(writers)}")
    request = Request(split, task, _rollouts(at))
    wanted = CompareOptions(request, tuple(read_ks(k)) if k else (), RunDir(base) if base else None, published, force)
    loaded = load(find_runs(runs), wanted)
    found = compare_loaded(loaded, wanted)
    if plot:
        _plot(loaded, request, plot)
    out(writers[style](found).rstrip("\n"))


def _plot(loaded: "list[Loaded]", request: "Request", folder: Path) -> None:
    from esctl.comparison.groups import grouped
    from esctl.comparison.plots import draw
    from esctl.comparison.selection import select

    drawn = draw(grouped(select(loaded, request).items), folder)
    for line in (*map(str, drawn.files), *drawn.notes):
        note(progress(), line)


def _rollouts(at: str | None) -> int | None:
    """The N of --at rollouts=N."""
    if at is None:
        return None
    key, _, count = at.partition("=")
    if key != "rollouts" or not count.isdecimal():
        raise UsageError(f"--at {at}: write rollouts=N, such as --at rollouts=10000")
    return int(count)


@app.command(rich_help_panel=READ, epilog="Examples: esctl show runs, esctl show runs/es-arithmetic-s0 --wrong")
def show(
    run: Annotated[
        Path, typer.Argument(metavar="RUN|FOLDER", help="A run directory, or a folder of them.", show_default=False)
    ],
    generation: Annotated[
        int | None, typer.Option(help="Rollouts of this generation, counted from 0.", show_default="the last")
    ] = None,
    wrong: Annotated[
        bool,
        typer.Option("--wrong", metavar="", help="Only rollouts without the right answer in the asked-for format."),
    ] = False,
    n: Annotated[int, typer.Option("-n", min=0, help="How many rollouts.")] = 3,
) -> None:
    """What a run did, with rollouts to read; of a folder: its runs, one line each."""
    from esctl.cli.show import run_list, story
    from esctl.runs.directory import RunDir, find_runs

    is_folder = not RunDir(run).exists and run.is_dir() and not (run / "recipe.yaml").exists()
    out(run_list(find_runs([run])) if is_folder else story(RunDir(run), generation, wrong, n))


@app.command(rich_help_panel=READ, epilog="Example: esctl export runs/es-arithmetic-s0 my-model --step 5")
def export(
    run: RunArgument,
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The new model folder.", show_default=False)],
    step: Annotated[int, typer.Option(help="The generation.")],
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
) -> None:
    """Write the weights of any generation, rebuilt from the recorded scores."""
    from esctl.experiment.rebuild import export_step
    from esctl.runs.directory import RunDir

    export_step(RunDir(run), step, target, read_dtype(dtype))
    out(f"{target}: weights after generation {step}")


@app.command(rich_help_panel=SETUP)
def doctor() -> None:
    """What is installed, which engine would be used, what is missing and how to get it."""
    from esctl.cli.doctor import diagnosis

    out(diagnosis())


@recipes_app.command("ls")
def recipes_ls() -> None:
    """Names and first lines of the shipped recipes."""
    from esctl.experiment.loading import recipes

    for name, path in recipes().items():
        first = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("#").strip()
        out(f"{name:24}  {first}")


@recipes_app.command("show")
def recipes_show(name: RecipeName) -> None:
    """The text of a recipe."""
    out(_shipped(name).read_text(encoding="utf-8").rstrip("\n"))


@recipes_app.command("copy")
def recipes_copy(
    name: RecipeName,
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The new recipe file.", show_default=False)],
) -> None:
    """Copy a recipe to edit it."""
    text = _shipped(name).read_text(encoding="utf-8")
    if target.exists():
        raise UsageError(f"{target}: exists; choose another name")
    target.write_text(text, encoding="utf-8")
    out(f"{target}: train it with `esctl train --recipe {target}`")


def _shipped(name: str) -> Path:
    from esctl.experiment.loading import find_recipe

    return find_recipe(name)
