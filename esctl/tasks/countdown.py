"""Countdown (Gandhi et al. 2024, arXiv 2404.03683): reach a target from three or four numbers, each used once.

The data set of the published runs has one split; a hash of the numbers and the target divides it here.
"""

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from esctl.errors import TaskError
from esctl.tasks import TEST, TRAIN, VALIDATION, Grade, Problem
from esctl.tasks.data import Fields, Row, Source, find_file, load_rows, percentile, refuse_shared, refuse_unknown
from esctl.tasks.grading.answers import READ, countdown_value

FIELDS = Fields({"numbers": ("nums", "numbers"), "target": ("target",)}, {})
# Rows of the hub's 490,364 that are read, the bounds of the splits in percent, and the most problems of each.
ROWS = 40_000
BOUNDS = {TRAIN: (0, 92), VALIDATION: (92, 94), TEST: (94, 100)}
MOST = {TRAIN: 32_768, VALIDATION: 512, TEST: 2_048}
WHOLE = Source("Jiayi-Pan/Countdown-Tasks-3to4", f"train[:{ROWS}]", ("countdown",))
PROMPT = (
    "Combine the numbers with +, -, *, / and brackets so that the expression has the target as its value. Use every"
    " number exactly once. Think step by step, then write the expression alone between <answer> and </answer>."
)
TAGGED = re.compile(r"<answer>([^<]{0,400})</answer>")
WRITTEN = re.compile(r"[-+*/() 0-9×÷−]{3,200}")


class CountdownTask:
    """Strict by the last <answer>…</answer>, flexible by the last expression; a trailing "= target" is ignored."""

    name = "countdown"
    version = 1
    splits: tuple[str, ...] = (TRAIN, VALIDATION, TEST)
    trainable: tuple[str, ...] = (TRAIN,)
    system = PROMPT

    def __init__(self, data: Path | None = None) -> None:
        self._data = data

    def problems(self, split: str) -> tuple[Problem, ...]:
        """All problems of a split: from its own local file if there is one, else its share of the whole set."""
        refuse_unknown(self.name, split, self.splits)
        own = self._own(split)
        if own is not None:
            if split == TRAIN and (test := self._own(TEST)) is not None:
                refuse_shared(own, test)
            return own
        first, end = BOUNDS[split]
        made = _read(WHOLE, self._data)
        share = tuple(islice((p for p in made if first <= percentile(p) < end), MOST[split]))
        if not share:
            raise TaskError(f"task.data: {self._data or WHOLE.hub}: too few rows for a {split} split; give more")
        return share

    def grade(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade]:
        """By the exact value of the expression, which is parsed and never run."""
        return [_grade(p, t) for p, t in zip(problems, texts, strict=True)]

    def _own(self, split: str) -> tuple[Problem, ...] | None:
        names = (f"countdown_{split}", split)
        if self._data is None or find_file(self._data, names) is None:
            return None
        return _read(Source(WHOLE.hub, split, names), self._data)


def _read(source: Source, data: Path | None) -> tuple[Problem, ...]:
    """Problems in file order, each once: the same numbers and target may stand in many rows."""
    made = [_problem(row) for row in load_rows(source, data, FIELDS)]
    return tuple({p.id: p for p in made}.values())


def _problem(row: Row) -> Problem:
    numbers = sorted(int(n) for n in re.findall(r"[0-9]+", row["numbers"]))
    question = f"Numbers: {', '.join(map(str, numbers))}. Target: {row['target']}."
    data = (("numbers", " ".join(map(str, numbers))), ("target", row["target"]))
    name = f"{'-'.join(map(str, numbers))}-to-{row['target']}"
    return Problem(name, question, row["target"], f"{len(numbers)} numbers", data=data)


def _grade(problem: Problem, text: str) -> Grade:
    tagged = TAGGED.findall(text[-READ:])
    answer = tagged[-1] if tagged else last_expression(text)
    if answer is None:
        return Grade(strict=False, flexible=False, formatted=False, answer=None)
    right = _reaches(problem, answer)
    without_spaces = "".join(answer.split())  # so that votes count expressions
    return Grade(strict=right and bool(tagged), flexible=right, formatted=bool(tagged), answer=without_spaces)


def last_expression(text: str) -> str | None:
    """The last stretch of text that combines numbers by an operator, or None."""
    found = (e.strip() for e in reversed(WRITTEN.findall(text[-READ:])))
    return next((e for e in found if re.search(r"[0-9)]\s*[-+*/×÷−]\s*[(0-9]", e)), None)


def _reaches(problem: Problem, answer: str) -> bool:
    data = dict(problem.data)
    expression, _, _ = answer.partition("=")
    value = countdown_value(expression, [int(n) for n in data["numbers"].split()])
    return value is not None and value == int(data["target"])
