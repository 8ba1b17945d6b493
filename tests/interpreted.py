"""Runs the Triton kernel under Triton's interpreter, alone and in an engine: a process of its own.

Triton decides when it is imported whether it interprets, so `test_noise_triton` starts this file and reads its lines.
"""

import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from esctl.noise import spec
from esctl.noise.moves import Move

TENSOR = spec.tensor_id("model.layers.0.mlp.down_proj.weight")
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Case:
    """One write: shape, place in the canonical tensor, and number of terms."""

    rows: int
    cols: int
    first: int = 0
    stride: int | None = None
    n_terms: int = 1
    special: bool = False  # zeros of both signs, infinities, numbers at the edge of every dtype
    in_place: bool = False
    dtype: str = "float32"

    def center(self) -> np.ndarray:
        """fp32[rows, cols]."""
        values = np.random.default_rng(7).normal(size=(self.rows, self.cols)).astype(np.float32)
        if self.special:
            flat = values.reshape(-1)
            edges = [0.0, -0.0, np.inf, -np.inf, 1e-40, -1e-45, 65504, 65520, 3.4e38, -3.4e38, 1.0, 1 + 2**-8]
            ties = [0x3F808000, 0x3F818000, 0x3F801000, 0x3F803000]  # between two bf16, then between two fp16
            flat[:12] = edges
            flat[12:16] = np.array(ties, np.uint32).view(np.float32)
            flat[16:516] = np.arange(0x3F800000, 0x3F820000, 262, np.uint32)[:500].view(np.float32)
        return values

    def move(self) -> Move:
        """Random seeds of 64 bits; a special case has coefficients that are zero, of both signs."""
        rng = np.random.default_rng(self.n_terms)
        seeds = [int(s) for s in rng.integers(0, 2**64, self.n_terms, np.uint64)]
        return Move.of(seeds, [0.0, -0.0][: self.n_terms] if self.special else rng.normal(0, 1e-2, self.n_terms))


SHAPES = (
    Case(1, 1),
    Case(1, 8),
    Case(1, 7, first=1),
    Case(3, 33, first=5, n_terms=2),
    Case(2, 1100, n_terms=3),  # more than one program
    Case(5, 17, first=3, stride=100, n_terms=2),  # column shards: a row starts and ends inside a block
    Case(16, 64, first=64, stride=512, n_terms=5),  # and at one
    Case(4, 24, first=8, stride=44),
    Case(9, 8, first=16, stride=27),
    Case(40, 1, first=2, stride=13),
    Case(3, 50, first=(1 << 32) - 77, n_terms=2),
    Case(5, 17, first=(1 << 34) + 11, stride=100, n_terms=3),
    Case(2, 4096, first=spec.MAX_ELEMENTS - 8192),  # the last elements that a tensor may have
    Case(4, 40, n_terms=30),
    Case(4, 40, first=3, stride=90, n_terms=64),
    Case(7, 9, n_terms=0),
    Case(3, 9, first=4, stride=11, n_terms=0),
    Case(20, 32, special=True, n_terms=0),
    Case(20, 32, special=True, n_terms=1),
    Case(20, 32, special=True, n_terms=2),
    Case(6, 21, first=9, stride=40, n_terms=2, in_place=True),
    Case(6, 24, n_terms=2, in_place=True),
)
CASES = tuple(
    replace(shape, dtype=dtype) for shape in SHAPES for dtype in DTYPES if dtype == "float32" or not shape.in_place
)


def wrong(case: Case) -> int:
    """How many elements differ in a bit."""
    import torch

    from esctl.noise import gpu

    center, dtype = torch.from_numpy(case.center()), getattr(torch, case.dtype)
    exact = spec.reference_write(case.center(), case.move(), TENSOR, case.first, case.stride)
    expected = torch.from_numpy(exact).to(dtype)
    out = center if case.in_place else torch.full(center.shape, 77, dtype=dtype)
    gpu.write(out, center, case.move(), TENSOR, case.first, case.stride)
    bits = torch.int32 if case.dtype == "float32" else torch.int16
    return int((out.view(bits) != expected.view(bits)).sum())


