"""Commands that measure one set of weights: greedy accuracy, pass@k, sharpness, memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from esctl.cli.app import (
    MEASURE,
    READ,
    AsJson,
    BaseRun,
    Data,
    EngineKind,
    FirstProblems,
    Model,
    OneTask,
    Sets,
    SettingSource,
    SplitName,
    Step,
    TargetArgument,
    Tasks,
    app,
    given,
    interruptible,
    read_dtype,
    read_ks,
    read_temperatures,
)
from esctl.cli.output import out, progress

if TYPE_CHECKING:
    from esctl.evaluation.evaluate import StoredEvaluation
    from esctl.evaluation.sampling import Decoding
    from esctl.evaluation.target import TargetRequest
    from esctl.experiment.recipe import Plain


BY_SIZE = "by the number of weights"


@app.command(
    "eval", rich_help_panel=MEASURE, epilog="Example: esctl eval runs/es-arithmetic-s0; then esctl compare runs"
)
def evaluate_command(
    target: TargetArgument,
    recipe: SettingSource = None,
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
    from esctl.cli.texts import report_text
    from esctl.evaluation.target import TargetRequest

    request = TargetRequest(target, _setting(recipe, data, engine), sets or [], run, step)
    found = _evaluate(request, task, split, n)
    out("\n".join(report_text(item.record) for item in found))
    out(f"stored in {found[0].folder}")


@app.command(rich_help_panel=MEASURE, epilog="Example: esctl passk embedded --k 1,8 --samples 16 -n 64")
def passk(
    target: TargetArgument,
    k: Annotated[str, typer.Option("--k", help="Numbers of tries, separated by commas.")] = "1,8,64",
    samples: Annotated[
        int | None, typer.Option(help="Samples per problem.", show_default="twice the largest k")
    ] = None,
    temperature: Annotated[
        str | None, typer.Option(help="One or more, by commas.", show_default="0.6, or 0 with --noise")
    ] = None,
    top_p: Annotated[float, typer.Option(help="Nucleus of the samples.")] = 0.95,
    noise: Annotated[
        float | None,
        typer.Option(
            metavar="SIGMA",
            help="Draw each sample from other weights: θ + σε.",
            show_default="none: the weights as they are",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the samples; equal for all models.")] = 0,
    recipe: SettingSource = None,
    task: Tasks = None,
    data: Data = None,
    split: SplitName = "test",
    n: FirstProblems = None,
    step: Step = None,
    engine: EngineKind = None,
    run: BaseRun = None,
    sets: Sets = None,
    as_json: AsJson = False,
) -> None:
    """Unbiased pass@k, coverage and diversity from n samples per problem; what is stored is not drawn again."""
    from esctl.cli import texts
    from esctl.evaluation import coverage, sampling
    from esctl.evaluation.target import TargetRequest

    ks = read_ks(k)
    wanted = sampling.decodings(ks, samples, read_temperatures(temperature, noise), top_p, noise, seed)
    request = TargetRequest(target, _setting(recipe, data, engine), sets or [], run, step)
    found = _evaluate(request, task, split, n, wanted)
    reports = [coverage.passk_report(str(item.folder), item.record, ks) for item in found]
    out(texts.passk_json(reports) if as_json else f"{texts.passk_text(reports)}\n\nstored in {found[0].folder}")


@app.command(rich_help_panel=MEASURE, epilog="Example: esctl sharpness embedded --seeds 2 -n 64")
def sharpness(
    target: TargetArgument,
    sigmas: Annotated[
        str | None, typer.Option(metavar="S,…", help="Noise scales of the average.", show_default=BY_SIZE)
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Noise seeds for each.", show_default=BY_SIZE)] = None,
    members: Annotated[
        int | None, typer.Option(help="Candidates of the fresh ES estimate.", show_default=BY_SIZE)
    ] = None,
    sigma: Annotated[float | None, typer.Option(help="Noise scale of the estimate.", show_default=BY_SIZE)] = None,
    rho: Annotated[float | None, typer.Option(help="A step of scale 1 has norm ρ√(d/N).", show_default=BY_SIZE)] = None,
    scales: Annotated[
        str | None, typer.Option(metavar="C,…", help="Lengths of the steps, in units of that.", show_default=BY_SIZE)
    ] = None,
    directions: Annotated[
        int | None, typer.Option(help="Random directions beside the estimate.", show_default=BY_SIZE)
    ] = None,
    recipe: SettingSource = None,
    task: OneTask = None,
    data: Data = None,
    split: SplitName = "test",
    n: Annotated[int, typer.Option("-n", help="The first so many problems.")] = 256,
    step: Step = None,
    engine: EngineKind = None,
    run: BaseRun = None,
    sets: Sets = None,
    as_json: AsJson = False,
) -> None:
    """How fast the score falls around the weights: under noise, against an ES estimate, at random. Forward passes only.

    Settings without a default here go by the number of weights alone, so that comparable models are measured alike.
    """
    from esctl.cli import texts
    from esctl.cli.progress import EvaluationDisplay
    from esctl.evaluation.sharpness_run import SharpnessOptions, measure_sharpness, numbers
    from esctl.evaluation.target import TargetRequest

    grids = numbers("--sigmas", sigmas), numbers("--scales", scales)
    options = SharpnessOptions(split, n, grids[0], seeds, members, sigma, rho, grids[1], directions)
    setting = _setting(recipe, data, engine) | ({} if task is None else {"task.name": task})
    kept = "measured candidates are kept: the same command goes on"
    with interruptible(kept), EvaluationDisplay(progress()) as display:
        found = measure_sharpness(TargetRequest(target, setting, sets or [], run, step), options, display)
    text = texts.sharpness_json(found.record) if as_json else texts.sharpness_text(found.record, found.dim)
    out(text if as_json else f"{text}\n\nstored in {found.folder}")


def _setting(recipe: str | None, data: str | None, engine: str | None) -> "dict[str, Plain]":
    from esctl.evaluation.target import sections

    return {**sections(recipe), **given({"task.data": data, "engine.kind": engine})}


def _evaluate(
    request: "TargetRequest", task: str | None, split: str, n: int | None, wanted: "Sequence[Decoding] | None" = None
) -> "list[StoredEvaluation]":
    from esctl.cli.progress import EvaluationDisplay
    from esctl.evaluation.evaluate import evaluate
    from esctl.evaluation.sampling import GREEDY

    tasks = task.split(",") if task else []
    kept = "finished chunks are kept: the same command goes on"
    with interruptible(kept), EvaluationDisplay(progress()) as display:
        return evaluate(request, tasks, split, n, wanted or [GREEDY], display)


@app.command(rich_help_panel=MEASURE, epilog="Example: esctl memory --model embedded --dtype float32")
def memory(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN", help="Runs whose measured peaks to show.", show_default="none: by formula"),
    ] = None,
    model: Annotated[str, typer.Option(help="embedded, a folder, or a hub id; only its config is read.")] = "embedded",
    methods: Annotated[str, typer.Option(help="By commas, of es, essam, essam-f, grpo, ppo.")] = "es,essam,grpo,ppo",
    dtype: Annotated[
        str, typer.Option(help="Of served weights and activations: bfloat16, float16 or float32.")
    ] = "bfloat16",
    seq: Annotated[int, typer.Option(help="Tokens of prompt and completion.")] = 1024,
    batch: Annotated[int, typer.Option(help="Sequences in a micro-batch.")] = 8,
    rollouts: Annotated[int, typer.Option(help="Sequences in the KV cache, which is listed apart.")] = 64,
    checkpointing: Annotated[bool, typer.Option("--checkpointing", metavar="", help="Gradient checkpointing.")] = False,
    reference: Annotated[
        bool, typer.Option(metavar="", help="A frozen reference for the KL term of GRPO and PPO.")
    ] = True,
    center: Annotated[str, typer.Option(help="Place of the fp32 center: host, or device, next to the model.")] = "host",
    copy: Annotated[bool, typer.Option(metavar="", help="A copy of the policy for rollouts of GRPO and PPO.")] = True,
    as_json: AsJson = False,
) -> None:
    """What each method holds in memory, by formula from a model's config; or measured runs next to it."""
    from esctl.cli import estimates
    from esctl.experiment.estimates import memory
    from esctl.experiment.estimates.memory import DTYPES as SHORT
    from esctl.experiment.estimates.memory import Setting

    if runs:
        rows = memory.measured(runs)
        out(estimates.runs_json(rows) if as_json else estimates.runs_table(rows))
        return
    setting = Setting(SHORT[read_dtype(dtype)], seq, batch, checkpointing, rollouts, reference, copy, center=center)
    arch, prints = memory.analytic(model, methods.split(","), setting)
    writer = estimates.memory_json if as_json else estimates.memory_table
    out(writer(arch, setting, prints))


