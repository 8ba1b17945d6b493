"""How a problem is asked: in the chat template or as raw text, with a system line and solved examples; and its hash."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from esctl.errors import TaskError, UsageError
from esctl.settings import NotNegative, Text
from esctl.tasks import Problem, Task
from esctl.tasks.grading.thoughts import AUTO
from esctl.tasks.tokenizer import (
    Message,
    TemplateFailedError,
    Tokenizer,
    adds_bos,
    apply_template,
    check_template,
    refuse_closed,
    refuse_lossy,
    refuse_unreadable,
    special_tokens,
)

GSM8K_PROMPT = (
    "Solve the problem step by step. Write the final answer on a line of its own after ####, as a number without units."
)
MATH_PROMPT = "Solve the problem step by step. Put the final answer within \\boxed{}."
TEXT_PROMPT = "Think step by step. Write the final answer alone on a line of its own after ####."
# A model folder may say in its tokenizer_config.json which system line it was trained with; "" is none.
NEXT_QUESTION = "\nQuestion:"  # how a raw prompt begins its problems
OWN_SYSTEM = "esctl_system"
PROBES = (Problem("probe", "What is 1 + 1?", "2"),)  # stands for any question in the prompt's hash


@dataclass(frozen=True)
class Wording:
    """How a problem is put; `question` holds the place of the problem's own text."""

    system: str
    question: str = "{question}"


# The published GSM8K runs ask in one of two ways, by a system line or by a sentence after the question; MATH by a
# system line. The wording is ours.
WORDINGS = {
    "none": Wording(""),
    "gsm8k": Wording(GSM8K_PROMPT),
    "gsm8k-after": Wording("", "{question} Think step by step, and give the final answer after ####."),
    "math": Wording(MATH_PROMPT),
}


@dataclass(frozen=True)
class Prompting:
    """How a problem is asked."""

    style: Literal["chat", "raw"] = "chat"  # chat: the template of the tokenizer; raw: plain text
    name: str | None = None  # a named prompt; null: the task's own
    system: str | None = None  # replaces the system line; "" is none; null: that of the prompt
    shots: NotNegative = 0  # solved examples before the question
    template: dict[str, bool | int | str] = field(default_factory=dict)  # switches for the chat template
    think: Text = AUTO  # the end of a thought: auto (known tags), none, or a string


@dataclass(frozen=True)
class Prompt:
    """A rendered problem: exactly what the model reads."""

    text: str
    token_ids: tuple[int, ...]


def wording(task: Task, prompting: Prompting, tokenizer: Tokenizer) -> Wording:
    """The wording in force; raises UsageError for an unknown name.

    The system line is the recipe's, else that of the named wording, else what the model was trained with, else the
    task's.
    """
    if prompting.name is not None and prompting.name not in WORDINGS:
        raise UsageError(f"prompt.name: no prompt {prompting.name}; choose {', '.join(WORDINGS)} or set prompt.system")
    if prompting.name is not None:
        chosen = WORDINGS[prompting.name]
    else:
        chosen = Wording(str(tokenizer.init_kwargs.get(OWN_SYSTEM, task.system)))
    return chosen if prompting.system is None else replace(chosen, system=prompting.system)


def examples(problems: Sequence[Problem], prompting: Prompting) -> tuple[Problem, ...]:
    """Solved examples for `render_all`: one more than the recipe wants, since no problem is its own example."""
    if not prompting.shots:
        return ()
    solved = tuple(p for p in problems if p.solution)[: prompting.shots + 1]
    if len(solved) <= prompting.shots:
        raise UsageError(
            f"prompt.shots: {prompting.shots}, but the data has {len(solved)} reference solutions; lower it"
        )
    return solved


def render_all(
    problems: Sequence[Problem], task: Task, tokenizer: Tokenizer, prompting: Prompting, shots: Sequence[Problem] = ()
) -> tuple[Prompt, ...]:
    """Every problem as the model will read it, after solved examples; raises UsageError where it cannot be so."""
    words = wording(task, prompting, tokenizer)
    _refuse_special(tokenizer, problems, shots)
    refuse_unreadable(tokenizer, [p.question for p in problems])
    if prompting.style == "chat":
        check_template(tokenizer, prompting.template)
    writer = _Writer(tokenizer, prompting, words, adds_bos(tokenizer))
    prompts = tuple(writer.prompt(p, shots) for p in problems)
    if prompting.style == "chat" and prompts:
        refuse_closed(tokenizer, prompts[0].text)
    return prompts


