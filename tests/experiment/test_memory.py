"""Memory by formula: exact where tensors can be counted, consistent with what was published, refused in one line."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from miniature import RECORD, evaluation, write_base, write_run

from esctl.assets import tiny_model_path
from esctl.cli.estimates import center_text, memory_json, runs_table, served_text
from esctl.engines import GIB
from esctl.errors import RunError, UsageError
from esctl.experiment.estimates.memory import (
    Architecture,
    Footprint,
    Setting,
    analytic,
    architecture,
    backward_bytes,
    footprint,
    measured,
    run_setting,
)
from esctl.experiment.estimates.plan import planned_footprint
from esctl.experiment.loading import load_recipe
from esctl.methods import BASELINES, METHODS
from esctl.runs.records import Peak

NAMES = (*METHODS, *BASELINES)
SIZES = {
    "llama": {"model_type": "llama", "intermediate_size": 14336, "num_hidden_layers": 32, "vocab_size": 128256},
    "qwen3": {"model_type": "qwen3", "intermediate_size": 12288, "num_hidden_layers": 36, "vocab_size": 151936},
}
SHARED = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
TRUE_SIZE = {"llama": 8_030_261_248, "qwen3": 8_190_735_360}  # as their model cards count them
# ESSAM (Sun et al. 2026, arXiv 2602.01003): PPO on an 8B model; ESSAM is 18 times below it and 10 times below GRPO.
PUBLISHED_GIB = {"ppo": 314.44, "grpo": 314.44 / 18 * 10, "essam": 314.44 / 18}
PUBLISHED_SETTING = Setting("bf16", seq=1024, batch=4, checkpointing=True)


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def eight_billion(request, tmp_path_factory) -> tuple[str, Architecture]:
    """A folder with nothing but the config of an 8B model."""
    folder = tmp_path_factory.mktemp(request.param)
    config = SIZES[request.param] | SHARED | {"tie_word_embeddings": False, "max_position_embeddings": 32768}
    (folder / "config.json").write_text(json.dumps(config))
    return request.param, architecture(str(folder))


def per_parameter(found: Footprint, arch: Architecture, *purposes: str) -> float:
    return sum(found.purposes[p] for p in purposes) / arch.parameters


def test_parameters_are_counted_from_the_config_alone(eight_billion):
    kind, arch = eight_billion
    assert arch.parameters == TRUE_SIZE[kind]
    assert arch.parameters - arch.body == arch.largest == SIZES[kind]["vocab_size"] * 4096


def test_states_are_the_known_bytes_per_parameter(eight_billion):
    _, arch = eight_billion
    es, essam = (footprint(m, arch, Setting("bf16")) for m in ("es", "essam"))
    grpo, ppo = (footprint(m, arch, Setting("bf16")) for m in ("grpo", "ppo"))
    assert per_parameter(es, arch, "weights") == 2
    assert per_parameter(footprint("es", arch, Setting("fp32")), arch, "weights") == 4
    assert (per_parameter(es, arch, "center", "probe"), per_parameter(essam, arch, "center", "probe")) == (4, 8)
    assert per_parameter(grpo, arch, "weights", "gradients", "optimizer") == 16
    assert (per_parameter(grpo, arch, "reference"), per_parameter(grpo, arch, "rollout copy")) == (4, 2)
    assert ppo.purposes["critic"] == 16 * (arch.body + arch.hidden + 1)  # 36 in all where the critic is a whole policy


def test_a_center_beside_the_model_is_counted_there_and_mirrored_on_the_host(eight_billion):
    _, arch = eight_billion
    for method, buffers in (("es", 4), ("essam", 8)):
        host, device = (footprint(method, arch, Setting("bf16", center=place)) for place in ("host", "device"))
        assert host.host == buffers * arch.parameters + 4 * arch.largest
        assert host.device - host.work == 2 * arch.parameters
        assert device.host == 4 * arch.parameters
        assert device.device - device.work == (2 + buffers) * arch.parameters
    host, device = (footprint("grpo", arch, Setting(center=place)) for place in ("host", "device"))
    assert host.host == device.host == device.device - host.device == 4 * arch.parameters


def test_a_plan_says_where_centers_will_lie():
    said = {
        place: center_text(load_recipe("arithmetic/essam", {"engine.center": place}), 2**28)
        for place in ("host", "device", "auto")
    }
    assert said["host"] == "2.00 GiB in host memory"
    assert said["device"] == "2.00 GiB on GPUs and 1.00 GiB in host memory"
    assert said["auto"] == f"{said['host']}; where GPUs have room, {said['device']}"
    random = load_recipe("arithmetic/essam", {"engine.center": "host", "method.probe": "random"})
    assert center_text(random, 2**28) == said["host"]  # one round, around a probe
    ranks = load_recipe("arithmetic/es", {"engine.center": "host", "engine.tensor_parallel": 2})
    assert center_text(ranks, 2**28) == "2.00 GiB in host memory"


def test_a_plan_says_what_the_served_dtype_takes():
    said = {
        dtype: served_text(load_recipe("arithmetic/es", {"engine.dtype": dtype, "engine.replicas": 2}), 2**28)
        for dtype in ("float32", "bfloat16", "float16", "auto")
    }
    assert said["float32"] == "2.00 GiB in float32"
    assert said["bfloat16"] == "1.00 GiB in bfloat16"
    assert said["float16"] == "1.00 GiB in float16"
    assert said["auto"] == f"{said['float32']} on a CPU; {said['bfloat16']} on GPUs that have it"


def test_published_memory_of_an_8b_model_is_explained(eight_billion):
    """PPO's states stay below the published figure, and with the activations of a small micro-batch they reach it."""
    _, arch = eight_billion
    for method, gib in PUBLISHED_GIB.items():
        found = footprint(method, arch, PUBLISHED_SETTING)
        states, reached = (found.device - found.work) / GIB, (found.device + found.kv) / GIB
        assert states < gib
        assert gib == pytest.approx(reached, rel=0.5 if method == "essam" else 0.12), method
    ratio = {m: footprint(m, arch, PUBLISHED_SETTING).device for m in NAMES}
    assert 16 < ratio["ppo"] / ratio["essam"] < 24
    assert 10 < ratio["grpo"] / ratio["essam"] < 14


