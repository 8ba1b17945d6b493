"""How progress looks: a live line on a terminal, plain lines when piped. Prints only to the console it is given."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from esctl.cli.output import note
from esctl.evaluation.draw import EvalProgress
from esctl.plain import one_line
from esctl.runs.records import EvalRecord, decoding_text, is_greedy, strict_share
from esctl.stats import wilson
from esctl.training.events import Evaluated, Event, GenerationDone, Notice
from esctl.training.jobs import Progress as JobsProgress


class TrainingDisplay:
    """Shows the events of one training run on standard error."""

    def __init__(self, console: Console, label: str) -> None:
        self.console = console
        self.label = one_line(label)
        self._bar = _live_bar(console)
        self._task = self._bar.add_task(self.label, total=None, state="loading the model")
        self._numbers = ""

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._numbers:
            self._bar.update(self._task, state=self._numbers)  # without the time left: the run is over
        self._bar.stop()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        match event:
            case GenerationDone():
                self._generation(event)
            case Evaluated(record):
                note(self.console, f"{self.label}  {eval_line(record)}")
                if self._bar.tasks[self._task].total is None:
                    self._bar.update(self._task, state="the first generation")
            case Notice(text):
                note(self.console, f"{self.label}  note: {text}", style="yellow")

    def _generation(self, event: GenerationDone) -> None:
        self._numbers = generation_line(event)
        done = int(event.metrics["generation"])
        state = f"{duration(event.seconds_left)} left  {self._numbers}"
        self._bar.update(self._task, total=event.generations, completed=done, state=state, refresh=True)
        if not self.console.is_terminal:
            note(self.console, f"{self.label}  generation {done}/{event.generations}  {state}")


class EvaluationDisplay:
    """Shows how far evaluations are, on a terminal only: what is piped gets results and no progress."""

    def __init__(self, console: Console) -> None:
        self._bar = _live_bar(console, transient=True)
        self._task = self._bar.add_task("loading", total=None, state="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, what: str, progress: EvalProgress) -> None:
        """Show one evaluation after a chunk."""
        left = (progress.total - progress.done) * progress.seconds / progress.drawn
        state = f"{duration(left)} left  {progress.tokens / progress.seconds:,.0f} tok/s"
        self._bar.update(
            self._task, description=one_line(what), total=progress.total, completed=progress.done, state=state
        )


class _State(ProgressColumn):
    """The state of a run; on a narrow terminal its end is cut, so what matters most comes first."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["state"], no_wrap=True, overflow="ellipsis")


def _live_bar(console: Console, transient: bool = False) -> Progress:
    """Label, bar, count, state and elapsed time; shown on a terminal only."""
    whole = Column(no_wrap=True)  # such a column is not narrowed while another can be
    return Progress(
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=12, table_column=whole.copy()),
        MofNCompleteColumn(table_column=whole.copy()),
        _State(),
        TimeElapsedColumn(table_column=whole.copy()),
        console=console,
        disable=not console.is_terminal,
        transient=transient,
    )


def generation_line(event: GenerationDone) -> str:
    """Reward with its spread, accuracies and format side by side, and the pace."""
    m = event.metrics
    return (
        f"reward {m['reward/mean']:.3f} ± {m['reward/sd']:.3f}"
        f"  strict {m['accuracy/strict']:.3f}  flexible {m['accuracy/flexible']:.3f}"
        f"  format {m['format/rate']:.3f}  {event.tokens_per_second:,.0f} tok/s"
    )


def eval_line(record: EvalRecord) -> str:
    """One evaluation in one line: strict accuracy (with Wilson's interval where greedy), flexible, format."""
    p, s = record.problems, record.sampling
    n = sum(p.n)
    strict = wilson(sum(p.strict), n)
    # Samples of one problem are alike: Wilson's interval would be too narrow. `esctl passk` has the right one.
    interval = f" ({100 * strict.low:.1f}–{100 * strict.high:.1f})" if s.n == 1 else ""
    drawn = "" if s.n == 1 else f" × {s.n} samples"
    how = "" if is_greedy(record) else f", {decoding_text(s.temperature, s.top_p, record.mode)}"
    return (
        f"{record.task.name} {record.split} at generation {record.step}{how}: strict"
        f" {100 * strict_share(record):.1f} %{interval}, flexible {100 * sum(p.flexible) / n:.1f} %,"
        f" format {100 * sum(p.formatted) / n:.1f} %, {len(p.id)} problems{drawn}"
    )


def jobs_line(progress: JobsProgress) -> str:
    """How many jobs are done or failed, which run, and the time left."""
    failed = f", {progress.failed} failed" if progress.failed else ""
    left = f"; some {duration(progress.seconds_left)} left" if progress.running and progress.seconds_left else ""
    running = f"; running: {', '.join(progress.running)}" if progress.running else ""
    held = ", ".join(progress.blocked)
    blocked = f"; waiting for another process to release: {held}" if held else ""
    return f"{progress.done}/{progress.total} done{failed}{running}{left}{blocked}"


def duration(seconds: float) -> str:
    """Seconds as hours and minutes, minutes and seconds, or seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
