"""The command line in this process: no second start of Python, and imports that cost seconds are shared."""

import shlex
import sys

from esctl.cli import main


def esctl(line: str) -> int:
    """Run `esctl` with these arguments; its exit code."""
    before, sys.argv = sys.argv, ["esctl", *shlex.split(line)]
    try:
        main()
    except SystemExit as done:
        return int(done.code or 0)
    finally:
        sys.argv = before
    return 0
