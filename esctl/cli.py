"""The command line: flags, help, printing, exit codes. The only module that prints or exits.

Every import that costs time stands inside its command, so that help is instant and `compare` needs no torch.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from esctl import __version__
from esctl.errors import EsctlError, UsageError

if TYPE_CHECKING:
    from esctl.recipe import Plain, Recipe

app = typer.Typer(
    name="esctl",
    help="Post-train language models with Evolution Strategies, and compare the result honestly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
recipes_app = typer.Typer(no_args_is_help=True, help="List, show and copy the recipes that ship.")
app.add_typer(recipes_app, name="recipes")

Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any recipe key; may be repeated.")]
RunArgument = Annotated[Path, typer.Argument(help="A run directory.", show_default=False)]


def out(text: str) -> None:
    """A result, on standard output."""
    print(text, flush=True)


def progress() -> Console:
    """Where progress goes: standard error; plain when piped."""
    return Console(stderr=True, soft_wrap=True)


def main() -> None:
    """Run the command line; a known failure is one line and an exit code, never a traceback."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is imported
    try:
        app()
    except EsctlError as error:
        print("\n".join(f"esctl: {line}" for line in str(error).splitlines()), file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _show_version(wanted: bool) -> None:
    if wanted:
        out(f"esctl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
def train(
    recipe: Annotated[str | None, typer.Option(help="A recipe file, or the name of a shipped one.")] = None,
    method: Annotated[str | None, typer.Option(help="es, essam or essam-f.")] = None,
    model: Annotated[str | None, typer.Option(help="embedded, a folder, a hub id, or a run directory.")] = None,
    task: Annotated[str | None, typer.Option(help="The task to train on.")] = None,
    data: Annotated[str | None, typer.Option(help="Local files in place of the hub.")] = None,
    engine: Annotated[str | None, typer.Option(help="auto, vllm or transformers.")] = None,
    generations: Annotated[int | None, typer.Option(help="How long to train.")] = None,
    label: Annotated[str | None, typer.Option(help="The row's name in tables.")] = None,
    run: Annotated[Path | None, typer.Option(help="The run directory  [default: runs/<label>-<task>-s<seed>]")] = None,
    seed: Annotated[int | None, typer.Option(help="Everything random follows from it.")] = None,
    sets: Sets = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print recipe, prompt and cost; train nothing.")] = False,
) -> None:
    """Fine-tune a model. With --method alone: the embedded model on its own task, on any laptop."""
    flags: dict[str, Plain] = {
        "method.kind": method, "model": model, "task.name": task, "task.data": data, "engine.kind": engine,
        "generations": generations, "label": label, "seed": seed,
    }  # fmt: skip
    given: dict[str, Plain] = {key: value for key, value in flags.items() if value is not None}
    wanted = _recipe(recipe, given, sets or [], run if resume else None)
    folder = run or default_run(wanted)
    if dry_run:
        from esctl.plan import plan_text

        out(plan_text(wanted))
        return
    _train(wanted, folder, resume)


def _recipe(source: "str | None", given: "dict[str, Plain]", sets: list[str], resumed: Path | None) -> "Recipe":
    """The recipe asked for: a file, a shipped one, the resumed run's own, or the embedded default of a method."""
    from esctl.recipe import EMBEDDED, load_recipe, recipes

    if source is None and resumed is not None and (resumed / "recipe.yaml").is_file():
        source = str(resumed / "recipe.yaml")
    if source is None and given.get("model", EMBEDDED) == EMBEDDED:
        name = f"{given.get('task.name', 'arithmetic')}/{given.get('method.kind', 'es')}"
        source = name if name in recipes() else None
    return load_recipe(source, given, sets)


def default_run(recipe: "Recipe") -> Path:
    """runs/<label>-<task>-s<seed>; the name is for people, no program reads it."""
    name = f"{recipe.label}-{recipe.task.name}-s{recipe.seed}".lower().replace(" ", "-").replace("/", "-")
    return Path("runs") / name


def _train(recipe: "Recipe", folder: Path, resume: bool) -> None:
    from esctl import session
    from esctl.display import TrainingDisplay
    from esctl.rundir import RunDir

    go_on = f"esctl train --resume --run {folder}"
    with TrainingDisplay(progress(), f"{recipe.label} s{recipe.seed}") as display:
        try:
            record = session.train(recipe, RunDir(folder), resume, display)
        except KeyboardInterrupt:
            raise EsctlError(f"interrupted; nothing recorded is lost, go on with: {go_on}") from None
    if record.grader_failures:
        causes = ", ".join(f"{n} {cause}" for cause, n in record.grader_failures.items())
        out(f"{folder}: gradings that failed: {causes}")
    out(f"{folder}: finished {record.generation} generations, weights of {record.kept_generation} in {folder}/weights")


@app.command("eval")
def evaluate_command(
    target: Annotated[str, typer.Argument(metavar="RUN|MODEL", help="A run directory or a model.", show_default=False)],
    recipe: Annotated[str | None, typer.Option(help="Take task, prompt and sampling from this recipe.")] = None,
    task: Annotated[str | None, typer.Option(help="The task  [default: the run's own, else arithmetic]")] = None,
    data: Annotated[str | None, typer.Option(help="Local files in place of the hub.")] = None,
    split: Annotated[str, typer.Option(help="The split.")] = "test",
    n: Annotated[int | None, typer.Option("-n", help="Only the first so many problems.")] = None,
    engine: Annotated[str | None, typer.Option(help="auto, vllm or transformers.")] = None,
    run: Annotated[Path | None, typer.Option(help="Where a plain model's results go  [default: runs/base-…]")] = None,
    sets: Sets = None,
) -> None:
    """Greedy accuracy with a Wilson interval: strict, flexible, format rate, by difficulty."""
    from esctl.assess import assess, report_text, sections

    flags: dict[str, Plain] = {"task.name": task, "task.data": data, "engine.kind": engine}
    given = {**sections(recipe), **{key: value for key, value in flags.items() if value is not None}}
    folder, record = assess(target, given, sets or [], split, n, run)
    out(report_text(record))
    out(f"stored in {folder}")


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or folders of them.", show_default=False)],
    split: Annotated[str, typer.Option(help="The split whose evaluations are compared.")] = "test",
    task: Annotated[str | None, typer.Option(help="The task, where runs hold several.")] = None,
    style: Annotated[str, typer.Option("--format", help="table, markdown, csv or json.")] = "table",
    force: Annotated[bool, typer.Option("--force", help="Print also what is not comparable, under a banner.")] = False,
) -> None:
    """One row per method, seeds together: scores with intervals beside what they cost."""
    from esctl import tables
    from esctl.compare import compare as compare_runs
    from esctl.rundir import find_runs

    writers: dict[str, Callable[..., str]] = {
        "table": tables.terminal, "markdown": tables.markdown, "csv": tables.csv_text, "json": tables.json_text,
    }  # fmt: skip
    if style not in writers:
        raise UsageError(f"--format {style}: choose {', '.join(writers)}")
    out(writers[style](compare_runs(find_runs(runs), split, task, force)).rstrip("\n"))


@app.command()
def show(
    run: RunArgument,
    generation: Annotated[int | None, typer.Option(help="Rollouts of this generation  [default: the last]")] = None,
    wrong: Annotated[bool, typer.Option("--wrong", help="Only wrong ones.")] = False,
    n: Annotated[int, typer.Option("-n", help="How many rollouts.")] = 3,
) -> None:
    """What a run did, with rollouts to read."""
    from esctl.rundir import RunDir
    from esctl.story import story

    out(story(RunDir(run), generation, wrong, n))


@app.command()
def export(
    run: RunArgument,
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The new model folder.", show_default=False)],
    step: Annotated[int, typer.Option(help="The generation.")],
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
) -> None:
    """Write the weights of any generation, rebuilt from the recorded scores."""
    from esctl.export import export_step
    from esctl.rundir import RunDir

    export_step(RunDir(run), step, target, dtype)
    out(f"{target}: weights after generation {step}")


@app.command()
def doctor() -> None:
    """What is installed, which engine would be used, what is missing and how to get it."""
    from esctl.doctor import diagnosis

    out(diagnosis())


@recipes_app.command("ls")
def recipes_ls() -> None:
    """Names and first lines of the shipped recipes."""
    from esctl.recipe import recipes

    for name, path in recipes().items():
        first = path.read_text().splitlines()[0].removeprefix("#").strip()
        out(f"{name:24}  {first}")


@recipes_app.command("show")
def recipes_show(name: Annotated[str, typer.Argument(show_default=False)]) -> None:
    """The text of a recipe."""
    out(_shipped(name).read_text().rstrip("\n"))


@recipes_app.command("copy")
def recipes_copy(
    name: Annotated[str, typer.Argument(show_default=False)],
    target: Annotated[Path, typer.Argument(metavar="FILE", show_default=False)],
) -> None:
    """Copy a recipe to edit it."""
    text = _shipped(name).read_text()
    if target.exists():
        raise UsageError(f"{target}: exists; choose another name")
    target.write_text(text)
    out(f"{target}: train it with `esctl train --recipe {target}`")


def _shipped(name: str) -> Path:
    from esctl.recipe import find_recipe

    return find_recipe(name)
