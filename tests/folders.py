"""Tiny models as Hugging Face folders."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789 .,?#+-*/=():"
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def save_tokenizer(folder: Path) -> int:
    """Write a character tokenizer with a chat template into `folder`, and return its length."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # Transformers loads every qwen2 folder as byte-level BPE, whatever its tokenizer_config says: without merges it is
    # one token per character, and a space is spelled "Ġ".
    special = ["<pad>", "<unk>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
    vocabulary = {token: index for index, token in enumerate([*special, *ALPHABET.replace(" ", "Ġ")])}
    core = Tokenizer(models.BPE(vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<|end|>",
        additional_special_tokens=special[3:],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    return len(tokenizer)


def save_random(model: "PreTrainedModel", folder: Path) -> Path:
    """Write `model` with weights large enough that its logits are far from ties, norms and biases included."""
    import torch

    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.15, generator=generator)
    model.save_pretrained(folder)
    return folder
