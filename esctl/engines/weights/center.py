"""The fp32 center θ on the host, by canonical name: how it is loaded, staged, moved, hashed, and written to files."""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from esctl import faults
from esctl.engines.weights.dtypes import torch_dtype
from esctl.engines.weights.files import entries, header, read_into, stored_tensors
from esctl.errors import EngineError, unwritable
from esctl.noise import cpu, spec
from esctl.noise.moves import EMPTY, Move

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig
from esctl.engines.weights.model import (
    COMPANIONS,
    Shapes,
    _canonical_parameters,
    canonical_shapes,
    check_model,
    load_module,
    model_folder,
    refuse_not_finite,
)

Float32 = NDArray[np.float32]


tensor_id = lru_cache(maxsize=None)(spec.tensor_id)


class Center:
    """θ as one fp32 buffer on the host, and a second one for θ' = fl(θ + Σ probe) where a method probes.

    The tensors are those that `save_pretrained` writes: tied ones once, no buffers, no padding rows. The buffer, hashes
    and files hold them in the order of `names`, which is sorted by code point.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], probes: bool = False) -> None:
        self.shapes: Shapes = {name: tuple(shapes[name]) for name in sorted(shapes)}
        self.names = tuple(self.shapes)
        self.dim = sum(map(math.prod, self.shapes.values()))
        self._theta = np.zeros(self.dim, np.float32)
        self._probe = np.zeros(self.dim, np.float32) if probes else None
        ends = np.cumsum([math.prod(shape) for shape in self.shapes.values()], dtype=np.int64).tolist()
        self._spans = dict(zip(self.names, map(slice, [0, *ends[:-1]], ends), strict=True))
        self._staged = self._theta
        self._in_probe = EMPTY  # the move that the second buffer has added to θ

    @classmethod
    def load(cls, model: Path | str, probes: bool = False) -> "Center":
        """Read a model folder or hub id in fp32; raises EngineError, one line, for what cannot be trained.

        A folder whose files hold exactly the canonical tensors is read in place, without a second copy of the weights.
        Any other is left to Transformers, which knows of other names and formats, and what to say about a damaged one.
        """
        folder, config = check_model(model)
        stored, shapes = stored_tensors(folder), canonical_shapes(config)
        if {name: tensor.shape for name, tensor in stored.items()} != shapes:
            return cls._convert(folder, config, probes)
        center = cls(shapes, probes)
        for name, tensor in stored.items():
            read_into(tensor, center.tensor(name))
            refuse_not_finite(folder, name, center.tensor(name))
        return center

    @classmethod
    def _convert(cls, folder: Path, config: "PretrainedConfig", probes: bool) -> "Center":
        """Each tensor of the loaded module is freed when it has been copied."""
        import torch

        parameters = _canonical_parameters(load_module(folder, config))
        center = cls({name: tuple(p.shape) for name, p in parameters.items()}, probes)
        for name, parameter in parameters.items():
            center.tensor(name)[...] = parameter.detach().numpy()
            parameter.data = torch.empty(0)
        return center

    def shape(self, name: str) -> tuple[int, ...]:
        """The canonical shape of a tensor."""
        return self.shapes[name]

    def tensor(self, name: str) -> Float32:
        """θ's tensor of that name: a view, in its canonical shape."""
        return self._theta[self._spans[name]].reshape(self.shapes[name])

    def stage(self, move: Move) -> None:
        """Put θ' = fl(θ + Σ cᵢεᵢ) under the candidates to come; the empty move stages θ itself, without a copy.

        Staging the same move again is free until θ moves, because a round may arrive in pieces.
        """
        self.unstage()
        if not move.terms:
            return
        if self._probe is None:
            self._probe = np.zeros(self.dim, np.float32)
        if self._in_probe != move:
            self._in_probe = EMPTY  # until it is written whole
            self._write(self._probe, move)
            self._in_probe = move
        self._staged = self._probe

    def unstage(self) -> None:
        """Put θ under the candidates to come."""
        self._staged = self._theta

    def candidate(
        self,
        name: str,
        move: Move,
        out: Float32,
        first_row: int = 0,
        rows: int | None = None,
        columns: range | None = None,
    ) -> None:
        """Write rows [first_row, first_row + rows) of fl(staged + Σ cᵢεᵢ) into `out`, fp32 and C-contiguous.

        A row is one index of the first dimension, so one element of a bias or a norm; rows=None is all the rest, and
        columns=None every column.
        """
        shape = self.shapes[name]
        rows = shape[0] - first_row if rows is None else rows
        width = math.prod(shape[1:])
        first, size = first_row * width, rows * width
        start = self._spans[name].start + first
        staged, flat = self._staged[start : start + size], out.reshape(-1, copy=False)
        if columns is not None and len(columns) < width:
            exact = flat.reshape(rows, len(columns), copy=False)
            exact[...] = staged.reshape(rows, width)[:, columns.start : columns.stop]
            cpu.write(exact, exact, move, tensor_id(name), first + columns.start, width)
            return
        assert out.size == size, (name, out.shape, shape, first_row, rows)
        cpu.write(flat, staged, move, tensor_id(name), first)

    def commit(self, move: Move) -> None:
        """θ ← fl(θ + Σ cᵢεᵢ) in place, each tensor in one pass; nothing stays staged."""
        self._forget_probe()
        self._write(self._theta, move)

    def _forget_probe(self) -> None:
        """Make the next `stage` write θ' again, because θ is about to change."""
        self.unstage()
        self._in_probe = EMPTY

    def _write(self, out: Float32, move: Move) -> None:
        for name, span in self._spans.items():
            cpu.write(out[span], self._theta[span], move, tensor_id(name))

    def weights_sha256(self) -> str:
        """SHA-256 over each tensor's name, shape and little-endian fp32 bytes, in the order of `names`."""
        digest = hashlib.sha256()
        for name, shape in self.shapes.items():
            digest.update(f"{name}\0{list(shape)}\0".encode())
            digest.update(self._theta[self._spans[name]].astype("<f4", copy=False).data)
        return digest.hexdigest()

    def bytes(self) -> dict[str, int]:
        """Bytes of fp32 that are held: `center`, and `probe` once it is allocated."""
        return {"center": self._theta.nbytes, "probe": 0 if self._probe is None else self._probe.nbytes}

    def save(self, path: Path, dtype: str, source: Path | str) -> None:
        """Write θ as a model folder, cast once to `dtype` (to nearest even), with `source`'s config and tokenizer.

        The folder appears whole or not at all, and replaces one that is there.
        """
        origin = model_folder(source)
        partial = path.with_name(f".{path.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        config = json.loads((origin / "config.json").read_text("utf-8"))
        config.pop("torch_dtype", None)  # the older name of the same key
        with _writing(path, partial):
            partial.mkdir(parents=True)
            for pattern in COMPANIONS:
                for file in filter(Path.is_file, origin.glob(pattern)):
                    shutil.copyfile(file, partial / file.name)
            (partial / "config.json").write_text(json.dumps(config | {"dtype": dtype}, indent=2) + "\n", "utf-8")
            self._write_safetensors(partial / "model.safetensors", dtype)
        if path.exists():
            shutil.rmtree(path)
        os.replace(partial, path)

    def save_center(self, path: Path) -> None:
        """Write θ as one fp32 safetensors file, atomically: the file at `path` is the old one or the new one."""
        partial = path.with_name(f".{path.name}.partial")
        with _writing(path, partial):
            self._write_safetensors(partial, "float32")
            faults.reach("mid-checkpoint")
            os.replace(partial, path)
            _sync(path.parent)

    def load_center(self, path: Path) -> None:
        """Replace θ by a file that `save_center` wrote; raises EngineError, θ unchanged, if it holds another model."""
        try:
            stored = entries(path)
        except (OSError, ValueError) as error:
            raise EngineError(
                f"{path}: cannot be read as a center ({error}); remove it, checkpoints are optional"
            ) from None
        found = {name: tensor.shape for name, tensor in stored.items()}
        if found != self.shapes:
            names = ", ".join(sorted(n for n in found.keys() | self.shapes if found.get(n) != self.shapes.get(n)))
            raise EngineError(f"{path}: not a center of this model, it differs in {names}")
        self._forget_probe()
        for name, tensor in stored.items():
            read_into(tensor, self.tensor(name))

    def _write_safetensors(self, path: Path, dtype: str) -> None:
        """Stream the tensors into one file: the library's own writer copies the whole model in memory first."""
        with path.open("wb") as file:
            file.write(header(self.shapes, dtype))
            for data in self._cast(dtype):
                file.write(data.data)
            file.flush()
            os.fsync(file.fileno())

    def _cast(self, dtype: str) -> Iterator[NDArray[np.uint8]]:
        """The bytes of each tensor in `dtype`, in the order of `names`."""
        import torch

        for span in self._spans.values():
            yield cast(self._theta[span], dtype).view(torch.uint8).numpy()


def cast(values: Float32, dtype: str) -> "Tensor":
    """`values` rounded once, to nearest even, to a serving dtype by name; the same memory where that is float32."""
    import torch

    return torch.from_numpy(values).to(torch_dtype(dtype))


@contextmanager
def _writing(path: Path, partial: Path) -> Iterator[None]:
    """Say what a full or read-only disk refused, and leave no half of it; what was at `path` before stays."""
    try:
        yield
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        with suppress(OSError):  # a read-only disk refuses this too
            partial.unlink(missing_ok=True)
        raise EngineError(unwritable(path, error)) from None


def _sync(folder: Path) -> None:
    """Make a rename in `folder` outlive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
