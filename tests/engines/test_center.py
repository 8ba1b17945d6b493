"""The laws of the fp32 center: canonical names, exact moves, and files that give back what was written."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from esctl.engines.weights.center import Center
from esctl.errors import EngineError
from esctl.noise import cpu, spec
from esctl.noise.moves import EMPTY, Move

MOVE, OTHER = Move.of([1, 2, 3], [0.01, -0.02, 0.005]), Move.of([4], [0.03])


@pytest.fixture(params=["tiny_qwen2", "tiny_llama"])
def folder(request) -> Path:
    """Tied embeddings with biases, then untied ones without."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def center(folder) -> Center:
    return Center.load(folder)


def snapshot(center: Center) -> dict[str, np.ndarray]:
    return {name: center.tensor(name).copy() for name in center.names}


def moved(tensors: dict[str, np.ndarray], move: Move) -> dict[str, np.ndarray]:
    """fl(tensor + Σ cᵢεᵢ) by the specification."""
    return {
        name: spec.reference_write(t.reshape(-1), move, spec.tensor_id(name)).reshape(t.shape)
        for name, t in tensors.items()
    }


def candidate(center: Center, name: str, move: Move) -> np.ndarray:
    out = np.empty(center.shape(name), np.float32)
    center.candidate(name, move, out)
    return out


def assert_same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        np.testing.assert_array_equal(tensor.view(np.uint32), b[name].view(np.uint32), err_msg=name)


def copy_with(folder: Path, target: Path, **config: object) -> Path:
    shutil.copytree(folder, target)
    settings = json.loads((target / "config.json").read_text("utf-8"))
    (target / "config.json").write_text(json.dumps(settings | config), "utf-8")
    return target


def rewrite_weights(folder: Path, change) -> None:
    """Replace a folder's tensors by `change` of them."""
    from safetensors.torch import load_file, save_file

    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors", metadata={"format": "pt"})


def logits(folder: Path):
    import torch
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    with torch.no_grad():
        return model(torch.arange(3, 40)[None]).logits


def test_names_shapes_and_values_are_those_that_save_pretrained_wrote(folder, center):
    from safetensors.numpy import load_file

    written = load_file(folder / "model.safetensors")
    assert center.names == tuple(sorted(written))
    assert center.dim == sum(t.size for t in written.values())
    assert {n: center.shape(n) for n in center.names} == {n: t.shape for n, t in written.items()}
    assert_same(snapshot(center), written)


def test_commit_is_the_specification_on_every_tensor(center):
    before = snapshot(center)
    center.commit(MOVE)
    assert_same(snapshot(center), moved(before, MOVE))


def test_commits_depend_on_their_sequence_and_are_not_merged(folder):
    a, b, merged = (Center.load(folder) for _ in range(3))
    for move in (MOVE, OTHER):
        a.commit(move)
    for move in (OTHER, MOVE):
        b.commit(move)
    merged.commit(MOVE + OTHER)
    assert len({c.weights_sha256() for c in (a, b, merged)}) == 3
    for name in a.names:
        np.testing.assert_allclose(a.tensor(name), b.tensor(name), atol=1e-6)


def test_the_empty_commit_changes_nothing(center):
    before = center.weights_sha256()
    center.commit(EMPTY)
    assert center.weights_sha256() == before


def test_a_candidate_is_written_from_theta_and_leaves_it(center):
    before = snapshot(center)
    assert_same({n: candidate(center, n, MOVE) for n in center.names}, moved(before, MOVE))
    assert_same(snapshot(center), before)


def test_a_candidate_of_a_staged_probe_is_rounded_twice(center):
    """The law of two-round methods: fl(fl(θ + Σ probe) + Σ candidate), while θ stays what it was."""
    before = snapshot(center)
    center.stage(OTHER)
    assert_same({n: candidate(center, n, MOVE) for n in center.names}, moved(moved(before, OTHER), MOVE))
    assert_same(snapshot(center), before)
    center.unstage()
    assert_same({n: candidate(center, n, EMPTY) for n in center.names}, before)


def test_staging_again_starts_from_theta(center):
    before = snapshot(center)
    center.stage(OTHER)
    center.stage(MOVE)
    assert_same({n: candidate(center, n, EMPTY) for n in center.names}, moved(before, MOVE))
    center.stage(EMPTY)
    assert_same({n: candidate(center, n, EMPTY) for n in center.names}, before)


