"""What all commands share: the app, common options, and the two ways to print."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

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
