"""The laws of the GPU kernel that need no GPU: its bits under the interpreter, and its instructions for sm_90."""

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from interpreted import CASES, DTYPES, Case, served

triton = pytest.importorskip("triton", reason="Triton is not installed")

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
POINTERS = {"float32": "*fp32", "bfloat16": "*i16", "float16": "*fp16"}
# Types of the other arguments, in the order of the kernel's; addresses of tensors are multiples of 16.
ARGUMENTS = {
    "center": "*fp32",
    "table": "*i32",
    "seeds": "*i64",
    "coefficients": "*fp32",
    "n_terms": "i32",
    "tensor": "u64",
    "first": "i64",
    "length": "i64",
    "stride": "i64",
    "row_blocks": "i32",
    "n_blocks": "i32",
}


@pytest.fixture(scope="module")
def found(tiny_qwen2: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list]:
    """What a process whose Triton interprets says."""
    script, file = Path(__file__).parents[1] / "interpreted.py", tmp_path_factory.mktemp("center") / "start.safetensors"
    done = subprocess.run([sys.executable, script, tiny_qwen2, file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(CASES)), ids=lambda i: f"{i}-{CASES[i].dtype}")
def test_the_kernel_is_bitwise_the_specification_cast_once(found: dict[str, list], index: int) -> None:
    assert found["wrong"][index] == 0, CASES[index]


@pytest.mark.slow
def test_a_rank_s_tensors_on_a_device_are_the_canonical_candidate(found: dict[str, list]) -> None:
    assert found["sharded"] == []


@pytest.mark.slow
def test_an_engine_with_its_center_on_a_device_holds_the_same_bits(
    found: dict[str, list], tiny_qwen2: Path, tmp_path: Path
) -> None:
    host = served(str(tiny_qwen2), str(tmp_path / "start.safetensors"))
    assert found["served"] == host
    assert len(set(host)) == len(host)


def test_the_cases_are_those_that_go_wrong_first() -> None:
    for dtype in DTYPES:
        cases = [case for case in CASES if case.dtype == dtype]
        assert {case.n_terms for case in cases} >= {0, 1, 2, 3, 30, 64}
        assert any(case.first > 1 << 34 and case.stride for case in cases)  # blocks beyond 2³¹, in a shard
        assert any(shard(case) and case.first % 8 for case in cases)
        assert any(shard(case) and case.first % 8 == case.cols % 8 == (case.stride or 0) % 8 == 0 for case in cases)


def shard(case: Case) -> bool:
    return case.stride is not None and case.stride > case.cols


@cache
def compiled(dtype: str, aligned: bool, fusion: bool | None = None):
    """The kernel for an H100 or H200, with the options that it is launched with unless `fusion` says otherwise."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from esctl.noise.gpu import BLOCKS, OPTIONS, write_kernel

    source = ASTSource(
        fn=write_kernel,
        signature={"out": POINTERS[dtype], **ARGUMENTS, **dict.fromkeys(("ALIGNED", "BF16", "BLOCKS"), "constexpr")},
        constexprs={"ALIGNED": aligned, "BF16": dtype == "bfloat16", "BLOCKS": BLOCKS},
        attrs={(i,): [["tt.divisibility", 16]] for i in range(5)},
    )
    options = OPTIONS if fusion is None else OPTIONS | {"enable_fp_fusion": fusion}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def machine_code(kernel, folder: Path) -> str:
    """What the GPU executes: PTX leaves it to its assembler whether a·b + c is contracted."""
    (folder / "kernel.cubin").write_bytes(kernel.asm["cubin"])
    command = [TOOLS / "nvdisasm", "-c", folder / "kernel.cubin"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))
    assert "TRITON_INTERPRET" not in os.environ


@pytest.mark.slow
@pytest.mark.parametrize("aligned", [True, False], ids=["aligned", "odd"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_multiplication_is_contracted_with_an_addition(dtype: str, aligned: bool, tmp_path: Path) -> None:
    kernel = compiled(dtype, aligned)
    ptx, sass = kernel.asm["ptx"], machine_code(kernel, tmp_path)
    assert not re.findall(r"\bfma\.\S*f32", ptx)
    assert ".ftz" not in ptx  # subnormal products are kept, as on a CPU
    assert "FFMA" not in sass
    assert sass.count("FMUL") == 8  # one product per element of a block and term
    assert sass.count("FADD") == 16  # one sum of terms, one with the center


@pytest.mark.slow
def test_the_look_at_contraction_would_see_it(tmp_path: Path) -> None:
    kernel = compiled("bfloat16", True, fusion=True)
    assert len(re.findall(r"\bfma\.rn\.f32", kernel.asm["ptx"])) == 8
    assert "FFMA" in machine_code(kernel, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_whole_blocks_are_read_and_written_in_vectors_without_spills(dtype: str) -> None:
    kernel = compiled(dtype, True)
    ptx = kernel.asm["ptx"]
    assert len(re.findall(r"ld\.global\.cg\.v4\.b32", ptx)) == 2  # 8 fp32 of the center
    assert len(re.findall(r"st\.global\.cs\.v4\.b32", ptx)) == (2 if dtype == "float32" else 1)
    assert ".local" not in ptx
    assert ptx.count("mul.wide.u32") + ptx.count("mul.hi.u32") <= 21  # one Philox call per block, not per element


def test_every_argument_has_one_type_so_that_one_kernel_serves_every_tensor() -> None:
    from esctl.noise.gpu import write_kernel

    declared = {p.name: p.annotation_type for p in write_kernel.params if p.annotation_type}
    assert declared == {name: kind for name, kind in ARGUMENTS.items() if not kind.startswith("*")}
    assert declared.keys() == {p.name for p in write_kernel.params if p.do_not_specialize}


def test_what_the_kernel_cannot_write_is_refused() -> None:
    import torch

    from esctl.noise import gpu
    from esctl.noise.moves import EMPTY

    theta = torch.zeros(4, 6)
    for out, center in (
        (torch.zeros(6, 4), theta),
        (theta, theta.half()),
        (theta.int(), theta),
        (theta.t(), theta.t()),
    ):
        with pytest.raises(AssertionError):
            gpu.write(out, center, EMPTY, 1)