def test_the_same_probe_is_written_once_until_theta_moves(center, tmp_path, monkeypatch):
    """A round that comes in pieces stages its probe with each; what moves θ, or cuts a stage short, makes it stale."""
    written, write = list[int](), cpu.write
    center.save_center(tmp_path / "start")

    def counted(*args: object) -> None:
        written.append(1)
        if len(written) == failing:
            raise KeyboardInterrupt
        write(*args)

    def staged() -> int:
        """How many tensors staging wrote; θ' is the specification's."""
        written.clear()
        center.stage(OTHER)
        writes = len(written)
        assert_same({n: candidate(center, n, EMPTY) for n in center.names}, moved(snapshot(center), OTHER))
        center.stage(EMPTY)
        return writes

    failing, whole = 0, len(center.names)
    monkeypatch.setattr(cpu, "write", counted)
    assert [staged(), staged()] == [whole, 0]
    center.commit(MOVE)
    assert [staged(), staged()] == [whole, 0]
    center.load_center(tmp_path / "start")
    assert [staged(), staged()] == [whole, 0]
    center.stage(MOVE)
    assert [staged(), staged()] == [whole, 0]
    failing = 2
    written.clear()
    with pytest.raises(KeyboardInterrupt):
        center.stage(MOVE)
    failing = 0
    assert [staged(), staged()] == [whole, 0]


def test_a_commit_applies_at_theta_and_ends_the_staging(center):
    before = snapshot(center)
    center.stage(OTHER)
    center.commit(MOVE)
    assert_same(snapshot(center), moved(before, MOVE))
    assert_same({n: candidate(center, n, EMPTY) for n in center.names}, moved(before, MOVE))


