"""The laws of noise version 1: published bits, one number per (seed, tensor, element), exact sums."""

import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

from esctl.noise import cpu, spec
from esctl.noise.moves import EMPTY, Move, member_seed

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "noise_v1.json").read_text("utf-8"))
# Random123's known answers for philox4x32-10: counter, key, words.
PHILOX = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)
TENSOR = spec.tensor_id("model.layers.0.mlp.down_proj.weight")
MILLION = 1_000_000


def some_move(n: int, seed: int = 0) -> Move:
    rng = np.random.default_rng(seed)
    return Move.of([int(s) for s in rng.integers(0, 2**64, n, np.uint64)], rng.normal(0, 1e-2, n).tolist())


def some_center(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).normal(size=shape).astype(np.float32)


def draw(seed: int, name: str, n: int = MILLION) -> np.ndarray:
    """ε itself, through the kernel."""
    out = np.zeros(n, np.float32)
    cpu.write(out, out, Move.of([seed], [1.0]), spec.tensor_id(name))
    return out


def assert_bitwise(a: np.ndarray, b: np.ndarray) -> None:
    np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.fixture
def threads():
    """Set the thread count of a test, and put back the process's own."""
    before = numba.get_num_threads()
    yield numba.set_num_threads
    numba.set_num_threads(before)


@pytest.mark.parametrize(("counter", "key", "words"), PHILOX)
def test_philox_gives_the_published_words(counter, key, words):
    arrays = tuple(np.array([c], np.uint64) for c in counter)
    assert tuple(int(w[0]) for w in spec.philox(arrays, key)) == words


@pytest.mark.parametrize("name", sorted(VECTORS["tensor_id"]))
def test_tensor_ids_are_the_published_ones(name):
    assert f"{spec.tensor_id(name):016x}" == VECTORS["tensor_id"][name]


@pytest.mark.parametrize("case", VECTORS["epsilon"])
def test_reference_gives_the_published_epsilon(case):
    drawn = spec.reference(
        int(case["seed"]),
        spec.tensor_id(case["tensor"]),
        case["rows"],
        case["cols"],
        int(case["first"]),
        case["stride"],
    )
    assert [f"{bits:08x}" for bits in drawn.view(np.uint32).ravel()] == case["bits"]


@pytest.mark.parametrize("case", VECTORS["write"])
def test_kernel_gives_the_published_sums(case):
    center = np.array([int(b, 16) for b in case["center"]], np.uint32).view(np.float32)
    move = Move.of([int(s) for s in case["seeds"]], [float.fromhex(c) for c in case["coefficients"]])
    cpu.write(center, center, move, spec.tensor_id(case["tensor"]), int(case["first"]))
    assert [f"{bits:08x}" for bits in center.view(np.uint32)] == case["bits"]


def test_member_seeds_are_the_published_ones():
    for *arguments, seed in VECTORS["member_seed"]:
        assert member_seed(*arguments) == int(seed)


def test_fingerprint_is_the_published_one():
    assert cpu.fingerprint() == VECTORS["fingerprint"]


def test_table_is_the_published_one_and_antisymmetric():
    values = spec.table()
    assert hashlib.sha256(values.astype("<f4").tobytes()).hexdigest() == VECTORS["table_sha256"] == spec.TABLE_SHA256
    assert_bitwise(values, -values[::-1])
    assert (np.diff(values) > 0).all()
    with pytest.raises(ValueError, match="read-only"):
        values[0] = 0


