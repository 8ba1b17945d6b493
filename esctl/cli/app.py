"""What all commands share: the app, the options of several commands, lists of numbers, and how one is interrupted."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from esctl import interrupts
from esctl.errors import Interrupted, UsageError
from esctl.evaluation.sampling import DEFAULT_TEMPERATURE

if TYPE_CHECKING:
    from esctl.experiment.recipe import Plain

AGAIN = "the same command starts again"  # how to go on where nothing is kept


@contextmanager
def interruptible(go_on: str | Callable[[], str] = AGAIN) -> Iterator[None]:
    """End by one line and exit code 130 when a signal arrives inside; `go_on` says what to do next."""
    try:
        yield
    except Exception as error:
        # What fails after the signal fails because of it: workers that got it too, or a library that gave up.
        if not interrupts.requested() or isinstance(error, Interrupted | typer.Exit):
            raise
    except KeyboardInterrupt:
        pass
    else:
        return
    interrupts.taken()
    raise Interrupted(f"interrupted; {go_on if isinstance(go_on, str) else go_on()}") from None


class Group(TyperGroup):
    """All commands: each can be interrupted, also those that say nothing of it."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401  typer's own types, which are private
        """Run the command."""
        with interruptible():
            return super().invoke(ctx)


app = typer.Typer(
    name="esctl",
    cls=Group,
    help="Post-train language models with Evolution Strategies, and compare the result honestly.",
    epilog="Start with: esctl train --method essam, then esctl show runs, then esctl compare runs",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# The panels of the help, in the order of a user's work.
TRAIN = "Train"
MEASURE = "Measure"
READ = "Read and share results"
SETUP = "Models, recipes and this machine"

Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any key of the recipe; repeatable."),
]
RecipeSource = Annotated[str | None, typer.Option(help="A recipe file, or the name of a shipped one.")]
SettingSource = Annotated[
    str | None,
    typer.Option("--recipe", help="Take task, prompt and sampling from this recipe.", show_default="the run's own"),
]
Model = Annotated[
    str | None,
    typer.Option(help="embedded, a folder, a hub id, or a run directory.", show_default="the recipe's; embedded"),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)]
TargetArgument = Annotated[
    str, typer.Argument(metavar="RUN|MODEL", help="A run directory or a model.", show_default=False)
]
_OWN_TASK = "the run's own; else gsm8k, or arithmetic for embedded"
Tasks = Annotated[str | None, typer.Option(help="One or more, separated by commas.", show_default=_OWN_TASK)]
OneTask = Annotated[str | None, typer.Option(help="The task.", show_default=_OWN_TASK)]
Data = Annotated[str | None, typer.Option(help="Local files in place of the hub.", show_default="the recipe's")]
SplitName = Annotated[str, typer.Option(help="The split.")]
FirstProblems = Annotated[int | None, typer.Option("-n", help="Only the first N problems.", show_default="all")]
Step = Annotated[
    int | None, typer.Option(help="A generation of the run, rebuilt from its scores.", show_default="the one kept")
]
EngineKind = Annotated[str | None, typer.Option(help="auto, vllm or transformers.", show_default="the recipe's; auto")]
BaseRun = Annotated[
    Path | None, typer.Option(help="Folder for the results of a plain model.", show_default="runs/base-<model>")
]
AsJson = Annotated[bool, typer.Option("--json", metavar="", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", metavar="", help="Print what would run and its cost; run nothing.")]
Jobs = Annotated[int, typer.Option(min=1, help="Runs side by side, on equal shares of the cores.")]


def given(flags: "dict[str, Plain | None]") -> "dict[str, Plain]":
    """The recipe keys of flags that were given."""
    return {key: value for key, value in flags.items() if value is not None}


def read_ks(text: str) -> list[int]:
    """`1,8,64`, in order and once each."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and int(part) > 0 for part in parts):
        raise UsageError(f"--k {text}: write numbers of samples, 1 or more, such as --k 1,8,64")
    return sorted({int(part) for part in parts})


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


DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def read_dtype(name: str) -> str:
    """A dtype by torch's name, as recipes have it; the short names are understood too."""
    if name not in (*DTYPES, *DTYPES.values()):
        raise UsageError(f"--dtype {name}: choose {', '.join(DTYPES.values())}")
    return DTYPES.get(name, name)