def test_a_range_of_rows_is_that_part_of_the_whole(center):
    for name in center.names:
        whole, rows = candidate(center, name, MOVE), center.shape(name)[0]
        for first, count in ((0, 1), (rows // 3, rows // 2), (rows - 1, None)):
            part = np.empty_like(whole[first : first + (count or rows)])
            center.candidate(name, MOVE, part, first, count)
            np.testing.assert_array_equal(part, whole[first : first + (count or rows)])


def test_the_probe_buffer_is_held_only_where_it_is_used(folder):
    center = Center.load(folder)
    one = {"center": 4 * center.dim, "probe": 0}
    assert center.bytes() == one
    center.stage(EMPTY)
    assert center.bytes() == one
    center.stage(MOVE)
    assert center.bytes() == Center.load(folder, probes=True).bytes() == one | {"probe": 4 * center.dim}


def test_the_hash_knows_values_names_and_shapes():
    shapes = [{"a": (2, 3), "b": (3,)}, {"a": (3, 2), "b": (3,)}, {"a": (2, 3), "c": (3,)}, {"b": (3,), "a": (2, 3)}]
    hashes = [Center(s).weights_sha256() for s in shapes]
    assert hashes[0] == hashes[3]
    assert len(set(hashes)) == 3
    changed = Center(shapes[0])
    changed.tensor("b")[2] = -0.0
    assert changed.weights_sha256() != hashes[0]


def test_a_saved_model_loads_whole_and_gives_equal_logits(folder, center, tmp_path):
    import torch

    center.save(tmp_path / "same", "float32", folder)
    assert torch.equal(logits(tmp_path / "same"), logits(folder))
    center.commit(MOVE)
    center.save(tmp_path / "same", "float32", folder)
    assert not torch.equal(logits(tmp_path / "same"), logits(folder))
    assert Center.load(tmp_path / "same").weights_sha256() == center.weights_sha256()


def test_a_saved_model_has_the_source_s_files_and_nothing_half_written(folder, center, tmp_path):
    center.save(tmp_path / "out", "float32", folder)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["out"]
    assert sorted(f.name for f in (tmp_path / "out").iterdir()) == sorted(f.name for f in folder.iterdir())
    for file in folder.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_saving_casts_once_to_nearest_even(folder, center, tmp_path, dtype):
    import torch
    from safetensors.torch import load_file

    center.save(tmp_path / "half", dtype, folder)
    written = load_file(tmp_path / "half" / "model.safetensors")
    for name in center.names:
        assert torch.equal(written[name], torch.from_numpy(center.tensor(name)).to(written[name].dtype))
        assert written[name].dtype == getattr(torch, dtype)
    assert json.loads((tmp_path / "half" / "config.json").read_text("utf-8"))["dtype"] == dtype
    logits(tmp_path / "half")


def test_a_center_file_gives_back_the_bits(center, tmp_path):
    center.commit(MOVE)
    before = snapshot(center)
    center.save_center(tmp_path / "center.safetensors")
    assert [f.name for f in tmp_path.iterdir()] == ["center.safetensors"]
    center.stage(OTHER)
    center.commit(OTHER)
    center.load_center(tmp_path / "center.safetensors")
    assert_same(snapshot(center), before)
    assert_same({n: candidate(center, n, EMPTY) for n in center.names}, before)


def test_a_center_file_is_plain_safetensors(center, tmp_path):
    from safetensors.numpy import load_file

    center.save_center(tmp_path / "c.safetensors")
    assert_same(load_file(tmp_path / "c.safetensors"), snapshot(center))


def test_a_checkpoint_that_repeats_a_tied_tensor_counts_it_once(tiny_qwen2, tmp_path):
    copy = copy_with(tiny_qwen2, tmp_path / "model")
    rewrite_weights(copy, lambda t: t | {"lm_head.weight": t["model.embed_tokens.weight"].clone()})
    assert Center.load(copy).weights_sha256() == Center.load(tiny_qwen2).weights_sha256()


def test_a_half_precision_checkpoint_becomes_an_exact_fp32_center(folder, tmp_path):
    import torch

    copy = copy_with(folder, tmp_path / "model", dtype="bfloat16")
    rewrite_weights(copy, lambda t: {n: v.to(torch.bfloat16) for n, v in t.items()})
    center = Center.load(copy)
    for name in center.names:
        assert center.tensor(name).dtype == np.float32
        assert not (center.tensor(name).view(np.uint32) & 0xFFFF).any()
    center.save(tmp_path / "again", "bfloat16", copy)
    assert (tmp_path / "again/model.safetensors").read_bytes()[-512:] == _last_bytes(copy, center, 512)


def _last_bytes(folder: Path, center: Center, n: int) -> bytes:
    """The tail of a folder's tensors as bytes, laid out in the center's order."""
    import torch
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    return b"".join(tensors[name].view(torch.uint8).numpy().tobytes() for name in center.names)[-n:]


def _forget_norm(tensors):
    return {n: t for n, t in tensors.items() if n != "model.norm.weight"}


def _quantise(tensors):
    """As some exporters do, who say so in a file of their own."""
    import torch

    name = "model.layers.0.mlp.up_proj.weight"
    return tensors | {name: tensors[name].to(torch.float8_e4m3fn), f"{name}_scale": torch.ones(1)}


def _untie(tensors):
    return tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"] * 2}


@pytest.mark.parametrize(
    ("config", "change", "says"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, None, "quantised"),
        ({}, _quantise, r"quantised \(model.layers.0.mlp.up_proj.weight_scale\)"),
        ({"image_token_id": 5}, None, "multimodal"),
        ({"model_type": "no-such-model"}, None, "config.json that cannot be read"),
        ({"model_type": "t5"}, None, "not a causal language model"),
        ({"model_type": "qwen2_moe", "num_experts": 4}, None, "mixture of experts"),
        ({}, _forget_norm, "lacks weights for model.norm.weight"),
        ({}, _untie, "ties its embeddings"),
    ],
    ids=["quantised", "quantised-unsaid", "multimodal", "unknown", "seq2seq", "moe", "incomplete", "half-tied"],
)
def test_a_model_that_cannot_be_trained_is_refused_in_one_line(tiny_qwen2, tmp_path, config, change, says):
    copy = copy_with(tiny_qwen2, tmp_path / "model", **config)
    if change:
        rewrite_weights(copy, change)
    with pytest.raises(EngineError, match=says) as error:
        Center.load(copy)
    assert "\n" not in str(error.value)
    assert str(copy) in str(error.value)


@pytest.mark.parametrize("size", [0, 4, 100_000])
def test_a_model_file_that_is_cut_off_is_refused_in_one_line(tiny_qwen2, tmp_path, size):
    copy = copy_with(tiny_qwen2, tmp_path / "model")
    os.truncate(copy / "model.safetensors", size)
    with pytest.raises(EngineError, match=r"cannot be loaded as a causal language model: [^\n]+$"):
        Center.load(copy)


def test_a_missing_model_is_refused_in_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    for model in (tmp_path / "none", "nobody/no-such-model", tmp_path / "empty", "two words", ""):
        with pytest.raises(EngineError) as error:
            Center.load(model)
        assert "\n" not in str(error.value)


def test_a_foreign_or_damaged_center_file_is_refused_and_theta_stays(center, tmp_path):
    before, file = center.weights_sha256(), tmp_path / "c.safetensors"
    shapes = {name: center.shape(name) for name in center.names}
    Center(shapes | {"model.norm.weight": (3,)}).save_center(file)
    with pytest.raises(EngineError, match=r"differs in model\.norm\.weight"):
        center.load_center(file)
    center.save_center(file)
    file.write_bytes(file.read_bytes()[:-1])
    for damaged in (file, tmp_path / "none"):
        with pytest.raises(EngineError, match="cannot be read"):
            center.load_center(damaged)
    assert center.weights_sha256() == before
