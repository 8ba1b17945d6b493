"""Noise version 1 on the CPU: one pass over a tensor with a move of any length, bit for bit `spec.reference_write`."""

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, ParamSpec

import numba
import numpy as np
from numpy.typing import NDArray

from esctl.noise.moves import EMPTY, Move, Term
from esctl.noise.spec import (
    BLOCK,
    LOW_WORD,
    M0,
    M1,
    MAX_ELEMENTS,
    ROUNDS,
    STREAM_WEIGHTS,
    W0,
    W1,
    WORD_BITS,
    Float32,
    UInt64,
    table,
    tensor_id,
)

# Below this many elements a second thread costs more than it saves.
PARALLEL_FROM = 32768
TASK = 8192  # elements that one task of the parallel kernel writes, a multiple of BLOCK
BATCH = 64  # blocks that are drawn together; of fewer than some 32, LLVM makes scalar code instead of a loop of vectors

P = ParamSpec("P")

_LOW_HALF = np.uint32(0xFFFF)
_HALF = np.uint32(16)


class Prepared(NamedTuple):
    """A move in the form that kernels read: each coefficient rounded once to fp32."""

    seeds: UInt64  # [n]
    coefficients: Float32  # [n]


@lru_cache(maxsize=64)
def prepare(move: Move) -> Prepared:
    """The arrays of a move; raises OverflowError for a seed outside of 64 bits."""
    return Prepared(
        np.array([t.seed for t in move.terms], np.uint64),
        np.array([t.coefficient for t in move.terms], np.float64).astype(np.float32),
    )


def write(out: Float32, center: Float32, move: Move, tensor: int, first: int = 0, stride: int | None = None) -> None:
    """Write fl(center + Σ cᵢεᵢ) into `out`, which may be `center` itself: one pass, bitwise `reference_write`.

    Both are C-contiguous, of equal shape (rows, cols) or (cols,); `first` and `stride` as in `reference`. The result
    does not depend on the number of threads, which the caller sets (`numba.set_num_threads`). Do not fork after a call
    with 32,768 elements or more: numba's thread pool does not survive a fork.
    """
    assert out.shape == center.shape, (out.shape, center.shape)
    cols = center.shape[-1]
    stride = cols if stride is None else stride
    assert first + center.size // max(cols, 1) * stride <= MAX_ELEMENTS, (first, stride, center.shape)
    length = center.size if stride == cols else cols  # whole rows follow each other, so they are one run
    if not move.terms or not center.size:
        out[...] = center
        return
    seeds, coefficients = prepare(move)
    kernel = _write_parallel if center.size >= PARALLEL_FROM else _write_serial
    kernel(out.reshape(-1), center.reshape(-1), seeds, coefficients, np.uint64(tensor), first, length, stride)


@lru_cache(maxsize=1)
def fingerprint() -> str:
    """SHA-256 of the table and of values drawn through the kernel: equal on two machines whose noise is the same."""
    digest = hashlib.sha256(table().astype("<f4").tobytes())
    move = Move((Term(0x0123456789ABCDEF, 1e-3), Term(42, -2.5e-3), Term(2**64 - 1, 0.7)))
    for name, first in (("model.embed_tokens.weight", 0), ("model.layers.1.mlp.down_proj.weight", (1 << 34) + 5)):
        out = np.linspace(-1, 1, 99, dtype=np.float32)
        for step in (move, EMPTY, move):
            write(out, out, step, tensor_id(name), first)
        digest.update(out.astype("<f4").tobytes())
    return digest.hexdigest()


# A global array is a constant to numba: LLVM then knows that no store changes it, and reads it by vector gathers where
# the processor has fast ones.
_VALUES = table()


