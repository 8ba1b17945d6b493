"""Grading of answers in \\boxed{}: found in the text, decided where it is cheap, and by math-verify where it is not."""

import re
from collections.abc import Sequence

from esctl.tasks import Grade, Limits
from esctl.tasks.grading.answers import READ, boxed, last_number
from esctl.tasks.grading.latex import decide
from esctl.tasks.grading.pool import GraderPool, Outcome

MEMORY_GIB = 4.0  # for one math-verify process: "9^{9^{9^9}}" must not take the machine
INLINE = re.compile(r"\$([^$\n]{1,200})\$|\\\(([^\n]{1,200}?)\\\)")


class BoxGrader:
    """Grades against golds in LaTeX; its pool starts when a first answer needs it."""

    def __init__(self, limits: Limits) -> None:
        self._pool = GraderPool("esctl.tasks.grading.latex:equivalent", limits, memory_gib=MEMORY_GIB)
        self._known = dict[tuple[str, str], Outcome]()  # members of a population give the same answers again

    def grade(self, golds: Sequence[str], texts: Sequence[str]) -> list[Grade]:
        """One grade for each gold and text; math-verify that hangs or crashes is a failure by cause."""
        told = [boxed(t) for t in texts]
        meant = [t if t is not None else unboxed(text) for t, text in zip(told, texts, strict=True)]
        right = self._compare(list(zip(golds, meant, strict=True)))
        return [
            Grade(
                strict=bool(outcome.value) and box is not None,
                flexible=bool(outcome.value),
                formatted=box is not None,
                answer=answer,
                failure=outcome.failure,
            )
            for box, answer, outcome in zip(told, meant, right, strict=True)
        ]

    def close(self) -> None:
        """End the processes; calling it twice is harmless."""
        self._pool.close()

    def _compare(self, pairs: Sequence[tuple[str, str | None]]) -> list[Outcome]:
        found = [Outcome(False) if answer is None else self._cheap(gold, answer) for gold, answer in pairs]
        hard = sorted({(g, a or "") for (g, a), outcome in zip(pairs, found, strict=True) if outcome is None})
        fresh = dict(zip(hard, self._pool.run([[g, a] for g, a in hard]), strict=True))
        self._known |= {pair: outcome for pair, outcome in fresh.items() if outcome.failure is None}
        return [o if o is not None else fresh[g, a or ""] for o, (g, a) in zip(found, pairs, strict=True)]

    def _cheap(self, gold: str, answer: str) -> Outcome | None:
        decided = decide(gold, answer)
        return self._known.get((gold, answer)) if decided is None else Outcome(decided)


def unboxed(text: str) -> str | None:
    """What a text without a box most likely means: its last formula between dollars, else its last number."""
    *_, last = [None, *INLINE.finditer(text[-READ:])]
    if last is not None:
        return (last[1] or last[2] or "").strip() or None
    return last_number(text)
