"""The engines of a fleet: started, kept at the same moves, asked in parallel, and started anew where one dies.

Leaves processes and machines to `cluster`, and what to ask to `fleet`. A job is a function of an engine; Ray carries it
to the engine's process, with the moves that the engine has not seen yet, and its result back.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from esctl.engines import Engine, EngineSpec
from esctl.engines.fleet.cluster import Cluster
from esctl.engines.fleet.replica import Opened
from esctl.errors import GO_ON, EngineError
from esctl.noise.moves import Move

if TYPE_CHECKING:
    from ray.actor import ActorHandle

    from esctl.engines.fleet.replica import Replica


MOST_DEATHS = 3  # of one engine in a row, without a candidate done in between; with the next it is left out
MOST_RELOADS = 3  # rounds of comparing and loading again, until all engines agree
AHEAD = 1  # jobs that wait in an engine's own process while it is busy, if enough are left for all
LOOKED_EVERY = 2.0  # seconds, while waiting: does Ray itself live
STARTING_SECONDS = 1800  # that no engine at all comes to life before the fleet gives up

T = TypeVar("T")
Job = Callable[[Engine], T]


class Answer(Generic[T]):
    """What Ray gives in place of a result to come: the type of its `ObjectRef`, which has none here."""


class _DiedError(Exception):
    """The engine that was asked is no more; its seat is filled anew, or gone."""


@dataclass(frozen=True)
class Origin:
    """Where every engine starts: a center file, or the model as it is (None); and the hash of that θ once known."""

    center: Path | None = None
    sha256: str | None = None


class Seat:
    """One engine of the crew: the process that holds it now, and how many of the crew's moves that was told."""

    def __init__(
        self, number: int, replica: "ActorHandle[Replica]", opening: "Answer[Opened]", told: int, deaths: int
    ) -> None:
        self.number, self.replica, self.told = number, replica, told
        self.deaths = deaths  # of this seat's engines, in a row
        self.opening = opening
        self.opened: Opened | None = None  # until it has opened its engine

    @property
    def name(self) -> str:
        """What to call it in messages."""
        return f"engine {self.number}" + (f" (process {self.opened.pid})" if self.opened else "")

    def ask(self, moves: Sequence[Move], job: Job[T]) -> "Answer[T]":
        """Have a job done after all moves up to now."""
        missing, self.told = tuple(moves[self.told :]), len(moves)
        answer: Answer[T] = self.replica.do.remote(missing, job)
        return answer


class _Shift(Generic[T]):
    """Jobs that are each done once, by whoever is free."""

    def __init__(self, jobs: Sequence[Job[T]]) -> None:
        self._jobs, self._waiting = jobs, list(range(len(jobs)))  # a heap
        self.running: dict[Answer[T], tuple[Seat, int]] = {}
        self.results: dict[int, T] = {}

    def hand_out(self, present: Sequence[Seat], moves: Sequence[Move]) -> None:
        """Give every free engine the next job, and one ahead, so that none waits to be told.

        The last jobs are not given ahead: who is free first takes them.
        """
        given = Counter(seat.number for seat, _ in self.running.values())
        for ahead in range(1 + AHEAD):
            for seat in present:
                if given[seat.number] <= ahead and len(self._waiting) > ahead * len(present):
                    index = heappop(self._waiting)
                    self.running[seat.ask(moves, self._jobs[index])] = seat, index
                    given[seat.number] += 1

    def take_back(self, index: int) -> None:
        """A job whose engine died comes before those after it, which wait for it to be told."""
        heappush(self._waiting, index)


