"""The metrics of a run as TensorBoard shows them: a copy of metrics.jsonl, under the same names."""

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from esctl.errors import UsageError
from esctl.runs.directory import RunDir
from esctl.runs.metrics import Metrics
from esctl.training.events import Event, GenerationDone, Report

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


SINKS = ("tensorboard",)


@contextmanager
def tracked(sink: str | None, run: RunDir, report: Report) -> Iterator[Report]:
    """`report`, and where a sink is named a copy of each generation's metrics there. `check_sink` has passed it."""
    if sink is None:
        yield report
        return
    board = Board(run, report)
    try:
        yield board
        board.catch_up()  # not after an error: the directory may be another's
    finally:
        board.close()


def check_sink(sink: str) -> None:
    """Raise UsageError for a sink that is not known or not installed."""
    if sink not in SINKS:
        raise UsageError(f"--track {sink}: choose {', '.join(SINKS)}")
    if importlib.util.find_spec("tensorboard") is None:
        raise UsageError("--track tensorboard: TensorBoard is not installed: pip install 'esctl-lm[tensorboard]'")


class Board:
    """A `Report` that passes events on, and writes each generation as one step of RUN/tensorboard.

    A session begins by writing every earlier generation again, behind a mark that makes readers drop what earlier
    sessions wrote: so what a kill cut off is there, once, and what a baseline does again after it replaces the old.
    """

    def __init__(self, run: RunDir, report: Report) -> None:
        self._run, self._report = run, report
        self._writer: SummaryWriter | None = None

    def __call__(self, event: Event) -> None:
        """Write a finished generation, which metrics.jsonl holds by now."""
        if isinstance(event, GenerationDone):
            if self._writer is None:
                self._open()
            else:
                self._write([event.metrics])
        self._report(event)

    def catch_up(self) -> None:
        """Write a run that this session had no generation of: it was finished, or an evaluation alone was missing."""
        if self._writer is None:
            self._open()

    def close(self) -> None:
        """Let go of the file."""
        if self._writer is not None:
            self._writer.close()

    def _open(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self._run.tensorboard), purge_step=1)
        self._write(self._run.read_metrics())

    def _write(self, generations: Sequence[Metrics]) -> None:
        assert self._writer is not None
        for metrics in generations:
            for key, value in metrics.items():
                if key != "generation":
                    self._writer.add_scalar(key, value, int(metrics["generation"]))
        self._writer.flush()
