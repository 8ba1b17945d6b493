"""How a problem is asked: the chat template or raw text, the system line, few-shot examples; and the hash of all that.

Leaves what is asked to the tasks. A tokenizer is handed in; only `load_tokenizer` touches a library.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from esctl.errors import TaskError, UsageError
from esctl.tasks import Problem, Task

GSM8K_PROMPT = (
    "Solve the problem step by step. Write the final answer on a line of its own after ####, as a number without units."
)
MATH_PROMPT = "Solve the problem step by step. Put the final answer within \\boxed{}."
TEXT_PROMPT = "Think step by step. Write the final answer alone on a line of its own after ####."
# Some templates write today's date, and a run would not be the same tomorrow: they get this one, as their switch.
DATE_SWITCH, DATE = "date_string", "26 Jul 2024"


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

Message = dict[str, str]


class Backend(Protocol):
    """The tokenizers library's object within."""

    def to_str(self) -> str:
        """Vocabulary and rules, as JSON."""
        ...


class Tokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    chat_template: str | dict[str, str] | None
    bos_token: str | None
    bos_token_id: int | None
    backend_tokenizer: "Backend"

    @property
    def all_special_tokens(self) -> list[str]:
        """Every token with a role, such as the end of a turn."""
        ...

    def get_vocab(self) -> dict[str, int]:
        """Every token's id, added tokens included."""
        ...

    def apply_chat_template(
        self, conversation: list[Message], *, tokenize: bool, add_generation_prompt: bool, **switches: bool | int | str
    ) -> str:
        """The conversation as text."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Text as token ids."""
        ...


@dataclass(frozen=True)
class Prompting:
    """The recipe's `prompt:` section."""

    style: str = "chat"  # chat: the template of the tokenizer; raw: plain text
    name: str | None = None  # a named prompt; null: the task's own
    system: str | None = None  # replaces the system line; "" is none; null: that of the prompt
    shots: int = 0  # solved examples before the question
    template: Mapping[str, bool | int | str] = field(default_factory=dict)  # switches for the chat template


@dataclass(frozen=True)
class Prompt:
    """A rendered problem: exactly what the model reads."""

    text: str
    token_ids: tuple[int, ...]


def wording(task: Task, prompting: Prompting) -> Wording:
    """The wording in force; raises UsageError for an unknown name."""
    if prompting.name is not None and prompting.name not in WORDINGS:
        raise UsageError(f"prompt.name: no prompt {prompting.name}; choose {', '.join(WORDINGS)} or set prompt.system")
    chosen = Wording(task.system) if prompting.name is None else WORDINGS[prompting.name]
    return chosen if prompting.system is None else replace(chosen, system=prompting.system)


def examples(problems: Sequence[Problem], prompting: Prompting) -> tuple[Problem, ...]:
    """What to hand to `render_all` as shots: one more than asked for, since none is its own example."""
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
    words = wording(task, prompting)
    if prompting.style == "chat":
        check_template(tokenizer, prompting)
    writer = _Writer(tokenizer, prompting, words, adds_bos(tokenizer))
    return tuple(writer.prompt(p, shots) for p in problems)


def check_template(tokenizer: Tokenizer, prompting: Prompting) -> None:
    """Raise UsageError for a missing chat template, and for switches that it never reads: they would do nothing."""
    template = tokenizer.chat_template
    if template is None:
        raise UsageError("prompt.style: chat, but the tokenizer has no chat template; use --set prompt.style=raw")
    unread = [name for name in prompting.template if not re.search(rf"\b{re.escape(name)}\b", str(template))]
    if unread:
        raise UsageError(f"prompt.template.{unread[0]}: the model's chat template never reads it; remove or correct it")


def adds_bos(tokenizer: Tokenizer) -> bool:
    """Whether texts for this model begin with BOS by its own rules; some only have one as a name."""
    bos = tokenizer.bos_token_id
    return bos is not None and tokenizer.encode("a", add_special_tokens=True)[:1] == [bos]


