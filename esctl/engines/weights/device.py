"""θ on a GPU: one fp32 tensor per live tensor, in its layout; `noise.gpu` writes candidates from it.

Also `WrittenWeights`, which hides from an engine where θ is. Files and hashes are made from the center on the host.
"""

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esctl.engines import GIB, Where
from esctl.engines.weights.center import Center, tensor_id
from esctl.engines.weights.shards import Piece
from esctl.errors import EngineError
from esctl.noise.moves import EMPTY, Move

ROOM = 0.9  # of the memory that is free beside weights and KV cache; generation needs some for its activations


@dataclass(frozen=True)
class Part:
    """One piece of a canonical tensor, where the model reads it."""

    piece: Piece
    live: Tensor  # [rows, columns] or [rows], in the serving dtype; its address never changes

    def write(self, out: Tensor, center: Tensor, move: Move) -> None:
        """`out` = fl(center + Σ cᵢεᵢ), cast once to its dtype."""
        from esctl.noise import gpu

        rows = (len(self.piece.rows), len(self.piece.columns))
        tensor = tensor_id(self.piece.name)
        gpu.write(out.view(rows), center.view(rows), move, tensor, self.piece.first, self.piece.width)


class DeviceCenter:
    """θ, and θ' where a method probes, as one fp32 tensor per part; 4 bytes per weight each.

    Every write is one asynchronous pass per part. The center on the host is updated when it is read. Where the parts
    are not the whole model (tensor parallelism), the host commits every move itself, on the CPU.
    """

    def __init__(self, host: Center, parts: Sequence[Part]) -> None:
        self._host, self._parts = host, parts
        self._theta = [torch.empty_like(part.live, dtype=torch.float32) for part in parts]
        self._probe: list[Tensor] = []
        self._staged = self._theta
        self._in_probe = EMPTY  # the move that the second set of tensors has added to θ
        self._whole = sum(part.live.numel() for part in parts) == host.dim
        self._ahead = False  # of the host
        self.load()

    def load(self) -> None:
        """Take θ from the host; nothing stays staged."""
        self._forget_probe()
        self._ahead = False
        for part, theta in zip(self._parts, self._theta, strict=True):
            theta.copy_(torch.from_numpy(_on_host(self._host, part.piece)).view(theta.shape))

    def host(self) -> Center:
        """The center on the host, up to date."""
        if self._ahead:
            for part, theta in zip(self._parts, self._theta, strict=True):
                here = _on_host(self._host, part.piece)
                here[...] = theta.view(here.shape).cpu().numpy()
        self._ahead = False
        return self._host

    def stage(self, move: Move) -> None:
        """See `Center.stage`."""
        self.unstage()
        if not move.terms:
            return
        if not self._probe:
            self._probe = [torch.empty_like(theta) for theta in self._theta]
        if self._in_probe != move:
            self._in_probe = EMPTY  # until it is written whole
            for part, theta, probe in zip(self._parts, self._theta, self._probe, strict=True):
                part.write(probe, theta, move)
            self._in_probe = move
        self._staged = self._probe

    def unstage(self) -> None:
        """Put θ under the candidates to come."""
        self._staged = self._theta

    def write(self, move: Move) -> None:
        """Make fl(staged + Σ cᵢεᵢ), cast once, the live weights."""
        for part, staged in zip(self._parts, self._staged, strict=True):
            part.write(part.live, staged, move)

    def commit(self, move: Move) -> None:
        """θ ← fl(θ + Σ cᵢεᵢ) in place; nothing stays staged."""
        self._forget_probe()
        for part, theta in zip(self._parts, self._theta, strict=True):
            part.write(theta, theta, move)
        if self._whole:
            self._ahead = True
        else:
            self._host.commit(move)

    def _forget_probe(self) -> None:
        """Make the next `stage` write θ' again, because θ is about to change."""
        self.unstage()
        self._in_probe = EMPTY

    def bytes(self) -> dict[str, int]:
        """Bytes of fp32 on the device: `center`, and `probe` once it is allocated."""
        return {"center": sum(t.nbytes for t in self._theta), "probe": sum(t.nbytes for t in self._probe)}


class WrittenWeights(ABC):
    """Live tensors that are written from one center, on the host or on the device: what every engine shares.

    A subclass finds its live tensors, calls `__init__` with them, and says how a candidate is written into them.
    """

    def __init__(self, host: Center, parts: Sequence[Part], probes: bool, where: Where) -> None:
        self._host = host
        self._device = open_on_device(host, parts, probes, where)

    @property
    def center(self) -> Center:
        """θ on the host, up to date."""
        return self._host if self._device is None else self._device.host()

    @abstractmethod
    def write(self, move: Move) -> None:
        """Make fl(staged + Σ cᵢεᵢ), cast once to nearest even, the live weights."""

    def stage(self, move: Move) -> None:
        """Put θ' = fl(θ + Σ cᵢεᵢ) under the candidates to come."""
        (self._device or self._host).stage(move)

    def restore(self) -> None:
        """Stage θ and make it the live weights."""
        (self._device or self._host).unstage()
        self.write(EMPTY)

    def commit(self, move: Move) -> None:
        """Move θ, and make it live."""
        (self._device or self._host).commit(move)
        self.restore()

    def load_center(self, path: Path) -> None:
        """Read θ, and make it live."""
        self._host.load_center(path)
        if self._device is not None:
            self._device.load()
        self.restore()

    def center_bytes(self) -> dict[str, int]:
        """Bytes of the centers; a center on a device has a mirror on the host, which is not counted."""
        return (self._device or self._host).bytes()


def open_on_device(host: Center, parts: Sequence[Part], probes: bool, where: Where) -> DeviceCenter | None:
    """A center on the device of the live tensors; None where `where` is host, or where the tensors are in host memory.

    Without Triton, or with too little free memory, `auto` gives None and `device` raises EngineError.
    """
    if where == "host" or not all(part.live.is_cuda for part in parts):
        return None
    obstacle = _obstacle(parts, probes)
    if obstacle and where == "device":
        raise EngineError(f"engine.center: device, but {obstacle}, or set engine.center to host")
    return None if obstacle else DeviceCenter(host, parts)


def _obstacle(parts: Sequence[Part], probes: bool) -> str:
    """Why θ does not fit on the device, and what to do about it; empty where it does."""
    if importlib.util.find_spec("triton") is None:
        return "Triton, which writes it, is not installed: pip install triton"
    free, _ = torch.cuda.mem_get_info(parts[0].live.device)
    needed = (8 if probes else 4) * sum(part.live.numel() for part in parts)
    if needed < ROOM * free:
        return ""
    return f"it takes {needed / GIB:.1f} GiB and {free / GIB:.1f} are free: lower engine.kv_memory"


def _on_host(center: Center, piece: Piece) -> NDArray[np.float32]:
    """θ's piece: a view of [rows, columns]."""
    whole = center.tensor(piece.name).reshape(-1, piece.width)
    return whole[piece.rows.start : piece.rows.stop, piece.columns.start : piece.columns.stop]
