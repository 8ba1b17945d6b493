"""What a seed means: noise version 1, ε(seed, tensor name, element index), in words, constants and a short reference.

Tests hold the kernels in `cpu` and `gpu` to `reference_write` bit for bit.

Version 1
    key      (seed mod 2³², seed div 2³²)
    counter  (block, id mod 2³², id div 2³², 1 + 256·stream), with block = element // 8 and stream 0 for weights
    bits     Philox 4×32-10 of key and counter (Salmon et al. 2011, doi:10.1145/2063384.2063405): four words of 32 bits;
             element e uses half e % 8 of the 128 bits: word (e % 8) // 2, the low 16 bits of a word first
    value    ε = T[u], u those 16 bits; T[u] = fp32(Φ⁻¹((u + ½)/65536) / rms): unit variance, T[65535-u] = -T[u]
    move     Σ = t₁ + t₂ + … from left to right in fp32, tᵢ = fl(fl32(cᵢ)·T[uᵢ]); the result is fl(center + Σ);
             no multiplication is contracted with an addition; the empty move gives the center

An element's index is its row-major place in the canonical tensor: unfused, unsharded and unpadded. So a shard or a
fused tensor holds the same noise as the whole. `seed` and `id` have 64 bits. Streams 1 and 2 are reserved.
"""

import hashlib
import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from esctl.noise.moves import Move

VERSION = 1
LEVELS = 65536  # values of the table: 16 bits per element
BLOCK = 8  # elements per Philox call
STREAM_WEIGHTS = 1  # the counter's last word, 1 + 256·stream
MAX_ELEMENTS = BLOCK << 32  # a block's number is one 32-bit word
TABLE_SHA256 = "8babbcaf96568f10165a1eab530c0e5c92d04de96761b6dbb3dadfa94baba37f"

# Philox 4×32: the two multipliers, and the two constants that the key grows by in each round.
MULTIPLIER_0, MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
WEYL_0, WEYL_1 = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10
# The same as words that numpy and numba compute with.
LOW_WORD = np.uint64(0xFFFFFFFF)
WORD_BITS = np.uint64(32)
M0, M1, W0, W1 = (np.uint64(c) for c in (MULTIPLIER_0, MULTIPLIER_1, WEYL_0, WEYL_1))

Float32 = NDArray[np.float32]
UInt64 = NDArray[np.uint64]
Words = UInt64 | np.uint64


def tensor_id(name: str) -> int:
    """The 64-bit id of a tensor, from the key that `save_pretrained` writes for it (tied tensors: the key kept)."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8, person=b"esctl-tensor").digest(), "little")


@lru_cache(maxsize=1)
def table() -> Float32:
    """T, float32[65536], read-only; raises RuntimeError where this machine's arithmetic gives other values."""
    normal = NormalDist()
    lower = [normal.inv_cdf((u + 0.5) / LEVELS) for u in range(LEVELS // 2)]
    rms = math.sqrt(math.fsum(x * x for x in lower) / len(lower))
    half = (np.array(lower) / rms).astype(np.float32)
    values = np.concatenate([half, -half[::-1]])
    if hashlib.sha256(values.astype("<f4").tobytes()).hexdigest() != TABLE_SHA256:
        raise RuntimeError(
            "the noise table differs from the published one: this machine's Φ⁻¹ cannot run noise version 1"
        )
    values.flags.writeable = False
    return values


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> tuple[Words, Words, Words, Words]:
    """Philox 4×32-10 on words that broadcast against each other: four 32-bit words, held in uint64."""
    c0, c1, c2, c3 = counter
    for step in range(ROUNDS):
        k0, k1 = (np.uint64((k + step * w) & 0xFFFFFFFF) for k, w in zip(key, (WEYL_0, WEYL_1), strict=True))
        p, q = c0 * M0, c2 * M1
        c0, c1, c2, c3 = (q >> WORD_BITS) ^ c1 ^ k0, q & LOW_WORD, (p >> WORD_BITS) ^ c3 ^ k1, p & LOW_WORD
    return c0, c1, c2, c3


def reference(seed: int, tensor: int, rows: int, cols: int, first: int = 0, stride: int | None = None) -> Float32:
    """ε as float32[rows, cols], element [r, c] being number first + r·stride + c of its tensor: the specification.

    `stride` is the canonical row length: cols, unless these are only some of the columns.
    """
    row_starts = first + np.arange(rows)[:, None] * (cols if stride is None else stride)
    element = row_starts + np.arange(cols)
    block = (element // BLOCK).astype(np.uint64)
    half = element % BLOCK
    id_low, id_high = np.uint64(tensor & 0xFFFFFFFF), np.uint64(tensor >> 32)
    words = philox((block, id_low, id_high, np.uint64(STREAM_WEIGHTS)), (seed & 0xFFFFFFFF, seed >> 32))
    bits = np.choose(half // 2, words) >> (half % 2 * 16).astype(np.uint64)
    return np.take(table(), bits & np.uint64(0xFFFF))


def reference_write(center: Float32, move: Move, tensor: int, first: int = 0, stride: int | None = None) -> Float32:
    """fl(center + Σ cᵢεᵢ) for a center of shape (rows, cols) or (cols,): what every kernel must give."""
    rows, cols = np.atleast_2d(center).shape
    terms = [np.float32(c) * reference(seed, tensor, rows, cols, first, stride) for seed, c in move.terms]
    if not terms:
        return center.copy()
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return center + total.reshape(center.shape)
