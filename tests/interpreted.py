"""Runs the Triton kernel under Triton's interpreter, case by case, against the specification: a process of its own.

Triton decides when it is imported whether it interprets, so `test_noise_triton` starts this file and reads its lines.
"""

import json
import os
import sys
from dataclasses import dataclass, replace

import numpy as np

from esctl import noise
from esctl.moves import Move

TENSOR = noise.tensor_id("model.layers.0.mlp.down_proj.weight")
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
    Case(2, 4096, first=noise.MAX_ELEMENTS - 8192),  # the last elements that a tensor may have
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

    from esctl import noise_triton

    center, dtype = torch.from_numpy(case.center()), getattr(torch, case.dtype)
    exact = noise.reference_write(case.center(), case.move(), TENSOR, case.first, case.stride)
    expected = torch.from_numpy(exact).to(dtype)
    out = center if case.in_place else torch.full(center.shape, 77, dtype=dtype)
    noise_triton.write(out, center, case.move(), TENSOR, case.first, case.stride)
    bits = torch.int32 if case.dtype == "float32" else torch.int16
    return int((out.view(bits) != expected.view(bits)).sum())


def main() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    with np.errstate(all="ignore"):
        json.dump([wrong(case) for case in CASES], sys.stdout)


if __name__ == "__main__":
    main()
