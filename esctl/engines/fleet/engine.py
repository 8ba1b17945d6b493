"""Many engines as one `Engine`: candidates are handed out as engines become free, and all commit the same moves.

Leaves processes, deaths and catching up to `crew`. Only seeds, coefficients, token ids and completions cross the
network; weights go through files, which every machine must see.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from typing_extensions import override

from esctl.engines import Engine, EngineSpec, OnCandidate, Samples, Sampling, Seeds, TokenIds
from esctl.engines.fleet.cluster import Cluster
from esctl.engines.fleet.workers import Crew, Job
from esctl.engines.process import Held, held_here
from esctl.errors import EngineError
from esctl.noise.moves import Move, Round

COMPARED_EVERY = 10  # commits, one per generation, until all engines' centers are compared


class Fleet(Engine):
    """An `Engine` of `spec.replicas` engines of the kind that the spec asks for, each in a process of its own."""

    def __init__(self, spec: EngineSpec, notice: Callable[[str], None]) -> None:
        self._cluster: Cluster | None = Cluster(spec)
        self._uncompared = 0  # commits
        try:
            alone = replace(spec, replicas=1, threads=self._cluster.threads)
            self._crew = Crew(alone, self._cluster, spec.replicas, notice)
        except BaseException:
            self._cluster.close()
            raise
        self.dim = self._crew.opened.dim
        self.description = f"{spec.replicas} engines of {self._crew.opened.description}"

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
        """`on_candidate` comes in order, while the engines go on with the next candidates.

        An engine cannot know which candidate is its last, and giving θ back costs as much as a write. So each stays
        with what it did last, whatever `stay` says: `checksum` restores θ before it looks, all else writes anew anyway.
        """

        def alone(candidate: Move) -> Job[Samples]:
            one = replace(round_, candidates=(candidate,))
            return lambda engine: engine.rollout(one, prompts, sampling, seeds, stay=True)[0]

        if self._uncompared >= COMPARED_EVERY:
            self.center_sha256()
        return self._crew.each([alone(candidate) for candidate in round_.candidates], on_candidate)

    @override
    def restore(self) -> None:
        self._crew.all(lambda engine: engine.restore())

    @override
    def nll(self, round_: Round, prompts: Sequence[TokenIds], targets: Sequence[TokenIds]) -> list[list[float]]:

        def alone(candidate: Move) -> Job[list[float]]:
            one = replace(round_, candidates=(candidate,))
            return lambda engine: engine.nll(one, prompts, targets)[0]

        return self._crew.each([alone(candidate) for candidate in round_.candidates])

    @override
    def commit(self, move: Move) -> None:
        self._uncompared += 1
        self._crew.commit(move)

    @override
    def save(self, path: Path) -> None:
        """One engine writes, after all have shown that they hold the same."""
        self.center_sha256()
        self._write(path, lambda engine: engine.save(path.absolute()))

    @override
    def save_center(self, path: Path) -> None:
        """An engine that starts later starts from this file."""
        sha256 = self.center_sha256()
        self._write(path, lambda engine: engine.save_center(path.absolute()))
        self._crew.start_from(path.absolute(), sha256)

    @override
    def load_center(self, path: Path) -> None:
        """An engine that starts later starts from this file, which must stay."""
        center = path.absolute()

        def load(engine: Engine) -> str:
            engine.load_center(center)
            return engine.center_sha256()

        sha256, *others = set(self._crew.all(load).values())
        if others:
            raise EngineError(f"{path}: is not the same file on every machine of the cluster; give all the same")
        self._crew.start_from(center, sha256)

    @override
    def checksum(self) -> str:
        """An engine that gives another than the rest is loaded again."""
        self.restore()
        return self._crew.agreed(lambda engine: engine.checksum())

    @override
    def center_sha256(self) -> str:
        """An engine that gives another than the rest is loaded again."""
        self._uncompared = 0
        return self._crew.agreed(lambda engine: engine.center_sha256())

    @override
    def tensor_bytes(self) -> Mapping[str, int]:
        """The sum over the engines."""
        held = list(self._crew.all(lambda engine: dict(engine.tensor_bytes())).values())
        return {purpose: sum(own[purpose] for own in held) for purpose in held[0]}

    @override
    def held(self) -> Held:
        return sum(self._crew.all(lambda engine: engine.held()).values(), held_here())

    @override
    def close(self) -> None:
        """Processes end at once, whatever they do."""
        if self._cluster is not None:
            try:
                self._crew.close()
            finally:  # also where Ctrl-C or a dead Ray ends that early
                self._cluster.close()
            self._cluster = None

    def _write(self, path: Path, write: Job[None]) -> None:
        """Have one engine write a file or folder; EngineError where this machine does not see it then."""
        self._crew.each([write])
        if not path.exists():
            raise EngineError(
                f"{path}: was written by an engine on another machine and is not seen here; put the run directory"
                " where every machine of the cluster sees it under the same path"
            )