def _refuse_special(tokenizer: Tokenizer, problems: Sequence[Problem], shots: Sequence[Problem]) -> None:
    """Raise TaskError where a question, or a solution that is shown, spells a control token.

    The token would end its turn, so that data could put words into the model's mouth.
    """
    special = special_tokens(tokenizer)
    if special is None:
        return
    written = [(p, p.question) for p in (*problems, *shots)] + [(p, p.solution) for p in shots]
    for problem, text in written:
        found = special.search(text)
        if found:
            raise TaskError(
                f"task.data: {problem.id}: holds {found[0]!r}, which is a control token of the model"
                f" {tokenizer.name_or_path}; reword it or drop the row"
            )


@dataclass(frozen=True)
class _Writer:
    tokenizer: Tokenizer
    prompting: Prompting
    words: Wording
    adds_bos: bool

    def prompt(self, problem: Problem, shots: Sequence[Problem]) -> Prompt:
        """The text, with exactly one BOS where the model expects one, and its tokens."""
        others = [s for s in shots if s.id != problem.id][: self.prompting.shots]
        text = self._chat(problem, others) if self.prompting.style == "chat" else self._raw(problem, others)
        text = self._one_bos(text)
        return Prompt(text, tuple(self.tokenizer.encode(text, add_special_tokens=False)))

    def _one_bos(self, text: str) -> str:
        bos = self.tokenizer.bos_token
        if not bos:
            return text
        while text.startswith(bos + bos):
            text = text.removeprefix(bos)
        return bos + text if self.adds_bos and not text.startswith(bos) else text

    def _chat(self, problem: Problem, shots: Sequence[Problem]) -> str:
        turns: list[Message] = []
        for shot in shots:
            turns += [_say("user", self._ask(shot)), _say("assistant", shot.solution)]
        turns.append(_say("user", self._ask(problem)))
        text = self._with_system(turns)
        refuse_lossy(self.tokenizer, text, self._ask(problem), self.words.system)
        return text

    def _with_system(self, turns: list[Message]) -> str:
        """The conversation under the system line.

        A template that refuses a system line, or drops it, gets it in the first user turn.
        """
        system = self.words.system
        if not system:
            return self._apply(turns)
        try:
            text = self._apply([_say("system", system), *turns])
        except TemplateFailedError:  # "System role not supported"
            text = ""
        if system.strip() in text:
            return text
        return self._apply([_say("user", f"{system}\n\n{turns[0]['content']}"), *turns[1:]])

    def _apply(self, turns: list[Message]) -> str:
        return apply_template(self.tokenizer, turns, self.prompting.template)

    def _raw(self, problem: Problem, shots: Sequence[Problem]) -> str:
        head = [self.words.system] if self.words.system else []
        solved = [f"Question: {self._ask(s)}\nAnswer: {s.solution}" for s in shots]
        return "\n\n".join([*head, *solved, f"Question: {self._ask(problem)}\nAnswer:"])

    def _ask(self, problem: Problem) -> str:
        return self.words.question.replace("{question}", problem.question)


def _say(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def prompt_sha256(task: Task, tokenizer: Tokenizer, prompting: Prompting, shots: Sequence[Problem] = ()) -> str:
    """What the prompt is, apart from the problem: the hash of one fixed question as it is rendered.

    A stated `prompt.think` is part of it, since the numbers of an evaluation depend on it.
    """
    [probe] = render_all(PROBES, task, tokenizer, prompting, shots)
    think = "" if prompting.think == AUTO else f"\0think {prompting.think}"
    return hashlib.sha256((probe.text + think).encode()).hexdigest()


def problems_sha256(problems: Sequence[Problem]) -> str:
    """What the problems are: ids, questions and answers, in order."""
    digest = hashlib.sha256()
    for p in problems:
        digest.update("\0".join((p.id, p.question, p.answer, "")).encode())
    return digest.hexdigest()


def refuse_long(
    name: str, problems: Sequence[Problem], prompts: Sequence[Prompt], context: int, new: int, why: str = ""
) -> None:
    """Raise TaskError naming the prompts that leave no room for `new` tokens in the model's context; none is cut.

    `why` follows the number of tokens, where the model's family has more than that.
    """
    long = [p.id for p, prompt in zip(problems, prompts, strict=True) if len(prompt.token_ids) + new > context]
    if long:
        shown = ", ".join(long[:3]) + (", …" if len(long) > 3 else "")
        longest = max(len(prompt.token_ids) for prompt in prompts)
        room = context - longest
        fitting = f"to {room} or less" if room > 0 else f"or shorten questions of {longest} tokens"
        raise TaskError(
            f"{name}: {len(long)} prompts and {new} new tokens do not fit the model's {context} tokens{why} ({shown});"
            f" lower sampling.max_tokens {fitting}, or prompt.shots"
        )
