"""One function on many arguments in worker processes, whatever the function does: a time limit kills its process."""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from esctl.errors import UsageError
from esctl.tasks import Limits
from esctl.tasks.grading.worker import Json

START_SECONDS = 120.0  # a worker imports a library or a user's module first
TIMEOUT, CRASH = "timeout", "crash"


@dataclass(frozen=True)
class Outcome:
    """The value of a call, or why there is none: "timeout", "crash", "raised ValueError"."""

    value: Json = None
    failure: str | None = None


class GraderPool:
    """Worker processes that each call one function, one answer at a time; started when first needed.

    They are started anew, never forked, so it does not matter which threads or devices this process holds. They talk in
    JSON lines. They end when the pool is closed, when nobody holds it any more, and when this process ends. Calls may
    come from any thread, one at a time.
    """

    def __init__(self, function: str, limits: Limits, kind: str = "plain", memory_gib: float = 0) -> None:
        self.limits = limits
        self._argv = [kind, function, str(limits.timeout_seconds), str(memory_gib)]
        self._function = function
        self._workers: list[_Worker] = []
        weakref.finalize(self, _end, self._workers)

    def run(self, arguments: Sequence[list[Json]]) -> list[Outcome]:
        """One outcome for each list of arguments, in order; takes at most limit x calls / workers, and starts."""
        outcomes = [Outcome(failure=CRASH)] * len(arguments)
        waiting = deque((i, json.dumps(a).encode() + b"\n") for i, a in enumerate(arguments))
        with self._selector(min(len(waiting), self.limits.workers)) as selector:
            while waiting or any(w.job is not None for w in self._workers):
                for worker in self._workers:
                    if worker.ready and worker.job is None and waiting:
                        worker.give(*waiting.popleft(), self.limits.timeout_seconds)
                self._collect(selector, outcomes)
        return outcomes

    def check(self) -> None:
        """Start a worker; raises UsageError where the function cannot be imported."""
        with self._selector(1) as selector:
            while not any(w.ready for w in self._workers):
                self._collect(selector, [])

    def close(self) -> None:
        """End the workers; calling it twice is harmless."""
        _end(self._workers)

    @contextmanager
    def _selector(self, workers: int) -> Iterator[selectors.DefaultSelector]:
        """Start workers up to this number; the selector wakes up when one has answered."""
        while len(self._workers) < workers:
            self._workers.append(_Worker(self._argv))
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker.answers, selectors.EVENT_READ, worker)
            try:
                yield selector
            except BaseException:  # an interrupt too: an abandoned call must not keep its worker busy
                self.close()
                raise

    def _collect(self, selector: selectors.DefaultSelector, outcomes: list[Outcome]) -> None:
        """Wait for the next answer or deadline, record it, and replace workers that died or ran out of time."""
        deadline = min((w.deadline for w in self._workers), default=0.0)
        for key, _ in selector.select(max(0.0, min(deadline - time.monotonic(), 1.0))):
            worker: _Worker = key.data
            for message in worker.read():
                self._take(worker, message, outcomes)
            if worker.gone:
                self._replace(selector, worker, CRASH, outcomes)
        now = time.monotonic()
        for worker in [w for w in self._workers if now > w.deadline]:
            self._replace(selector, worker, TIMEOUT, outcomes)

    def _take(self, worker: "_Worker", message: dict[str, Json], outcomes: list[Outcome]) -> None:
        if "error" in message:
            raise UsageError(
                f"{self._function}: {message['error']}; give package.module:name, importable from the current folder"
            )
        if "ready" in message:
            worker.rest()
        elif worker.job is not None:
            raised = message.get("raised")
            failure = f"raised {raised}" if raised is not None else None
            outcomes[worker.job] = Outcome(message.get("value"), failure)
            worker.rest()

    def _replace(
        self, selector: selectors.DefaultSelector, worker: "_Worker", cause: str, outcomes: list[Outcome]
    ) -> None:
        if not worker.ready:
            raise UsageError(f"{self._function}: its process ended ({cause}) while it was being imported")
        if worker.job is not None:
            outcomes[worker.job] = Outcome(failure=cause)
        selector.unregister(worker.answers)
        worker.kill()
        fresh = _Worker(self._argv)
        self._workers[self._workers.index(worker)] = fresh
        selector.register(fresh.answers, selectors.EVENT_READ, fresh)


@dataclass(eq=False)
class _Worker:
    """One process; `job` is the index of the call that it is busy with, None when it is idle."""

    argv: Sequence[str]
    ready: bool = False
    gone: bool = False
    job: int | None = None
    deadline: float = 0.0
    process: "subprocess.Popen[bytes]" = field(init=False)
    buffer: bytes = b""

    def __post_init__(self) -> None:
        # A session of its own: Ctrl-C reaches the trainer alone, and a kill reaches what the grader started.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "esctl.tasks.grading.worker", *self.argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONHASHSEED": "0"},  # a library's order of sets must not decide a grade
        )
        self.deadline = time.monotonic() + START_SECONDS

    @property
    def answers(self) -> int:
        """The file descriptor that answers come from."""
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def give(self, job: int, request: bytes, seconds: float) -> None:
        """Send one request; a process that has died is noticed when its answer is read."""
        assert self.process.stdin is not None
        self.job = job
        self.deadline = time.monotonic() + seconds
        with suppress(BrokenPipeError):
            self.process.stdin.write(request)
            self.process.stdin.flush()

    def rest(self) -> None:
        """Become ready for the next request."""
        self.ready = True
        self.job = None
        self.deadline = float("inf")

    def read(self) -> list[dict[str, Json]]:
        """Whole messages that have arrived."""
        chunk = os.read(self.answers, 65536)
        self.gone = not chunk
        *lines, self.buffer = (self.buffer + chunk).split(b"\n")
        try:
            messages = [json.loads(line) for line in lines]
        except ValueError:
            messages = [None]
        if all(isinstance(message, dict) for message in messages):
            return messages
        self.gone = True  # the graded code wrote into this pipe: its noise cannot be separated from answers
        return []

    def kill(self) -> None:
        """End the process and whatever it started, and free its pipes."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


def _end(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.kill()
    workers.clear()
