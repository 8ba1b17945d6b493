"""The command line: flags, help, printing, exit codes. The only room that prints or exits.

app        the app, shared options;  output: the one place that prints;  progress: the live line of a run
train      train, sweep, reproduce;  evaluate: eval, passk, sharpness, memory, precision, adopt
inspect    compare, show, export, recipes, doctor;  models: chat models from a package index
estimates  the text of a dry run, of memory and of precision;  texts: of measurements
show, doctor   what these commands print

Every slow import is inside its command, so that help is instant and `compare` needs no torch. May import every room.
"""

import errno
import os
import sys
from typing import Annotated

import typer
from typer.core import TyperGroup

from esctl import __version__, interrupts
from esctl.cli import train  # noqa: F401  each adds its commands; the help has this order

from esctl.cli import evaluate  # isort: skip  # noqa: F401
from esctl.cli import inspect  # isort: skip  # noqa: F401
from esctl.cli import models  # isort: skip  # noqa: F401
from esctl.cli.app import app, interruptible
from esctl.cli.output import complain, out, prepare_streams, reader_left
from esctl.errors import EsctlError, Interrupted


def main() -> None:
    """Run the command line; a known failure is one line and an exit code, never a traceback."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is imported
    prepare_streams()
    with interrupts.listening():
        code = _exit_code()
        if code == Interrupted.exit_code:
            interrupts.ignore_more()
    sys.exit(code)


def _exit_code() -> int | None:
    try:
        with interruptible():
            return app(standalone_mode=False)  # type: ignore[no-any-return]
    except typer.TyperException as error:  # an unknown flag or a wrong value; no text where help was printed instead
        if error.format_message():
            complain(f"{error.format_message().rstrip('.')}; `{_help()}` lists what there is")
        return error.exit_code
    except EsctlError as error:
        complain(str(error))
        return error.exit_code
    except BrokenPipeError:
        reader_left()
        return 1
    except OSError as error:
        if error.filename is not None:
            complain(f"{error.filename}: {error.strerror}; check the path, its permissions and the disk")
        elif error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):  # help that could not be printed, for one
            reader_left()
            complain(f"an output cannot be written ({error.strerror}); free space, or print elsewhere")
        else:
            raise  # not about a file that was named, so not a known failure
        return 1


def _help() -> str:
    """The help of the command that was asked for, as one would type it."""
    group = typer.main.get_command(app)
    named = [word for word in sys.argv[1:2] if isinstance(group, TyperGroup) and word in group.commands]
    return " ".join(["esctl", *named, "--help"])


def _show_version(wanted: bool) -> None:
    if wanted:
        out(f"esctl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", metavar="", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass
