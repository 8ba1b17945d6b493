"""Reward functions as a user would write them, some of them wrong; run by worker processes only."""

import os
import stat
import time
from contextlib import suppress

from esctl.tasks import Grade, Problem


def short(problem: Problem, completion: str, grade: Grade) -> float:
    """1 for the right answer, less 0.01 a character."""
    print("a user's print must not disturb the grader")
    return float(grade.strict) - 0.01 * len(completion) + float(dict(problem.data).get("bonus", 0))


def hang_on_request(problem: Problem, completion: str, grade: Grade) -> float:
    """Hangs, dies, raises or answers, as the completion says."""
    if "hang" in completion:
        while True:
            time.sleep(1)
    if "die" in completion:
        os._exit(3)
    if "raise" in completion:
        raise KeyError(completion)
    return float("nan") if "nan" in completion else float(grade.flexible)


def spin(text: str) -> str:
    """Hangs inside one call that never lets go of the interpreter."""
    if text == "spin":
        return str(9**9**9)
    return text


def started_from(text: str) -> int:
    """The process that answers."""
    return os.getpid()


def starts_a_child(text: str) -> int:
    """Starts a process of its own and hangs."""
    import subprocess

    if text.startswith("/"):
        child = subprocess.Popen(["sleep", "1000"])
        with open(text, "w") as file:
            file.write(str(child.pid))
        child.wait()
    return 0


def write_to_pipes(problem: Problem, completion: str, grade: Grade) -> float:
    """Writes the completion into every pipe above the standard ones, as a careless library would."""
    if "is 3" not in completion:
        for descriptor in range(3, 10):
            with suppress(OSError):
                if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                    os.write(descriptor, completion.encode())
    return float(grade.flexible)
