"""Model folders that cannot be used: every command refuses them in the same line, before it makes anything."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from command import esctl
from refusing import refused

from esctl.assets import tiny_model_path

SHORT = "--set sampling.max_tokens=16"
OF_MODEL = f"--recipe arithmetic/es --engine transformers --run D/out {SHORT}"
TRAIN = f"{OF_MODEL} --model D/model --generations 1 --set prompts=4 --set eval.every=0 --set eval.final=null"
ADOPT = "--label X --cost rollouts=1 --task arithmetic --run D/out"
# By name, so that the name of a failed case says which command differs.
COMMANDS = {
    "train": f"train {TRAIN} --set method.population=2",
    "train by gradients": f"train {TRAIN.replace('/es', '/grpo')}",
    "eval": f"eval D/model {OF_MODEL} -n 2",
    "passk": f"passk D/model {OF_MODEL} -n 2 --k 1",
    "sharpness": f"sharpness D/model {OF_MODEL} -n 2 --sigmas 0.01 --seeds 1 --members 2 --scales 1 --directions 1",
    "adopt": f"adopt D/model --base embedded {ADOPT}",
    "adopt as base": f"adopt {tiny_model_path()} --base D/model {ADOPT}",
}
DRY_RUN = f"train {TRAIN} --dry-run"
Change = Callable[[Path], object]


class Harm:
    """Makes a folder when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.mkdir, ("harm",))


def weight(name: str, value: float) -> Change:
    """One element of a tensor becomes `value`."""

    def change(folder: Path) -> None:
        from safetensors.numpy import load_file, save_file

        tensors = load_file(folder / "model.safetensors")
        tensors[name].reshape(-1)[3] = value
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return change


