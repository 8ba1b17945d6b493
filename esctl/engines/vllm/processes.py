"""The processes of vLLM's ranks: record them as vLLM starts them, see whether they live, remove what they leave behind.

vLLM itself starts and ends them; `ranks` calls them.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.popen_spawn_posix import Popen
from multiprocessing.process import BaseProcess
from pathlib import Path

from esctl.engines.vllm.patches import argument_of, spawned_processes

SHARED = Path("/dev/shm")  # where Linux shows shared memory
GRACE_SECONDS = 2  # for a rank to end by itself
MEETING = "distributed_init_method"  # the argument of a rank that names the file where all ranks meet


class RankProcesses:
    """The ranks of one engine, as processes; none where its one rank lives in this process."""

    def __init__(self) -> None:
        self._processes: list[Popen] = []
        self._meetings: set[str] = set()
        self._folder: Path | None = None

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Record the worker processes vLLM spawns in this block, block SIGINT in them, and give them a private folder.

        vLLM may spawn them from several threads.
        """
        resource_tracker.ensure_running()  # starting it later would unblock SIGINT
        # A short path: names in it are 36 characters long, and Linux allows 107 for a socket.
        self._folder = Path(tempfile.mkdtemp(prefix="esctl-", dir="/tmp"))
        os.environ["VLLM_RPC_BASE_PATH"] = str(self._folder)  # children read it; `process_kept` removes it again
        with spawned_processes(self._record, str(self._folder)):
            yield

    def _record(self, process: BaseProcess, started: Popen) -> None:
        self._meetings.add(Path(argument_of(process, MEETING)).name)
        self._processes.append(started)

    @property
    def died(self) -> bool:
        """Whether a rank has ended."""
        return any(process.poll() is not None for process in self._processes)

    def end(self) -> None:
        """End the ranks that still run, and remove what all of them leave behind; harmless if called twice.

        vLLM names the shared memory of ranks after the file where they meet, and never removes it.
        """
        for process in self._processes:
            process.terminate()
        end = time.monotonic() + GRACE_SECONDS
        for process in self._processes:
            process.wait(max(0, end - time.monotonic()))
            process.kill()  # a rank that waits for another reacts to nothing else
            process.wait()
        for meeting in self._meetings - {""}:
            for shared in SHARED.glob(f"{meeting}-*"):
                shared.unlink(missing_ok=True)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
