"""The one place that prints: results to standard output, errors and progress to standard error, all of it plain text.

What a run or a model says may hold escape codes; none passes here. Every stream may be closed, full or without Unicode.
"""

import errno
import io
import os
import sys

from rich.console import Console

from esctl.errors import EsctlError
from esctl.plain import one_line, plain


def out(text: str) -> None:
    """Print a result."""
    try:
        print(plain(text), flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        _drop_output()
        raise EsctlError(
            f"standard output: cannot be written ({error.strerror}); free space, or print elsewhere"
        ) from None


def complain(message: str) -> None:
    """Print an error, one line for each mistake."""
    lines = [f"esctl: {one_line(line)}" for line in message.split("\n")]
    try:
        print("\n".join(lines), file=sys.stderr, flush=True)
    except OSError:  # a terminal that is gone, or a full disk: the exit code remains
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def progress() -> Console:
    """Where progress goes: standard error; plain when piped."""
    return Console(stderr=True, soft_wrap=True)


def note(console: Console, text: str, style: str | None = None) -> None:
    """Print a line of progress as it is: no markup, no escape codes."""
    try:
        console.print(one_line(text), style=style, markup=False, highlight=False, soft_wrap=True)
    except OSError as error:
        if error.errno not in (errno.EIO, errno.ENOSPC, errno.EPIPE):
            raise  # a terminal that is gone, or a full disk, ends no training


def reader_left() -> None:
    """Let nothing be written at exit to a pipe that nobody reads."""
    _drop_output()


def prepare_streams() -> None:
    """Open the null device for a closed stream, and print ? for what a terminal cannot show.

    The next file that is opened would take the number of a closed stream, and receive what libraries print there.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _drop_output() -> None:
    """Send what is still buffered for standard output to the null device: its flush at exit would fail again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
