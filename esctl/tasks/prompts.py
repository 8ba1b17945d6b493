"""How a problem is asked: the chat template or raw text, the system line, few-shot examples; and the hash of all that.

Leaves what is asked to the tasks. A tokenizer is handed in; only `load_tokenizer` touches a library.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from esctl.errors import TaskError, UsageError
from esctl.tasks import Problem, Task

GSM8K_PROMPT = (
    "Solve the problem step by step. Write the final answer on a line of its own after ####, as a number without units."
)
MATH_PROMPT = "Solve the problem step by step. Put the final answer within \\boxed{}."
TEXT_PROMPT = "Think step by step. Write the final answer alone on a line of its own after ####."
NAMED = {"none": "", "gsm8k": GSM8K_PROMPT, "math": MATH_PROMPT}

Message = dict[str, str]


class Backend(Protocol):
    """The tokenizers library's object within."""

    def to_str(self) -> str:
        """Vocabulary and rules, as JSON."""
        ...


class Tokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    chat_template: str | None
    bos_token: str | None
    backend_tokenizer: "Backend"

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

    style: str = "chat"  # chat | raw
    name: str | None = None  # one of NAMED, in place of the task's own system line
    system: str | None = None  # in place of both
    shots: int = 0
    template: Mapping[str, bool | int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Prompt:
    """A rendered problem: exactly what the model reads."""

    text: str
    token_ids: tuple[int, ...]


def system_line(task: Task, prompting: Prompting) -> str:
    """The system line in force; raises UsageError for an unknown name."""
    if prompting.system is not None:
        return prompting.system
    if prompting.name is None:
        return task.system
    if prompting.name not in NAMED:
        raise UsageError(f"prompt.name: no prompt {prompting.name}; choose {', '.join(NAMED)} or set prompt.system")
    return NAMED[prompting.name]


def render_all(
    problems: Sequence[Problem], task: Task, tokenizer: Tokenizer, prompting: Prompting, shots: Sequence[Problem] = ()
) -> tuple[Prompt, ...]:
    """Every problem as the model will read it; `shots` are solved examples that come first."""
    system = system_line(task, prompting)
    if prompting.style == "chat" and tokenizer.chat_template is None:
        raise UsageError("prompt.style: chat, but the tokenizer has no chat template; use --set prompt.style=raw")
    return tuple(_render(p, system, tokenizer, prompting, shots) for p in problems)


def _render(
    problem: Problem, system: str, tokenizer: Tokenizer, prompting: Prompting, shots: Sequence[Problem]
) -> Prompt:
    text = (
        _chat(problem, system, tokenizer, prompting, shots)
        if prompting.style == "chat"
        else _raw(problem, system, tokenizer, shots)
    )
    return Prompt(text, tuple(tokenizer.encode(text, add_special_tokens=False)))


def _chat(problem: Problem, system: str, tokenizer: Tokenizer, prompting: Prompting, shots: Sequence[Problem]) -> str:
    turns = [m for s in shots for m in (_say("user", s.question), _say("assistant", s.solution))]
    turns.append(_say("user", problem.question))
    if not system:
        return _apply(tokenizer, turns, prompting)
    from jinja2 import TemplateError

    try:
        return _apply(tokenizer, [_say("system", system), *turns], prompting)
    except TemplateError:  # a template without a system role: the line joins the first user turn
        return _apply(tokenizer, [_say("user", f"{system}\n\n{turns[0]['content']}"), *turns[1:]], prompting)


def _apply(tokenizer: Tokenizer, turns: list[Message], prompting: Prompting) -> str:
    return tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **prompting.template)


def _raw(problem: Problem, system: str, tokenizer: Tokenizer, shots: Sequence[Problem]) -> str:
    """Plain text; the tokenizer's BOS comes once, where it has one (a chat template writes its own)."""
    asked = [f"Question: {s.question}\nAnswer: {s.solution}\n\n" for s in shots]
    head = f"{system}\n\n" if system else ""
    return f"{tokenizer.bos_token or ''}{head}{''.join(asked)}Question: {problem.question}\nAnswer:"


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
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise UsageError(f"model: {model} has no tokenizer to load ({str(error).splitlines()[0]})") from None
    return tokenizer