@app.command(rich_help_panel=MEASURE, epilog="Example: esctl precision --sigma 0.001 --dtype bfloat16")
def precision(
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="A recipe file, or a shipped one.", show_default=False)
    ] = None,
    model: Model = None,
    method: Annotated[str | None, typer.Option(help="es, essam or essam-f.", show_default="the recipe's, es")] = None,
    sigma: Annotated[float | None, typer.Option(help="Noise scale.", show_default="the recipe's")] = None,
    alpha: Annotated[float | None, typer.Option(help="Step.", show_default="the recipe's")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="bfloat16, float16 or float32.", show_default="the recipe's; bfloat16 for auto")
    ] = None,
    sets: Sets = None,
    as_json: AsJson = False,
) -> None:
    """How much of a candidate and of a step the serving dtype realises, by class of tensor; reads the weights only."""
    from esctl.cli import estimates
    from esctl.experiment.estimates.precision import realised
    from esctl.experiment.loading import load_recipe

    served = read_dtype(dtype) if dtype else None
    kind = method or (None if recipe else "es")
    flags: dict[str, Plain | None] = {
        "model": model, "method.kind": kind, "method.sigma": sigma, "method.alpha": alpha, "engine.dtype": served,
    }  # fmt: skip
    wanted = load_recipe(recipe, given(flags), sets or [])
    found = realised(wanted, "bfloat16" if wanted.engine.dtype == "auto" else wanted.engine.dtype)
    out(estimates.precision_json(found) if as_json else estimates.precision_text(found))