class Crew:
    """Engines that are asked as one; one that dies is replaced, and what it was asked is asked again."""

    def __init__(self, spec: EngineSpec, cluster: Cluster, size: int, notice: Callable[[str], None]) -> None:
        self._spec, self._cluster, self._notice = spec, cluster, notice
        self._origin, self._moves = Origin(), list[Move]()
        self._seats = [self._fill(number) for number in range(1, size + 1)]
        while len(self.present) < len(self._seats):
            self._await([])
        sha256, *others = {seat.opened.origin_sha256 for seat in self._seats if seat.opened}
        if others:
            raise EngineError(f"{spec.model}: holds other weights on some machine of the cluster; give all the same")
        self._origin = Origin(None, sha256)

    @property
    def present(self) -> list[Seat]:
        """The seats whose engines can be asked now."""
        return [seat for seat in self._seats if seat.opened]

    @property
    def opened(self) -> Opened:
        """What an engine said of itself when it was opened; all say the same."""
        return next(seat.opened for seat in self._seats if seat.opened)

    def each(self, jobs: Sequence[Job[T]], done: Callable[[int, T], None] | None = None) -> list[T]:
        """Do every job once, each on the first engine that is free; `done(index, result)` comes in order of index.

        Raises what a job or `done` raised. Jobs that run meanwhile end by themselves, before anything asked later.
        """
        shift, told = _Shift(jobs), 0
        while told < len(jobs):
            shift.hand_out(self.present, self._moves)
            if told not in shift.results:
                self._receive(shift)
                continue
            if done is not None:  # with all engines at work
                done(told, shift.results[told])
            told += 1
        return [shift.results[index] for index in range(len(jobs))]

    def all(self, job: Job[T]) -> dict[Seat, T]:
        """Do a job on every engine that can be asked now, side by side; by seat, without those that died of it."""
        while True:
            answers: dict[Seat, T] = {}
            for seat, answer in [(seat, seat.ask(self._moves, job)) for seat in self.present]:
                while not self._await([answer]):  # an engine was opened meanwhile
                    pass
                with suppress(_DiedError):
                    answers[seat] = self._take(seat, answer)
            if answers:
                return answers
            self._await([])

    def commit(self, move: Move) -> None:
        """Let every engine commit a move: those that can be asked now at once, others before their next job."""
        self._moves.append(move)
        self.all(lambda engine: None)

    def agreed(self, hashed: Job[str]) -> str:
        """A hash that all engines give; who gives another than the majority is reported and loaded again.

        Without a majority all are: θ follows from the origin and the moves, which the fleet keeps.
        """
        for _ in range(MOST_RELOADS):
            held = self.all(hashed)
            [(value, votes), *others] = Counter(held.values()).most_common()
            if not others:
                return value
            wrong = [seat for seat, own in held.items() if own != value or 2 * votes <= len(held)]
            for seat in wrong:
                self._notice(
                    f"{seat.name} held other weights than the rest after {len(self._moves)} moves and was loaded again;"
                    " scores since the last comparison may be of other weights: look for faulty memory there"
                )
                self._refill(seat, seat.deaths)
        raise EngineError("the engines do not come to equal weights: give the fleet machines of one kind")

    def start_from(self, center: Path, sha256: str) -> None:
        """Let a center file, which the engines that can be asked hold already, be where others start."""
        self._origin, self._moves, before = Origin(center, sha256), [], len(self._moves)
        for seat in list(self._seats):
            if seat.opened and seat.told == before:
                seat.told = 0
            else:
                self._refill(seat, seat.deaths)

    def close(self) -> None:
        """End every engine at once, whatever it does."""
        for seat in self._seats:
            self._cluster.stop(seat.replica)
        self._seats = []

    def _fill(self, number: int, deaths: int = 0) -> Seat:
        """A seat whose process starts from the origin and makes the moves up to now."""
        replica, moves = self._cluster.start(), tuple(self._moves)
        return Seat(
            number, replica, replica.open.remote(self._spec, self._origin.center, moves), told=len(moves), deaths=deaths
        )

    def _refill(self, seat: Seat, deaths: int) -> None:
        """Put another process in the place of a seat's."""
        self._cluster.stop(seat.replica)
        self._seats[self._seats.index(seat)] = self._fill(seat.number, deaths)

    def _receive(self, shift: _Shift[T]) -> None:
        """Wait for news, and keep the results among it."""
        for answer in self._await(list(shift.running)):
            seat, index = shift.running.pop(answer)
            try:
                shift.results[index] = self._take(seat, answer)
                seat.deaths = 0
            except _DiedError:
                shift.take_back(index)

    def _await(self, answers: "Sequence[Answer[T]]") -> "list[Answer[T]]":
        """Wait until an answer is there or an engine has been opened; the answers that are there."""
        import ray

        opening = {seat.opening: seat for seat in self._seats if seat.opened is None}
        refs = [*answers, *opening]
        begun, found = time.monotonic(), False
        while not found:
            if self._cluster.lost():
                raise EngineError(f"Ray on this machine died (killed, or out of memory); {GO_ON}")
            if not answers and time.monotonic() - begun > STARTING_SECONDS:
                raise EngineError(f"no engine was ready within {STARTING_SECONDS} s; {GO_ON}")
            found = bool(ray.wait(refs, timeout=LOOKED_EVERY)[0])
        ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
        for ref in ready:
            if ref in opening:
                self._welcome(opening[ref])
        return [answer for answer in answers if answer in ready]

    def _welcome(self, seat: Seat) -> None:
        """Count an engine among those that can be asked, if it started where the others did."""
        with suppress(_DiedError):
            opened = self._take(seat, seat.opening)
            if self._origin.sha256 not in (None, opened.origin_sha256):
                where = self._origin.center or self._spec.model
                raise EngineError(f"{where}: is not what it was when the other engines read it; {GO_ON}")
            seat.opened = opened

    def _take(self, seat: Seat, answer: "Answer[T]") -> T:
        """The result of a job, or what it raised; _DiedError where its engine is no more."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        try:
            result: T = ray.get(answer)
        except RayTaskError as error:
            raise error.cause from None  # as the engine raised it
        except RayError:
            if seat in self._seats:  # else another job that it held has shown it dead
                self._replace(seat)
            raise _DiedError from None
        return result

    def _replace(self, seat: Seat) -> None:
        """Fill the seat of a dead engine, unless engines keep dying there."""
        if seat.deaths < MOST_DEATHS:
            self._notice(f"{seat.name} died: another is started in its place, and does again what it was asked")
            self._refill(seat, seat.deaths + 1)
            return
        self._cluster.stop(seat.replica)
        self._seats.remove(seat)
        self._notice(f"{seat.name} died {seat.deaths + 1} times in a row and is left out; {len(self._seats)} go on")
        if not self._seats:
            raise EngineError(f"no engine is left: each died {MOST_DEATHS + 1} times in a row; {GO_ON}")
