"""Every family of models: both engines compute what Transformers computes, or one line names the family."""

from pathlib import Path

import pytest
import torch
from families import FAMILIES, config_of, save_family
from folders import save_tokenizer
from oracle import GREEDY, PROMPTS, TARGETS, A, B, around, close_to, moved, reference_greedy, reference_nll, tokens_of

from esctl import engines
from esctl.engines import EngineSpec, open_engine
from esctl.engines.weights.center import Center
from esctl.engines.weights.model import check_model
from esctl.engines.weights.sizes import NOT_BY_VLLM, sizes_of
from esctl.errors import EngineError
from esctl.noise.moves import EMPTY, Move

# Some families of Transformers compile functions in a way that torch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")

LONG = [7 + (3 * j) % 45 for j in range(60)]  # longer than every sliding window


def reference(folder: Path, *moves: Move):
    """Transformers' own module, with the attention that computes what the config says."""
    from transformers import AutoModelForCausalLM

    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    for name, parameter in module.named_parameters():
        parameter.data = torch.from_numpy(moved(*moves)(name, parameter.detach().numpy()))
    return module.eval()


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory):
    folders: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in folders:
            folders[family] = save_family(family, tmp_path_factory.mktemp(family))
        return folders[family]

    return folder


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", engines.ENGINES)
def test_a_family_computes_what_transformers_computes_under_every_kind_of_weight(kind, family, folder_of, tmp_path):
    if kind == "vllm" and not engines.vllm_installed():
        pytest.skip("vLLM is not installed")
    folder = folder_of(family)
    spec = EngineSpec(folder, kind=kind, threads=1, kv_memory=0.05)
    if kind == "vllm" and (family in NOT_BY_VLLM or family == "cohere2"):
        with pytest.raises(EngineError, match=rf"^model family {family}: .*; set engine\.kind to transformers$"):
            open_engine(spec)
        return
    prompts = [*PROMPTS, LONG]
    targets = [*TARGETS, [9, 8]]
    base = reference(folder)
    engine = open_engine(spec)
    try:
        before = engine.checksum()
        assert before == engine.center_sha256() == Center.load(folder).weights_sha256()
        found = engine.nll(around(EMPTY, A, center=B), prompts, targets)
        for values, moves in zip(found, ((B,), (B, A)), strict=True):
            module = reference(folder, *moves)
            assert values == close_to([reference_nll(module, p, t) for p, t in zip(prompts, targets, strict=True)])
        [greedy] = engine.rollout(around(EMPTY), prompts, GREEDY)
        assert tokens_of(greedy) == [reference_greedy(base, p, GREEDY.max_tokens) for p in prompts]
        assert engine.checksum() == before
        center = Center.load(folder)
        for name in center.names:  # each tensor alone is too slow; each kind of tensor by turns
            if any(part in name for part in ("norm", "ln_", "embed", "wte", "bias")):
                center.tensor(name)[...] = moved(A)(name, center.tensor(name))
        center.save_center(tmp_path / "part.safetensors")
        engine.load_center(tmp_path / "part.safetensors")
        for name, parameter in base.named_parameters():
            parameter.data = torch.from_numpy(center.tensor(name).copy())
        expected = [reference_nll(base, p, t) for p, t in zip(prompts, targets, strict=True)]
        assert engine.nll(around(EMPTY), prompts, targets) == [close_to(expected)]
    finally:
        engine.close()


REFUSED = {
    "mamba": {"hidden_size": 64, "state_size": 8, "num_hidden_layers": 2},
    "mamba2": {"hidden_size": 64, "num_hidden_layers": 2, "num_heads": 2, "head_dim": 64},
    "falcon": {"hidden_size": 64, "num_attention_heads": 2, "alibi": True},
    "bloom": {"hidden_size": 64, "n_layer": 2, "n_head": 2},
    "mpt": {"d_model": 64, "n_layers": 2, "n_heads": 2},
    "rwkv": {"hidden_size": 64, "num_hidden_layers": 2},
    "recurrent_gemma": {"hidden_size": 64, "num_hidden_layers": 3},
    "falcon_mamba": {"hidden_size": 64, "num_hidden_layers": 2},
    "t5": {"d_model": 64, "num_layers": 2},
    "bart": {"d_model": 64},
    "llava": {},
}


@pytest.mark.parametrize("family", REFUSED)
def test_a_family_that_cannot_be_served_is_one_line_before_weights_are_read(family, tmp_path):
    from transformers import AutoConfig

    save_tokenizer(tmp_path)
    AutoConfig.for_model(family, **REFUSED[family]).save_pretrained(tmp_path)
    with pytest.raises(EngineError, match=rf"{family}|multimodal") as caught:
        check_model(tmp_path)
    assert "\n" not in str(caught.value)


def test_the_sizes_of_every_family_are_those_of_its_cache():
    from transformers import AutoModelForCausalLM

    for family in FAMILIES:
        config = config_of(family, 55)
        sizes = sizes_of(config)
        assert (sizes.layers, sizes.hidden, sizes.heads, sizes.context, sizes.vocabulary) == (2, 64, 2, 512, 55), family
        cache = AutoModelForCausalLM.from_config(config)(torch.tensor([[7, 8, 9]]), use_cache=True).past_key_values
        held = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
        assert held == 3 * sizes.kv_elements, family


def test_a_context_ends_where_longrope_would_make_a_completion_depend_on_its_batch():
    config = config_of("phi3", 55)
    assert sizes_of(config).context == 512
    factors = [1.0] * 16
    config.rope_parameters = {"rope_type": "longrope", "short_factor": factors, "long_factor": factors,
                              "original_max_position_embeddings": 128, "rope_theta": 10000.0}  # fmt: skip
    assert sizes_of(config).context == 128
