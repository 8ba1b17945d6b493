"""The command line: flags, help, printing, exit codes. The only package that prints or exits.

One module per kind of command. Every import that costs time stands inside its command, so that help is instant and
`compare` needs no torch.
"""

import os
import sys
from typing import Annotated

import typer

from esctl import __version__
from esctl.cli import making, measuring, reading  # noqa: F401  each adds its commands; the help has this order
from esctl.cli.app import app, out
from esctl.errors import EsctlError


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
    except OSError as error:
        if error.filename is None:  # not about a file that was named, so not a known failure
            raise
        print(
            f"esctl: {error.filename}: {error.strerror}; check the path, its permissions and the disk", file=sys.stderr
        )
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
