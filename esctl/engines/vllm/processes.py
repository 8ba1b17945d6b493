"""The processes of vLLM's ranks, seen from outside: what reaches them, whether they live, and what they must not leave.

Leaves starting and ending them to vLLM, and what they are asked to `vllm_ranks`.
"""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess
from multiprocessing.popen_spawn_posix import Popen
from multiprocessing.process import BaseProcess
from pathlib import Path

SHARED = Path("/dev/shm")  # where Linux shows shared memory
GRACE_SECONDS = 2  # for a rank to end by itself
MEETING = "distributed_init_method"  # the argument of a rank that names the file where all meet


class RankProcesses:
    """The ranks of one engine, as processes; none where its one rank lives in this process."""

    def __init__(self) -> None:
        self._processes: list[Popen] = []
        self._meetings: set[str] = set()
        self._folder: Path | None = None

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Know the ranks that vLLM starts inside, keep Ctrl-C from them, and their files in a place of their own.

        A terminal sends SIGINT to every process, and only the driver knows what to do about it. What is blocked where
        a process is made stays blocked in it.
        """
        resource_tracker.ensure_running()  # whose start would let SIGINT through again
        launch, temporary = SpawnProcess._Popen, tempfile.tempdir

        def known(process: BaseProcess) -> Popen:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                self._meetings.add(Path(vars(process)["_kwargs"].get(MEETING, "")).name)
                self._processes.append(launch(process))
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return self._processes[-1]

        # The environment is what children read; `caller.process_kept` puts it back.
        # A short path: names in it are 36 characters long, and the system allows a socket's 107.
        self._folder = Path(tempfile.mkdtemp(prefix="esctl-", dir="/tmp"))
        os.environ["VLLM_RPC_BASE_PATH"] = tempfile.tempdir = str(self._folder)
        SpawnProcess._Popen = staticmethod(known)  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            SpawnProcess._Popen = staticmethod(launch)  # type: ignore[method-assign]
            tempfile.tempdir = temporary

    @property
    def died(self) -> bool:
        """Whether a rank is no more."""
        return any(process.poll() is not None for process in self._processes)

    def end(self) -> None:
        """End the ranks that are left, and remove what they all leave; twice is harmless.

        vLLM names the shared memory of ranks after the file where they meet, and leaves it whatever ends them.
        """
        for process in self._processes:
            process.terminate()
        end = time.monotonic() + GRACE_SECONDS
        for process in self._processes:
            process.wait(max(0, end - time.monotonic()))
            process.kill()  # one that waits for another hears nothing else
            process.wait()
        for meeting in self._meetings - {""}:
            for shared in SHARED.glob(f"{meeting}-*"):
                shared.unlink(missing_ok=True)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
