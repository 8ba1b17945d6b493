"""Where a thought ends and the answer begins: models that think first are graded on what follows.

The one place that every task's grades pass: `open_task` wraps each task in `AfterThought`.
"""

import re
from collections.abc import Sequence

from esctl.tasks import Grade, Problem, Task

AUTO, NONE = "auto", "none"
# Opening and closing tags as chat models write them; none of them stands in an answer by chance.
TAGS = (
    ("<think>", "</think>"),  # DeepSeek-R1, Qwen3, SmolLM3
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("[THINK]", "[/THINK]"),  # Magistral
    ("◁think▷", "◁/think▷"),  # Kimi
    ("<|begin_of_thought|>", "<|end_of_thought|>"),  # Sky-T1, OpenThinker
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A
    ("<|channel|>analysis", "<|channel|>final<|message|>"),  # gpt-oss
)
OPENING = re.compile("|".join(re.escape(opening) for opening, _ in TAGS), re.IGNORECASE)
CLOSING = re.compile("|".join(re.escape(closing) for _, closing in TAGS), re.IGNORECASE)


def answer_of(text: str, think: str = AUTO) -> str:
    """What follows the last thought; "" where a thought never ends, since nothing was answered.

    `think` is "auto" (the tags above), "none" (the text as it is) or the string that ends a thought. A text without
    tags is an answer, except where an ending string is given: the thought may have begun in the prompt.
    """
    if think == NONE:
        return text
    if think != AUTO:
        _, found, answer = text.rpartition(think)
        return answer if found else ""
    closings = list(CLOSING.finditer(text))
    end = closings[-1].end() if closings else 0
    return "" if OPENING.search(text, end) else text[end:]


def opened_by(prompt: str) -> str:
    """The opening tag that a rendered prompt ends with, or "": the model's first words are then a thought."""
    ending = prompt.rstrip()
    return next((opening for opening, _ in TAGS if ending.endswith(opening)), "")


def is_part_of_tag(token: str, think: str) -> bool:
    """Whether a model's special token is one of the tags or a piece of one; decoding drops special tokens."""
    tags = [tag for pair in TAGS for tag in pair]
    return any(token in tag for tag in [*tags, think])


class AfterThought:
    """A task whose grades are of what follows the thought."""

    def __init__(self, task: Task, think: str = AUTO) -> None:
        self.name = task.name
        self.version = task.version
        self.splits = task.splits
        self.trainable = task.trainable
        self.system = task.system
        self._task = task
        self._think = think

    def problems(self, split: str) -> tuple[Problem, ...]:
        """All problems of a split; raises as the task does."""
        return self._task.problems(split)

    def grade(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade]:
        """Grade the answers alone."""
        return self._task.grade(problems, [answer_of(text, self._think) for text in texts])
