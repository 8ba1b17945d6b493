"""A grader's process: reads one JSON line per answer, calls one function, writes one JSON line.

Started by `pool` as `python -m esctl.tasks.grading.worker KIND FUNCTION SECONDS GIB`; knows no limit but its own last
resort.
"""

import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import TextIO, TypeAlias, cast

from esctl.tasks import Grade, Problem

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Call = Callable[[list[Json]], Json]


def main(kind: str, name: str, seconds: float, gib: float) -> None:
    """Answer requests until the other side closes; exceptions of the function are answers too."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the function prints must not mix with the answers
    if gib:
        resource.setrlimit(resource.RLIMIT_AS, (int(gib * 2**30),) * 2)
    try:
        call = KINDS[kind](find(name))
    except Exception as error:  # whatever a user's module raises when it is imported is told to the user
        _say(answers, {"error": f"{type(error).__name__}: {error}"})
        return
    _say(answers, {"ready": True})
    for line in sys.stdin:
        # The default action of SIGALRM ends a hung process even when its parent is gone and nothing else would.
        signal.setitimer(signal.ITIMER_REAL, 3 * seconds + 1)
        _say(answers, _answer(call, line))
        signal.setitimer(signal.ITIMER_REAL, 0)


def find(name: str) -> Callable[..., Json]:
    """Import `package.module:name`; raises ImportError or ValueError, saying what to write."""
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise ValueError(f"{name!r} is not package.module:name")
    found: Callable[..., Json] | None = vars(importlib.import_module(module)).get(attribute)
    if not callable(found):
        raise ImportError(f"module {module} has no function {attribute}")
    return found


def _answer(call: Call, line: str) -> dict[str, Json]:
    try:
        return {"value": call(json.loads(line))}
    except Exception as error:  # a grader may raise anything; its name is what is counted
        return {"raised": type(error).__name__}


def _say(answers: TextIO, message: dict[str, Json]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _plain(function: Callable[..., Json]) -> Call:
    return lambda arguments: function(*arguments)


def _reward(function: Callable[..., Json]) -> Call:
    """`function(problem, completion, grade) -> float`, from the fields of the two dataclasses."""

    def call(arguments: list[Json]) -> Json:
        told, completion, grade = cast("tuple[dict[str, str], str, dict[str, bool]]", arguments)
        data = cast("list[tuple[str, str]]", told.pop("data"))
        problem = Problem(**told, data=tuple((key, value) for key, value in data))
        return float(function(problem, completion, Grade(**grade)))  # type: ignore[arg-type]  # the fields' own types

    return call


KINDS = {"plain": _plain, "reward": _reward}

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
