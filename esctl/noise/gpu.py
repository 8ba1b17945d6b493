"""Noise version 1 on a GPU: one Triton kernel, bit for bit what `cpu.write` gives. Import it only where Triton is.

One pass: each program draws one Philox call per block of 8 elements and term, sums the terms in registers, reads the
fp32 center once and writes the weight once, in fp32, bf16 or fp16. Triton contracts a·b + c by default, which rounds
once instead of twice: `OPTIONS` forbids it, and holds every launch option.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from esctl.noise import cpu, spec
from esctl.noise.moves import Move

BLOCKS = 128  # Philox blocks per program, of 8 elements each: one block per thread of four warps
OPTIONS = {"enable_fp_fusion": False, "num_warps": 4, "num_stages": 1}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@triton.jit  # type: ignore[untyped-decorator]
def epsilon_kernel(table: tl.tensor, tensor: tl.tensor, seed: tl.tensor, block: tl.tensor) -> tl.tensor:
    """ε of whole blocks, fp32[blocks, 8], from the lower half of T as bits: T[65535-u] = -T[u] costs an XOR or two.

    Half the table is 128 KB and stays in the first-level cache (256 KB on H100 and H200); the whole would fill it.
    """
    id_low, id_high = (tensor & 0xFFFFFFFF).to(tl.uint32), (tensor >> 32).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(seed, block, id_low, id_high, 1)  # 1: spec.STREAM_WEIGHTS
    # The last axis of a join is the faster one: even and odd words first, then low and high halves, is element order.
    words = tl.join(tl.join(w0, w2), tl.join(w1, w3))
    u = tl.reshape(tl.join(words & 0xFFFF, words >> 16), [block.shape[0], 8])
    upper = u >> 15
    magnitude = tl.load(table + ((u ^ (0 - upper)) & 0x7FFF).to(tl.int32))
    return (magnitude ^ (upper << 31).to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def nearest_even_bf16(x: tl.tensor) -> tl.tensor:
    """The bits of x in bf16: written out, because Triton's interpreter rounds bf16 otherwise than a GPU does."""
    bits = x.to(tl.uint32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where(x == x, rounded, 0x7FC0).to(tl.uint16)


# No integer's value changes the code: only six kernels are ever compiled, three dtypes times aligned or not.
INTEGERS = ("n_terms", "tensor", "first", "length", "stride", "row_blocks", "n_blocks")


@triton.jit(do_not_specialize=INTEGERS)  # type: ignore[untyped-decorator]
def write_kernel(
    out: tl.tensor,
    center: tl.tensor,
    table: tl.tensor,
    seeds: tl.tensor,
    coefficients: tl.tensor,
    n_terms: tl.int32,
    tensor: tl.uint64,
    first: tl.int64,
    length: tl.int64,
    stride: tl.int64,
    row_blocks: tl.int32,
    n_blocks: tl.int32,
    ALIGNED: tl.constexpr,
    BF16: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """Write rows of `length` elements, `stride` apart in the canonical tensor, as blocks of Philox calls.

    `n_blocks` counts the blocks that any row touches, `row_blocks` each. ALIGNED says that every row starts and ends
    at a block: loads and stores are then whole. `center` and `out` may be the same memory.
    """
    number = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    row, part = (number // row_blocks).to(tl.int64), (number % row_blocks).to(tl.int64)
    element = first + row * stride  # of the row's first place
    block = (element // 8 + part).to(tl.uint32)
    exists = number < n_blocks
    if ALIGNED:
        start = tl.multiple_of(row * length + part * 8, 8)
        place = start[:, None] + tl.arange(0, 8)[None, :]
        inside = tl.broadcast_to(exists[:, None], [BLOCKS, 8])
    else:
        column = (part * 8 - element % 8)[:, None] + tl.arange(0, 8)[None, :]
        place = (row * length)[:, None] + column
        inside = exists[:, None] & (column >= 0) & (column < length)
    # A sum that starts at -0.0 starts at its first term, and the empty sum leaves the center as it is.
    total = tl.full([BLOCKS, 8], -0x80000000, tl.int32).to(tl.float32, bitcast=True)
    for term in range(n_terms):
        drawn = epsilon_kernel(table, tensor, tl.load(seeds + term), block)
        total = total + tl.load(coefficients + term) * drawn
    # Weights are read and written once, so they bypass the first-level cache, which the table needs.
    weight = tl.load(center + place, mask=inside, other=0.0, cache_modifier=".cg") + total
    if BF16:
        tl.store(out + place, nearest_even_bf16(weight), mask=inside, cache_modifier=".cs")
    else:
        tl.store(out + place, weight.to(out.dtype.element_ty), mask=inside, cache_modifier=".cs")


def write(out: Tensor, center: Tensor, move: Move, tensor: int, first: int = 0, stride: int | None = None) -> None:
    """Write fl(center + Σ cᵢεᵢ), cast once to nearest even, into `out`: `cpu.write` on a device, for three dtypes.

    Both are contiguous, on one device and of equal shape (rows, cols) or (cols,); `center` is fp32 and may be `out`;
    `first` and `stride` as in `spec.reference`. Asynchronous, on the current stream. A NaN becomes some NaN.
    """
    assert out.shape == center.shape, (out.shape, center.shape)
    assert out.device == center.device, (out.device, center.device)
    assert out.is_contiguous(), out.stride()
    assert center.is_contiguous(), center.stride()
    assert out.dtype in DTYPES, out.dtype
    assert center.dtype == torch.float32, center.dtype
    if out.numel() == 0:
        return
    cols = center.shape[-1]
    stride = cols if stride is None else stride
    length = center.numel() if stride == cols else cols  # whole rows follow each other, so they are one run
    n_rows = center.numel() // length
    assert first + (n_rows - 1) * stride + length <= spec.MAX_ELEMENTS, (first, stride, center.shape)
    aligned = first % 8 == length % 8 == 0 and (n_rows == 1 or stride % 8 == 0)
    row_blocks = length // 8 if aligned else (length + 14) // 8  # a row that starts inside a block may touch one more
    assert n_rows * row_blocks < 1 << 31, (out.shape, row_blocks)
    seeds, coefficients = _terms(move, out.device)
    with _on(out.device):
        write_kernel[(triton.cdiv(n_rows * row_blocks, BLOCKS),)](
            out.view(torch.int16) if out.dtype == torch.bfloat16 else out,
            center,
            _half_table(out.device),
            seeds,
            coefficients,
            len(move),
            tensor,
            first,
            length,
            stride,
            row_blocks,
            n_rows * row_blocks,
            aligned,
            out.dtype == torch.bfloat16,
            BLOCKS,
            **OPTIONS,
        )


def _on(device: torch.device) -> "torch.cuda.device":
    """Make `device` current: Triton launches on the current device, not on that of its arguments."""
    return torch.cuda.device(device if device.type == "cuda" else -1)


@lru_cache(maxsize=8)
def _half_table(device: torch.device) -> Tensor:
    """The bits of T[:32768], int32."""
    return torch.from_numpy(spec.table()[: spec.LEVELS // 2].copy()).view(torch.int32).to(device)


@lru_cache(maxsize=16)
def _terms(move: Move, device: torch.device) -> tuple[Tensor, Tensor]:
    """Seeds as int64 of the same bits, and coefficients rounded once to fp32; one zero where there is no term."""
    prepared = cpu.prepare(move)
    seeds, coefficients = torch.zeros(max(len(move), 1), dtype=torch.int64), torch.zeros(max(len(move), 1))
    seeds[: len(move)] = torch.from_numpy(prepared.seeds.view("int64"))
    coefficients[: len(move)] = torch.from_numpy(prepared.coefficients)
    return seeds.to(device), coefficients.to(device)
