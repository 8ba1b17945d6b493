"""Any data of one's own: a file, a folder or a hub data set with a question and an answer column."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from esctl.errors import TaskError, UsageError
from esctl.tasks import TEST, TRAIN, VALIDATION, Columns, Grade, Limits, Problem
from esctl.tasks.data import (
    Fields,
    Row,
    find_file,
    from_file,
    from_hub,
    hub_splits,
    is_held_out,
    percentile,
    pick,
    refuse_shared,
    refuse_unknown,
)
from esctl.tasks.grading.answers import MARK, READ, grade_number, number, strict_number
from esctl.tasks.grading.boxes import BoxGrader
from esctl.tasks.prompts import GSM8K_PROMPT, MATH_PROMPT, TEXT_PROMPT

ALL = "all"  # a single file whole, to be evaluated on and never trained on
TEST_FROM = 90  # a single file: percentiles from here on are test, below it train and validation
SYSTEM = {"number": GSM8K_PROMPT, "boxed": MATH_PROMPT, "text": TEXT_PROMPT}
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Part:
    """The rows of one split as they lie: a local file, or a split of a hub data set."""

    data: str
    split: str
    path: Path | None = None

    def read(self, fields: Fields) -> list[Row]:
        """Its rows; raises TaskError where they are missing or malformed."""
        if self.path is not None:
            return pick(from_file(self.path), fields, str(self.path))
        return pick(from_hub(self.data, None, self.split), fields, f"{self.data} {self.split}")


class FileTask:
    """Questions and answers from columns that the recipe names, graded by `task.grader`.

    A folder (or hub data set) has the splits that it has files for, and validation is carved from train where it has
    none. A single file is divided by a hash of the question, some 84/6/10 %; its split `all` is the whole.
    """

    name = "file"
    version = 1

    def __init__(self, data: str, columns: Columns, limits: Limits | None = None) -> None:
        self._data, self._fields, self._grader = data, _fields(columns), columns.grader or "number"
        if self._grader not in SYSTEM:
            raise UsageError(f"task.grader: no grader {self._grader}; choose {', '.join(SYSTEM)}")
        self.system = SYSTEM[self._grader]
        self._parts = find_parts(data)
        carved = (VALIDATION,) if TRAIN in self._parts else (TRAIN, VALIDATION, TEST) if ALL in self._parts else ()
        self.splits: tuple[str, ...] = tuple(dict.fromkeys((*self._parts, *carved)))
        self.trainable: tuple[str, ...] = (TRAIN,) if TRAIN in self.splits else ()
        self._boxes = BoxGrader(limits or Limits())

    def problems(self, split: str) -> tuple[Problem, ...]:
        """All problems of a split; raises TaskError where data is missing, empty, or leaks from train to test."""
        refuse_unknown(f"{self.name} {self._data}", split, self.splits)
        whole = self._read(split if split in self._parts else TRAIN if TRAIN in self._parts else ALL)
        if split == TRAIN and TEST in self._parts:
            refuse_shared(whole, self._read(TEST))
        if split == TRAIN and VALIDATION in self._parts:
            refuse_shared(whole, self._read(VALIDATION))
        chosen = tuple(p for p in whole if split in (ALL, self._share(p, split)))
        if not chosen:
            raise TaskError(
                f"task.data: {self._data}: too few rows to carve {split} from; give more, or a folder of splits"
            )
        return chosen

    def grade(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade]:
        """Numbers after ####, LaTeX in boxes, or text after ####."""
        golds = [p.answer for p in problems]
        if self._grader == "boxed":
            return self._boxes.grade(golds, texts)
        one = grade_number if self._grader == "number" else grade_text
        return [one(gold, text) for gold, text in zip(golds, texts, strict=True)]

    def _share(self, problem: Problem, split: str) -> str:
        """The split that a problem falls to, where `split` is carved or was carved from."""
        if ALL in self._parts and percentile(problem) >= TEST_FROM:
            return TEST
        if split in self._parts and (split != TRAIN or VALIDATION in self._parts):
            return split
        return VALIDATION if is_held_out(problem) else TRAIN

    def _read(self, part: str) -> tuple[Problem, ...]:
        rows = self._parts[part].read(self._fields)
        problems = [self._problem(part, place, row) for place, row in enumerate(rows)]
        twice = [name for name, n in Counter(p.id for p in problems).items() if n > 1]
        if twice:
            raise TaskError(f"task.data: {self._data} {part}: {len(twice)} ids stand twice, such as {twice[0]!r}")
        return tuple(problems)

    def _problem(self, part: str, place: int, row: Row) -> Problem:
        """Ids are the data's own, else the row's place in its file."""
        answer = row["answer"]
        gold = (strict_number(answer) or answer) if self._grader == "number" else answer
        if self._grader == "number" and number(gold) is None:
            raise TaskError(
                f"task.data: {self._data}: row {place + 1}: answer {answer[-40:]!r} is no number;"
                " set task.grader to boxed or text"
            )
        return Problem(row["id"] or f"{part}-{place}", row["question"], gold, row["difficulty"], row["solution"])


def find_parts(data: str) -> dict[str, Part]:
    """What there is at a path or hub id, by split; raises TaskError where there is nothing."""
    path = Path(data)
    if path.is_file():
        return {ALL: Part(data, ALL, path)}
    if path.is_dir():
        found = {s: Part(data, s, file) for s in (TRAIN, VALIDATION, TEST) if (file := find_file(path, (s,)))}
        if not found:
            raise TaskError(f"task.data: {data}: no file called train, validation or test (.jsonl .json .csv .parquet)")
        return found
    if not HUB_ID.fullmatch(data):
        raise TaskError(f"task.data: {data}: no such file or folder")
    return {split: Part(data, split) for split in hub_splits(data)}


def grade_text(gold: str, text: str) -> Grade:
    """Strict by the line after the last `####`, flexible by the last line; compared without case and spacing."""
    _, mark, told = text[-READ:].rpartition(MARK)
    lines = [line for line in (told if mark else text[-READ:]).splitlines() if line.strip()]
    answer = _plain(lines[0 if mark else -1]) if lines else None
    right = answer is not None and answer == _plain(gold)
    formatted = bool(mark) and answer is not None
    return Grade(strict=right and formatted, flexible=right, formatted=formatted, answer=answer)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).strip(" .*_`\"'")


def _fields(columns: Columns) -> Fields:
    needed = {"question": (columns.question or "question",), "answer": (columns.answer or "answer",)}
    named = {"id": columns.id, "difficulty": columns.difficulty, "solution": columns.solution}
    for field, column in named.items():
        if column is not None:  # a column that is named must be there
            needed[field] = (column,)
    return Fields(needed, {field: () for field, column in named.items() if column is None})
