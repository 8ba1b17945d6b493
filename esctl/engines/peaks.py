"""How much memory a process has held at most, on the host and on its device. Leaves whose process it is to callers."""

import resource
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Held:
    """The most bytes held at any time."""

    host: int
    device: int

    def __add__(self, other: "Held") -> "Held":
        return Held(self.host + other.host, self.device + other.device)


def held_here() -> Held:
    """What this process has held at most."""
    return Held(host_peak(), device_peak())


def host_peak() -> int:
    """The largest resident set of this process; Linux counts it in KiB, macOS in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def device_peak() -> int:
    """The most bytes torch has allocated on the current CUDA device; 0 without one."""
    import torch

    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
