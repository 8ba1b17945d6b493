"""What a model folder must be to be trained: its config, its canonical tensors, and the module that holds them.

No code of a folder is ever run: every loader gets `trust_remote_code=False`.
"""

import json
import math
import pickle
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from esctl.engines.weights.files import stored_tensors, weight_files
from esctl.engines.weights.sizes import sizes_of
from esctl.errors import EngineError

if TYPE_CHECKING:
    from torch.nn import Parameter
    from transformers import PretrainedConfig, PreTrainedModel


Shapes = dict[str, tuple[int, ...]]
MAX_SETTINGS = 10_000_000  # bytes of a JSON file beside the weights
MAX_REASON = 240  # characters of another library's explanation
SPAN = 1 << 22  # weights that are checked at once

# What a folder needs beside weights and config.json; copied byte for byte, so that a tokenizer's hash stays the same.
COMPANIONS = (
    "added_tokens.json",
    "chat_template*",
    "generation_config.json",
    "merges.txt",
    "*.model",
    "special_tokens_map.json",
    "tokenizer*",
    "vocab*",
)
# Keys of a config that say a model is more than the dense text decoder whose tensors can be mapped one to one.
UNSUPPORTED = {
    "quantization_config": "its weights are quantised",
    "vision_config": "it is multimodal",
    "audio_config": "it is multimodal",
    "audio_encoder_config": "it is multimodal",
    "image_token_id": "it is multimodal",
    "num_experts": "it is a mixture of experts",
    "num_local_experts": "it is a mixture of experts",
    "n_routed_experts": "it is a mixture of experts",
    "moe_num_experts": "it is a mixture of experts",
}
# Parts of names that only quantised weights have beside them; some folders say so nowhere else.
QUANTISED = ("scale", "zero_point", "qweight", "qzeros", "absmax")


def model_folder(model: Path | str) -> Path:
    """The local folder of a model: the path itself, or the snapshot of a hub id; EngineError where neither is."""
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(model), allow_patterns=["*.json", "*.safetensors", *COMPANIONS]))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError):
        raise EngineError(
            f"model {str(model)!r} is neither a folder nor a hub model that can be fetched or is cached: "
            "give a folder in Hugging Face format, or unset HF_HUB_OFFLINE"
        ) from None


def read_settings(path: Path) -> dict[str, object]:
    """One of a folder's JSON files as an object; EngineError, one line, for anything else."""
    try:
        if path.stat().st_size > MAX_SETTINGS:
            raise ValueError("larger than any such file")
        settings = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else _reason(error)
        raise EngineError(f"model {path.parent} has a {path.name} that cannot be read: {reason}") from None
    if not isinstance(settings, dict):
        raise EngineError(f"model {path.parent} has a {path.name} that cannot be read: it is not an object")
    return settings


def load_config(model: Path | str) -> "PretrainedConfig":
    """The config of a folder or hub id, by Transformers' own classes alone; EngineError, one line, for any other."""
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if Path(model).is_dir():
        settings = read_settings(Path(model) / "config.json")
        kind = settings.get("model_type")
        if "auto_map" in settings and kind not in CONFIG_MAPPING:
            raise EngineError(
                f"model {model} needs code of its own (auto_map, model_type {kind!r}), which esctl never runs:"
                " give a model that Transformers knows"
            )
        if settings.get("transformers_weights"):
            raise EngineError(f"model {model} names its weights in config.json (transformers_weights): remove the key")
    try:
        with quiet_transformers():
            return AutoConfig.from_pretrained(model, trust_remote_code=False)
    except Exception as error:  # a config class raises whatever its checks of types and values raise
        raise EngineError(f"model {model} has a config.json that cannot be read: {_reason(error)}") from None


