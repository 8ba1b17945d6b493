"""How much memory this process has held at most: host, device, and the KV cache apart."""

import resource
import sys

from esctl.engines import Engine
from esctl.records import Peak


def peak_bytes(engine: Engine, before: Peak) -> Peak:
    """The larger of now and before (a resumed run keeps the highest of all its sessions)."""
    return Peak(
        host=max(before.host, host_peak()), device=max(before.device, device_peak()), kv=engine.tensor_bytes()["kv"]
    )


def host_peak() -> int:
    """The largest resident set of this process; Linux counts it in KiB, macOS in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def device_peak() -> int:
    """The most bytes torch has allocated on the current CUDA device; 0 without one."""
    import torch

    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
