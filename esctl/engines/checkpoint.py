"""What a model folder says besides its weights: end tokens, context length, and how tokens decode to text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from esctl.engines import Completion, EngineSpec, Samples, Sampling, TokenIds, chosen_kind
from esctl.engines.weights.dtypes import torch_dtype
from esctl.engines.weights.model import check_model, end_tokens, quiet_transformers
from esctl.engines.weights.sizes import refuse_unserved, sizes_of
from esctl.errors import EngineError, UsageError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase


class Decoder(Protocol):
    """The part of a tokenizer that engines use."""

    def batch_decode(
        self, sequences: list[list[int]], skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> list[str]:
        """One text per sequence of token ids."""


@dataclass(frozen=True)
class Checkpoint:
    """One reading of a folder for every engine, so that equal tokens are equal completions."""

    folder: Path
    decoder: Decoder
    stop_ids: frozenset[int]  # every token that the folder names as an end, or that ends a turn in its template
    context: int  # tokens of prompt and completion together
    kv_elements: int  # keys and values of one token, over all layers

    @classmethod
    def open(cls, spec: EngineSpec) -> "Checkpoint":
        """Read the folder; raises EngineError or UsageError, one line each, before any weight is read."""
        from transformers import AutoTokenizer

        folder, config = check_model(spec.model)
        sizes = sizes_of(config)
        limit = sizes.context
        if spec.max_model_len is not None and spec.max_model_len > limit:
            raise UsageError(
                f"max_model_len {spec.max_model_len}: the model in {folder} takes {limit} tokens at most"
                f"{sizes.why_short}; lower the number of new tokens, or shorten the prompts"
            )
        refuse_unserved(config, chosen_kind(spec.kind), spec.max_model_len or limit)
        try:
            with quiet_transformers():
                tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        except Exception as error:  # damaged files raise errors of several libraries
            reason = (str(error).strip() or type(error).__name__).split("\n")[0]
            raise EngineError(f"model {folder} has no tokenizer that can be loaded ({reason}): add its files") from None
        stops = end_tokens(folder) | ({tokenizer.eos_token_id} - {None}) | _end_of_turn(tokenizer)
        return cls(folder, tokenizer, frozenset(stops), spec.max_model_len or limit, sizes.kv_elements)

    def room(self, prompts: Sequence[TokenIds], most: int) -> list[int]:
        """New tokens that each prompt leaves room for, `most` at most; EngineError for a prompt that leaves none."""
        for index, prompt in enumerate(prompts):
            if not 0 < len(prompt) < self.context:
                raise EngineError(
                    f"prompt {index} has {len(prompt)} tokens, and the model takes 1 to {self.context - 1} "
                    "before it can answer: leave the prompt out, or raise max_model_len"
                )
        return [min(most, self.context - len(prompt)) for prompt in prompts]

    def completions(
        self, tokens: Sequence[Sequence[int]], finite: Sequence[bool], sampling: Sampling
    ) -> list[Completion]:
        """Decode tokens. The end token, or the one that completes a stop text, is in `token_ids` and not in `text`."""
        ended = [not sampling.ignore_eos and bool(row) and row[-1] in self.stop_ids for row in tokens]
        bodies = [list(row[:-1] if end else row) for row, end in zip(tokens, ended, strict=True)]
        completions = []
        for row, body, text, end, ok in zip(tokens, bodies, self._texts(bodies), ended, finite, strict=True):
            places = [text.find(stop) for stop in sampling.stop if stop in text]
            if places:
                kept = self._until(body, sampling.stop)
                completions.append(Completion(text[: min(places)], tuple(kept), "stop", ok))
            else:
                completions.append(Completion(text, tuple(row), "stop" if end else "length", ok))
        return completions

    def _texts(self, rows: list[list[int]]) -> list[str]:
        return self.decoder.batch_decode(rows, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _until(self, body: list[int], stop: Sequence[str]) -> list[int]:
        """The shortest beginning whose text contains a stop text: what an engine that watches the text would draw."""
        low, high = 1, len(body)
        while low < high:
            middle = (low + high) // 2
            [text] = self._texts([body[:middle]])
            if any(s in text for s in stop):
                high = middle
            else:
                low = middle + 1
        return body[:low]


class Vocabulary(Protocol):
    """The part of a tokenizer that says which ids it gives."""

    @property
    def chat_template(self) -> str | dict[str, str] | None:
        """The template of a conversation, or several by name."""

    @property
    def all_special_tokens(self) -> list[str]:
        """Every token with a role, such as the end of a turn."""

    def get_vocab(self) -> dict[str, int]:
        """Every token's id, added tokens included."""


def refuse_large_vocabulary(model: Path | str, tokenizer: Vocabulary, config: "PretrainedConfig") -> int:
    """Refuse a tokenizer whose ids exceed the model's rows; returns the number of rows.

    Special tokens that the chat template does not use are let through: text-only Gemma 3 has one for images. A prompt
    that contains one is refused by `refuse_unknown_ids`.
    """
    rows = int(config.get_text_config().vocab_size)
    vocabulary = tokenizer.get_vocab()
    special = set(tokenizer.all_special_tokens)
    template = str(tokenizer.chat_template)
    beyond = [token for token, index in vocabulary.items() if index >= rows]
    used = [token for token in beyond if token not in special or token in template]
    if used:
        ids = max(vocabulary.values()) + 1
        first = min(used, key=vocabulary.__getitem__)
        raise UsageError(
            f"model: {model}: its tokenizer has {ids:,} ids (such as {first!r}) and the model {rows:,} rows;"
            " give the tokenizer that belongs to it"
        )
    return rows


def refuse_unknown_ids(model: Path | str, prompts: Sequence[TokenIds], rows: int) -> None:
    """Refuse prompts with ids that the model has no row for; vLLM would read padding, and others would fail."""
    for index, prompt in enumerate(prompts):
        if max(prompt, default=0) >= rows:
            raise UsageError(
                f"model: {model}: prompt {index} has the token {max(prompt)}, and the model {rows:,} rows;"
                " give the tokenizer that belongs to it"
            )


def serving_dtype(spec: EngineSpec) -> torch.dtype:
    """`auto` is fp32 on a CPU, and bf16 on a GPU that has it."""
    if spec.dtype == "auto":
        if not torch.cuda.is_available():
            return torch.float32
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return torch_dtype(spec.dtype)


def grouped(flat: Sequence[Completion], sizes: Sequence[int]) -> Samples:
    """[prompt][sample] of one flat list and the number of samples of each prompt."""
    rows: Iterator[Completion] = iter(flat)
    return [[next(rows) for _ in range(size)] for size in sizes]


def _end_of_turn(tokenizer: "PreTrainedTokenizerBase") -> set[int]:
    """The special token that the chat template writes after an answer; some folders name it as an end nowhere else."""
    if not tokenizer.chat_template:
        return set()
    turns = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}]
    try:
        text = str(tokenizer.apply_chat_template(turns, tokenize=False))
    except Exception:  # a template that fails is reported where prompts are rendered
        return set()
    following = tokenizer.encode(text.rpartition("answer")[2].lstrip(), add_special_tokens=False)[:1]
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return special & {*following}
