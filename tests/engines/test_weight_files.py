"""Which files make a model, and what is refused in one line before a number is made of it."""

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import esctl
from esctl.engines import EngineSpec
from esctl.engines.checkpoint import Checkpoint, refuse_large_vocabulary, refuse_unknown_ids
from esctl.engines.process import use_threads
from esctl.engines.weights.center import Center
from esctl.engines.weights.files import INDEX, entries
from esctl.engines.weights.model import check_model, load_config, load_module
from esctl.errors import EngineError, EsctlError, UsageError

NORM = "model.norm.weight"


@pytest.fixture
def sharded(tiny_llama: Path, tmp_path: Path) -> Path:
    """The model in two shards with an index; every other tensor is in the first."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "sharded"
    shutil.copytree(tiny_llama, folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for part in (0, 1):
        name = f"model-0000{part + 1}-of-00002.safetensors"
        own = {n: tensors[n] for n in sorted(tensors)[part::2]}
        save_file(own, folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(own, name)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def other_weights(folder: Path, name: str) -> None:
    """Write the model's tensors, doubled, under another file name."""
    from safetensors.torch import load_file, save_file

    tensors = {}
    for path in folder.glob("*.safetensors"):
        tensors |= load_file(path)
    save_file({n: 2 * t for n, t in tensors.items()}, folder / name, metadata={"format": "pt"})


def change_index(folder: Path, change: Callable[[dict], object]) -> None:
    index = json.loads((folder / INDEX).read_text())
    changed = change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index if changed is None else changed))


def test_shards_and_one_file_are_one_model(sharded: Path, tiny_llama: Path) -> None:
    assert Center.load(sharded).weights_sha256() == Center.load(tiny_llama).weights_sha256()


@pytest.mark.parametrize(
    "leftover",
    [
        "model-00001-of-00003.safetensors",
        "model-00003-of-00003.safetensors",
        "consolidated.safetensors",
        "consolidated.00.safetensors",
        "pytorch_model-00001-of-00001.safetensors",
        "z.safetensors",
        "adapter_model.safetensors",
        "model.fp32.safetensors",
    ],
)
def test_leftovers_change_nothing(sharded: Path, tiny_llama: Path, tmp_path: Path, leftover: str) -> None:
    import torch

    single = tmp_path / "single"
    shutil.copytree(tiny_llama, single)
    expected = Center.load(tiny_llama)
    for folder in (sharded, single):
        other_weights(folder, leftover)
        assert Center.load(folder).weights_sha256() == expected.weights_sha256()
        module = load_module(*check_model(folder))  # as a trainer reads it
        assert torch.equal(module.state_dict()[NORM], torch.from_numpy(expected.tensor(NORM)))


def test_an_index_beside_another_whole_model_is_refused(sharded: Path) -> None:
    other_weights(sharded, "model.safetensors")
    with pytest.raises(EngineError, match=r"has both model\.safetensors and model\.safetensors\.index\.json"):
        Center.load(sharded)


def test_an_index_that_names_the_one_file_is_the_one_file(tiny_llama: Path, tmp_path: Path) -> None:
    folder = tmp_path / "single"
    shutil.copytree(tiny_llama, folder)
    names = Center.load(folder).names
    (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(names, "model.safetensors")}))
    assert Center.load(folder).weights_sha256() == Center.load(tiny_llama).weights_sha256()


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
WRONG_INDEX = {
    "missing shard": (lambda m: m.update({NORM: "model-00009-of-00009.safetensors"}), "lacks model-00009"),
    "tensor in no shard": (lambda m: m.update({"model.extra.weight": FIRST}), "names model.extra.weight in"),
    "tensor in the other shard": (lambda m: m.update({NORM: FIRST if m[NORM] == SECOND else SECOND}), NORM),
    "parent": (lambda m: m.update({NORM: "../other/model.safetensors"}), "outside of the folder"),
    "absolute": (lambda m: m.update({NORM: "/etc/passwd"}), "outside of the folder"),
    "hidden parent": (lambda m: m.update({NORM: "a/../../x.safetensors"}), "outside of the folder"),
    "pickle": (lambda m: m.update({NORM: "pytorch_model.bin"}), "not a safetensors file"),
    "number": (lambda m: m.update({NORM: 3}), "not a table of file names"),
    "list": (lambda m: [1, 2], "cannot be read"),
    "no map": (lambda m: {"metadata": {}}, "has no weight_map"),
    "empty map": (lambda m: {"weight_map": {}}, "not a table of file names"),
}


@pytest.mark.parametrize("case", WRONG_INDEX)
def test_a_wrong_index_is_refused_in_one_line(sharded: Path, case: str) -> None:
    change, says = WRONG_INDEX[case]
    change_index(sharded, change)
    with pytest.raises(EngineError, match=says) as error:
        Center.load(sharded)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"weight_map": {"a": "b", "a": "c"}}', "null"])
def test_an_index_that_is_not_one_is_refused_in_one_line(sharded: Path, text: str) -> None:
    (sharded / INDEX).write_text(text)
    with pytest.raises(EngineError, match=INDEX) as error:
        Center.load(sharded)
    assert "\n" not in str(error.value)


