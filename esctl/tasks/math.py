"""Competition mathematics with answers in \\boxed{}: MATH, AIME 2024, AMC 2023.

MATH (Hendrycks et al. 2021, arXiv 2103.03874) levels 3 to 5 for training; MATH500 (Lightman et al. 2023, arXiv
2305.20050), 500 problems of MATH's own test split, for test. The contests have a test split alone.
"""

from collections.abc import Sequence
from pathlib import Path

from esctl.tasks import TEST, TRAIN, Grade, Limits, Problem
from esctl.tasks.data import Fields, Published, Row, Source
from esctl.tasks.grading.answers import boxed
from esctl.tasks.grading.boxes import BoxGrader
from esctl.tasks.prompts import MATH_PROMPT

TRAIN_LEVELS = ("level 3", "level 4", "level 5")
FIELDS = Fields(
    {"question": ("problem", "question")},
    {"answer": ("answer",), "solution": ("solution",), "level": ("level",)},
)


class MathTask:
    r"""One of `SETS`; strict by the last \boxed{}, flexible by the last box, formula or number."""

    version = 1
    system = MATH_PROMPT

    def __init__(self, name: str, data: Path | None = None, limits: Limits | None = None) -> None:
        self.name = name
        self._data, self._set = data, SETS[name]
        self.splits, self.trainable = self._set.splits, self._set.trainable
        self._grader = BoxGrader(limits or Limits())

    def problems(self, split: str) -> tuple[Problem, ...]:
        """All problems of a split; raises TaskError where data is missing, empty, or leaks from train to test."""
        return self._set.problems(split, self._data)

    def grade(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade]:
        """By text and numbers first; math-verify decides, in worker processes, what only algebra can tell."""
        return self._grader.grade([p.answer for p in problems], texts)


def _problem(name: str, row: Row) -> Problem | None:
    """Train rows below level 3 are left out, and those whose solution boxes no answer."""
    gold = row["answer"] or boxed(row["solution"])
    level = f"level {row['level'].split()[-1]}" if row["level"] else ""
    if not gold or (name.startswith(TRAIN) and level and level not in TRAIN_LEVELS):
        return None
    return Problem(name, row["question"], gold, level, row["solution"])


def _contest(name: str, hub: str, split: str) -> Published:
    return Published(name, FIELDS, _problem, test=Source(hub, split, (name, f"{name}_test", TEST)))


SETS = {
    "math": Published(
        "math",
        FIELDS,
        _problem,
        train=Source("DigitalLearningGmbH/MATH-lighteval", TRAIN, ("math_train", TRAIN)),
        test=Source("HuggingFaceH4/MATH-500", TEST, ("math500", "math_test", TEST)),
    ),
    "aime24": _contest("aime24", "HuggingFaceH4/aime_2024", TRAIN),
    "amc23": _contest("amc23", "AI-MO/aimo-validation-amc", TRAIN),  # 83 problems of the AMC 12 of 2022 and 2023
}
