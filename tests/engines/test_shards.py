"""The laws of tensor parallelism: a rank's pieces are the whole model's numbers, laid out as vLLM's own loaders do."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esctl.engines.weights.center import Center
from esctl.engines.weights.shards import Partition, Piece, Share, piece
from esctl.noise import spec
from esctl.noise.moves import Move

SIZES = (1, 2, 4, 8)
MOVE, PROBE = Move.of([1, 2, 3], [0.01, -0.02, 0.005]), Move.of([4], [0.03])
HIDDEN, HEAD, HEADS, KV_HEADS, INTERMEDIATE, VOCABULARY = 24, 6, 8, 2, 40, 107


@dataclass(frozen=True)
class Tensor:
    """A canonical tensor, and how it is dealt out."""

    name: str
    shape: tuple[int, ...]
    partition: Partition
    units: int = 0


TENSORS = (
    Tensor("model.embed_tokens.weight", (VOCABULARY, HIDDEN), Partition.VOCABULARY, 64),
    Tensor("model.layers.0.input_layernorm.weight", (HIDDEN,), Partition.WHOLE),
    Tensor("model.layers.0.self_attn.q_norm.weight", (HEAD,), Partition.WHOLE),
    Tensor("model.layers.0.self_attn.q_proj.weight", (HEADS * HEAD, HIDDEN), Partition.ROWS, HEADS),
    Tensor("model.layers.0.self_attn.q_proj.bias", (HEADS * HEAD,), Partition.ROWS, HEADS),
    Tensor("model.layers.0.self_attn.k_proj.weight", (KV_HEADS * HEAD, HIDDEN), Partition.ROWS, KV_HEADS),
    Tensor("model.layers.0.self_attn.k_proj.bias", (KV_HEADS * HEAD,), Partition.ROWS, KV_HEADS),
    Tensor("model.layers.0.self_attn.o_proj.weight", (HIDDEN, HEADS * HEAD), Partition.COLUMNS),
    Tensor("model.layers.0.self_attn.o_proj.bias", (HIDDEN,), Partition.WHOLE),
    Tensor("model.layers.0.mlp.up_proj.weight", (INTERMEDIATE, HIDDEN), Partition.ROWS),
    Tensor("model.layers.0.mlp.down_proj.weight", (HIDDEN, INTERMEDIATE), Partition.COLUMNS),
)


def center_of(tensors: tuple[Tensor, ...]) -> Center:
    center = Center({t.name: t.shape for t in tensors})
    rng = np.random.default_rng(3)
    for t in tensors:
        center.tensor(t.name)[...] = rng.normal(size=t.shape)
    return center


def written(center: Center, part: Piece, move: Move) -> np.ndarray:
    """What a rank writes: [rows, columns]."""
    out = np.full((len(part.rows), len(part.columns)), np.nan, np.float32)
    center.candidate(part.name, move, out, part.rows.start, len(part.rows), part.columns)
    return out


def whole(center: Center, name: str, width: int) -> np.ndarray:
    """fl(fl(θ + probe) + move) of the canonical tensor, by the specification."""
    flat, tensor = center.tensor(name).reshape(-1), spec.tensor_id(name)
    staged = spec.reference_write(flat, PROBE, tensor)
    return spec.reference_write(staged, MOVE, tensor).reshape(-1, width)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("tensor", TENSORS, ids=lambda t: t.name.removeprefix("model.").removeprefix("layers.0."))
def test_all_ranks_together_hold_the_canonical_tensor_bit_for_bit(tensor: Tensor, size: int) -> None:
    center = center_of(TENSORS)
    center.stage(PROBE)
    parts = [piece(tensor.name, tensor.shape, tensor.partition, Share(r, size), tensor.units) for r in range(size)]
    expected = whole(center, tensor.name, parts[0].width)
    found = np.full_like(expected, np.nan)
    for part in parts:
        place = (slice(part.rows.start, part.rows.stop), slice(part.columns.start, part.columns.stop))
        shard = written(center, part, MOVE)
        np.testing.assert_array_equal(shard.view(np.uint32), expected[place].view(np.uint32))
        found[place] = shard
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_only_replicas_overlap() -> None:
    for tensor in TENSORS:
        for size in SIZES:
            parts = [
                piece(tensor.name, tensor.shape, tensor.partition, Share(r, size), tensor.units) for r in range(size)
            ]
            held = sum(len(p.rows) * len(p.columns) for p in parts)
            copies = size if tensor.partition is Partition.WHOLE else 1
            if tensor.partition is Partition.ROWS and tensor.units:
                copies = max(1, size // tensor.units)
            assert held == copies * int(np.prod(tensor.shape))


@given(st.data())
def test_first_and_width_number_the_elements_of_a_piece(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from(SIZES))
    rows, columns = (size * data.draw(st.integers(1, 9)) for _ in range(2))
    partition = data.draw(st.sampled_from(Partition))
    rank = data.draw(st.integers(0, size - 1))
    part = piece("weight", (rows, columns), partition, Share(rank, size), 8 if partition is Partition.VOCABULARY else 0)
    shape = (len(part.rows), len(part.columns))
    expected = spec.reference(7, 11, rows, columns)[part.rows.start : part.rows.stop]
    found = spec.reference(7, 11, *shape, part.first, part.width)
    np.testing.assert_array_equal(found, expected[:, part.columns.start : part.columns.stop])


@pytest.mark.parametrize(
    ("units", "size", "starts"),
    [
        (8, 4, [0, 12, 24, 36]),
        (2, 2, [0, 24]),
        (2, 4, [0, 0, 24, 24]),  # a head of keys is held by neighbours
        (1, 4, [0, 0, 0, 0]),
    ],
)
def test_heads_are_dealt_out_whole_and_replicated_where_ranks_outnumber_them(
    units: int, size: int, starts: list[int]
) -> None:
    parts = [piece("k_proj.weight", (48, 3), Partition.ROWS, Share(rank, size), units) for rank in range(size)]
    assert [p.rows.start for p in parts] == starts
    assert {len(p.rows) for p in parts} == {48 // min(units, size)}


def test_a_vocabulary_is_padded_before_it_is_dealt_out() -> None:
    parts = [piece("lm_head.weight", (107, 3), Partition.VOCABULARY, Share(rank, 8), 64) for rank in range(8)]
    assert [(p.rows.start, p.rows.stop) for p in parts] == [(16 * i, 16 * i + 16) for i in range(6)] + [
        (96, 107),
        (107, 107),
    ]


def test_indivisible_heads_rows_and_columns_are_rejected() -> None:
    rows, columns = Partition.ROWS, Partition.COLUMNS
    for partition, shape, units in ((rows, (24, 2), 6), (columns, (2, 6), 0), (rows, (6, 2), 0)):
        with pytest.raises(AssertionError):
            piece("weight", shape, partition, Share(0, 4), units)


# vLLM's own layers, one rank after the other in this process

importing_vllm = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"
)
SELF_ATTN, MLP = "model.layers.0.self_attn", "model.layers.0.mlp"
FUSED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}


@pytest.fixture(params=[(rank, size) for size in SIZES for rank in range(size)], ids=lambda p: f"{p[0]}of{p[1]}")
def share(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Share]:
    """Make vLLM's layers believe that they are built on this rank; no process group is started."""
    pytest.importorskip("vllm")
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor import parameter
    from vllm.model_executor.layers import linear, vocab_parallel_embedding

    rank, size = request.param
    for module in (parameter, linear, vocab_parallel_embedding):
        monkeypatch.setattr(module, "get_tensor_model_parallel_rank", lambda: rank)
        monkeypatch.setattr(module, "get_tensor_model_parallel_world_size", lambda: size)
    with set_current_vllm_config(VllmConfig()):
        yield Share(rank, size)


