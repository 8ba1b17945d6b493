"""Where a canonical tensor lies in vLLM's model, and how it is written so that the matrix products see it.

Leaves θ to `center`. This is the one place that knows of fused tensors, padding rows and packed copies.

On a CPU vLLM packs every matrix for oneDNN when it loads, and the products read the packed copy: a write to `weight`
would move embedding lookups and norms only. So a write drops every packed copy, computes each matrix into one scratch
tensor that all share, and packs it: the layout and the speed of vLLM as it ships, one copy of the weights, and no state
that a write could miss. On a GPU the products read `weight` itself, which is copied into: CUDA graphs hold addresses.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from typing_extensions import override
from vllm import _custom_ops as ops
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    LinearBase,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

from esctl.engines import Where
from esctl.engines.weights.center import Center
from esctl.engines.weights.device import Part, WrittenWeights
from esctl.engines.weights.shards import Partition, Piece, Share, piece
from esctl.errors import EngineError
from esctl.noise.moves import Move

GPT2 = "GPT2LMHeadModel"  # the one class of vLLM whose checkpoints hold matrices as [in, out]
FUSED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
PRIMITIVES = 32  # oneDNN kernels that one packed matrix keeps, by batch size; vLLM's own number
IDENTITY_ROWS = 256  # rows of the identity matrix that a packed matrix is read back with


class Packed:
    """What a layer multiplies by on a CPU: oneDNN's own copy of one matrix; called by vLLM as `layer.cpu_linear`."""

    def __init__(self, layer: Module, shape: tuple[int, int]) -> None:
        self.shape = shape
        self._handler: ops.CPUDNNLGEMMHandler | None = None
        layer.__dict__["cpu_linear"] = self  # where vLLM keeps a plain function

    def drop(self) -> None:
        """Free the copy; until the next one the layer cannot be called."""
        self._handler = None

    def pack(self, matrix: Tensor) -> None:
        """Copy `matrix`, [out, in]."""
        self._handler = ops.create_onednn_mm(matrix.t(), PRIMITIVES)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """X·Wᵀ + bias; `weight` is what vLLM left in the layer, and empty."""
        product: Tensor = ops.onednn_mm(self._handler, x, bias)
        return product

    def unpack(self, dtype: torch.dtype) -> Tensor:
        """The matrix that is multiplied by, exactly: each product is w·1 plus zeros (so -0.0 reads as 0.0)."""
        columns = torch.split(torch.eye(self.shape[1], dtype=dtype), IDENTITY_ROWS)
        return torch.cat([ops.onednn_mm(self._handler, x, None) for x in columns]).t().contiguous()


