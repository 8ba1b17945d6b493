"""What runs in a worker's process: one engine, opened there and called with plain values. Knows nothing of Ray."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from esctl.engines import Engine, EngineSpec, open_engine
from esctl.noise.moves import Move

T = TypeVar("T")


@dataclass(frozen=True)
class Opened:
    """What a worker's process reports about the engine that it has opened."""

    pid: int
    dim: int
    description: str
    origin_sha256: str  # of θ before the moves


class Replica:
    """Holds an engine. Its process runs one call at a time, in the order of submission."""

    def __init__(self) -> None:
        self._engine: Engine | None = None

    def open(self, spec: EngineSpec, center: Path | None, moves: Sequence[Move]) -> Opened:
        """Load the model, or a center file instead, then commit the moves since: the bits of every other engine."""
        self._engine = open_engine(spec)
        if center is not None:
            self._engine.load_center(center)
        opened = Opened(os.getpid(), self._engine.dim, self._engine.description, self._engine.center_sha256())
        for move in moves:
            self._engine.commit(move)
        return opened

    def do(self, moves: Sequence[Move], job: Callable[[Engine], T]) -> T:
        """Commit the moves that this engine has not committed yet, then do the job."""
        assert self._engine is not None, "called before it was opened"
        for move in moves:
            self._engine.commit(move)
        return job(self._engine)
