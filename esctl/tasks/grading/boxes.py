"""Grades of answers in \\boxed{}: decided here where that is cheap, by math-verify in worker processes otherwise."""

import re
from collections.abc import Sequence

from esctl.tasks import Grade, Limits
from esctl.tasks.grading.answers import READ, boxed, last_number
from esctl.tasks.grading.latex import decide
from esctl.tasks.grading.pool import GraderPool, Outcome

MEMORY_GIB = 4.0  # for one math-verify process: "9^{9^{9^9}}" must not take the machine
INLINE = re.compile(r"\$([^$\n]{1,200})\$|\\\(([^\n]{1,200}?)\\\)")


class BoxGrader:
    """Grades against golds in LaTeX. Its workers start with the first answer that needs them, and end with it."""

    def __init__(self, limits: Limits) -> None:
        self._pool = GraderPool("esctl.tasks.grading.latex:equivalent", limits, memory_gib=MEMORY_GIB)
        self._known: dict[tuple[str, str], Outcome] = {}  # members of a population often give the same answers

    def grade(self, golds: Sequence[str], texts: Sequence[str]) -> list[Grade]:
        """One grade for each gold and text; math-verify that hangs or crashes is a failure by cause."""
        boxes = [boxed(text) for text in texts]
        answers = [unboxed(text) if box is None else box for box, text in zip(boxes, texts, strict=True)]
        outcomes = self._compare(list(zip(golds, answers, strict=True)))
        return [
            Grade(
                strict=bool(outcome.value) and box is not None,
                flexible=bool(outcome.value),
                formatted=box is not None,
                answer=answer,
                failure=outcome.failure,
            )
            for box, answer, outcome in zip(boxes, answers, outcomes, strict=True)
        ]

    def _compare(self, pairs: Sequence[tuple[str, str | None]]) -> list[Outcome]:
        """Whether gold and answer are equal, for each pair; None is no answer."""
        decided: dict[tuple[str, str | None], Outcome] = {}
        hard: list[tuple[str, str]] = []
        for gold, answer in set(pairs):
            if answer is None:
                decided[gold, None] = Outcome(False)
                continue
            verdict = decide(gold, answer)
            if verdict is not None:
                decided[gold, answer] = Outcome(verdict)
            elif (gold, answer) in self._known:
                decided[gold, answer] = self._known[gold, answer]
            else:
                hard.append((gold, answer))
        hard.sort()  # a set has no order, and the order of work should be the same each time
        for pair, outcome in zip(hard, self._pool.run([list(pair) for pair in hard]), strict=True):
            decided[pair] = outcome
            if outcome.failure is None:  # a timeout may be the machine's fault: try again next time
                self._known[pair] = outcome
        return [decided[pair] for pair in pairs]


def unboxed(text: str) -> str | None:
    """What a text without a box most likely means: its last formula between dollars, else its last number."""
    formulas = list(INLINE.finditer(text[-READ:]))
    if not formulas:
        return last_number(text)
    dollars, brackets = formulas[-1].groups()
    return (dollars or brackets).strip() or None