def sharded() -> list[str]:
    """What is wrong with a center beside one rank's live tensors: rows, columns and a bias, two fused, in bf16."""
    import torch

    from esctl.engines.weights.center import Center
    from esctl.engines.weights.device import DeviceCenter, Part
    from esctl.engines.weights.shards import Partition, Share, piece

    shapes = {"up.weight": (24, 10), "gate.weight": (24, 10), "down.weight": (10, 24), "up.bias": (24,)}
    center, rank = Center(shapes), Share(1, 4)
    for name in shapes:
        center.tensor(name)[...] = np.random.default_rng(1).normal(size=shapes[name])
    up = piece("up.weight", (24, 10), Partition.ROWS, rank)
    gate = piece("gate.weight", (24, 10), Partition.ROWS, rank, at=up.end)
    fused, down, bias = (torch.zeros(n, dtype=torch.bfloat16) for n in ((12, 10), (10, 6), 6))
    parts = [
        Part(up, fused[:6]),
        Part(gate, fused[6:]),
        Part(piece("down.weight", (10, 24), Partition.COLUMNS, rank), down),
        Part(piece("up.bias", (24,), Partition.ROWS, rank), bias),
    ]
    device = DeviceCenter(center, parts)
    problems = []
    for step in ("at first", "after a commit", "after a load"):
        device.stage(Case(1, 1, n_terms=3).move())
        device.stage(Case(1, 1, n_terms=3).move())  # a round's next piece
        device.write(Case(1, 1, n_terms=2).move())
        for part in parts:
            flat, tensor = center.tensor(part.piece.name).reshape(-1), spec.tensor_id(part.piece.name)
            for n_terms in (3, 2):
                flat = spec.reference_write(flat, Case(1, 1, n_terms=n_terms).move(), tensor)
            whole = torch.from_numpy(flat).view(-1, part.piece.width).to(torch.bfloat16)
            rows, columns = part.piece.rows, part.piece.columns
            expected = whole[rows.start : rows.stop, columns.start : columns.stop]
            if not torch.equal(expected.reshape(part.live.shape), part.live):
                problems.append(f"{part.piece.name} {step}")
        if step == "at first":
            device.commit(Case(1, 1, n_terms=4).move())
        else:
            center.commit(Case(1, 1, n_terms=4).move())  # stands for a file that was read
            device.load()
    return problems


def served(folder: str, path: str) -> list[str]:
    """What a whole engine shows: the live weights of a candidate and of θ, and θ in fp32, after commits and a load."""
    from esctl.engines import EngineSpec, Sampling, transformers
    from esctl.engines.weights import device as weights_device
    from esctl.engines.weights.device import DeviceCenter
    from esctl.noise.moves import EMPTY, Round

    if "TRITON_INTERPRET" in os.environ:
        weights_device.open_on_device = lambda host, parts, probes, where: DeviceCenter(host, parts)
    engine = transformers.TransformersEngine(EngineSpec(Path(folder), dtype="bfloat16", probes=True))
    engine.save_center(Path(path))
    seen: list[str] = []
    probe, candidate, step = (Case(1, 1, n_terms=n).move() for n in (1, 2, 4))

    def look(*_: object) -> None:
        seen.append(engine.checksum())

    for _ in range(2):
        engine.rollout(Round(0, 0, probe, (candidate, EMPTY)), [[9]], Sampling(0.0, 1), on_candidate=look)
        engine.commit(step)
        seen += [engine.checksum(), engine.center_sha256()]
    engine.load_center(Path(path))
    return [*seen, engine.checksum(), engine.center_sha256()]


def main() -> None:
    """Print what was found, as JSON; argument: a model folder, and a file to write."""
    os.environ["TRITON_INTERPRET"] = "1"
    with np.errstate(all="ignore"):
        found = {"wrong": [wrong(case) for case in CASES], "sharded": sharded(), "served": served(*sys.argv[1:])}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
