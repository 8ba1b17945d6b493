"""One tiny random model of every family that both engines serve: a config by name, and a folder made from it."""

from pathlib import Path
from typing import TYPE_CHECKING

from folders import save_random, save_tokenizer

if TYPE_CHECKING:
    from transformers import PretrainedConfig

LLAMA = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
         "max_position_embeddings": 512}  # fmt: skip
GROUPED = LLAMA | {"num_key_value_heads": 1}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 512}
ENDS = {"bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0}
# model_type → what its config needs; heads have 32 elements, because vLLM's CPU attention has no kernel for fewer.
FAMILIES: dict[str, dict[str, object]] = {
    "gpt2": GPT2,
    "gpt_neox": LLAMA | {"rotary_pct": 0.5},
    "opt": {"hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
            "word_embed_proj_dim": 64, "max_position_embeddings": 512},
    "falcon": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 512,
               "alibi": False},
    "granite": GROUPED | {"logits_scaling": 2.0, "residual_multiplier": 0.5, "embedding_multiplier": 3.0,
                          "attention_multiplier": 0.2},
    "olmo2": GROUPED,
    "gemma3_text": GROUPED | {"head_dim": 32, "sliding_window": 16, "layer_types": ["sliding_attention",
                                                                                    "full_attention"]},
    "phi3": GROUPED,
    "mistral": GROUPED | {"head_dim": 32, "sliding_window": None},
    "cohere": GROUPED | {"logit_scale": 0.25},
    "stablelm": GROUPED | {"use_qkv_bias": True},
    "smollm3": GROUPED | {"layer_types": ["full_attention", "full_attention"]},
    "qwen3": GROUPED | {"head_dim": 32},
    "gemma2": GROUPED | {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16},
    "gemma": GROUPED | {"head_dim": 32},
    "phi": LLAMA,
    "olmo": LLAMA,
    "gptj": {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 512, "rotary_dim": 16},
    "starcoder2": GROUPED,
    "nemotron": GROUPED,
    "glm": GROUPED | {"head_dim": 32},
    "glm4": GROUPED | {"head_dim": 32},
    "helium": GROUPED | {"head_dim": 32},
    "exaone4": GROUPED | {"sliding_window": None, "sliding_window_pattern": 2, "layer_types": ["full_attention"] * 2},
    "cohere2": GROUPED | {"head_dim": 32, "sliding_window": 16},
    "olmo3": GROUPED | {"sliding_window": 16},
    "gpt_neo": {"hidden_size": 64, "num_layers": 2, "num_heads": 2, "attention_types": [[["global"], 2]],
                "max_position_embeddings": 512},
    "gpt_bigcode": GPT2,
}  # fmt: skip


def config_of(family: str, vocabulary: int) -> "PretrainedConfig":
    from transformers import AutoConfig

    return AutoConfig.for_model(family, vocab_size=vocabulary, **FAMILIES[family], **ENDS)


def save_family(family: str, folder: Path) -> Path:
    """A folder of that family with random weights and the character tokenizer."""
    from transformers import AutoModelForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    model = AutoModelForCausalLM.from_config(config_of(family, save_tokenizer(folder)))
    return save_random(model, folder)