@dataclass
class Slot:
    """One live tensor: canonical tensors, or a rank's pieces of them, one below the other, then padding rows."""

    pieces: tuple[Piece, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    storage: Tensor | None = None  # the tensor that vLLM reads in place; None where it only reads packed copies
    packed: list[Packed] = field(default_factory=list)
    transposed: bool = False  # vLLM keeps [out, in] of a canonical [in, out]; `shape` is the canonical one

    @property
    def numel(self) -> int:
        """Elements, padding included."""
        return torch.Size(self.shape).numel()

    @property
    def padding(self) -> int:
        """The row where padding begins."""
        return self.pieces[-1].end

    @property
    def exact(self) -> bool:
        """Whether fp32 can be written where it lies."""
        in_memory = self.storage is not None and self.storage.device.type == "cpu"
        return in_memory and self.dtype == torch.float32 and not self.transposed

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor and of its packed copies."""
        return self.numel * self.dtype.itemsize * ((self.storage is not None) + len(self.packed))


class FusedModel(Protocol):
    """What vLLM's models say about themselves."""

    def named_modules(self) -> Iterator[tuple[str, Module]]:
        """As of torch.nn.Module."""


class LiveWeights(WrittenWeights):
    """Every live tensor of a model, written from its center; θ is live from the start.

    Raises EngineError, naming the tensor, for a model that holds one which the center lacks, or lacks one of its own.
    """

    def __init__(self, model: FusedModel, center: Center, probes: bool = False, where: Where = "auto") -> None:
        self.slots = find_slots(model, center)
        if any(slot.transposed for slot in self.slots):
            where = "host"  # the kernel on the device writes rows, not columns
        super().__init__(center, [part for slot in self.slots for part in _parts(slot)], probes, where)
        inexact = [slot for slot in self.slots if not slot.exact]
        largest = max((slot.numel for slot in inexact if self._device is None), default=0)
        self._scratch = torch.empty(largest, dtype=torch.float32)
        # A packed copy in a 16-bit dtype is made from a tensor in that dtype.
        narrow = [slot.numel for slot in inexact if slot.storage is None and slot.dtype != torch.float32]
        self._narrow = torch.empty(max(narrow, default=0), dtype=self.slots[0].dtype)
        if self._device is not None:
            self._clear_padding()
        self.restore()

    @override
    def write(self, move: Move) -> None:
        if self._device is not None:
            self._device.write(move)
            return
        # All packed copies are freed before the first is made: freed and made one by one, they would leave holes
        # between them (a tenth of the weights), and an interrupted write would leave old weights among new ones.
        for packed in [packed for slot in self.slots for packed in slot.packed]:
            packed.drop()
        for slot in self.slots:
            exact = slot.storage if slot.exact else self._scratch[: slot.numel].view(slot.shape)
            assert exact is not None, slot.pieces
            self._compute(slot, move, exact)
            live = self._cast(slot, exact)
            for packed in slot.packed:
                packed.pack(live)

    def _compute(self, slot: Slot, move: Move, exact: Tensor) -> None:
        """The slot in fp32; padding rows are zero, as vLLM's loader leaves them."""
        for part in slot.pieces:
            out = exact[part.at : part.end].numpy()
            self._host.candidate(part.name, move, out, part.rows.start, len(part.rows), part.columns)
        exact[slot.padding :].zero_()

    def _cast(self, slot: Slot, exact: Tensor) -> Tensor:
        """`exact` in the slot's dtype: where vLLM reads it, or where it can be packed from."""
        if slot.transposed:
            exact = exact.t().contiguous()
        if slot.storage is not None:
            return exact if slot.exact else slot.storage.copy_(exact)
        return exact if slot.dtype == torch.float32 else self._narrow[: slot.numel].view(exact.shape).copy_(exact)

    def checksum(self) -> str:
        """SHA-256 of what is read, by canonical name, as `Center.weights_sha256` does for fp32.

        A tied matrix is read twice, by lookup and by product: a packed copy that differs from the lookup counts too.
        """
        places = {part.name: (slot, part) for slot in self.slots for part in slot.pieces}
        digest = hashlib.sha256()
        for name in self._host.names:
            slot, part = places[name]
            shape = [len(part.rows), *slot.shape[1:]]
            digest.update(f"{name}\0{shape}\0".encode())
            first, *others = [data[part.at : part.end] for data in _copies(slot)]
            digest.update(_bytes(first))
            for other in others:
                if _bytes(other) != _bytes(first):
                    digest.update(_bytes(other))
        return digest.hexdigest()

    def bytes(self) -> dict[str, int]:
        """Bytes of live tensors (packed copies without oneDNN's padding), of scratch, and of the center.

        A center on a GPU has one on the host beside it, which is not counted.
        """
        scratch = self._scratch.nbytes + self._narrow.nbytes
        return {"weights": sum(slot.nbytes for slot in self.slots), "scratch": scratch} | self.center_bytes()

    def _clear_padding(self) -> None:
        """Zero what no piece covers, as vLLM's loader does; a write by pieces leaves it alone."""
        for slot in self.slots:
            assert slot.storage is not None, slot.pieces
            slot.storage[slot.padding :].zero_()


def drop_packed(model: FusedModel) -> None:
    """Free the copies that vLLM packed at load, of tied lookups too, before θ needs the memory.

    A layer that vLLM did not pack multiplies by `weight` as before; any other is of no use until it is packed anew.
    """
    for _, module in model.named_modules():
        if isinstance(module, LinearBase | VocabParallelEmbedding) and "cpu_linear" in module.__dict__:
            module.__dict__["cpu_linear"] = torch.nn.functional.linear


def find_slots(model: FusedModel, center: Center) -> list[Slot]:
    """The live tensors of `model`, in its own order; every canonical tensor is in exactly one."""
    packs = any(isinstance(m, LinearBase) and m.weight.numel() == 0 for _, m in model.named_modules())
    fused = FUSED | dict(getattr(model, "packed_modules_mapping", {}))  # not every model of vLLM states its own
    slots: dict[int, Slot] = {}  # by the identity of the parameter, which a tied layer shares
    for prefix, module in model.named_modules():
        for kind, parameter in list(module.named_parameters(recurse=False)):
            if packs and kind == "bias" and isinstance(module, LinearBase):
                parameter.data = parameter.data.to(
                    module.params_dtype
                )  # widened for AMX kernels, which oneDNN replaces
            if id(parameter) not in slots:
                names = _canonical(prefix, kind, fused, center)
                transposed = kind == "weight" and type(model).__name__ == GPT2 and isinstance(module, LinearBase)
                slots[id(parameter)] = _slot(names, module, kind, parameter, center, transposed)
            slot = slots[id(parameter)]
            if packs and kind == "weight" and isinstance(module, LinearBase | ParallelLMHead):
                _attach_packed(slot, module)
            else:
                slot.storage = parameter.detach()
    _check_complete(list(slots.values()), center)
    return list(slots.values())


def _check_complete(slots: list[Slot], center: Center) -> None:
    names = [part.name for slot in slots for part in slot.pieces]
    assert len(names) == len(set(names)), names
    missing = sorted(set(center.names) - set(names))
    if missing:
        raise EngineError(f"vLLM's model has no place for {missing[0]}: set engine.kind to transformers")


def _attach_packed(slot: Slot, module: Module) -> None:
    """Take over the copy that a layer multiplies by; a tensor that no lookup reads as well is not kept beside it."""
    shape = slot.shape[::-1] if slot.transposed else slot.shape
    slot.packed.append(Packed(module, (shape[0], shape[1])))
    if slot.storage is None:
        module.weight = Parameter(torch.empty(0, dtype=slot.dtype), requires_grad=False)


def _canonical(prefix: str, kind: str, fused: Mapping[str, list[str]], center: Center) -> list[str]:
    """The names that save_pretrained gives to what vLLM fused into one: `…qkv_proj.bias` → `…q_proj.bias`, ….

    Some families store the fused tensor itself; then it has one name.
    """
    prefix = _as_stored(prefix, center)
    parent, _, leaf = prefix.rpartition(".")
    own = ".".join(filter(None, (prefix, kind)))
    if own in center.shapes:
        return [own]
    return [".".join(filter(None, (parent, part, kind))) for part in fused.get(leaf, [leaf])]


def _as_stored(prefix: str, center: Center) -> str:
    """A module's name in the checkpoint, where vLLM renames the model's body and head for Transformers' own code."""
    if prefix == "lm_head" and "lm_head.weight" not in center.shapes and "embed_out.weight" in center.shapes:
        return "embed_out"  # GPT-NeoX
    root, _, rest = prefix.partition(".")
    bodies = {name.split(".")[0] for name in center.names if name.count(".") > 1}
    if root == "model" and root not in bodies and len(bodies) == 1:
        return f"{bodies.pop()}.{rest}"  # gpt_neox.layers… as model.layers…
    return prefix


def _slot(names: list[str], module: Module, kind: str, parameter: Parameter, center: Center, transposed: bool) -> Slot:
    unknown = [name for name in names if name not in center.shapes]
    if unknown:
        raise EngineError(
            f"vLLM's model holds {unknown[0]}, which the checkpoint lacks: set engine.kind to transformers"
        )
    stored_fused = isinstance(module, QKVParallelLinear | MergedColumnParallelLinear) and len(names) == 1
    if getattr(module, "tp_size", 1) > 1 and (stored_fused or transposed):
        raise EngineError(
            f"engine.tensor_parallel: {names[0]} is stored fused or transposed, and cannot be cut for several ranks:"
            " set it to 1"
        )
    if transposed:
        whole = piece(names[0], center.shape(names[0]), Partition.WHOLE, Share())
        slot = Slot((whole,), center.shape(names[0]), parameter.dtype, transposed=True)
        if slot.shape != _shape(module, parameter)[::-1]:
            raise EngineError(f"vLLM's tensor {list(_shape(module, parameter))} does not hold {names[0]} transposed")
        return slot
    pieces: list[Piece] = []
    for index, name in enumerate(names):
        partition, share, units = _layout(module, kind, index)
        pieces.append(piece(name, center.shape(name), partition, share, units, pieces[-1].end if pieces else 0))
    slot = Slot(tuple(pieces), _shape(module, parameter), parameter.dtype)
    padding = slot.shape[0] - slot.padding
    fits = padding == 0 or (padding > 0 and isinstance(module, VocabParallelEmbedding))
    if not fits or any(len(part.columns) != slot.numel // slot.shape[0] for part in pieces):
        found = ", ".join(f"{name} {list(center.shape(name))}" for name in names)
        raise EngineError(f"vLLM's tensor {list(slot.shape)} does not hold {found}: set engine.kind to transformers")
    return slot


def _layout(module: Module, kind: str, index: int) -> tuple[Partition, Share, int]:
    """How vLLM deals out number `index` of a layer's fused tensors, to which rank, and in what units."""
    if isinstance(module, VocabParallelEmbedding):
        return Partition.VOCABULARY, Share(module.tp_rank, module.tp_size), module.padding_size
    if isinstance(module, QKVParallelLinear):
        heads = module.total_num_heads if index == 0 else module.total_num_kv_heads
        return Partition.ROWS, Share(module.tp_rank, module.tp_size), heads
    if isinstance(module, ColumnParallelLinear):
        return Partition.ROWS, Share(module.tp_rank, module.tp_size), 0
    if isinstance(module, RowParallelLinear) and kind == "weight":
        return Partition.COLUMNS, Share(module.tp_rank, module.tp_size), 0
    return Partition.WHOLE, Share(), 0


def _parts(slot: Slot) -> Iterator[Part]:
    """The pieces of a tensor that is read where it lies; none of one that is packed."""
    if slot.storage is not None and not slot.transposed:
        for part in slot.pieces:
            yield Part(part, slot.storage[part.at : part.end])


def _shape(module: Module, parameter: Parameter) -> tuple[int, ...]:
    """A packed Linear keeps a `weight` without elements, and its sizes."""
    if parameter.numel() == 0 and isinstance(module, LinearBase):
        return (module.output_size_per_partition, module.input_size_per_partition)
    return tuple(parameter.shape)


def _copies(slot: Slot) -> Iterator[Tensor]:
    """Every copy that something reads, on the host, -0.0 as 0.0 (a packed one cannot tell them apart)."""
    if slot.storage is not None:
        stored = (slot.storage + 0.0).cpu()
        yield stored.t() if slot.transposed else stored
    for packed in slot.packed:
        unpacked = packed.unpack(slot.dtype) + 0.0
        yield unpacked.t() if slot.transposed else unpacked


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().data
