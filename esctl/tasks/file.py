"""The user's own data: a file, a folder or a hub data set with a question column and an answer column."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from esctl.errors import TaskError, UsageError
from esctl.tasks import TEST, TRAIN, VALIDATION, Grade, Limits, Problem, TaskSettings
from esctl.tasks.data import (
    VALIDATION_PERCENT,
    Fields,
    Row,
    find_file,
    from_hub,
    hub_splits,
    percentile,
    pick,
    refuse_copies,
    refuse_shared,
    refuse_two_golds,
    refuse_unknown,
)
from esctl.tasks.grading.answers import MARK, READ, grade_number, number, strict_number
from esctl.tasks.grading.boxes import BoxGrader
from esctl.tasks.prompts import GSM8K_PROMPT, MATH_PROMPT, TEXT_PROMPT
from esctl.tasks.rows import read_rows

ALL = "all"  # the whole of a single file, for evaluation only
TEST_FROM = 90  # a single file: percentiles from here on are test
SYSTEM = {"number": GSM8K_PROMPT, "boxed": MATH_PROMPT, "text": TEXT_PROMPT}
# A split may share no question with the parts named here: what is chosen or trained on one must not be in the other.
HELD_OUT_FROM = {TRAIN: (TEST, VALIDATION), VALIDATION: (TEST,)}
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Part:
    """The stored rows of one split: a local file, or a split of a hub data set."""

    data: str
    split: str
    path: Path | None = None

    def read(self, fields: Fields) -> list[Row]:
        """Its rows; raises TaskError where they are missing or malformed."""
        if self.path is not None:
            return pick(read_rows(self.path), fields, str(self.path))
        return pick(from_hub(self.data, None, self.split), fields, f"{self.data} {self.split}")


@dataclass(frozen=True)
class Share:
    """The problems of a part whose percentile, a hash of the question, is in a range."""

    part: str
    first: int = 0
    end: int = 100

    def holds(self, problem: Problem) -> bool:
        """Whether the problem is in the range."""
        return self.first <= percentile(problem) < self.end


def shares(parts: Iterable[str]) -> dict[str, Share]:
    """Where each split comes from.

    parts                      | train          | validation    | test          | all
    a single file              | all, 7 to 89   | all, 0 to 6   | all, 90 to 99 | all
    train without validation   | train, 7 to 99 | train, 0 to 6 | its own       | -
    any other                  | its own        | its own       | its own       | -
    """
    own = {part: Share(part) for part in parts}
    if ALL in own:
        train = Share(ALL, VALIDATION_PERCENT, TEST_FROM)
        return {**own, TRAIN: train, VALIDATION: Share(ALL, 0, VALIDATION_PERCENT), TEST: Share(ALL, TEST_FROM)}
    if TRAIN in own and VALIDATION not in own:
        return {**own, TRAIN: Share(TRAIN, VALIDATION_PERCENT), VALIDATION: Share(TRAIN, 0, VALIDATION_PERCENT)}
    return own


class FileTask:
    """Questions and answers from the columns that the recipe names, graded by `task.grader`; `shares` has the splits.

    A question may stand once in a file: a copy would count as one more independent problem, and make intervals too
    narrow. Two questions are the same where they differ in case, spacing and Unicode form alone.
    """

    name = "file"
    version = 1

    def __init__(self, data: str, settings: TaskSettings, limits: Limits | None = None) -> None:
        self._data = data
        self._fields = _fields(settings)
        self._grader = settings.grader or "number"
        if self._grader not in SYSTEM:
            raise UsageError(f"task.grader: no grader {self._grader}; choose {', '.join(SYSTEM)}")
        self.system = SYSTEM[self._grader]
        self._parts = find_parts(data)
        self._shares = shares(self._parts)
        self.splits: tuple[str, ...] = tuple(self._shares)
        self.trainable: tuple[str, ...] = (TRAIN,) if TRAIN in self.splits else ()
        self._boxes = BoxGrader(limits or Limits())

    def problems(self, split: str) -> tuple[Problem, ...]:
        """All problems of a split; raises TaskError where data is missing, empty, or in two splits."""
        refuse_unknown(f"{self.name} {self._data}", split, self.splits)
        share = self._shares[split]
        whole = self._read(share.part)
        for other in HELD_OUT_FROM.get(split, ()):
            if other in self._parts:
                refuse_shared(whole, self._read(other), (share.part, other))
        chosen = tuple(p for p in whole if share.holds(p))
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

    def _read(self, part: str) -> tuple[Problem, ...]:
        where = f"{self._data} {part}"
        rows = self._parts[part].read(self._fields)
        problems = [self._problem(part, place, row) for place, row in enumerate(rows)]
        twice = [name for name, n in Counter(p.id for p in problems).items() if n > 1]
        if twice:
            raise TaskError(f"task.data: {where}: {len(twice)} ids are used twice, such as {twice[0]!r}")
        refuse_two_golds(problems, where)
        refuse_copies(problems, where)
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
    """The stored parts at a path or hub id, by split; raises TaskError where there are none."""
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
    _, mark, rest = text[-READ:].rpartition(MARK)
    lines = [line for line in rest.splitlines() if line.strip()]
    if not lines:
        return Grade(strict=False, flexible=False, formatted=False, answer=None)
    answer = _plain(lines[0] if mark else lines[-1])
    right = answer == _plain(gold)
    return Grade(strict=right and bool(mark), flexible=right, formatted=bool(mark), answer=answer)


def _plain(text: str) -> str:
    """A text without case, spacing and Unicode form, so that é is é however it is composed."""
    return " ".join(unicodedata.normalize("NFC", text.casefold()).split()).strip(" .*_`\"'")


def _fields(settings: TaskSettings) -> Fields:
    needed = {"question": (settings.question or "question",), "answer": (settings.answer or "answer",)}
    named = {"id": settings.id, "difficulty": settings.difficulty, "solution": settings.solution}
    for field, column in named.items():
        if column is not None:  # a column that the recipe names must exist
            needed[field] = (column,)
    return Fields(needed, {field: () for field, column in named.items() if column is None})
