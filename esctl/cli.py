"""The command line: flags, help, printing, exit codes. The only module that prints or exits.

Every import that costs time stands inside its command, so that help is instant and `compare` needs no torch.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from esctl import __version__
from esctl.errors import EsctlError, UsageError

if TYPE_CHECKING:
    from esctl.assess import Assessed
    from esctl.recipe import Plain, Recipe
    from esctl.samples import Decoding
    from esctl.selection import Loaded, Request
    from esctl.target import Asked

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
# What every command that looks at one set of weights is asked with.
TargetArgument = Annotated[
    str, typer.Argument(metavar="RUN|MODEL", help="A run directory or a model.", show_default=False)
]
Tasks = Annotated[
    str | None,
    typer.Option(help="One or more, by commas  [default: the run's own; else gsm8k, or arithmetic for embedded]"),
]
Data = Annotated[str | None, typer.Option(help="Local files in place of the hub.")]
SplitName = Annotated[str, typer.Option(help="The split.")]
FirstProblems = Annotated[int | None, typer.Option("-n", help="Only the first so many problems.")]
Step = Annotated[int | None, typer.Option(help="A generation of the run, from its scores  [default: the one kept]")]
EngineKind = Annotated[str | None, typer.Option(help="auto, vllm or transformers.")]
BaseRun = Annotated[Path | None, typer.Option(help="Where a plain model's results go  [default: runs/base-…]")]


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
    method: Annotated[str | None, typer.Option(help="es, essam, essam-f, grpo or ppo.")] = None,
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
    target: TargetArgument,
    recipe: Annotated[str | None, typer.Option(help="Take task, prompt and sampling from this recipe.")] = None,
    task: Tasks = None,
    data: Data = None,
    split: SplitName = "test",
    n: FirstProblems = None,
    step: Step = None,
    engine: EngineKind = None,
    run: BaseRun = None,
    sets: Sets = None,
) -> None:
    """Greedy accuracy with a Wilson interval: strict, flexible, format rate, by difficulty."""
    from esctl.assess import report_text
    from esctl.target import Asked

    asked = Asked(target, _setting(recipe, data, engine), sets or [], run, step)
    found = _assess(asked, task, split, n)
    out("\n".join(report_text(item.record) for item in found))
    out(f"stored in {found[0].folder}")


@app.command()
def passk(
    target: TargetArgument,
    k: Annotated[str, typer.Option("--k", help="Numbers of tries, separated by commas.")] = "1,8,64",
    samples: Annotated[int | None, typer.Option(help="Per problem  [default: twice the largest k]")] = None,
    temperature: Annotated[str | None, typer.Option(help="One or more  [default: 0.6; with --noise 0]")] = None,
    top_p: Annotated[float, typer.Option(help="Nucleus.")] = 0.95,
    noise: Annotated[float | None, typer.Option(metavar="SIGMA", help="Spread weights: θ + σε per sample.")] = None,
    seed: Annotated[int, typer.Option(help="Of the samples; equal for all models.")] = 0,
    recipe: Annotated[str | None, typer.Option(help="Take task, prompt and sampling from this recipe.")] = None,
    task: Tasks = None,
    data: Data = None,
    split: SplitName = "test",
    n: FirstProblems = None,
    step: Step = None,
    engine: EngineKind = None,
    run: BaseRun = None,
    sets: Sets = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
) -> None:
    """Unbiased pass@k, coverage and diversity from n samples per problem; what is stored is not drawn again."""
    from esctl import passk
    from esctl.target import Asked

    ks = passk.read_ks(k)
    wanted = passk.decodings(ks, samples, passk.read_temperatures(temperature, noise), top_p, noise, seed)
    asked = Asked(target, _setting(recipe, data, engine), sets or [], run, step)
    found = _assess(asked, task, split, n, wanted)
    reports = [passk.report(str(item.folder), item.record, ks) for item in found]
    out(passk.json_text(reports) if as_json else f"{passk.text(reports)}\n\nstored in {found[0].folder}")


@app.command()
def sharpness(
    target: TargetArgument,
    sigmas: Annotated[str | None, typer.Option(metavar="S,…", help="Noise scales of the average.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Noise seeds for each.")] = None,
    members: Annotated[int | None, typer.Option(help="Of the fresh ES estimate.")] = None,
    sigma: Annotated[float | None, typer.Option(help="Noise scale of the estimate.")] = None,
    rho: Annotated[float | None, typer.Option(help="A step of scale 1 has norm ρ√(d/N).")] = None,
    scales: Annotated[str | None, typer.Option(metavar="C,…", help="Lengths of the steps, in units of that.")] = None,
    directions: Annotated[int | None, typer.Option(help="Random directions beside the estimate.")] = None,
    recipe: Annotated[str | None, typer.Option(help="Take task, prompt and sampling from this recipe.")] = None,
    task: Annotated[str | None, typer.Option(help="The task  [default: the run's own, else arithmetic]")] = None,
    data: Data = None,
    split: SplitName = "test",
    n: Annotated[int, typer.Option("-n", help="The first so many problems.")] = 256,
    step: Step = None,
    engine: EngineKind = None,
    run: BaseRun = None,
    sets: Sets = None,
    as_json: Annotated[bool, typer.Option("--json", help="The measurement as it is stored.")] = False,
) -> None:
    """How fast the score falls around the weights: under noise, against an ES estimate, at random. Forward passes only.

    Defaults go by the number of weights alone, so that models that can be compared are measured alike.
    """
    from esctl import sharpness_text
    from esctl.display import EvaluationDisplay
    from esctl.probing import Flags, numbers, probe
    from esctl.target import Asked

    grids = numbers("--sigmas", sigmas), numbers("--scales", scales)
    flags = Flags(split, n, grids[0], seeds, members, sigma, rho, grids[1], directions)
    setting = _setting(recipe, data, engine) | ({} if task is None else {"task.name": task})
    with EvaluationDisplay(progress()) as display:
        try:
            found = probe(Asked(target, setting, sets or [], run, step), flags, display)
        except KeyboardInterrupt:
            raise EsctlError("interrupted; candidates read are kept, go on with the same command") from None
    text = sharpness_text.json_text(found.record) if as_json else sharpness_text.text(found.record, found.dim)
    out(text if as_json else f"{text}\n\nstored in {found.folder}")


def _setting(recipe: str | None, data: str | None, engine: str | None) -> "dict[str, Plain]":
    from esctl.target import sections

    flags = {"task.data": data, "engine.kind": engine}
    return {**sections(recipe), **{key: value for key, value in flags.items() if value is not None}}


def _assess(
    asked: "Asked", task: str | None, split: str, n: int | None, wanted: "Sequence[Decoding] | None" = None
) -> "list[Assessed]":
    from esctl.assess import assess
    from esctl.display import EvaluationDisplay
    from esctl.samples import GREEDY

    with EvaluationDisplay(progress()) as display:
        try:
            return assess(asked, task.split(",") if task else [], split, n, wanted or [GREEDY], display)
        except KeyboardInterrupt:
            raise EsctlError("interrupted; finished chunks are kept, go on with the same command") from None


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or folders of them.", show_default=False)],
    split: Annotated[str, typer.Option(help="The split whose evaluations are compared.")] = "test",
    task: Annotated[str | None, typer.Option(help="The task, where runs hold several.")] = None,
    at: Annotated[str | None, typer.Option(metavar="rollouts=N", help="Each run's last evaluation within N.")] = None,
    k: Annotated[str, typer.Option("--k", metavar="K,…", help="The k of pass@k  [default: 1,8,64]")] = "",
    base: Annotated[Path | None, typer.Option(help="Measure gains against this run.")] = None,
    style: Annotated[str, typer.Option("--format", help="table, markdown, csv, json or latex.")] = "table",
    published: Annotated[str | None, typer.Option("--references", help="Published rows: a set's name, or all.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="DIR", help="Draw the pictures there, PNG and SVG.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Print also what is not comparable, under a banner.")] = False,
) -> None:
    """One row per method, seeds together: scores with intervals beside what they cost; every pair tested."""
    from esctl import tables
    from esctl.compare import Wanted, compare_loaded, load
    from esctl.rundir import RunDir, find_runs
    from esctl.selection import Request

    writers: dict[str, Callable[..., str]] = {
        "table": tables.terminal, "markdown": tables.markdown, "csv": tables.csv_text, "json": tables.json_text,
        "latex": tables.latex,
    }  # fmt: skip
    if style not in writers:
        raise UsageError(f"--format {style}: choose {', '.join(writers)}")
    request = Request(split, task, _rollouts(at))
    wanted = Wanted(request, _counts("--k", k), RunDir(base) if base else None, published, force)
    loaded = load(find_runs(runs), wanted)
    found = compare_loaded(loaded, wanted)
    if plot:
        _plot(loaded, request, plot)
    out(writers[style](found).rstrip("\n"))


def _plot(loaded: "list[Loaded]", request: "Request", folder: Path) -> None:
    from esctl.groups import grouped
    from esctl.plots import draw
    from esctl.selection import select

    drawn = draw(grouped(select(loaded, request).items), folder)
    for line in (*map(str, drawn.files), *drawn.notes):
        progress().print(line, highlight=False, soft_wrap=True)


def _rollouts(at: str | None) -> int | None:
    """The N of --at rollouts=N."""
    if at is None:
        return None
    key, _, count = at.partition("=")
    if key != "rollouts" or not count.isdecimal():
        raise UsageError(f"--at {at}: write rollouts=N, such as --at rollouts=10000")
    return int(count)


def _counts(flag: str, text: str) -> tuple[int, ...]:
    """Whole numbers above 0 between commas."""
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UsageError(f"{flag} {text}: write whole numbers between commas, such as {flag} 1,8,64")
    return tuple(map(int, parts))


@app.command()
def sweep(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of a shipped one.", show_default=False)],
    grid: Annotated[list[str] | None, typer.Option(metavar="KEY=A,B,C", help="One axis; may be repeated.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of every cell: 0, 1, …")] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Runs side by side, one thread each.")] = 1,
    root: Annotated[Path | None, typer.Option(help="Where the runs lie  [default: runs/sweep-<recipe>]")] = None,
    split: Annotated[str, typer.Option(help="The split that the table at the end is about.")] = "test",
    sets: Sets = None,
) -> None:
    """Train a grid of settings times seeds, skip what is finished, and compare."""
    from esctl import tables
    from esctl.compare import Wanted
    from esctl.compare import compare as compare_runs
    from esctl.display import jobs_line
    from esctl.rundir import find_runs
    from esctl.selection import Request
    from esctl.sweep import cells, failure_lines, parse_grid, run_sweep

    folder = root or Path("runs") / f"sweep-{Path(recipe).with_suffix('').name}"
    found = cells(recipe, {}, sets or [], parse_grid(grid or []), seeds, folder)
    console = progress()
    try:
        failures = run_sweep(found, folder, jobs, lambda p: console.print(jobs_line(p), highlight=False))
    except KeyboardInterrupt:
        raise EsctlError("interrupted; nothing recorded is lost: the same command goes on") from None
    if failures:
        raise EsctlError("\n".join(failure_lines(failures)))
    runs = find_runs([cell.run.path for cell in found])
    out(tables.terminal(compare_runs(runs, Wanted(Request(split)))).rstrip("\n"))


@app.command()
def reproduce(
    table: Annotated[str, typer.Argument(help="A shipped table (cpu, gpu) or a file.")] = "cpu",
    full: Annotated[bool, typer.Option("--full", help="Add the rows and seeds of the table's `full`.")] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at once  [default: one per core; 1 where models are not embedded]")
    ] = None,
    root: Annotated[Path | None, typer.Option(help="Where all of it goes  [default: results/<table>]")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print every run and its cost; run nothing.")] = False,
    gpus: Annotated[int | None, typer.Option(min=1, help="With --dry-run: estimate hours on so many GPUs.")] = None,
) -> None:
    """Run a whole table of methods and seeds, side by side; then write tables, plots and a report. Resumable."""
    from esctl import reproduce as tables_
    from esctl.display import jobs_line
    from esctl.sweep import failure_lines

    folder = root or Path("results") / Path(table).stem
    definition = tables_.read_table(table)
    planned = tables_.plan_table(definition, folder, full)
    if dry_run:
        out("\n".join(tables_.plan_lines(definition, planned, gpus)))
        return
    console = progress()
    try:
        at_once = jobs or tables_.side_by_side(definition)
        failures = tables_.run_table(planned, folder, at_once, lambda p: console.print(jobs_line(p), highlight=False))
    except KeyboardInterrupt:
        raise EsctlError("interrupted; nothing recorded is lost: the same command goes on") from None
    if failures:
        raise EsctlError("\n".join(failure_lines(failures)))
    out("\n".join(map(str, tables_.write_results(planned, folder))))


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
def memory(
    runs: Annotated[list[Path] | None, typer.Argument(help="Runs whose measured peaks to show.")] = None,
    model: Annotated[str, typer.Option(help="embedded, a folder, or a hub id; only its config is read.")] = "embedded",
    methods: Annotated[str, typer.Option(help="Of es, essam, essam-f, grpo, ppo.")] = "es,essam,grpo,ppo",
    dtype: Annotated[str, typer.Option(help="Of served weights and activations: bf16, fp16 or fp32.")] = "bf16",
    seq: Annotated[int, typer.Option(help="Tokens of prompt and completion.")] = 1024,
    batch: Annotated[int, typer.Option(help="Sequences in a micro-batch.")] = 8,
    rollouts: Annotated[int, typer.Option(help="Sequences in the KV cache, which stands apart.")] = 64,
    checkpointing: Annotated[bool, typer.Option("--checkpointing", help="Gradient checkpointing.")] = False,
    reference: Annotated[bool, typer.Option(help="A frozen reference for the KL term of GRPO and PPO.")] = True,
    copy: Annotated[bool, typer.Option(help="A copy of the policy for rollouts of GRPO and PPO.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Bytes, as JSON.")] = False,
) -> None:
    """What each method holds in memory, by formula from a model's config; or runs beside their formula."""
    from esctl import footprints
    from esctl.memory import Setting

    if runs:
        rows = footprints.measured(runs)
        out(footprints.runs_json(rows) if as_json else footprints.runs_table(rows))
        return
    setting = Setting(dtype, seq, batch, checkpointing, rollouts, reference, copy)
    arch, prints = footprints.analytic(model, methods.split(","), setting)
    writer = footprints.json_text if as_json else footprints.table
    out(writer(arch, setting, prints))


