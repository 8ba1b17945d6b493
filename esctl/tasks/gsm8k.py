"""GSM8K (Cobbe et al. 2021, arXiv 2110.14168): grade-school word problems whose solutions end in `#### n`."""

import re
from collections.abc import Sequence
from pathlib import Path

from esctl.errors import TaskError
from esctl.tasks import TEST, TRAIN, Grade, Problem
from esctl.tasks.data import Fields, Published, Row, Source
from esctl.tasks.grading.answers import grade_number, strict_number
from esctl.tasks.prompts import GSM8K_PROMPT

HUB = "openai/gsm8k"
CALCULATION = re.compile(r"<<[^<>]*>>")  # the annotators' calculator; models are not asked to write it


class GSM8KTask:
    """Test is published whole, 1,319 problems; validation is carved from the 7,473 of train."""

    name = "gsm8k"
    version = 1
    system = GSM8K_PROMPT

    def __init__(self, data: Path | None = None) -> None:
        self._data = data
        self.splits, self.trainable = GSM8K.splits, GSM8K.trainable

    def problems(self, split: str) -> tuple[Problem, ...]:
        """All problems of a split; raises TaskError where data is missing, empty, or leaks from train to test."""
        return GSM8K.problems(split, self._data)

    def grade(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade]:
        """Strict by the last `#### n`, flexible by the last number."""
        return [grade_number(p.answer, t) for p, t in zip(problems, texts, strict=True)]


def _problem(name: str, row: Row) -> Problem:
    gold = strict_number(row["answer"])
    if gold is None:
        raise TaskError(f"task.data: {name}: no '#### number' in its answer {row['answer'][-40:]!r}")
    steps = row["answer"].rpartition("####")[0].count("\n")
    solution = CALCULATION.sub("", row["answer"])
    return Problem(name, row["question"], gold, f"{min(steps, 6)} steps", solution)


GSM8K = Published(
    name="gsm8k",
    fields=Fields({"question": ("question",), "answer": ("answer",)}, {}),
    problem=_problem,
    train=Source(HUB, TRAIN, ("gsm8k_train", "train"), "main"),
    test=Source(HUB, TEST, ("gsm8k_test", "test"), "main"),
)
