"""The model's tokenizer and chat template: loaded, checked, and applied to a conversation.

Both come from strangers. Whatever is wrong with them is one line that names the model, before weights are loaded.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

from esctl.errors import UsageError

Message = dict[str, str]
# Some templates write today's date, and a run would not be the same tomorrow: they get this one.
DATE_SWITCH, DATE = "date_string", "26 Jul 2024"
DAY = datetime(2024, 7, 26)
PROBE = "what is 1 + 1?"
RAW = "or use --set prompt.style=raw"


class Backend(Protocol):
    """The object of the tokenizers library."""

    def to_str(self) -> str:
        """Vocabulary and rules, as JSON."""
        ...


class Token(Protocol):
    """An entry of the vocabulary that is never split."""

    content: str
    special: bool


class Tokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    name_or_path: str
    chat_template: str | dict[str, str] | None
    bos_token: str | None
    bos_token_id: int | None
    eos_token: str | None
    unk_token: str | None
    backend_tokenizer: Backend
    init_kwargs: Mapping[str, object]

    @property
    def all_special_tokens(self) -> list[str]:
        """Every token with a role, such as the end of a turn."""
        ...

    def get_vocab(self) -> dict[str, int]:
        """Every token's id, added tokens included."""
        ...

    @property
    def added_tokens_decoder(self) -> Mapping[int, Token]:
        """Tokens that are never split, by id."""
        ...

    def apply_chat_template(
        self,
        conversation: list[Message],
        *,
        tokenize: bool,
        add_generation_prompt: bool,
        **switches: bool | int | str | Callable[[str], str],
    ) -> str:
        """The conversation as text."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Text as token ids."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Token ids as text, special tokens included."""
        ...


def load_tokenizer(model: Path | str) -> Tokenizer:
    """The tokenizer of a model folder or hub id; raises UsageError where there is none, or one without vocabulary."""
    from transformers import AutoTokenizer

    try:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    except Exception as error:  # broken files raise whatever their reader raises
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(f"model: {model} has no tokenizer to load ({reason}); add its tokenizer files") from None
    refuse_unreadable(tokenizer, [PROBE])
    return tokenizer


def refuse_unreadable(tokenizer: Tokenizer, texts: Sequence[str]) -> None:
    """Raise UsageError where most characters of the texts are lost: without its files a tokenizer is an empty one."""
    characters = sorted({c for text in texts for c in text if not c.isspace()})
    ids = tokenizer.encode(" ".join(characters), add_special_tokens=False)
    seen = tokenizer.decode(ids).replace(tokenizer.unk_token or "\0", "")
    lost = [c for c in characters if c.casefold() not in seen.casefold()]
    if 2 * len(lost) > len(characters):
        raise UsageError(
            f"model: the tokenizer of {tokenizer.name_or_path} loses {len(lost)} of the {len(characters)} different"
            " characters of the questions: it has no vocabulary for them; add the model's own tokenizer files"
        )


def special_tokens(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """A pattern of the spellings that are read as control tokens wherever they stand, longest first."""
    spellings = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    ordered = sorted(filter(None, spellings), key=lambda s: (-len(s), s))
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


def adds_bos(tokenizer: Tokenizer) -> bool:
    """Whether texts for this model begin with BOS by its own rules; some only have one as a name."""
    bos = tokenizer.bos_token_id
    return bos is not None and tokenizer.encode("a", add_special_tokens=True)[:1] == [bos]


def check_template(tokenizer: Tokenizer, switches: Mapping[str, bool | int | str]) -> None:
    """Raise UsageError for a missing chat template, and for switches that it never reads: they would do nothing."""
    template = tokenizer.chat_template
    if template is None:
        raise UsageError("prompt.style: chat, but the tokenizer has no chat template; use --set prompt.style=raw")
    unread = [name for name in switches if not re.search(rf"\b{re.escape(name)}\b", str(template))]
    if unread:
        raise UsageError(f"prompt.template.{unread[0]}: the model's chat template never reads it; remove or correct it")


def apply_template(
    tokenizer: Tokenizer, turns: Sequence[Message], switches: Mapping[str, bool | int | str], answer: bool = True
) -> str:
    """The conversation as text, up to where the answer begins; raises UsageError where the template fails."""
    dated: dict[str, str | Callable[[str], str]] = {}
    if DATE_SWITCH in str(tokenizer.chat_template):
        dated[DATE_SWITCH] = DATE
    if "strftime_now" in str(tokenizer.chat_template):
        dated["strftime_now"] = DAY.strftime
    try:
        text = tokenizer.apply_chat_template(
            [dict(turn) for turn in turns], tokenize=False, add_generation_prompt=answer, **{**dated, **switches}
        )
    except Exception as error:  # a template is a program of the model's authors and may raise anything
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise TemplateFailedError(
            f"model: the chat template of {tokenizer.name_or_path} fails ({reason}); mend its chat_template, {RAW}"
        ) from None
    return text


class TemplateFailedError(UsageError):
    """The template raised on a conversation; another conversation may pass."""


def refuse_lossy(tokenizer: Tokenizer, text: str, question: str, system: str) -> None:
    """Raise UsageError where the rendered prompt lacks the question or the system line."""
    for what, part in (("question", question), ("system line", system)):
        if part.strip() not in text:
            raise UsageError(
                f"model: the chat template of {tokenizer.name_or_path} leaves out the {what}; mend its chat_template"
                f" (it may be written for lists of parts), {RAW}"
            )


def refuse_closed(tokenizer: Tokenizer, text: str) -> None:
    """Raise UsageError where the prompt ends with the token that ends the conversation or a turn of the model."""
    ends = {tokenizer.eos_token, end_of_turn(tokenizer)} - {None, ""}
    closing = next((end for end in ends if end and text.rstrip().endswith(end)), None)
    if closing:
        raise UsageError(
            f"model: the chat template of {tokenizer.name_or_path} ends the prompt with {closing!r}, after which no"
            f" answer is expected; mend its add_generation_prompt, {RAW}"
        )


def end_of_turn(tokenizer: Tokenizer) -> str | None:
    """The special token that the template writes after an answer, or None where it writes none."""
    special = special_tokens(tokenizer)
    if special is None or tokenizer.chat_template is None:
        return None
    answer = "esctl-answer"
    turns = [{"role": "user", "content": PROBE}, {"role": "assistant", "content": answer}]
    try:
        text = apply_template(tokenizer, turns, {}, answer=False)
    except TemplateFailedError:
        return None
    _, found, rest = text.rpartition(answer)
    token = special.match(rest.lstrip()) if found else None
    return token[0] if token else None


def own_system_line(tokenizer: Tokenizer, switches: Mapping[str, bool | int | str]) -> str:
    """The system line that the template writes where the conversation has none, or "".

    Found by comparison: whatever stands where a given line would stand is the template's own.
    """
    mark = "esctl-system"
    user = {"role": "user", "content": PROBE}
    try:
        bare = apply_template(tokenizer, [user], switches)
        given = apply_template(tokenizer, [{"role": "system", "content": mark}, user], switches)
    except TemplateFailedError:
        return ""
    before, found, after = given.partition(mark)
    if not found or not bare.startswith(before) or not bare.endswith(after):
        return ""
    return bare[len(before) : len(bare) - len(after)].strip()
