"""From recorded scores back to states, moves and weights: the scores are the whole history of a run.

Replaying needs no engine, so a run of some kilobytes becomes weights again. New candidates are evaluated in `training`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from esctl.errors import RunError
from esctl.methods.protocol import Method, State
from esctl.methods.shaping import fill_missing
from esctl.noise.moves import Move
from esctl.runs.directory import RunDir
from esctl.runs.records import ScoreRecord


@dataclass(frozen=True)
class History:
    """What the recorded scores lead to."""

    state: State  # of the method, after the last whole round
    moves: tuple[Move, ...]  # one per finished generation; θ_g = θ_0 with the first g committed in order
    pending: tuple[ScoreRecord, ...]  # candidates of the round that was cut short; they need no second evaluation


def replay(method: Method, seed: int, dim: int, records: Sequence[ScoreRecord], path: Path) -> History:
    """Fold recorded scores through ask and tell; raises RunError where a record is not the one that must come next."""
    state = method.start(seed, dim)
    moves = list[Move]()
    at = 0
    while at < len(records):
        expected = len(method.ask(state).candidates)
        batch = records[at : at + expected]
        _check_order(batch, state, path, at)
        if len(batch) < expected:
            return History(state, tuple(moves), tuple(batch))
        generation = state.generation
        state, move = method.tell(state, usable_scores(batch))
        if state.generation > generation:
            moves.append(move)
        at += expected
    return History(state, tuple(moves), ())


class Movable(Protocol):
    """What holds θ: an engine, or its center alone."""

    def commit(self, move: Move) -> None:
        """θ ← fl(θ + Σ cᵢεᵢ)."""
        ...

    def load_center(self, path: Path) -> None:
        """Replace θ by a checkpoint."""
        ...


def advance(weights: Movable, run: RunDir, moves: Sequence[Move], generation: int) -> None:
    """Bring θ₀ to where the run had it after so many generations: move by move from the newest checkpoint, if any."""
    start = latest_checkpoint(run, generation)
    if start is not None:
        weights.load_center(run.checkpoint_file(start))
    for move in moves[start or 0 : generation]:
        weights.commit(move)


def usable_scores(records: Sequence[ScoreRecord]) -> list[float]:
    """The scores of a round for `tell`, by the rule of `shaping.fill_missing`; RunError where none is finite."""
    try:
        return fill_missing([r.score for r in records])
    except ValueError:
        where = f"generation {records[0].generation}, round {records[0].round}"
        raise RunError(
            f"{where}: no candidate had finite logits; check the model's weights, or start another run with a lower"
            " method.sigma"
        ) from None


def latest_checkpoint(run: RunDir, generation: int) -> int | None:
    """The newest cached center at or before a generation; None when there is none."""
    known = [int(p.stem) for p in run.checkpoints.glob("[0-9]*.safetensors")]
    return max((g for g in known if g <= generation), default=None)


def _check_order(batch: Sequence[ScoreRecord], state: State, path: Path, at: int) -> None:
    for member, record in enumerate(batch):
        found = (record.generation, record.round, record.member)
        expected = (state.generation, state.index, member)
        if found != expected:
            raise RunError(
                f"{path}:{at + member + 1}: holds generation, round, member {found} where {expected} must come;"
                " restore the file from a copy"
            )
