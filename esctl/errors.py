"""What can go wrong for a user, as one line each: what is wrong, where, and what to do next.

Only `cli` prints these and turns them into exit codes: 2 for a mistake of the user, 1 for a failure on
the way, 130 after an interrupt.
"""

import difflib
from collections.abc import Iterable
from pathlib import Path

GO_ON = "nothing recorded is lost, and --resume goes on"  # the next step after a failure on the way


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown word: `, did you mean X?`, or nothing where no known word is close."""
    close = difflib.get_close_matches(word, [*known], n=1)
    return f", did you mean {close[0]}?" if close else ""


def unwritable(path: Path, error: OSError) -> str:
    """What to say of a file or folder that a full or read-only disk refused."""
    return f"{path}: cannot be written ({error.strerror}); make room or give write access, then go on where it stopped"


class EsctlError(Exception):
    """A known failure; its text is the whole message a user sees. Exit code 1."""

    exit_code = 1


class Interrupted(EsctlError):  # noqa: N818
    """A signal ended the command; the text says how to go on. Exit code 130, as shells have it for Ctrl-C."""

    exit_code = 130


class UsageError(EsctlError):
    """A flag, a recipe or a path that cannot be used. Exit code 2."""

    exit_code = 2


class RecipeError(UsageError):
    """One or more mistakes in a recipe, all reported together, one line each."""

    def __init__(self, mistakes: list[str]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(mistakes))


class TaskError(UsageError):
    """A task's data is missing, empty, malformed or leaks between splits."""


class EngineError(EsctlError):
    """A model cannot be loaded or served by the engine of the recipe."""


class RunError(EsctlError):
    """A run directory is missing, used, locked, damaged, or does not fit the command."""


class GradingError(EsctlError):
    """Grading failed for more samples than the recipe allows, so the scores would not be a search direction."""
