"""Many engines as one `Engine`: workers take candidates as they become free, and all commit the same moves.

Only seeds, coefficients, token ids and completions cross the network. Weights go through files, so every machine must
see the same paths. `workers` knows about processes and deaths.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from typing_extensions import override

from esctl.engines import Engine, EngineSpec, OnCandidate, Samples, Sampling, Seeds, TokenIds
from esctl.engines.fleet.cluster import Cluster
from esctl.engines.fleet.workers import Job, WorkerPool
from esctl.engines.process import Held, held_here
from esctl.errors import EngineError
from esctl.noise.moves import Move, Round

COMPARED_EVERY = 10  # commits (one per generation) between two comparisons of all workers' centers


class Fleet(Engine):
    """An `Engine` made of `spec.replicas` engines, each in a process of its own.

    `pool` gives access to the workers one by one, for tests and measurements.
    """

    def __init__(self, spec: EngineSpec, notice: Callable[[str], None]) -> None:
        self._cluster: Cluster | None = Cluster(spec)
        self._uncompared = 0  # commits since the last comparison
        try:
            alone = replace(spec, replicas=1, threads=self._cluster.threads)
            self.pool = WorkerPool(alone, self._cluster, spec.replicas, notice)
        except BaseException:
            self._cluster.close()
            raise
        self.dim = self.pool.opened.dim
        self.description = f"{spec.replicas} engines of {self.pool.opened.description}"

    @override
    def rollout(
        self,
        round_: Round,
        prompts: Sequence[TokenIds],
        sampling: Sampling,
        seeds: Seeds | None = None,
        on_candidate: OnCandidate | None = None,
        *,
        stay: bool = False,
    ) -> list[Samples]:
        """`on_candidate` is called in order while the workers go on with the next candidates.

        A worker cannot know which candidate is its last, and restoring θ costs as much as a write. So every worker
        keeps its last candidate live, whatever `stay` says: `checksum` restores θ first, and all else writes anew.
        """

        def alone(candidate: Move) -> Job[Samples]:
            one = replace(round_, candidates=(candidate,))
            return lambda engine: engine.rollout(one, prompts, sampling, seeds, stay=True)[0]

        if self._uncompared >= COMPARED_EVERY:
            self.center_sha256()
        return self.pool.map([alone(candidate) for candidate in round_.candidates], on_candidate)

    @override
    def restore(self) -> None:
        self.pool.all(lambda engine: engine.restore())

    @override
    def nll(self, round_: Round, prompts: Sequence[TokenIds], targets: Sequence[TokenIds]) -> list[list[float]]:

        def alone(candidate: Move) -> Job[list[float]]:
            one = replace(round_, candidates=(candidate,))
            return lambda engine: engine.nll(one, prompts, targets)[0]

        return self.pool.map([alone(candidate) for candidate in round_.candidates])

    @override
    def commit(self, move: Move) -> None:
        self._uncompared += 1
        self.pool.commit(move)

    @override
    def save(self, path: Path) -> None:
        """One worker writes, after all have been compared."""
        self.center_sha256()
        self._write(path, lambda engine: engine.save(path.absolute()))

    @override
    def save_center(self, path: Path) -> None:
        """A worker that starts later loads this file."""
        sha256 = self.center_sha256()
        self._write(path, lambda engine: engine.save_center(path.absolute()))
        self.pool.start_from(path.absolute(), sha256)

    @override
    def load_center(self, path: Path) -> None:
        """A worker that starts later loads this file, so it must not be removed."""
        center = path.absolute()

        def load(engine: Engine) -> str:
            engine.load_center(center)
            return engine.center_sha256()

        hashes = set(self.pool.all(load).values())
        if len(hashes) > 1:
            raise EngineError(f"{path}: is not the same file on every machine of the cluster; give all the same")
        self.pool.start_from(center, hashes.pop())

    @override
    def checksum(self) -> str:
        """A worker that differs from the rest is loaded again."""
        self.restore()
        return self.pool.agreed(lambda engine: engine.checksum())

    @override
    def center_sha256(self) -> str:
        """A worker that differs from the rest is loaded again."""
        self._uncompared = 0
        return self.pool.agreed(lambda engine: engine.center_sha256())

    @override
    def tensor_bytes(self) -> Mapping[str, int]:
        """The sum over the workers."""
        held = list(self.pool.all(lambda engine: dict(engine.tensor_bytes())).values())
        return {purpose: sum(own[purpose] for own in held) for purpose in held[0]}

    @override
    def held(self) -> Held:
        return sum(self.pool.all(lambda engine: engine.held()).values(), held_here())

    @override
    def close(self) -> None:
        """Processes end at once, whatever they do."""
        if self._cluster is not None:
            try:
                self.pool.close()
            finally:  # also where Ctrl-C or a dead Ray interrupts it
                self._cluster.close()
            self._cluster = None

    def _write(self, path: Path, write: Job[None]) -> None:
        """Let one worker write a file or folder; EngineError where this machine does not see the result."""
        self.pool.map([write])
        if not path.exists():
            raise EngineError(
                f"{path}: was written by an engine on another machine and is not seen here; put the run directory"
                " where every machine of the cluster sees it under the same path"
            )
