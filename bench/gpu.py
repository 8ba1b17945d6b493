"""How fast the GPU kernel writes a model, against the bound of docs/gpu.md and beside the way of the peers.

    python bench/gpu.py [--dim 494032768] [--repeats 20] [--json]

The peers' way draws `torch.randn` per tensor, adds it to the 16-bit weight, and later draws it again to subtract it.
Before anything is timed, every variant is compared bit for bit with the CPU. Under five minutes; needs one NVIDIA GPU.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np
import torch

from esctl.noise import spec
from esctl.noise.moves import EMPTY, Move, member_seed

TENSOR = spec.tensor_id("model.layers.0.mlp.down_proj.weight")
QWEN_HALF_B = 494_032_768  # weights of Qwen2.5-0.5B
PIECE = 1 << 24  # weights of one tensor: the model is that many tensors, as a real one is
SIGMA = 1e-3
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True)
class Row:
    """One way to write all weights once."""

    what: str
    dtype: str
    n_terms: int
    milliseconds: float  # median
    gigabytes_per_second: float  # of what has to be read and written at least: fp32 center in, weight out


def step(n_terms: int) -> Move:
    return Move.of([member_seed(0, 0, 0, i) for i in range(n_terms)], [SIGMA / (i + 1) for i in range(n_terms)])


def check() -> int:
    """Compare the compiled kernel with the specification; returns the number of writes compared."""
    from esctl.noise import gpu

    rng, compared = np.random.default_rng(0), 0
    shapes = [(1, 1, 0, None), (3, 33, 5, None), (64, 256, 0, None), (5, 17, (1 << 34) + 11, 100), (16, 64, 64, 512)]
    for rows, cols, first, stride in shapes:
        center = rng.normal(size=(rows, cols)).astype(np.float32)
        for move in (EMPTY, step(1), step(2), step(64)):
            exact = torch.from_numpy(spec.reference_write(center, move, TENSOR, first, stride))
            for name, dtype in DTYPES.items():
                out = torch.empty(rows, cols, dtype=dtype, device="cuda")
                gpu.write(out, torch.from_numpy(center).cuda(), move, TENSOR, first, stride)
                if not torch.equal(out.cpu().view(torch.uint8), exact.to(dtype).view(torch.uint8)):
                    raise SystemExit(f"bench/gpu.py: {name} [{rows}, {cols}] with {len(move)} terms is not the CPU's")
                compared += 1
    return compared


def milliseconds(run: Callable[[], None], repeats: int) -> float:
    """Median time on the device; the first runs compile and warm up."""
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return median(times)


def measure(dim: int, repeats: int) -> list[Row]:
    from esctl.noise import gpu

    sizes = [PIECE] * (dim // PIECE) + [dim % PIECE] * (dim % PIECE > 0)
    centers = [torch.randn(size, device="cuda") * 0.02 for size in sizes]
    rows = []
    for name, dtype in DTYPES.items():
        lives = [torch.empty(size, dtype=dtype, device="cuda") for size in sizes]
        generator = torch.Generator("cuda")

        def ours(move: Move, lives: list[torch.Tensor] = lives) -> None:
            for live, center in zip(lives, centers, strict=True):
                gpu.write(live, center, move, TENSOR)

        def peers(lives: list[torch.Tensor] = lives, generator: torch.Generator = generator) -> None:
            for sign in (SIGMA, -SIGMA):
                generator.manual_seed(1)
                for live in lives:
                    drawn = torch.randn(live.shape, generator=generator, device="cuda", dtype=live.dtype)
                    live.add_(drawn, alpha=sign)

        smallest = dim * (4 + dtype.itemsize) / 1e6  # MB
        for n_terms in (0, 1, 2, 30):
            move = step(n_terms)
            took = milliseconds(lambda move=move: ours(move), repeats)
            rows.append(Row("one pass", name, n_terms, took, smallest / took))
        took = milliseconds(peers, repeats)
        rows.append(Row("randn, add, randn, subtract", name, 1, took, smallest / took))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, default=QWEN_HALF_B, help="weights in all")
    parser.add_argument("--repeats", type=int, default=20, help="timed runs per row")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("bench/gpu.py: no NVIDIA GPU that torch can use is here; run it on a machine that has one")
    print(f"{torch.cuda.get_device_name()}: {check()} writes are bit for bit the CPU's", file=sys.stderr)
    found = measure(arguments.dim, arguments.repeats)
    if arguments.json:
        print(json.dumps([asdict(row) for row in found], indent=2))
        return
    print(f"{'what':28} {'dtype':9} {'terms':>5} {'ms':>9} {'GB/s':>7}")
    for row in found:
        print(f"{row.what:28} {row.dtype:9} {row.n_terms:5} {row.milliseconds:9.3f} {row.gigabytes_per_second:7.0f}")


if __name__ == "__main__":
    main()
