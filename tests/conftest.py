"""What every test may use: two tiny models as Hugging Face folders, and an environment that stays on this machine."""

import os

# Before anything imports torch or vLLM: they read these once.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

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


@pytest.fixture(scope="session")
def tiny_qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2 folder: tied embeddings, q/k/v biases, grouped KV heads, a chat template."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("tiny-qwen2")
    config = Qwen2Config(
        vocab_size=save_tokenizer(folder),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,  # of 32: vLLM's CPU attention has no kernel for smaller heads
        num_key_value_heads=1,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    return save_random(Qwen2ForCausalLM(config), folder)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama folder: untied embeddings, no biases, head size unlike hidden size / heads."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny-llama")
    config = LlamaConfig(
        vocab_size=save_tokenizer(folder),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    return save_random(LlamaForCausalLM(config), folder)
