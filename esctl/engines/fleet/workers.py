"""The worker processes of a fleet: start them, hand out jobs, replace a worker that dies, compare their weights.

A job is a function of an engine. Ray carries it to a worker's process, together with the moves that the worker has not
committed yet, and carries the result back. `cluster` starts and stops processes; `engine` decides what the jobs are.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from esctl import interrupts
from esctl.engines import Engine, EngineSpec
from esctl.engines.fleet.cluster import Cluster
from esctl.engines.fleet.replica import Opened
from esctl.errors import GO_ON, EngineError
from esctl.noise.moves import Move

if TYPE_CHECKING:
    from ray.actor import ActorHandle

    from esctl.engines.fleet.replica import Replica


MOST_DEATHS = 3  # of one worker in a row, without a job done in between; it is left out after the next one
MOST_RELOADS = 3  # attempts to bring all workers to equal weights
AHEAD = 1  # jobs queued in a worker's own process while it is busy, if enough are left for all workers
POLL_SECONDS = 2.0  # while waiting for a result: how often to check that Ray itself is alive
STARTING_SECONDS = 1800  # the fleet gives up if no worker at all is ready by then

T = TypeVar("T")
Job = Callable[[Engine], T]


class Answer(Generic[T]):
    """A result to come: stands for Ray's `ObjectRef`, which has no type here."""


class WorkerDied(Exception):  # noqa: N818
    """The worker died; its job must be resubmitted."""


@dataclass(frozen=True)
class Origin:
    """The weights that every worker starts from: a center file, or the model itself (None); their hash once known."""

    center: Path | None = None
    sha256: str | None = None


class Worker:
    """One engine in a process of its own, and the number of the pool's moves that were sent to it."""

    def __init__(
        self, number: int, replica: "ActorHandle[Replica]", opening: "Answer[Opened]", sent: int, deaths: int
    ) -> None:
        self.number = number
        self.replica = replica
        self.sent = sent
        self.deaths = deaths  # of workers with this number, in a row
        self.opening = opening
        self.opened: Opened | None = None  # until the engine is open

    @property
    def name(self) -> str:
        """How messages name this worker."""
        return f"engine {self.number}" + (f" (process {self.opened.pid})" if self.opened else "")

    def submit(self, moves: Sequence[Move], job: Job[T]) -> "Answer[T]":
        """Queue a job behind the moves that this worker has not committed yet."""
        missing = tuple(moves[self.sent :])
        self.sent = len(moves)
        answer: Answer[T] = self.replica.do.remote(missing, job)
        return answer


class JobQueue(Generic[T]):
    """Jobs that are each done once, by whichever worker is free."""

    def __init__(self, jobs: Sequence[Job[T]]) -> None:
        self._jobs = jobs
        self._waiting = list(range(len(jobs)))  # a heap
        self.running: dict[Answer[T], tuple[Worker, int]] = {}
        self.results: dict[int, T] = {}

    def assign(self, workers: Sequence[Worker], moves: Sequence[Move]) -> None:
        """Give every free worker the next job, and queue one more behind it, so that no worker waits for the driver.

        The last jobs are not queued ahead: the worker that is free first takes them.
        """
        given = Counter(worker.number for worker, _ in self.running.values())
        for ahead in range(1 + AHEAD):
            for worker in workers:
                if given[worker.number] <= ahead and len(self._waiting) > ahead * len(workers):
                    index = heappop(self._waiting)
                    self.running[worker.submit(moves, self._jobs[index])] = worker, index
                    given[worker.number] += 1

    def requeue(self, index: int) -> None:
        """Requeue a job in front: results are reported in order."""
        heappush(self._waiting, index)


