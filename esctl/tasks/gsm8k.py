"""GSM8K (Cobbe et al. 2021): grade-school word problems whose solutions end in `#### n`."""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from esctl.errors import TaskError
from esctl.tasks import TEST, TRAIN, VALIDATION, Grade, Problem
from esctl.tasks.answers import grade_number, strict_number
from esctl.tasks.data import Row, load_rows
from esctl.tasks.prompts import GSM8K_PROMPT

HUB = ("openai/gsm8k", "main")
VALIDATION_PERCENT = 7  # of the published train split, by a hash of the question: 512 of 7,473 or so


class GSM8KTask:
    """The published test split whole; validation is carved from train, where none is published."""

    name = "gsm8k"
    version = 1
    splits: tuple[str, ...] = (TRAIN, VALIDATION, TEST)
    trainable: tuple[str, ...] = (TRAIN,)
    system = GSM8K_PROMPT

    def __init__(self, data: Path | None = None) -> None:
        self.data = data

    def problems(self, split: str) -> tuple[Problem, ...]:
        """All problems of a split; raises TaskError where data is missing, empty, or leaks from train to test."""
        if split not in self.splits:
            raise TaskError(f"task.split: {self.name} has no split {split}; choose {', '.join(self.splits)}")
        return self._splits[split]

    @cached_property
    def _splits(self) -> dict[str, tuple[Problem, ...]]:
        train, test = self._read(TRAIN), self._read(TEST)
        shared = {p.question for p in train} & {p.question for p in test}
        if shared:
            raise TaskError(f"task.data: train and test share {len(shared)} problems, such as {min(shared)[:60]!r}")
        held = tuple(p for p in train if _percent(p.question) < VALIDATION_PERCENT)
        return {TRAIN: tuple(p for p in train if p not in set(held)), VALIDATION: held, TEST: test}

    def _read(self, split: str) -> tuple[Problem, ...]:
        rows = load_rows(HUB, self.data, self.name, split, ("question", "answer"))
        return tuple(_problem(f"{split}-{i}", row) for i, row in enumerate(rows))

    def grade(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade]:
        """Strict by the last `#### n`, flexible by the last number."""
        return [grade_number(p.answer, t) for p, t in zip(problems, texts, strict=True)]


def _problem(name: str, row: Row) -> Problem:
    gold = strict_number(row["answer"])
    if gold is None:
        raise TaskError(f"task.data: {name}: no '#### number' in its answer {row['answer'][-40:]!r}")
    steps = row["answer"].rpartition("####")[0].count("\n")
    return Problem(name, row["question"], gold, f"{min(steps, 6)} steps", row["answer"])


def _percent(question: str) -> int:
    return int.from_bytes(hashlib.blake2b(question.encode(), digest_size=8).digest(), "little") % 100