class Layers(torch.nn.Module):
    """The layers of a decoder as vLLM builds them: fused, sharded, padded, replicated."""

    packed_modules_mapping = FUSED

    def __init__(self, biases: bool) -> None:
        super().__init__()
        from vllm.model_executor.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

        exact = {"params_dtype": torch.float32}
        modules = {
            "model.embed_tokens": VocabParallelEmbedding(VOCABULARY, HIDDEN, **exact),
            f"{SELF_ATTN}.qkv_proj": QKVParallelLinear(HIDDEN, HEAD, HEADS, KV_HEADS, bias=biases, **exact),
            f"{SELF_ATTN}.o_proj": RowParallelLinear(HEADS * HEAD, HIDDEN, bias=biases, **exact),
            f"{SELF_ATTN}.q_norm": torch.nn.RMSNorm(HEAD),
            f"{MLP}.gate_up_proj": MergedColumnParallelLinear(HIDDEN, [INTERMEDIATE] * 2, bias=biases, **exact),
            f"{MLP}.down_proj": RowParallelLinear(INTERMEDIATE, HIDDEN, bias=biases, **exact),
            "lm_head": ParallelLMHead(VOCABULARY, HIDDEN, bias=biases, **exact),
        }
        for path, module in modules.items():
            *parents, leaf = path.split(".")
            place: torch.nn.Module = self
            for parent in parents:
                if parent not in dict(place.named_children()):
                    place.add_module(parent, torch.nn.Module())
                place = place.get_submodule(parent)
            place.add_module(leaf, module)

    def canonical(self, prefix: str) -> list[tuple[str, str | int | None]]:
        """The names of a layer's canonical tensors, each with the shard id that vLLM's loader takes."""
        parent, _, leaf = prefix.rpartition(".")
        ids = {"qkv_proj": ["q", "k", "v"], "gate_up_proj": [0, 1]}.get(leaf, [None])
        return [(f"{parent}.{part}", i) for part, i in zip(FUSED.get(leaf, [leaf]), ids, strict=True)]

    def load(self, tensors: dict[str, torch.Tensor]) -> None:
        """As a checkpoint is loaded: through vLLM's own loaders."""
        for path, parameter in self.named_parameters():
            prefix, _, kind = path.rpartition(".")
            for name, shard in self.canonical(prefix):
                value = tensors[f"{name}.{kind}".removeprefix(".")]
                if shard is not None:
                    parameter.weight_loader(parameter, value, shard)
                elif isinstance(self.get_submodule(prefix), torch.nn.RMSNorm):
                    parameter.data.copy_(value)
                else:
                    parameter.weight_loader(parameter, value)


