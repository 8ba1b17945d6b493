"""The state of a process around an engine: random states, environment and stdout are restored, peak memory is read."""

import os
import random
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numba
import numpy as np
import torch

from esctl.errors import UsageError


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Put the global generators of Python, NumPy and torch back, also after an exception."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)


@contextmanager
def process_kept() -> Iterator[None]:
    """Put the environment and `torch.set_num_threads` back.

    vLLM's CPU worker sets variables that child processes would inherit (LD_PRELOAD among them) and replaces torch's
    function by one that only warns.
    """
    environment = dict(os.environ)
    set_num_threads = torch.set_num_threads
    try:
        yield
    finally:
        torch.set_num_threads = set_num_threads
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)


@contextmanager
def stdout_kept() -> Iterator[None]:
    """Redirect stdout to stderr, also for C++ libraries: stdout is for results."""
    sys.stdout.flush()
    saved = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)


def use_threads(wanted: int | Literal["auto"]) -> int:
    """Set the threads of torch and of the noise kernel; `auto` is what OMP_NUM_THREADS says, or every core."""
    refuse_threads(wanted)
    threads = torch.get_num_threads() if wanted == "auto" else wanted
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    # After numba, whose start sizes the OpenMP pool that both share to all cores: two such processes side by side would
    # spin on each other's cores and stand still.
    torch.set_num_threads(threads)
    return threads


def refuse_threads(wanted: int | Literal["auto"]) -> None:
    """Refuse more threads than cores: a great many end the process by a segmentation fault."""
    cores = os.cpu_count() or 1
    if wanted != "auto" and wanted > cores:
        raise UsageError(f"engine.threads: {wanted}, but this machine has {cores} cores; use {cores} or fewer, or auto")


@dataclass(frozen=True)
class Held:
    """The most bytes held at any time."""

    host: int
    device: int

    def __add__(self, other: "Held") -> "Held":
        return Held(self.host + other.host, self.device + other.device)


def held_here() -> Held:
    """The peak of this process."""
    return Held(host_peak(), device_peak())


def host_peak() -> int:
    """The largest resident set of this process; Linux counts it in KiB, macOS in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def device_peak() -> int:
    """The most bytes torch has allocated on the current CUDA device; 0 without one."""
    import torch

    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