def test_parameters_of_tied_models_are_counted_once(tiny_qwen2, tiny_llama):
    from transformers import AutoModelForCausalLM

    for folder in (tiny_qwen2, tiny_llama):
        arch = architecture(str(folder))
        assert arch.parameters == sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(folder).parameters())


def test_formula_of_es_is_what_the_reference_engine_holds(tiny_qwen2, tiny_llama):
    from esctl.engines import EngineSpec
    from esctl.engines.transformers import TransformersEngine

    for folder in (tiny_qwen2, tiny_llama):
        engine = TransformersEngine(EngineSpec(folder, dtype="bfloat16", probes=True))
        held, formula = engine.tensor_bytes(), footprint("essam", architecture(str(folder)), Setting("bf16")).purposes
        engine.close()
        assert all(held[name] == formula[name] for name in ("weights", "center", "probe", "scratch"))


def test_activations_grow_with_the_batch_and_shrink_with_checkpointing(eight_billion):
    _, arch = eight_billion
    plain = backward_bytes(arch, Setting(batch=2, seq=512))
    assert backward_bytes(arch, Setting(batch=4, seq=512)) == 2 * plain
    assert backward_bytes(arch, Setting(batch=2, seq=512, checkpointing=True)) < plain / 8


def test_activations_are_what_autograd_saves():
    """The estimate against the tensors that a forward pass of Transformers' module saves, within a fiftieth."""
    import torch
    from transformers import AutoModelForCausalLM

    module = AutoModelForCausalLM.from_pretrained(tiny_model_path()).model
    batch, seq = 8, 128
    weights = {p.untyped_storage().data_ptr() for p in module.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    mask = torch.ones(batch, seq, dtype=torch.long)
    mask[0, :3] = 0  # padded, as a batch of prompts is
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = module(input_ids=torch.ones(batch, seq, dtype=torch.long), attention_mask=mask)
    estimate = backward_bytes(architecture("embedded"), Setting("fp32", seq=seq, batch=batch))
    assert output.last_hidden_state.requires_grad
    assert sum(saved.values()) == pytest.approx(estimate, rel=0.02)


def test_json_holds_bytes_and_the_setting(tiny_qwen2):
    setting = Setting("bf16", 64, 2)
    tree = json.loads(memory_json(*_analytic(tiny_qwen2, setting)))
    assert tree["setting"]["batch"] == 2
    assert tree["methods"]["ppo"]["total"] == sum(tree["methods"]["ppo"]["purposes"].values())


def _analytic(folder: Path, setting: Setting) -> tuple[Architecture, Setting, list[Footprint]]:
    arch, prints = analytic(str(folder), NAMES, setting)
    return arch, setting, prints


def test_runs_show_their_peak_beside_the_formula(tmp_path):
    write_run(tmp_path / "es", evaluation([1]))
    [row] = measured([tmp_path])
    assert (row.peak, row.formula.method) == (RECORD.peak_bytes, "es")
    assert row.setting.seq == RECORD.train.prompt_tokens // RECORD.train.rollouts + 64
    assert "1,024.0" in runs_table([row])


@pytest.mark.parametrize(
    ("recipe", "center", "place"),
    [
        ("arithmetic/es", "auto", "device"),
        ("arithmetic/es", "host", "host"),
        ("arithmetic/grpo", "auto", "host"),
        ("arithmetic/grpo", "device", "device"),
    ],
)
def test_the_center_of_a_run_on_a_gpu_is_counted_where_it_lay(recipe, center, place):
    asked = load_recipe(recipe, {"engine.center": center})
    assert run_setting(asked, RECORD).center == place
    assert run_setting(asked, replace(RECORD, peak_bytes=Peak(host=2**30))).center == "host"


def test_a_base_has_no_training_to_measure(tmp_path):
    write_base(tmp_path / "base", evaluation([1]))
    with pytest.raises(RunError, match="base was not trained here"):
        measured([tmp_path])


@pytest.mark.parametrize("field", [{"dtype": "int8"}, {"seq": 0}, {"batch": 0}, {"rollouts": 0}, {"center": "disk"}])
def test_a_setting_that_means_nothing_is_refused(field):
    with pytest.raises(UsageError, match=f"--{next(iter(field))}"):
        Setting(**field)


def test_an_unknown_method_is_refused(tiny_qwen2):
    with pytest.raises(UsageError, match="--methods sgd: choose from es, essam"):
        analytic(str(tiny_qwen2), ["sgd"], Setting())


@pytest.mark.parametrize(
    ("recipe", "sets", "bytes_per_weight"),
    [
        ("arithmetic/es", [], 2 + 4),
        ("arithmetic/essam", ["engine.dtype=float32"], 4 + 8),
        ("arithmetic/grpo", [], 16),
        ("gsm8k/grpo", ["engine.kind=vllm"], 16 + 4 + 2 + 4),  # reference, copy in bf16, the copy's center
        ("arithmetic/ppo", [], 36),
        ("gsm8k/ppo", ["engine.kind=transformers"], 36),
    ],
)
def test_a_plan_knows_what_a_weight_costs_without_the_model(recipe, sets, bytes_per_weight):
    found = planned_footprint(load_recipe(recipe, {}, sets), 10**6)
    assert found.states / 10**6 == pytest.approx(bytes_per_weight, abs=1e-4)  # PPO's value head has a bias
    assert found.kv == 0
