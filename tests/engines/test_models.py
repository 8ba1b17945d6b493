"""The families of models that are promised, from their configs with random weights, through both engines."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from folders import save_random, save_tokenizer

from esctl import engines
from esctl.engines import EngineSpec, Sampling, open_engine
from esctl.engines.weights.center import Center
from esctl.noise import spec
from esctl.noise.moves import Move, Round

PROBE, STEP = Move.of([3], [0.04]), Move.of([1, 2], [0.05, -0.03])
PROMPT, TARGET = [7, 10, 13, 16, 20, 8], [9, 20, 31]
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
# What sets a family apart: grouped keys everywhere, and (type of config, ties, other settings).
FAMILIES: dict[str, tuple[str, bool, dict[str, object]]] = {
    "qwen2-untied": ("qwen2", False, {"head_dim": 16}),
    "qwen3-tied": ("qwen3", True, {}),
    "qwen3-untied": ("qwen3", False, {}),
    "llama3": ("llama", False, {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}),
    "smollm2": ("llama", True, {}),
    "llama-biased": ("llama", True, {"attention_bias": True, "mlp_bias": True}),
}
SERVED = ("qwen3-untied", "llama-biased")  # through vLLM, whose every start takes seconds
CASES = [(name, "transformers") for name in FAMILIES] + [(name, "vllm") for name in SERVED]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder per family, written once."""
    from transformers import AutoConfig, AutoModelForCausalLM

    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            kind, tied, settings = FAMILIES[name]
            size = save_tokenizer(folder)
            config = AutoConfig.for_model(kind, **SMALL | {"vocab_size": size, "tie_word_embeddings": tied} | settings)
            made[name] = save_random(AutoModelForCausalLM.from_config(config, dtype=torch.float32), folder)
        return made[name]

    return make


def candidate_of(folder: Path, *moves: Move) -> dict[str, torch.Tensor]:
    """The canonical tensors after one move and then the next, by the specification."""
    center = Center.load(folder)
    found = {}
    for name in center.names:
        flat = center.tensor(name).reshape(-1)
        for move in moves:
            flat = spec.reference_write(flat, move, spec.tensor_id(name))
        found[name] = torch.from_numpy(flat.reshape(center.shape(name)))
    return found


def nll(module: torch.nn.Module, prompt: Sequence[int], target: Sequence[int]) -> float:
    with torch.no_grad():
        logits = module(torch.tensor([[*prompt, *target]])).logits[0, len(prompt) - 1 : -1]
    return -float(logits.double().log_softmax(-1).gather(1, torch.tensor(target)[:, None]).sum())


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_the_tensors_that_set_it_apart(name: str, folder_of: Callable[[str], Path]) -> None:
    names = Center.load(folder_of(name)).names
    kind, tied, settings = FAMILIES[name]
    assert ("lm_head.weight" in names) == (not tied)
    assert any("q_norm" in n for n in names) == (kind == "qwen3")
    assert any("q_proj.bias" in n for n in names) == (kind == "qwen2" or "attention_bias" in settings)
    assert any("down_proj.bias" in n for n in names) == ("mlp_bias" in settings)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), CASES, ids=lambda v: str(v))
def test_every_tensor_of_a_family_is_moved_served_and_exported(
    name: str, kind: str, folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    if kind == "vllm" and not engines.vllm_installed():
        pytest.skip("vLLM is not installed")
    folder = folder_of(name)
    expected = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected.load_state_dict(candidate_of(folder, PROBE, STEP), strict=False)
    engine = open_engine(EngineSpec(folder, kind=kind))
    try:
        # The classes of tensors are told apart by moving all of them: a missed one would change the likelihood.
        [[found]] = engine.nll(Round(0, 0, PROBE, (STEP,)), [PROMPT], [TARGET])
        assert found == pytest.approx(nll(expected, PROMPT, TARGET), rel=2e-5, abs=1e-4)
        engine.rollout(Round(0, 0, PROBE, (STEP,)), [PROMPT], Sampling(0.0, 1))
        for move in (PROBE, STEP):
            engine.commit(move)
        assert engine.checksum() == engine.center_sha256()
        engine.save(tmp_path / "out")
    finally:
        engine.close()
    module, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report.values()), report
    assert torch.equal(module(torch.tensor([PROMPT])).logits, expected(torch.tensor([PROMPT])).logits)
