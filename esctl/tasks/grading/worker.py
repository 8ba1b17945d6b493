"""The program of a grading worker: reads one JSON line per call, calls one function, writes one JSON line.

`pool` starts it as `python -m esctl.tasks.grading.worker KIND FUNCTION SECONDS GIB` and holds it to the time limit.
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
    """Answer requests until standard input ends; an exception of the function is an answer too."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the function prints must not mix with the answers
    if gib:
        resource.setrlimit(resource.RLIMIT_AS, (int(gib * 2**30),) * 2)
    try:
        call = KINDS[kind](find(name))
    except Exception as error:  # a user's module may raise anything when it is imported
        _say(answers, {"error": f"{type(error).__name__}: {error}"})
        return
    _say(answers, {"ready": True})
    for line in sys.stdin:
        # Last resort: SIGALRM ends a hung process whose parent died and can no longer kill it.
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
        fields, completion, grade = cast("tuple[dict[str, str], str, dict[str, bool]]", arguments)
        data = cast("list[tuple[str, str]]", fields.pop("data"))
        problem = Problem(**fields, data=tuple((key, value) for key, value in data))
        return float(function(problem, completion, Grade(**grade)))  # type: ignore[arg-type]  # the fields' own types

    return call


KINDS = {"plain": _plain, "reward": _reward}

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
