"""What all commands share: the app, common options, and the two ways to print.

pass@k: what `esctl passk` may be asked for, and what stored evaluations answer, as a table or JSON.

Leaves drawing samples to `evaluate`, and coverage to `coverage`. No torch.
"""

import math
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from esctl.errors import UsageError
from esctl.evaluation.sampling import DEFAULT_TEMPERATURE

app = typer.Typer(
    name="esctl",
    help="Post-train language models with Evolution Strategies, and compare the result honestly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any recipe key; may be repeated.")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)]
# What every command that looks at one set of weights is asked with.
TargetArgument = Annotated[
    str, typer.Argument(metavar="RUN|MODEL", help="A run directory or a model.", show_default=False)
]
_OWN_TASK = "the run's own; else gsm8k, or arithmetic for embedded"
Tasks = Annotated[str | None, typer.Option(help="One or more, by commas.", show_default=_OWN_TASK)]
OneTask = Annotated[str | None, typer.Option(help="The task.", show_default=_OWN_TASK)]
Data = Annotated[str | None, typer.Option(help="Local files in place of the hub.")]
SplitName = Annotated[str, typer.Option(help="The split.")]
FirstProblems = Annotated[int | None, typer.Option("-n", help="Only the first so many problems.")]
Step = Annotated[
    int | None, typer.Option(help="A generation of the run, from its scores.", show_default="the one kept")
]
EngineKind = Annotated[str | None, typer.Option(help="auto, vllm or transformers.")]
BaseRun = Annotated[Path | None, typer.Option(help="Where a plain model's results go.", show_default="runs/base-…")]


def out(text: str) -> None:
    """A result, on standard output."""
    print(text, flush=True)


def progress() -> Console:
    """Where progress goes: standard error; plain when piped."""
    return Console(stderr=True, soft_wrap=True)


def read_ks(text: str) -> list[int]:
    """`1,8,64`, in order and once each."""
    try:
        ks = sorted({int(k) for k in text.split(",")})
    except ValueError:
        ks = [0]
    if ks[0] < 1:
        raise UsageError(f"--k {text}: write numbers of samples, 1 or more, such as --k 1,8,64")
    return ks


def read_temperatures(text: str | None, noise: float | None) -> list[float]:
    """`0.6,1.0`; by default 0.6, and under weight noise 0: greedy."""
    if text is None:
        return [DEFAULT_TEMPERATURE if noise is None else 0.0]
    try:
        found = sorted({float(t) for t in text.split(",")})
    except ValueError:
        found = [-1.0]
    if not all(t >= 0 and math.isfinite(t) for t in found):
        raise UsageError(f"--temperature {text}: write numbers of 0 or more, such as --temperature 0.6,1.0")
    return found