def shards(folder: Path) -> None:
    """The weights in two shards and an index."""
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for part in (0, 1):
        own = {name: tensors[name] for name in sorted(tensors)[part::2]}
        file = f"model-0000{part + 1}-of-00002.safetensors"
        save_file(own, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(own, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def shards_beside_one_file(folder: Path) -> None:
    shutil.copy(folder / "model.safetensors", folder / "kept")
    shards(folder)
    (folder / "kept").rename(folder / "model.safetensors")


def a_shard_less(folder: Path) -> None:
    shards(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


def a_shard_elsewhere(folder: Path) -> None:
    shards(folder)
    (folder / "model-00002-of-00002.safetensors").rename(folder.parent / "other.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("model-00002-of-00002", "../other"))


def settings(name: str, **changes: object) -> Change:
    """Keys of a JSON file in the folder."""

    def change(folder: Path) -> None:
        path = folder / name
        before = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(before | changes))

    return change


def config(**changes: object) -> Change:
    return settings("config.json", **changes)


def code_of_its_own(folder: Path) -> None:
    config(model_type="strange", auto_map={"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"})(folder)
    (folder / "code.py").write_text("import os\nos.mkdir('harm')\n")


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Harm()))


def a_token_more(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    token = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    tokenizer["added_tokens"].append(token | {"id": 366, "content": "zebra"})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def family(name: str, **sizes: object) -> Change:
    """The config of another family, and no weights."""

    def change(folder: Path) -> None:
        from transformers import AutoConfig

        (folder / "model.safetensors").unlink()
        AutoConfig.for_model(name, **sizes).save_pretrained(folder)

    return change


NORM = "model.norm.weight"
NO_STATES = "it is a state-space, convolution or recurrent model, which no engine here serves"
USE = "give a decoder with attention, such as qwen2 or llama"
CODE = "needs code of its own (auto_map, model_type 'strange'), which esctl never runs"
TYPES = "has a config.json that cannot be read: Validation error for field"
# What is done to a copy of the embedded model; whether a dry run, which reads no weights, sees it; the message.
FAULTS: dict[str, tuple[Change, bool, str]] = {
    "NaN": (weight(NORM, np.nan), False, f"{NORM} holds weights that are not finite"),
    "inf": (weight("model.embed_tokens.weight", np.inf), False, "model.embed_tokens.weight holds weights that are not"),
    "-inf": (weight("model.layers.3.mlp.up_proj.weight", -np.inf), False, "model.layers.3.mlp.up_proj.weight holds"),
    "stale shards": (shards_beside_one_file, True, "has both model.safetensors and model.safetensors.index.json"),
    "a shard less": (a_shard_less, True, "lacks model-00002-of-00002.safetensors, which model.safetensors.index.json"),
    "a shard elsewhere": (a_shard_elsewhere, True, "names '../other.safetensors', which is outside of the folder"),
    "code": (code_of_its_own, True, CODE),
    "pickled code": (pickled, False, "has pickled weights that hold more than tensors"),
    "a word as size": (config(hidden_size="a"), True, f"{TYPES} 'hidden_size': TypeError: Field 'hidden_size' exp"),
    "no size": (config(num_hidden_layers=None), True, f"{TYPES} 'num_hidden_layers'"),
    "half a row": (config(vocab_size=3.5), True, f"{TYPES} 'vocab_size'"),
    "a word as table": (config(rope_parameters="none"), True, f"{TYPES} 'rope_parameters'"),
    "no heads": (config(num_attention_heads=0), True, "model family qwen2: its config has no num_attention_heads"),
    "a number as type": (config(model_type=3), True, "has model type `3`"),
    "unknown dtype": (config(dtype="floaty"), True, "has a config.json that cannot be read"),
    "unknown function": (config(hidden_act="no"), True, "cannot be built from its config.json: KeyError('no')"),
    "other layers": (config(num_hidden_layers=9), True, "`num_hidden_layers` (9) must be equal to"),
    "other heads": (config(num_key_value_heads=1), False, "as [64], and its config.json describes [32]"),
    "a word as end": (settings("generation_config.json", eos_token_id="x"), True, "eos_token_id in generation_config"),
    "a token more": (a_token_more, True, "its tokenizer has 367 ids (such as 'zebra') and the model 366 rows"),
    "mamba": (family("mamba", hidden_size=64, state_size=8), True, f"model family mamba: {NO_STATES}; {USE}"),
    "rwkv": (family("rwkv", hidden_size=64), True, f"model family rwkv: {NO_STATES}; {USE}"),
    "bloom": (family("bloom", hidden_size=64), True, "model family bloom: its config names no context length"),
    "t5": (family("t5", d_model=64), True, "(t5) is not a causal language model"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_model_that_cannot_be_used_is_the_same_line_from_every_command(fault, tmp_path, monkeypatch, capfd):
    change, seen_early, says = FAULTS[fault]
    shutil.copytree(tiny_model_path(), tmp_path / "model")
    change(tmp_path / "model")
    stdin = StringIO("yes\n" * 100)
    monkeypatch.setattr("sys.stdin", stdin)
    commands = COMMANDS | ({"dry run": DRY_RUN} if seen_early else {})
    found = {name: refused(line, tmp_path, capfd) for name, line in commands.items()}
    [(code, message)] = set(found.values()) or [(0, "")]
    assert code in (1, 2), found
    assert says in message
    assert message.startswith("esctl: model")
    assert "\n" not in message
    assert stdin.tell() == 0, "a question was asked"
    assert not (tmp_path / "harm").exists(), "code of the folder was run"


def test_more_threads_than_cores_are_the_same_line_from_every_command(tmp_path, capsys):
    shutil.copytree(tiny_model_path(), tmp_path / "model")
    lines = [f"{line} --set engine.threads=100000" for line in (*COMMANDS.values(), DRY_RUN)]
    [(code, message)] = {refused(line, tmp_path, capsys) for line in lines}
    cores = os.cpu_count()
    assert code == 2
    assert message == (
        f"esctl: engine.threads: 100000, but this machine has {cores} cores; use {cores} or fewer, or auto"
    )


SIZES = {"vocab_size": 366, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
         "num_attention_heads": 2}  # fmt: skip


def test_a_window_that_vllm_reads_otherwise_is_refused_in_the_dry_run(tmp_path, monkeypatch, capsys):
    shutil.copytree(tiny_model_path(), tmp_path / "model")
    family("cohere2", sliding_window=16, **SIZES)(tmp_path / "model")
    monkeypatch.setattr("esctl.engines.vllm_installed", lambda: True)
    for kind in ("vllm", "auto"):
        code, message = refused(DRY_RUN.replace("transformers", kind), tmp_path, capsys)
        assert code == 1
        assert message == (
            "esctl: model family cohere2: vLLM's window is one token longer than Transformers' (max_model_len up to"
            " 16 is equal); set engine.kind to transformers"
        )
    dry_run = DRY_RUN.replace("D/", f"{tmp_path}/")
    assert esctl(dry_run) == 0
    config(sliding_window=100)(tmp_path / "model")
    assert esctl(dry_run.replace("transformers", "vllm")) == 0


def test_a_prompt_that_longrope_leaves_no_room_for_is_refused_by_name(tmp_path, capsys):
    shutil.copytree(tiny_model_path(), tmp_path / "model")
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 16, "long_factor": [1.0] * 16, "rope_theta": 10000.0}
    ends = {"pad_token_id": 0, "eos_token_id": 2}
    family("phi3", original_max_position_embeddings=24, rope_parameters=rope, **ends, **SIZES)(tmp_path / "model")
    code, message = refused(DRY_RUN, tmp_path, capsys)
    assert code == 2
    assert "do not fit the model's 24 tokens (its original_max_position_embeddings: beyond it, the" in message
    assert "longrope" in message