def shapes_of(biases: bool) -> dict[str, tuple[int, ...]]:
    rows = {"q_proj": HEADS * HEAD, "k_proj": KV_HEADS * HEAD, "v_proj": KV_HEADS * HEAD, "o_proj": HIDDEN}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    shapes |= {f"{SELF_ATTN}.{n}.weight": (r, HEADS * HEAD if n == "o_proj" else HIDDEN) for n, r in rows.items()}
    shapes |= {f"{SELF_ATTN}.q_norm.weight": (HEAD,), "lm_head.weight": (VOCABULARY, HIDDEN)}
    shapes |= {f"{MLP}.{n}_proj.weight": (INTERMEDIATE, HIDDEN) for n in ("gate", "up")}
    shapes |= {f"{MLP}.down_proj.weight": (HIDDEN, INTERMEDIATE)}
    if biases:
        shapes |= {n.replace("weight", "bias"): s[:1] for n, s in shapes.items() if "proj" in n or "head" in n}
    return shapes


@pytest.mark.slow
@importing_vllm
def test_a_rank_s_live_weights_are_what_vllm_s_loaders_make_of_the_whole_candidate(share: Share) -> None:
    from esctl.engines.vllm.layers import LiveWeights

    for biases in (False, True):
        center = center_of(tuple(Tensor(n, s, Partition.WHOLE) for n, s in shapes_of(biases).items()))
        candidate = {n: torch.from_numpy(whole(center, n, 1).reshape(center.shape(n))) for n in center.names}
        expected, found = Layers(biases), Layers(biases)
        expected.load(candidate)
        weights = LiveWeights(found, center)
        weights.stage(PROBE)
        weights.write(MOVE)
        for (name, want), (_, have) in zip(expected.named_parameters(), found.named_parameters(), strict=True):
            assert torch.equal(want, have), (name, share)
        moved = weights.checksum()
        weights.restore()
        assert weights.checksum() != moved