def check_model(model: Path | str) -> tuple[Path, "PretrainedConfig"]:
    """The folder and config of a model that can be trained; EngineError, one line, for any other. Reads no weight."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    folder = model_folder(model)
    if not (folder / "config.json").is_file():
        raise EngineError(f"model {folder} has no config.json: give a folder in Hugging Face format")
    if (folder / "adapter_config.json").is_file():
        raise EngineError(f"model {folder} holds an adapter (adapter_config.json): merge it into its base first")
    config = load_config(folder)
    _check_supported(folder, config.to_dict())
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or config.is_encoder_decoder:
        raise EngineError(f"model {folder} ({config.model_type}) is not a causal language model: give one that is")
    end_tokens(folder)
    weight_files(folder)
    sizes_of(config)  # refuses families without attention or without a context length
    if getattr(config.get_text_config(), "attn_logit_softcapping", None):
        # Only Transformers' own attention caps the logits (Gemma 2); torch's ignores the cap without a word.
        config._attn_implementation = "eager"
    return folder, config


def end_tokens(folder: Path) -> set[int]:
    """Every token that config.json or generation_config.json names as an end; EngineError where it is no number."""
    found = set[int]()
    for name in ("config.json", "generation_config.json"):
        if not (folder / name).is_file():
            continue
        ends = read_settings(folder / name).get("eos_token_id")
        if ends is None:
            continue
        for token in ends if isinstance(ends, list) else [ends]:
            if type(token) is not int:
                raise EngineError(
                    f"model {folder}: eos_token_id in {name} is {ends!r}: give a token's number, or a list"
                )
            found.add(token)
    return found


def refuse_not_finite(model: Path | str, name: str, values: NDArray[np.float32]) -> None:
    """Refuse a tensor with NaN or infinite weights; EngineError that names it."""
    flat = values.reshape(-1)
    for start in range(0, flat.size, SPAN):
        if not np.isfinite(flat[start : start + SPAN]).all():
            raise EngineError(f"model {model}: {name} holds weights that are not finite: take another checkpoint")


def _canonical_parameters(module: "PreTrainedModel") -> "dict[str, Parameter]":
    tied = set(module.all_tied_weights_keys)
    return {n: p for n, p in module.named_parameters(remove_duplicate=False) if n not in tied}


def canonical_shapes(config: "PretrainedConfig") -> Shapes:
    """What `save_pretrained` would write for this config, found without allocating a weight."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with quiet_transformers(), torch.device("meta"):
            module = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception as error:  # sizes that do not fit each other raise whatever the model's code raises
        raise EngineError(
            f"model of type {config.model_type} cannot be built from its config.json: {_reason(error)}"
        ) from None
    return {name: tuple(parameter.shape) for name, parameter in _canonical_parameters(module).items()}


def count_weights(config: "PretrainedConfig") -> int:
    """The dimension d of θ: parameters that `save_pretrained` would write, tied ones once."""
    return sum(math.prod(shape) for shape in canonical_shapes(config).values())


def load_module(folder: Path, config: "PretrainedConfig") -> "PreTrainedModel":
    """The Transformers module in fp32, after a look at whether it is whole."""
    import torch
    from transformers import AutoModelForCausalLM

    stored_tensors(folder)  # refuses files that Transformers would read in another way, or not at all
    canonical_shapes(config)  # refuses sizes that do not fit each other
    try:
        with quiet_transformers(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the reader of pickles explains itself at length
            module, report = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported, and refused below
                trust_remote_code=False,
            )
    except pickle.UnpicklingError:
        raise EngineError(
            f"model {folder} has pickled weights that hold more than tensors, or are damaged, and pickled code is never"
            " run: give its weights as safetensors"
        ) from None
    except Exception as error:  # damaged files raise errors of zip, safetensors, and of the model's code
        raise EngineError(f"model {folder} cannot be loaded as a causal language model: {_reason(error)}") from None
    for name in sorted(map(str, report["unexpected_keys"])):
        if any(part in name for part in QUANTISED):
            raise _untrainable(folder, UNSUPPORTED["quantization_config"], name)
    for name, stored, described in sorted(report["mismatched_keys"]):
        raise EngineError(
            f"model {folder} stores {name} as {list(stored)}, and its config.json describes {list(described)}:"
            " give the config.json that belongs to the weights"
        )
    wrong = sorted(map(str, report["missing_keys"]))
    if wrong:
        raise EngineError(f"model {folder} lacks weights for {', '.join(wrong[:3])}: the checkpoint is not complete")
    if config.tie_word_embeddings and not module.all_tied_weights_keys:
        raise EngineError(f"model {folder} ties its embeddings by config.json but stores two: correct one of them")
    for name, parameter in _canonical_parameters(module).items():
        refuse_not_finite(folder, name, parameter.detach().numpy())
    return module


def _reason(error: Exception) -> str:
    """One line of an error of another library; a heading is followed by what it announces."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines or isinstance(error, KeyError):  # whose text is the key alone
        return repr(error)
    whole = f"{lines[0]} {lines[1]}" if lines[0].endswith(":") and len(lines) > 1 else lines[0]
    return shorten(whole, MAX_REASON, placeholder=" …")


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hold back progress bars and multi-line reports, whose content is raised as an error of one line."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _check_supported(folder: Path, config: Mapping[str, object]) -> None:
    """Also of the configs within: some families describe their experts in a section of its own."""
    for section in config.values():
        if isinstance(section, dict):
            _check_supported(folder, section)
    for key, reason in UNSUPPORTED.items():
        if config.get(key):
            raise _untrainable(folder, reason, key)


def _untrainable(folder: Path, reason: str, evidence: str) -> EngineError:
    return EngineError(f"model {folder} cannot be trained, because {reason} ({evidence}): use a dense text model")
