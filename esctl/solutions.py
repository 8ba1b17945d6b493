"""Reference solutions as the tokens a model would have to write: what their likelihood is measured on.

Leaves the prompts before them to `experiment`, and what is right to the tasks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from esctl.experiment import Experiment, Split
from esctl.tasks import Problem, Task

# How tasks ask for answers. A gold answer stands in for a solution in the form that its task's grader calls right.
FORMS = ("#### {answer}", "\\boxed{{{answer}}}", "<answer>{answer}</answer>")


@dataclass(frozen=True)
class Solutions:
    """Prompts and reference solutions, aligned; problems without one are left out."""

    prompts: tuple[tuple[int, ...], ...]
    targets: tuple[tuple[int, ...], ...]

    @property
    def tokens(self) -> int:
        """Tokens over all solutions."""
        return sum(map(len, self.targets))


def solutions(experiment: Experiment, split: Split) -> Solutions:
    """The reference of every problem that has one, cut where it leaves an engine no room beside the longest prompt.

    After a raw prompt, which ends in "Answer:", a solution begins with a space, as solved examples do there. The token
    that ends a turn is not part of it.
    """
    lead = " " if experiment.prompting.style == "raw" else ""
    longest = experiment.recipe.sampling.max_tokens - 1  # an engine generates one token after what it is given
    encoded = [
        tuple(experiment.tokenizer.encode(lead + text, add_special_tokens=False)[:longest]) if text else ()
        for text in reference_texts(experiment.task, split.problems)
    ]
    pairs = [(prompt.token_ids, target) for prompt, target in zip(split.prompts, encoded, strict=True) if target]
    return Solutions(tuple(prompt for prompt, _ in pairs), tuple(target for _, target in pairs))


def reference_texts(task: Task, problems: Sequence[Problem]) -> list[str]:
    """Each problem's solution, else its gold in the asked-for format; "" where neither can be had."""
    texts = [p.solution for p in problems]
    for form in FORMS:
        bare = [i for i, text in enumerate(texts) if not text]
        told = [form.format(answer=problems[i].answer) for i in bare]
        grades = task.grade([problems[i] for i in bare], told) if bare else []
        for i, text, grade in zip(bare, told, grades, strict=True):
            texts[i] = text if grade.strict else ""
    return texts