def test_table_does_not_depend_on_whose_inverse_normal_is_used():
    special = pytest.importorskip("scipy.special")
    import torch

    p = (np.arange(spec.LEVELS // 2) + 0.5) / spec.LEVELS
    torch_p = torch.from_numpy(p)
    inverses = (
        special.ndtri(p),
        -math.sqrt(2) * special.erfcinv(2 * p),
        torch.special.ndtri(torch_p).numpy(),
        math.sqrt(2) * torch.special.erfinv(2 * torch_p - 1).numpy(),
    )
    for lower in inverses:
        assert_bitwise((lower / np.sqrt(np.mean(lower**2))).astype(np.float32), spec.table()[: spec.LEVELS // 2])


@pytest.mark.parametrize("shape", [(1,), (7,), (8,), (9,), (3, 5), (33, 1001), (1, 257), (5000,)], ids=str)
@pytest.mark.parametrize("first", [0, 1, 7, 8, 12345, 2**33 + 5, spec.MAX_ELEMENTS - 40_000], ids=str)
def test_kernel_is_the_reference_bit_for_bit(shape, first):
    center, move = some_center(*shape), some_move(3)
    out = np.empty_like(center)
    cpu.write(out, center, move, TENSOR, first)
    assert_bitwise(out, spec.reference_write(center, move, TENSOR, first))


@pytest.mark.parametrize("n_terms", [0, 1, 2, 3, 8, 30, 64])
def test_kernel_is_the_reference_for_any_number_of_terms(n_terms):
    center, move = some_center(17, 61), some_move(n_terms)
    out = np.empty_like(center)
    cpu.write(out, center, move, TENSOR)
    assert_bitwise(out, spec.reference_write(center, move, TENSOR))


def test_serial_and_parallel_kernels_agree_for_any_thread_count(threads):
    shape, move = (3, cpu.PARALLEL_FROM + 13), some_move(2)
    center = some_center(*shape)
    want = spec.reference_write(center, move, TENSOR, 5)
    for count in range(1, min(4, numba.config.NUMBA_NUM_THREADS) + 1):
        threads(count)
        out = np.empty_like(center)
        cpu.write(out, center, move, TENSOR, 5)
        assert_bitwise(out, want)


@pytest.mark.slow
def test_two_threads_share_the_work_also_when_the_serial_kernel_was_cached_first(tmp_path):
    """Numba's cache knows a function by its name: under one name the parallel kernel would be loaded as the serial."""
    program = f"""
import time, numba, numpy as np
from esctl.noise import cpu
from esctl.noise.moves import Move
small, large, move = np.zeros(64, np.float32), np.zeros(1 << 23, np.float32), Move.of(range(4), [1.0] * 4)
numba.set_num_threads(2)
cpu.write(small, small, move, {TENSOR})
cpu.write(large, large, move, {TENSOR})
here, everywhere = time.thread_time(), time.process_time()
for _ in range(8):
    cpu.write(large, large, move, {TENSOR})
print((time.thread_time() - here) / (time.process_time() - everywhere))
"""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"}
    for _ in range(2):  # the first run fills the cache, the second reads it
        command = [sys.executable, "-c", program]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert float(run.stdout) < 0.8, "the other thread did nothing"


@pytest.mark.parametrize("size", [1, 8, 255, 256, 257, 8192, 8193, 70_001])
def test_any_chunking_gives_the_same_bits(size):
    center, move = some_center(70_001), some_move(2)
    whole, parts = np.empty_like(center), np.empty_like(center)
    cpu.write(whole, center, move, TENSOR, 3)
    for begin in range(0, center.size, size) if size > 1 else range(64):
        cpu.write(parts[begin : begin + size], center[begin : begin + size], move, TENSOR, 3 + begin)
    n = center.size if size > 1 else 64
    assert_bitwise(parts[:n], whole[:n])


@pytest.mark.parametrize("shards", [2, 4])
def test_a_shard_of_rows_or_columns_holds_the_noise_of_the_whole(shards):
    rows, cols, move = 12, 4 * 13, some_move(2)
    center = some_center(rows, cols)
    whole = spec.reference_write(center, move, TENSOR)
    height, width = rows // shards, cols // shards
    for s in range(shards):
        out = center[s * height : (s + 1) * height].copy()
        cpu.write(out, out, move, TENSOR, first=s * height * cols)
        assert_bitwise(out, whole[s * height : (s + 1) * height])
        out = center[:, s * width : (s + 1) * width].copy()
        cpu.write(out, out, move, TENSOR, first=s * width, stride=cols)
        assert_bitwise(out, np.ascontiguousarray(whole[:, s * width : (s + 1) * width]))


def test_a_fused_tensor_is_written_part_by_part():
    """q, k and v lie in one buffer of an engine, and each keeps the noise of its own name."""
    names, heights, move = ("q", "k", "v"), (8, 4, 4), some_move(2)
    parts = [some_center(height, 24) for height in heights]
    fused = np.concatenate(parts)
    begin = 0
    for name, part in zip(names, parts, strict=True):
        rows = fused[begin : begin + len(part)]
        cpu.write(rows, rows, move, spec.tensor_id(name))
        begin += len(part)
    assert_bitwise(
        fused,
        np.concatenate([spec.reference_write(p, move, spec.tensor_id(n)) for p, n in zip(parts, names, strict=True)]),
    )


@pytest.mark.parametrize("size", [100, cpu.PARALLEL_FROM + 1])
def test_writing_in_place_gives_the_same_bits(size):
    center, move = some_center(size), some_move(5)
    out = np.empty_like(center)
    cpu.write(out, center, move, TENSOR)
    cpu.write(center, center, move, TENSOR)
    assert_bitwise(center, out)


@pytest.mark.parametrize("size", [0, 100, cpu.PARALLEL_FROM + 1])
def test_the_empty_move_copies_the_center_bit_for_bit(size):
    center = some_center(size)
    center[: size // 2] = -0.0
    out = np.full_like(center, np.nan)
    cpu.write(out, center, EMPTY, TENSOR)
    assert_bitwise(out, center)


def test_the_order_of_terms_is_part_of_the_value():
    center, move = np.zeros(4096, np.float32), some_move(8)
    a, b = np.empty_like(center), np.empty_like(center)
    cpu.write(a, center, move, TENSOR)
    cpu.write(b, center, Move(move.terms[::-1]), TENSOR)
    np.testing.assert_allclose(a, b, atol=1e-7)
    assert (a != b).any()


def test_a_sum_is_rounded_before_it_reaches_the_center():
    """One thousand steps far below the center's last bit are not lost when they are one move."""
    center = np.ones(64, np.float32)
    move = Move.of([3] * 1000, [1e-9] * 1000)
    out = np.empty_like(center)
    cpu.write(out, center, move, TENSOR)
    assert np.corrcoef(out - center, spec.reference(3, TENSOR, 1, 64)[0])[0, 1] > 0.98


def test_product_and_sum_are_rounded_apart():
    """With fused multiply-add some of these would differ; float64 holds the exact product and sum."""
    center, coefficient = some_center(20_000), np.float32(0.37)
    out = np.empty_like(center)
    cpu.write(out, center, Move.of([5], [float(coefficient)]), TENSOR)
    drawn = spec.reference(5, TENSOR, 1, center.size)[0]
    exact = np.float64(coefficient) * drawn
    assert_bitwise(out, (center.astype(np.float64) + exact.astype(np.float32)).astype(np.float32))
    fused = (center.astype(np.float64) + exact).astype(np.float32)
    assert (out != fused).any()


def test_coefficients_are_rounded_once_to_fp32():
    seeds, coefficients = cpu.prepare(Move.of([1, 2**64 - 1], [0.1, 1 / 3]))
    assert seeds.tolist() == [1, 2**64 - 1]
    assert coefficients.dtype == np.float32
    assert coefficients.tolist() == [float(np.float32(0.1)), float(np.float32(1 / 3))]


def test_a_seed_beyond_64_bits_is_refused():
    with pytest.raises(OverflowError):
        cpu.write(np.zeros(1, np.float32), np.zeros(1, np.float32), Move.of([2**64], [1.0]), TENSOR)


def test_noise_has_the_moments_of_a_standard_normal():
    drawn = draw(11, "a", 4 * MILLION).astype(np.float64)
    n = drawn.size
    assert abs(drawn.mean()) < 4 / math.sqrt(n)
    assert abs(drawn.var() - 1) < 4 * math.sqrt(2 / n)
    assert abs((drawn**3).mean()) < 4 * math.sqrt(15 / n)
    assert abs((drawn**4).mean() / drawn.var() ** 2 - 2.999) < 4 * math.sqrt(96 / n)


def test_the_table_alone_has_unit_variance_and_kurtosis_2_999():
    values = spec.table().astype(np.float64)
    assert values.sum() == 0
    assert values.var() == pytest.approx(1, abs=1e-8)
    assert (values**4).mean() == pytest.approx(2.99925, abs=1e-5)


def test_tensors_seeds_and_lags_are_uncorrelated():
    one = draw(1, "model.layers.0.self_attn.q_proj.weight")
    others = [
        draw(1, "model.layers.1.self_attn.q_proj.weight"),  # same seed, another layer of equal shape
        draw(1, "model.layers.0.self_attn.k_proj.weight"),
        draw(2, "model.layers.0.self_attn.q_proj.weight"),
        draw(1 << 32, "model.layers.0.self_attn.q_proj.weight"),
        *(np.roll(one, lag) for lag in (1, 2, 3, 7, 8, 9, 16, 4096)),
    ]
    for other in others:
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.01


def test_member_seeds_are_distinct_over_a_million_draws():
    seeds = {member_seed(0, g, r, m) for g in range(500) for r in range(2) for m in range(1000)}
    assert len(seeds) == MILLION


def test_run_seeds_generations_rounds_and_members_all_count():
    arguments = ((0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (-1, 0, 0, 0))
    assert len({member_seed(*a) for a in arguments}) == len(arguments)
