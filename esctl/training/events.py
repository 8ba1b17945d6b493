"""The events that a training run reports to whoever shows its progress: a generation, an evaluation, a notice."""

from collections.abc import Callable
from dataclasses import dataclass

from esctl.runs.metrics import Metrics
from esctl.runs.records import EvalRecord


@dataclass(frozen=True)
class GenerationDone:
    """One generation is recorded and committed."""

    metrics: Metrics
    generations: int
    tokens_per_second: float
    seconds_left: float


@dataclass(frozen=True)
class Evaluated:
    """One evaluation is stored."""

    record: EvalRecord


@dataclass(frozen=True)
class Notice:
    """Something a person should know."""

    text: str


Event = GenerationDone | Evaluated | Notice
Report = Callable[[Event], None]