@app.command()
def adopt(
    model: Annotated[str, typer.Argument(metavar="MODEL_DIR", help="A model folder.", show_default=False)],
    label: Annotated[str, typer.Option(help="The row's name in tables.")],
    base: Annotated[str, typer.Option(help="The model that it was trained from.")],
    run: Annotated[Path, typer.Option(help="The run directory to make.")],
    cost: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="rollouts, tokens, seconds, ….")] = None,
    note: Annotated[str, typer.Option("--method-note", help="How it was trained, in words.")] = "",
    copy: Annotated[bool, typer.Option("--copy", help="Copy the folder in place of linking to it.")] = False,
    recipe: Annotated[str | None, typer.Option(help="Take task, prompt and sampling from this recipe.")] = None,
    task: Annotated[str | None, typer.Option(help="The task it was trained on.")] = None,
    data: Annotated[str | None, typer.Option(help="Local files in place of the hub.")] = None,
    seed: Annotated[int, typer.Option(help="Of its training; rows put seeds together.")] = 0,
    sets: Sets = None,
) -> None:
    """A model trained elsewhere joins the table: a run directory to be evaluated and compared."""
    from esctl.adopt import Adoption, parse_costs, settings_of
    from esctl.adopt import adopt as adopt_model
    from esctl.rundir import RunDir
    from esctl.target import sections

    flags: dict[str, Plain] = {"task.name": task, "task.data": data, "seed": seed}
    given = sections(recipe or settings_of(base, task)) | {k: v for k, v in flags.items() if v is not None}
    adoption = Adoption(model, label, base, parse_costs(cost or []), note, copy)
    adopt_model(adoption, given, sets or [], RunDir(run))
    out(f"{run}: {label} joins as a run; evaluate it with `esctl eval {run}`")


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
