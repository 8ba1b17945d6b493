"""Where an engine meets what is not its own: the other engine, vLLM's modules and packed matrices, a user's folders."""

import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from oracle import KINDS, around, random_states

from esctl import engines
from esctl.assets import tiny_model_path
from esctl.engines import EngineSpec, Sampling, open_engine
from esctl.engines.vllm.engine import ENVIRONMENT
from esctl.engines.weights.center import Center
from esctl.errors import EngineError, UsageError
from esctl.noise.moves import EMPTY, Move

# What vLLM's own modules warn of when they are imported is for its authors.
importing_vllm = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


@pytest.mark.slow
def test_both_engines_say_the_same_about_the_embedded_model() -> None:
    if not engines.vllm_installed():
        pytest.skip("vLLM is not installed")
    from transformers import AutoTokenizer

    from esctl.tasks.embedded import world_problems

    tokenizer = AutoTokenizer.from_pretrained(tiny_model_path())
    chats = [[{"role": "user", "content": p.question}] for p in world_problems("arithmetic", "test")[:32]]
    texts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
    prompts = tokenizer(texts, add_special_tokens=False)["input_ids"]
    environment, set_num_threads = dict(os.environ), torch.set_num_threads
    random.seed(5), np.random.seed(6), torch.manual_seed(7)
    states = random_states()
    answers = []
    for kind in KINDS:
        engine = open_engine(EngineSpec(tiny_model_path(), kind=kind))
        found = engine.rollout(around(EMPTY, Move.of([1], [0.015])), prompts, Sampling(0.0, 64))
        answers.append([[samples[0].text for samples in candidate] for candidate in found])
        engine.close()
    assert random_states() == states
    assert answers[0] == answers[1]
    assert answers[0][0] != answers[0][1]
    assert torch.set_num_threads is set_num_threads
    changed = {n for n in environment.keys() | os.environ.keys() if environment.get(n) != os.environ.get(n)}
    assert changed <= ENVIRONMENT.keys()


@pytest.mark.slow
@importing_vllm
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 8), (3, 5), (7, 1), (256, 128), (65, 300)])
def test_a_packed_matrix_is_a_copy_of_its_own_and_reads_back_exactly(
    dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    pytest.importorskip("vllm")
    from vllm.platforms import current_platform

    from esctl.engines.vllm.layers import Packed

    if not current_platform.is_cpu():
        pytest.skip("only a CPU packs")
    layer = torch.nn.Module()
    packed = Packed(layer, shape)
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    kept = matrix.clone()
    packed.pack(matrix)
    matrix.fill_(float("nan"))
    assert torch.equal(packed.unpack(dtype), kept)
    x = torch.ones(2, shape[1], dtype=dtype)
    assert torch.allclose(layer.cpu_linear(x, matrix, None).float(), (x @ kept.t()).float(), atol=1e-1)


@pytest.mark.slow
@importing_vllm
def test_a_tensor_without_a_place_is_refused_by_name() -> None:
    pytest.importorskip("vllm")
    from esctl.engines.vllm.layers import find_slots

    class Odd(torch.nn.Module):
        packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}  # noqa: RUF012

        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(4, bias=False)

    with pytest.raises(EngineError, match=r"holds norm\.weight, which the checkpoint lacks"):
        find_slots(Odd(), Center({"weight": (4,)}))
    with pytest.raises(EngineError, match=r"no place for extra\.weight"):
        find_slots(Odd(), Center({"norm.weight": (4,), "extra.weight": (4,)}))
    with pytest.raises(EngineError, match=r"\[4\] does not hold norm\.weight \[3\]"):
        find_slots(Odd(), Center({"norm.weight": (3,)}))


# What cannot be opened


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("files", "limit", "message"),
    [
        (None, None, "is neither a folder nor a hub model"),
        ({}, None, r"has no config\.json"),
        ({"config.json": '{"model_type": "t5"}'}, None, "is not a causal language model"),
        ({"config.json": '{"model_type": "nonesuch"}'}, None, "cannot be read"),
        ({"config.json": '{"model_type": "llama"}'}, None, "has no tokenizer"),
        ({"config.json": '{"model_type": "llama"}'}, 99999, "takes 2048 tokens at most"),
    ],
)
def test_a_folder_that_cannot_be_served_is_refused_in_one_line(
    kind: str, files: dict[str, str] | None, limit: int | None, message: str, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    if files is not None:
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
    if kind == "vllm" and not engines.vllm_installed():
        pytest.skip("vLLM is not installed")
    with pytest.raises((EngineError, UsageError), match=message) as caught:
        open_engine(EngineSpec(folder, kind=kind, max_model_len=limit))
    assert "\n" not in str(caught.value)


def test_vllm_that_is_not_installed_is_a_mistake_with_a_way_out(
    monkeypatch: pytest.MonkeyPatch, tiny_qwen2: Path
) -> None:
    monkeypatch.setattr(engines, "vllm_installed", lambda: False)
    with pytest.raises(UsageError, match="pip install 'esctl-lm"):
        open_engine(EngineSpec(tiny_qwen2, kind="vllm"))
    engine = open_engine(EngineSpec(tiny_qwen2))  # auto
    assert engine.description.startswith("transformers")
    engine.close()