@dataclass(frozen=True)
class _Writer:
    tokenizer: Tokenizer
    prompting: Prompting
    words: Wording
    adds_bos: bool

    def prompt(self, problem: Problem, shots: Sequence[Problem]) -> Prompt:
        """The text, with exactly one BOS where the model wants one, and its tokens."""
        others = [s for s in shots if s.id != problem.id][: self.prompting.shots]
        text = self._one_bos((self._chat if self.prompting.style == "chat" else self._raw)(problem, others))
        return Prompt(text, tuple(self.tokenizer.encode(text, add_special_tokens=False)))

    def _one_bos(self, text: str) -> str:
        bos = self.tokenizer.bos_token
        if not bos:
            return text
        while text.startswith(bos + bos):
            text = text.removeprefix(bos)
        return bos + text if self.adds_bos and not text.startswith(bos) else text

    def _chat(self, problem: Problem, shots: Sequence[Problem]) -> str:
        turns = [m for s in shots for m in (_say("user", self._ask(s)), _say("assistant", s.solution))]
        turns.append(_say("user", self._ask(problem)))
        system = self.words.system
        if not system:
            return self._apply(turns)
        from jinja2 import TemplateError

        try:
            text = self._apply([_say("system", system), *turns])
        except TemplateError:  # "System role not supported"
            text = ""
        if system.strip() in text:
            return text
        # A template that refuses a system line, or drops it in silence, gets it in the first user turn.
        return self._apply([_say("user", f"{system}\n\n{turns[0]['content']}"), *turns[1:]])

    def _apply(self, turns: list[Message]) -> str:
        dated = {DATE_SWITCH: DATE} if DATE_SWITCH in str(self.tokenizer.chat_template) else {}
        switches = {**dated, **self.prompting.template}
        return self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **switches)

    def _raw(self, problem: Problem, shots: Sequence[Problem]) -> str:
        head = [self.words.system] if self.words.system else []
        solved = [f"Question: {self._ask(s)}\nAnswer: {s.solution}" for s in shots]
        return "\n\n".join([*head, *solved, f"Question: {self._ask(problem)}\nAnswer:"])

    def _ask(self, problem: Problem) -> str:
        return self.words.question.replace("{question}", problem.question)


def _say(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def prompt_sha256(task: Task, tokenizer: Tokenizer, prompting: Prompting, shots: Sequence[Problem] = ()) -> str:
    """What the prompt is, apart from the problem: the hash of one fixed question as it is rendered."""
    [probe] = render_all([Problem("probe", "What is 1 + 1?", "2")], task, tokenizer, prompting, shots)
    return hashlib.sha256(probe.text.encode()).hexdigest()


def problems_sha256(problems: Sequence[Problem]) -> str:
    """What the problems are: ids, questions and answers, in order."""
    digest = hashlib.sha256()
    for p in problems:
        digest.update("\0".join((p.id, p.question, p.answer, "")).encode())
    return digest.hexdigest()


def refuse_long(name: str, problems: Sequence[Problem], prompts: Sequence[Prompt], context: int, new: int) -> None:
    """Raise TaskError naming the prompts that leave no room for `new` tokens in the model's context; none is cut."""
    long = [p.id for p, prompt in zip(problems, prompts, strict=True) if len(prompt.token_ids) + new > context]
    if long:
        shown = ", ".join(long[:3]) + (", …" if len(long) > 3 else "")
        raise TaskError(
            f"{name}: {len(long)} prompts and {new} new tokens do not fit the model's {context} tokens ({shown});"
            " lower sampling.max_tokens or prompt.shots"
        )


def load_tokenizer(model: Path | str) -> Tokenizer:
    """The tokenizer of a model folder or hub id; raises UsageError where there is none."""
    from transformers import AutoTokenizer

    try:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"model: {model} has no tokenizer to load ({str(error).splitlines()[0]})") from None
    return tokenizer