class WorkerPool:
    """Workers that are used as one engine. A worker that dies is replaced, and its jobs are requeued."""

    def __init__(self, spec: EngineSpec, cluster: Cluster, size: int, notice: Callable[[str], None]) -> None:
        self._spec = spec
        self._cluster = cluster
        self._notice = notice
        self._origin = Origin()
        self._moves: list[Move] = []
        self._workers = [self._start(number) for number in range(1, size + 1)]
        while len(self.ready) < len(self._workers):
            self._wait([])
        origins = {worker.opened.origin_sha256 for worker in self.ready if worker.opened}
        if len(origins) > 1:
            raise EngineError(f"{spec.model}: holds other weights on some machine of the cluster; give all the same")
        self._origin = Origin(None, origins.pop())

    @property
    def ready(self) -> list[Worker]:
        """The workers whose engines are open."""
        return [worker for worker in self._workers if worker.opened]

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers that are ready."""
        return [worker.opened.pid for worker in self._workers if worker.opened]

    @property
    def opened(self) -> Opened:
        """What a worker reported when its engine was opened; all report the same."""
        return next(worker.opened for worker in self._workers if worker.opened)

    def map(self, jobs: Sequence[Job[T]], done: Callable[[int, T], None] | None = None) -> list[T]:
        """Do every job once, each on the first free worker; `done(index, result)` is called in order of index.

        Raises what a job or `done` raised. Jobs that run at that moment finish before anything submitted later.
        """
        queue = JobQueue(jobs)
        reported = 0
        while reported < len(jobs):
            queue.assign(self.ready, self._moves)
            if reported not in queue.results:
                self._receive(queue)
                continue
            if done is not None:  # while all workers are busy
                done(reported, queue.results[reported])
            reported += 1
        return [queue.results[index] for index in range(len(jobs))]

    def all(self, job: Job[T]) -> dict[Worker, T]:
        """Do a job on every ready worker in parallel; results by worker, without those that died of it."""
        while True:
            answers: dict[Worker, T] = {}
            for worker, answer in [(worker, worker.submit(self._moves, job)) for worker in self.ready]:
                while not self._wait([answer]):  # another worker became ready meanwhile
                    pass
                with suppress(WorkerDied):
                    answers[worker] = self._result(worker, answer)
            if answers:
                return answers
            self._wait([])

    def commit(self, move: Move) -> None:
        """Commit a move on every worker: at once on those that are ready, on others before their next job."""
        self._moves.append(move)
        self.all(lambda engine: None)

    def agreed(self, hashed: Job[str]) -> str:
        """A hash that all workers give. A worker outside the majority is reported and loaded again.

        Without a majority all are loaded again: θ follows from the origin and the moves, which the pool keeps.
        """
        for _ in range(MOST_RELOADS):
            held = self.all(hashed)
            votes = Counter(held.values())
            value, most = votes.most_common()[0]
            if len(votes) == 1:
                return value
            wrong = [worker for worker, own in held.items() if own != value or 2 * most <= len(held)]
            for worker in wrong:
                self._notice(
                    f"{worker.name} held other weights than the rest after {len(self._moves)} moves and was loaded"
                    " again; scores since the last comparison may be of other weights: look for faulty memory there"
                )
                self._restart(worker, worker.deaths)
        raise EngineError("the engines do not reach equal weights: give the fleet machines of one kind")

    def start_from(self, center: Path, sha256: str) -> None:
        """Make a center file, which the ready workers already hold, the origin of workers that start later."""
        before = len(self._moves)
        self._origin = Origin(center, sha256)
        self._moves = []
        for worker in list(self._workers):
            if worker.opened and worker.sent == before:
                worker.sent = 0
            else:
                self._restart(worker, worker.deaths)

    def close(self) -> None:
        """End every worker at once, whatever it does."""
        for worker in self._workers:
            self._cluster.stop(worker.replica)
        self._workers = []

    def _start(self, number: int, deaths: int = 0) -> Worker:
        """Start a process that loads the origin and commits the moves up to now."""
        moves = tuple(self._moves)
        replica = self._cluster.start()
        opening = replica.open.remote(self._spec, self._origin.center, moves)
        return Worker(number, replica, opening, sent=len(moves), deaths=deaths)

    def _restart(self, worker: Worker, deaths: int) -> None:
        """Replace a worker by one in a new process."""
        self._cluster.stop(worker.replica)
        self._workers[self._workers.index(worker)] = self._start(worker.number, deaths)

    def _receive(self, queue: JobQueue[T]) -> None:
        """Wait for results or new workers, and keep the results."""
        for answer in self._wait(list(queue.running)):
            worker, index = queue.running.pop(answer)
            try:
                queue.results[index] = self._result(worker, answer)
                worker.deaths = 0
            except WorkerDied:
                queue.requeue(index)

    def _wait(self, answers: "Sequence[Answer[T]]") -> "list[Answer[T]]":
        """Wait until an answer has arrived or a worker is ready; the answers that have arrived."""
        import ray

        opening = {worker.opening: worker for worker in self._workers if worker.opened is None}
        refs = [*answers, *opening]
        begun = time.monotonic()
        found = False
        while not found:
            interrupts.check()
            if self._cluster.lost():
                raise EngineError(f"Ray on this machine died (killed, or out of memory); {GO_ON}")
            if not answers and time.monotonic() - begun > STARTING_SECONDS:
                raise EngineError(f"no engine was ready within {STARTING_SECONDS} s; {GO_ON}")
            found = bool(ray.wait(refs, timeout=POLL_SECONDS)[0])
        arrived, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
        for ref in arrived:
            if ref in opening:
                self._admit(opening[ref])
        return [answer for answer in answers if answer in arrived]

    def _admit(self, worker: Worker) -> None:
        """Count a worker as ready if it started from the same weights as the others."""
        with suppress(WorkerDied):
            opened = self._result(worker, worker.opening)
            if self._origin.sha256 not in (None, opened.origin_sha256):
                where = self._origin.center or self._spec.model
                raise EngineError(f"{where}: is not what it was when the other engines read it; {GO_ON}")
            worker.opened = opened

    def _result(self, worker: Worker, answer: "Answer[T]") -> T:
        """The result of a job, or what it raised; WorkerDied where its worker is dead."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        try:
            result: T = ray.get(answer)
        except RayTaskError as error:
            raise error.cause from None  # as the engine raised it
        except RayError:
            if worker in self._workers:  # else another of its jobs has reported this death already
                self._replace(worker)
            raise WorkerDied from None
        return result

    def _replace(self, worker: Worker) -> None:
        """Restart a dead worker, unless it keeps dying."""
        if worker.deaths < MOST_DEATHS:
            self._notice(f"{worker.name} died: another is started in its place and repeats its work")
            self._restart(worker, worker.deaths + 1)
            return
        self._cluster.stop(worker.replica)
        self._workers.remove(worker)
        left = len(self._workers)
        self._notice(f"{worker.name} died {worker.deaths + 1} times in a row and is left out; {left} go on")
        if not self._workers:
            raise EngineError(f"no engine is left: each died {MOST_DEATHS + 1} times in a row; {GO_ON}")