def _compiled(parallel: bool = False) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Compile a function; keep the machine code on disk, unless neither the package nor HOME is writable.

    Without a cache, numba compiles again in each process, which takes seconds.
    """

    def compile_it(function: Callable[P, None]) -> Callable[P, None]:
        try:
            compiled: Callable[P, None] = numba.njit(cache=True, nogil=True, parallel=parallel)(function)
        except RuntimeError:  # no locator available
            compiled = numba.njit(nogil=True, parallel=parallel)(function)
        return compiled

    return compile_it


# In the kernel every loop over a batch has a constant length and runs along a plane: words[w] and total[e] hold word w
# and element e of each block of the batch. So LLVM emits whole vectors, and elements are put in order once per pass.
# Long arrays are indexed by slices and not by sums of indices: numba would check the sign of each sum.


@_compiled()
def _draw(words: NDArray[np.uint32], block: np.uint64, tensor: np.uint64, seed: np.uint64) -> None:
    """Philox of a batch of blocks from number `block` on, into words[4, BATCH].

    Every lane is 64 bits wide, so that LLVM makes vector multiplications; the high halves hold what overflowed, and are
    masked where they would matter.
    """
    for j in range(BATCH):
        c0, c1 = block + np.uint64(j), tensor
        c2, c3 = tensor >> WORD_BITS, np.uint64(STREAM_WEIGHTS)
        k0, k1 = seed, seed >> WORD_BITS
        for _ in range(ROUNDS):
            p, q = (c0 & LOW_WORD) * M0, (c2 & LOW_WORD) * M1
            c0, c1, c2, c3 = (q >> WORD_BITS) ^ c1 ^ k0, q, (p >> WORD_BITS) ^ c3 ^ k1, p
            k0, k1 = k0 + W0, k1 + W1
        words[0, j], words[1, j], words[2, j], words[3, j] = np.uint32(c0), np.uint32(c1), np.uint32(c2), np.uint32(c3)


@_compiled()
def _set_term(total: Float32, words: NDArray[np.uint32], coefficient: np.float32) -> None:
    """Write fl(coefficient·T[u]) to total[BLOCK, BATCH], u the halves of words[4, BATCH].

    The first term is written and not added to zeros: reading zeros back whose stores are still in flight would cost
    half as much as the draw.
    """
    for w in range(4):
        for j in range(BATCH):
            total[2 * w, j] = coefficient * _VALUES[words[w, j] & _LOW_HALF]
        for j in range(BATCH):
            total[2 * w + 1, j] = coefficient * _VALUES[words[w, j] >> _HALF]


@_compiled()
def _add_term(total: Float32, words: NDArray[np.uint32], coefficient: np.float32) -> None:
    """Add fl(coefficient·T[u]) to total[BLOCK, BATCH], as `_set_term` writes it."""
    for w in range(4):
        for j in range(BATCH):
            total[2 * w, j] += coefficient * _VALUES[words[w, j] & _LOW_HALF]
        for j in range(BATCH):
            total[2 * w + 1, j] += coefficient * _VALUES[words[w, j] >> _HALF]


@_compiled()
def _span(
    out: Float32,
    center: Float32,
    seeds: UInt64,
    coefficients: Float32,
    tensor: np.uint64,
    element: int,
) -> None:
    """Write one contiguous span whose first element has the number `element`, a batch of blocks at a time; n ≥ 1."""
    words = np.empty((4, BATCH), np.uint32)
    total = np.empty((BLOCK, BATCH), np.float32)
    ordered = np.empty(BLOCK * BATCH, np.float32)
    block = np.uint64(element // BLOCK)
    skip = element % BLOCK  # elements of the first block that come before the span
    begin = 0
    while begin < len(out):
        _draw(words, block, tensor, seeds[0])
        _set_term(total, words, coefficients[0])
        for t in range(1, len(seeds)):
            _draw(words, block, tensor, seeds[t])
            _add_term(total, words, coefficients[t])
        for j in range(BATCH):
            for e in range(BLOCK):
                ordered[BLOCK * j + e] = total[e, j]
        end = min(begin + BLOCK * BATCH - skip, len(out))
        source = center[begin:end]
        target = out[begin:end]
        summed = ordered[skip:]
        # `out` may be `center`: two loops, so that neither reads what it writes and both become vector code.
        for i in range(end - begin):
            summed[i] = source[i] + summed[i]
        for i in range(end - begin):
            target[i] = summed[i]
        block = block + np.uint64(BATCH)
        skip = 0
        begin = end


@_compiled()
def _task(
    out: Float32,
    center: Float32,
    seeds: UInt64,
    coefficients: Float32,
    tensor: np.uint64,
    first: int,
    length: int,
    stride: int,
    task: int,
) -> None:
    """Write one part of rows of `length` elements, `stride` apart in the canonical tensor."""
    n_parts = (length + TASK - 1) // TASK
    row = task // n_parts
    part = task % n_parts
    begin = row * length + part * TASK
    end = min(begin + TASK, (row + 1) * length)
    element = first + row * stride + part * TASK
    _span(out[begin:end], center[begin:end], seeds, coefficients, tensor, element)


# Two functions, and not one that is compiled twice: numba's cache identifies a function by name and line, not by its
# options, so that whichever of the two came first would be loaded for both.


@_compiled()
def _write_serial(
    out: Float32,
    center: Float32,
    seeds: UInt64,
    coefficients: Float32,
    tensor: np.uint64,
    first: int,
    length: int,
    stride: int,
) -> None:
    for task in range(len(out) // length * ((length + TASK - 1) // TASK)):
        _task(out, center, seeds, coefficients, tensor, first, length, stride, task)


@_compiled(parallel=True)
def _write_parallel(
    out: Float32,
    center: Float32,
    seeds: UInt64,
    coefficients: Float32,
    tensor: np.uint64,
    first: int,
    length: int,
    stride: int,
) -> None:
    for task in numba.prange(len(out) // length * ((length + TASK - 1) // TASK)):
        _task(out, center, seeds, coefficients, tensor, first, length, stride, task)
