"""The sizes of a text model, whatever names its family's config has for them; the one place that reads them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from esctl.errors import EngineError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# Every size by its names, the usual one first. Transformers maps many old names to the usual one, but not all.
NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "context": ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"),
}
FEED_FORWARD = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner")
# Keys of models that carry a state from token to token instead of keys and values, in all or in some layers.
STATES = ("state_size", "ssm_state_size", "mamba_d_state", "mamba_d_conv", "conv_L_cache", "linear_key_head_dim",
          "lru_width", "attention_hidden_size", "rwkv_version")  # fmt: skip

# Families that vLLM 0.32 refuses, or serves without a part of their weights.
NOT_BY_VLLM = {
    "gpt_neo": "vLLM has no code for it",
    "phi": "vLLM drops the bias of its output layer",
    "gpt_bigcode": "vLLM names its weights otherwise",
}

LONGROPE = (
    " (its original_max_position_embeddings: beyond it, the frequencies of longrope, and so every completion, depend on"
    " the longest text of a batch)"
)


@dataclass(frozen=True)
class Sizes:
    """What a text model's config says about its shape."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int  # elements of one attention head
    feed_forward: int
    vocabulary: int
    context: int  # tokens of prompt and completion together, at most
    why_short: str = ""  # the end of a sentence: why that is less than the model's full context, where it is

    @property
    def kv_elements(self) -> int:
        """Keys and values of one token, over all layers."""
        return 2 * self.layers * self.kv_heads * self.head


def sizes_of(config: "PretrainedConfig") -> Sizes:
    """The sizes of a model's text part; EngineError, one line that names the family, where it has none of one kind."""
    text = config.get_text_config(decoder=True)
    if any(_number(text, (key,)) for key in STATES):
        raise _refused(text, "it is a state-space, convolution or recurrent model, which no engine here serves")
    if getattr(text, "alibi", False) or getattr(getattr(text, "attn_config", None), "alibi", False):
        raise _refused(text, "its positions are ALiBi, which the padding of a batch would shift")
    found = {size: _number(text, names) for size, names in NAMES.items()}
    if not found["context"]:
        raise _refused(text, "its config names no context length, as with ALiBi positions")
    missing = [NAMES[size][0] for size, value in found.items() if not value]
    if missing:
        raise _refused(text, f"its config has no {missing[0]}")
    heads = found["heads"]
    head = _number(text, ("head_dim",)) or found["hidden"] // heads
    short = _short_context(text)
    shortened = 0 < short < found["context"]
    return Sizes(
        layers=found["layers"],
        hidden=found["hidden"],
        heads=heads,
        kv_heads=_kv_heads(text, heads),
        head=head,
        feed_forward=_number(text, FEED_FORWARD) or 4 * found["hidden"],  # as GPT-2 and Falcon have it
        vocabulary=text.vocab_size,
        context=short if shortened else found["context"],
        why_short=LONGROPE if shortened else "",
    )


def _short_context(text: "PretrainedConfig") -> int:
    """Tokens up to which a completion does not depend on its batch; 0 where it never does.

    Longrope (Phi-3) switches its frequencies by the longest text of a batch once that is longer than this.
    """
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    if "longrope" not in (rope.get("rope_type"), rope.get("type")):
        return 0
    return int(rope.get("original_max_position_embeddings") or _number(text, ("original_max_position_embeddings",)))


def refuse_unserved(config: "PretrainedConfig", kind: str, context: int = 0) -> None:
    """EngineError, one line that names the family, where an engine of this kind would compute something else."""
    text = config.get_text_config(decoder=True)
    if kind != "vllm":
        return
    reason = NOT_BY_VLLM.get(text.model_type)
    window = getattr(text, "sliding_window", None)
    if text.model_type == "cohere2" and window and context > window:
        reason = f"vLLM's window is one token longer than Transformers' (max_model_len up to {window} is equal)"
    if reason:
        raise EngineError(f"model family {text.model_type}: {reason}; set engine.kind to transformers")


def _kv_heads(text: "PretrainedConfig", heads: int) -> int:
    """Heads of keys and values: as many as of queries, unless the config says otherwise."""
    if text.model_type == "falcon" and not getattr(text, "new_decoder_architecture", False):
        return 1 if getattr(text, "multi_query", True) else heads  # Falcon's num_kv_heads counts in its new form only
    if getattr(text, "multi_query", False) and text.model_type == "gpt_bigcode":
        return 1
    return _number(text, ("num_key_value_heads", "num_kv_heads")) or heads


def _number(text: "PretrainedConfig", names: tuple[str, ...]) -> int:
    """The first of these keys that holds a positive number; 0 without one."""
    for name in names:
        value = getattr(text, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return 0


def _refused(text: "PretrainedConfig", reason: str) -> EngineError:
    return EngineError(
        f"model family {text.model_type}: {reason}; give a decoder with attention, such as qwen2 or llama"
    )
