"""Processes side by side: start so many at once, say which run and how long is left, stop all of them cleanly.

Knows command lines, log files and costs; leaves what a job does to the command it starts.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

POLL_SECONDS = 0.2
PR_SET_PDEATHSIG = 1  # prctl(2)
# Loaded before any fork: between fork and exec only a plain system call is safe.
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
STOP_SECONDS = 30  # what a job gets to end by itself, recording what it has, before it is killed


@dataclass(frozen=True)
class Job:
    """One command, its log, and how much work it is beside the others (any unit, the same for all)."""

    name: str
    argv: tuple[str, ...]  # after `python -m`
    log: Path
    work: float


@dataclass(frozen=True)
class Progress:
    """What a person wants to know while jobs run."""

    done: int
    failed: int
    total: int
    running: tuple[str, ...]
    seconds_left: float | None  # None until the first job ended


@dataclass(frozen=True)
class Failure:
    """A job that ended with an error, and the last line it wrote."""

    job: Job
    exit_code: int
    tail: str


@dataclass
class _Running:
    job: Job
    process: subprocess.Popen[bytes]
    begun: float


def run_jobs(jobs: Sequence[Job], at_once: int, report: Callable[[Progress], None]) -> list[Failure]:
    """Run every job, `at_once` side by side on equal shares of the cores; a failed job stops no other.

    Longest first, so that no long one is left alone at the end. On KeyboardInterrupt (Ctrl-C, or SIGTERM where the
    caller maps it) every running job is interrupted and waited for, so that it can record what it has.
    """
    waiting = sorted(jobs, key=lambda job: -job.work)
    running, ended, failures = list[_Running](), list[tuple[float, float]](), list[Failure]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(_start(waiting.pop(0), max(1, (os.cpu_count() or 1) // at_once)))
                report(_progress(jobs, waiting, running, ended, failures, at_once))
            time.sleep(POLL_SECONDS)
            for item in [r for r in running if r.process.poll() is not None]:
                running.remove(item)
                ended.append((item.job.work, time.monotonic() - item.begun))
                if item.process.returncode != 0:
                    failures.append(Failure(item.job, item.process.returncode, _tail(item.job.log)))
                report(_progress(jobs, waiting, running, ended, failures, at_once))
    finally:
        _stop(running)
    return failures


def _start(job: Job, threads: int) -> _Running:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    # More threads than its share of the cores would spin on those that the others need.
    limits = {"OMP_NUM_THREADS": str(threads), "NUMBA_NUM_THREADS": str(threads)}
    with job.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *job.argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **limits},
            preexec_fn=_end_with_parent if LIBC else None,
            start_new_session=True,  # Ctrl-C reaches the jobs through `_stop` alone, once
        )
    return _Running(job, process, time.monotonic())


def _end_with_parent() -> None:
    """Ask the kernel for SIGTERM when the driver dies, also by SIGKILL: an orphan would go on and hold its run."""
    assert LIBC is not None
    LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))


def _stop(running: Sequence[_Running]) -> None:
    # Not SIGINT: what was started in a shell's background, and its children with it, ignores that.
    for item in running:
        item.process.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    for item in running:
        try:
            item.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(item.process.pid, signal.SIGKILL)
            item.process.wait()


def _progress(
    jobs: Sequence[Job],
    waiting: Sequence[Job],
    running: Sequence[_Running],
    ended: Sequence[tuple[float, float]],
    failures: Sequence[Failure],
    at_once: int,
) -> Progress:
    left = None
    if ended:
        pace = sum(seconds for _, seconds in ended) / sum(work for work, _ in ended)
        now = time.monotonic()
        begun = sum(max(0.0, r.job.work * pace - (now - r.begun)) for r in running)
        left = (begun + sum(job.work for job in waiting) * pace) / at_once
    names = tuple(r.job.name for r in running)
    return Progress(len(ended) - len(failures), len(failures), len(jobs), names, left)


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