def test_a_tensor_in_two_shards_is_refused_with_both_names(sharded: Path) -> None:
    from safetensors.torch import load_file, save_file

    one, two = load_file(sharded / FIRST), load_file(sharded / SECOND)
    name = min(one)
    save_file(two | {name: one[name] * 2}, sharded / SECOND, metadata={"format": "pt"})
    with pytest.raises(EngineError, match=f"{name} in two files, {FIRST} and {SECOND}"):
        Center.load(sharded)


def test_a_link_out_of_the_folder_is_refused_and_a_hub_snapshot_s_is_not(sharded: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.safetensors"
    shutil.move(sharded / FIRST, outside)
    (sharded / FIRST).symlink_to(outside)
    with pytest.raises(EngineError, match="outside of the folder"):
        Center.load(sharded)
    repository = tmp_path / "models--a--b"
    (repository / "blobs").mkdir(parents=True)
    snapshot = repository / "snapshots" / "abc"
    shutil.copytree(sharded, snapshot)
    (snapshot / FIRST).unlink()
    shutil.copy(outside, repository / "blobs" / "123")
    (snapshot / FIRST).symlink_to(repository / "blobs" / "123")
    assert Center.load(snapshot).dim > 0


# A safetensors file whose header is wrong


def safetensors(described: object, data: bytes = b"\0" * 16) -> bytes:
    text = described if isinstance(described, bytes) else json.dumps(described).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(shape: list[object], begin: object, end: object, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


WRONG_FILES = {
    "empty": b"",
    "four bytes": b"\0\0\0\0",
    "header beyond the file": struct.pack("<Q", 1 << 20) + b"{}",
    "huge header": struct.pack("<Q", (1 << 63) + 5) + b"{}",
    "no JSON": safetensors(b"{"),
    "no object": safetensors([1]),
    "nested": safetensors(b"[" * 100_000),
    "cut off": safetensors({"a": entry([4], 0, 16)}, b"\0" * 15),
    "too long": safetensors({"a": entry([4], 0, 16)}, b"\0" * 17),
    "shape against bytes": safetensors({"a": entry([3], 0, 16)}),
    "overlap": safetensors({"a": entry([4], 0, 16), "b": entry([4], 0, 16)}),
    "gap": safetensors({"a": entry([1], 12, 16)}),
    "negative": safetensors({"a": entry([-4], 0, 16)}),
    "backwards": safetensors({"a": entry([4], 16, 0)}),
    "fraction": safetensors({"a": entry([4.0], 0, 16)}),
    "no shape": safetensors({"a": {"dtype": "F32", "data_offsets": [0, 16]}}),
    "entry that is a number": safetensors({"a": 3}),
    "twice": safetensors(b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"a":{"dtype":"F32","shape":[4],'
                         b'"data_offsets":[0,16]}}'),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_FILES)
def test_a_file_whose_header_is_wrong_is_refused_in_one_line(case: str, tiny_llama: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_llama, folder)
    (folder / "model.safetensors").write_bytes(WRONG_FILES[case])
    with pytest.raises(ValueError, match=r"\w+"):
        entries(folder / "model.safetensors")
    for load in (Center.load, lambda f: load_module(*check_model(f))):
        with pytest.raises(EngineError, match=r"model\.safetensors is damaged") as error:
            load(folder)
        assert "\n" not in str(error.value)


# Weights that are no numbers


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", [NORM, "model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"])
def test_weights_that_are_not_finite_are_refused_by_name(
    value: float, name: str, tiny_llama: Path, tmp_path: Path
) -> None:
    from safetensors.numpy import load_file, save_file

    folder = tmp_path / "model"
    shutil.copytree(tiny_llama, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors[name].reshape(-1)[-1] = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for load in (Center.load, lambda f: load_module(*check_model(f))):
        with pytest.raises(EngineError, match=f"{name} holds weights that are not finite"):
            load(folder)


# What is beside the weights


def with_config(folder: Path, target: Path, **changes: object) -> Path:
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text()) | changes
    (target / "config.json").write_text(json.dumps(config))
    return target


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": "a"},
        {"hidden_size": -1},
        {"num_hidden_layers": None},
        {"num_attention_heads": 0},
        {"vocab_size": 3.5},
        {"rope_parameters": "none"},
        {"model_type": 3},
        {"model_type": None},
        {"hidden_act": "no-such"},
        {"transformers_weights": "other.safetensors"},
    ],
    ids=str,
)
def test_a_config_of_wrong_values_is_refused_in_one_line(
    changes: dict[str, object], tiny_llama: Path, tmp_path: Path
) -> None:
    with pytest.raises(EsctlError) as error:
        Center.load(with_config(tiny_llama, tmp_path / "model", **changes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", "3", "[" * 100_000, "\x00"])
def test_a_settings_file_that_is_not_one_is_refused_in_one_line(
    name: str, text: str, tiny_llama: Path, tmp_path: Path
) -> None:
    folder = with_config(tiny_llama, tmp_path / "model")
    (folder / name).write_text(text)
    with pytest.raises(EngineError, match=f"{name} that cannot be read") as error:
        Checkpoint.open(EngineSpec(folder))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("ends", ["x", ["x"], [1, None], {"a": 1}, 1.5])
def test_end_tokens_of_wrong_types_are_refused_in_one_line(ends: object, tiny_llama: Path, tmp_path: Path) -> None:
    folder = with_config(tiny_llama, tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    with pytest.raises(EngineError, match=r"eos_token_id in generation_config\.json") as error:
        Checkpoint.open(EngineSpec(folder))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000])
def test_a_damaged_tokenizer_is_refused_in_one_line(name: str, text: str, tiny_llama: Path, tmp_path: Path) -> None:
    folder = with_config(tiny_llama, tmp_path / "model")
    (folder / name).write_text(text)
    with pytest.raises(EngineError, match="has no tokenizer that can be loaded") as error:
        Checkpoint.open(EngineSpec(folder))
    assert "\n" not in str(error.value)


class Harm:
    """Writes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.mkdir, (str(self.mark),))


def test_a_pickle_is_neither_run_nor_explained_at_length(tiny_llama: Path, tmp_path: Path) -> None:
    import pickle

    folder = with_config(tiny_llama, tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Harm(tmp_path / "mark")))
    with pytest.raises(EngineError, match="pickled code is never run: give its weights as safetensors") as error:
        Center.load(folder)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("kind", ["strange", "llama2-mine", None])
def test_code_of_a_folder_is_never_run_nor_asked_about(
    kind: str | None, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    automap = {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M", "AutoTokenizer": ["code.T", None]}
    folder = with_config(tiny_llama, tmp_path / "model", model_type=kind, auto_map=automap)
    (folder / "code.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'mark')!r})\n")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question was asked"))
    for use in (load_config, check_model, Center.load, lambda f: Checkpoint.open(EngineSpec(f))):
        with pytest.raises(EngineError, match=r"needs code of its own \(auto_map, model_type") as error:
            use(folder)
        assert "\n" not in str(error.value)
    assert not (tmp_path / "mark").exists()


def test_a_known_family_with_code_beside_it_is_read_by_transformers_own(tiny_llama: Path, tmp_path: Path) -> None:
    automap = {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}
    folder = with_config(tiny_llama, tmp_path / "model", auto_map=automap)
    (folder / "code.py").write_text("raise SystemExit\n")
    assert Center.load(folder).weights_sha256() == Center.load(tiny_llama).weights_sha256()
    assert type(load_module(*check_model(folder))).__module__.startswith("transformers.")


def test_an_adapter_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    folder = with_config(tiny_llama, tmp_path / "model")
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(EngineError, match="holds an adapter"):
        check_model(folder)


# Tokens, threads, and a machine where nothing may be written


def test_ids_beyond_the_model_s_rows_are_refused(tiny_llama: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer, config = AutoTokenizer.from_pretrained(tiny_llama), load_config(tiny_llama)
    assert refuse_large_vocabulary("m", tokenizer, config) == config.vocab_size
    config.vocab_size -= 1
    with pytest.raises(UsageError, match=r"has 55 ids .* and the model 54 rows"):
        refuse_large_vocabulary("m", tokenizer, config)
    refuse_unknown_ids("m", [[1, 53], []], 54)
    with pytest.raises(UsageError, match="prompt 1 has the token 54"):
        refuse_unknown_ids("m", [[1], [2, 54]], 54)


def test_a_special_token_without_a_row_is_refused_where_the_template_uses_it(tiny_llama: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer, config = AutoTokenizer.from_pretrained(tiny_llama), load_config(tiny_llama)
    tokenizer.add_special_tokens({"mask_token": "<image>"})
    assert refuse_large_vocabulary("m", tokenizer, config) == config.vocab_size
    tokenizer.chat_template += "<image>"
    with pytest.raises(UsageError, match="'<image>'"):
        refuse_large_vocabulary("m", tokenizer, config)


@pytest.mark.parametrize("threads", [100_000, 4097])
def test_more_threads_than_cores_are_refused(threads: int) -> None:
    with pytest.raises(UsageError, match=f"engine.threads: {threads}, but this machine has"):
        use_threads(threads)


@pytest.mark.slow
def test_noise_is_drawn_where_neither_package_nor_home_can_be_written(tmp_path: Path) -> None:
    package = tmp_path / "esctl"
    ignored = shutil.ignore_patterns("__pycache__", "assets")
    shutil.copytree(Path(esctl.__file__).parent, package, ignore=ignored)
    # Root ignores modes: a file in the place of the cache's folder refuses everybody.
    (package / "noise" / "__pycache__").write_text("")
    code = "from esctl.noise import cpu; print(cpu.__file__, cpu.fingerprint())"
    environment = {k: v for k, v in os.environ.items() if k not in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR")}
    environment |= {"HOME": "/proc", "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd="/", check=False
    )
    from esctl.noise import cpu

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(package / "noise" / "cpu.py"), cpu.fingerprint()]
