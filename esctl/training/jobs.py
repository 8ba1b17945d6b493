"""Jobs side by side: start so many processes at once, report which run and how long is left, stop all of them cleanly.

A job is a command line with a log file. It waits while another process holds its run directory, such as a job of a
driver that was killed a moment ago.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from esctl.runs.directory import RunDir

POLL_SECONDS = 0.2
PR_SET_PDEATHSIG = 1  # prctl(2)
# Loaded before any fork: between fork and exec only a plain system call is safe.
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
STOP_SECONDS = 30  # the time that a stopped job has to record its work, before it is killed


@dataclass(frozen=True)
class Job:
    """One command and its log."""

    name: str
    argv: tuple[str, ...]  # after `python -m`
    log: Path
    work: float  # in any unit, the same for all jobs
    run: RunDir | None = None  # the directory that it locks


@dataclass(frozen=True)
class Progress:
    """How far the jobs are."""

    done: int
    failed: int
    total: int
    running: tuple[str, ...]
    seconds_left: float | None  # None until the first job ended
    blocked: tuple[str, ...] = ()  # whose run another process holds


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

    The longest job starts first, so that no long one runs alone at the end. A job whose run is locked starts when the
    lock is free. On KeyboardInterrupt (Ctrl-C, or a signal that the caller maps to it) every running job gets SIGTERM
    and the time to record its work.
    """
    queue = _Queue(jobs, at_once)
    try:
        while queue.waiting or queue.running:
            queue.start_free(report)
            time.sleep(POLL_SECONDS)
            queue.collect_ended(report)
    finally:
        _stop(queue.running)
    return queue.failures


class _Queue:
    """The jobs that wait, run and have ended."""

    def __init__(self, jobs: Sequence[Job], at_once: int) -> None:
        self.total = len(jobs)
        self.at_once = at_once
        self.waiting = sorted(jobs, key=lambda job: -job.work)
        self.running: list[_Running] = []
        self.ended: list[tuple[float, float]] = []  # work and seconds of each job
        self.failures: list[Failure] = []
        self.blocked: tuple[str, ...] = ()

    def start_free(self, report: Callable[[Progress], None]) -> None:
        """Start waiting jobs whose run is not locked, while there is room."""
        locked = [job for job in self.waiting if job.run is not None and job.run.is_locked]
        free = [job for job in self.waiting if job not in locked]
        for job in free[: self.at_once - len(self.running)]:
            self.waiting.remove(job)
            self.running.append(_start(job, max(1, (os.cpu_count() or 1) // self.at_once)))
            report(self.progress())
        blocked = tuple(job.name for job in locked)
        if blocked != self.blocked:
            self.blocked = blocked
            report(self.progress())

    def collect_ended(self, report: Callable[[Progress], None]) -> None:
        """Take the jobs that have ended out of those that run."""
        for item in [r for r in self.running if r.process.poll() is not None]:
            self.running.remove(item)
            self.ended.append((item.job.work, time.monotonic() - item.begun))
            if item.process.returncode != 0:
                self.failures.append(Failure(item.job, item.process.returncode, _tail(item.job.log)))
            report(self.progress())

    def progress(self) -> Progress:
        """How far the jobs are, with the time left by the pace of those that have ended."""
        left = None
        if self.ended:
            pace = sum(seconds for _, seconds in self.ended) / sum(work for work, _ in self.ended)
            now = time.monotonic()
            begun = sum(max(0.0, r.job.work * pace - (now - r.begun)) for r in self.running)
            left = (begun + sum(job.work for job in self.waiting) * pace) / self.at_once
        return Progress(
            done=len(self.ended) - len(self.failures),
            failed=len(self.failures),
            total=self.total,
            running=tuple(r.job.name for r in self.running),
            seconds_left=left,
            blocked=self.blocked,
        )


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
            preexec_fn=partial(_end_with_parent, os.getpid()) if LIBC else None,
            start_new_session=True,  # Ctrl-C reaches the jobs through `_stop` alone, once
        )
    return _Running(job, process, time.monotonic())


def _end_with_parent(driver: int) -> None:
    """Ask the kernel for SIGTERM when the driver dies, also by SIGKILL: an orphan would go on and hold its run."""
    assert LIBC is not None
    LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != driver:  # it died after the fork and before the call, which the kernel does not report
        os._exit(128 + signal.SIGTERM)


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


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
