"""Which samples an evaluation consists of: decodings, seeds, and the chunks in which samples are drawn and stored.

Knows neither weights nor files, and imports no torch; `draw` draws the samples with an engine.
"""

import hashlib
import math
import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from esctl.errors import UsageError
from esctl.noise.moves import hash64
from esctl.runs.records import WEIGHT, Mode

# Upper limits of a chunk. A chunk is the unit of work that an interruption can lose. It holds several of vLLM's
# batches, and still splits a greedy evaluation of a large benchmark.
ROLLOUTS, PROBLEMS = 4096, 1024
TOKENS = Mode()


@dataclass(frozen=True)
class Decoding:
    """How an evaluation draws its n samples of each problem; the default is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    n: int = 1
    seed: int = 0  # of the evaluation; no training seed
    mode: Mode = TOKENS


GREEDY = Decoding()


@dataclass(frozen=True)
class Chunk:
    """One rectangle of problems × samples, drawn in one call and kept at once."""

    problems: tuple[int, ...]  # places in the split
    samples: range


def token_seed(seed: int, problem: str, sample: int) -> int:
    """The token-sampling seed of one sample, 63 bits. It depends on the problem's id, not on n, order or chunk."""
    packed = struct.pack("<qI", seed, sample) + problem.encode()
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8, person=b"esctl-eval").digest(), "little") >> 1


def noise_seed(seed: int, sample: int) -> int:
    """The seed of the weight noise of one sample index, common to all problems, models and noise scales."""
    return hash64("esctl-eval-noise", "<qI", seed, sample)


def chunks(n_problems: int, decoding: Decoding) -> Iterator[Chunk]:
    """The whole evaluation, in the order in which it is drawn; every chunk has the same shape whatever n is.

    Samples come in blocks [0, 1), [1, 2), [2, 4), [4, 8), … up to a width at which a chunk is full, and n only cuts the
    last: with other sequences in a batch last bits may differ, so a larger n must find the smaller one's batches. Under
    weight noise a sample is a model of its own: one chunk is all problems under it.
    """
    weight = decoding.mode.kind == WEIGHT
    rows = n_problems if weight else min(n_problems, PROBLEMS)
    widest = 1 if weight else ROLLOUTS // rows
    for samples in _blocks(decoding.n, widest):
        for first in range(0, n_problems, rows):
            yield Chunk(tuple(range(first, min(first + rows, n_problems))), samples)


def _blocks(n: int, widest: int) -> Iterator[range]:
    """[0, 1), then doubling blocks, at most the largest power of two ≤ `widest` wide."""
    first, width = 0, 1
    while first < n:
        yield range(first, min(first + width, n))
        first += width
        if first >= 2 * width and 2 * width <= widest:
            width *= 2


def missing(chunk: Chunk, ids: Sequence[str], have: Collection[tuple[str, int]]) -> Chunk | None:
    """The part of a chunk that was not drawn before, as a rectangle; None when there is nothing left of it."""
    samples = [s for s in chunk.samples if any((ids[p], s) not in have for p in chunk.problems)]
    if not samples:
        return None
    return Chunk(chunk.problems, range(samples[0], samples[-1] + 1))


DEFAULT_TEMPERATURE, DEFAULT_TOP_P = 0.6, 0.95  # of Yue et al. 2025 (arXiv 2504.13837)


def decodings(
    ks: Sequence[int],
    samples: int | None = None,
    temperatures: Sequence[float] = (DEFAULT_TEMPERATURE,),
    top_p: float = DEFAULT_TOP_P,
    noise: float | None = None,
    seed: int = 0,
) -> list[Decoding]:
    """One decoding per temperature, with 2·max k samples by default; refuses what has no estimate or no spread."""
    n = 2 * max(ks) if samples is None else samples
    if n < max(ks):
        raise UsageError(f"--samples {n}: pass@{max(ks)} needs {max(ks)} samples or more; better 2 × k, the default")
    if not 0 < top_p <= 1:
        raise UsageError(f"--top-p {top_p:g}: give a share above 0 and at most 1")
    if noise is not None and not (math.isfinite(noise) and noise > 0):
        raise UsageError(f"--noise {noise:g}: give a standard deviation of the weights above 0, such as 0.015")
    if noise is None and n > 1 and min(temperatures) == 0:
        raise UsageError(
            f"--temperature 0: {n} greedy samples would be one; give a temperature above 0, or spread weights with"
            " --noise SIGMA"
        )
    if not -(2**63) <= seed < 2**63:
        raise UsageError(f"--seed {seed}: give a whole number of 64 bits")
    mode = Mode() if noise is None else Mode(WEIGHT, noise)
    # Greedy decoding has no top-p, and without noise no seed: equal evaluations are one.
    return [
        Decoding(t, top_p if t > 0 else 1.0, n, seed if t > 0 or noise is not None else 0, mode) for t in temperatures
    ]