@app.command(rich_help_panel=READ, epilog="Next: esctl eval RUN, then esctl compare")
def adopt(
    model: Annotated[str, typer.Argument(metavar="MODEL_DIR", help="A model folder.", show_default=False)],
    label: Annotated[str, typer.Option(help="The row's name in tables.")],
    base: Annotated[str, typer.Option(help="The model that it was trained from.")],
    run: Annotated[Path, typer.Option(help="The run directory to make.")],
    cost: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="rollouts=N, always; tokens, seconds, … where known.")
    ] = None,
    note: Annotated[str, typer.Option("--method-note", help="How it was trained, in words.")] = "",
    copy: Annotated[
        bool, typer.Option("--copy", metavar="", help="Copy the folder in place of linking to it.")
    ] = False,
    recipe: SettingSource = None,
    task: Annotated[
        str | None,
        typer.Option(help="The task it was trained on.", show_default="gsm8k, or arithmetic if the base is embedded"),
    ] = None,
    data: Data = None,
    seed: Annotated[int, typer.Option(help="Seed of its training; a row is all seeds of a label.")] = 0,
    sets: Sets = None,
) -> None:
    """A model trained elsewhere joins the table: a run directory to be evaluated and compared."""
    from esctl.evaluation.adopt import Adoption, parse_costs, settings_of
    from esctl.evaluation.adopt import adopt as adopt_model
    from esctl.evaluation.target import sections
    from esctl.runs.directory import RunDir

    flags: dict[str, Plain | None] = {"task.name": task, "task.data": data, "seed": seed}
    setting = sections(recipe or settings_of(base, task)) | given(flags)
    adoption = Adoption(model, label, base, parse_costs(cost or []), note, copy)
    adopt_model(adoption, setting, sets or [], RunDir(run))
    out(f"{run}: {label} joins as a run; evaluate it with `esctl eval {run}`")
