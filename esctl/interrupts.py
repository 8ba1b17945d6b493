"""How a process is ended from outside: Ctrl-C, a scheduler's SIGTERM or SIGUSR1, a terminal that closes.

The handler raises KeyboardInterrupt in the main thread. Python drops an exception that is raised inside a destructor or
a C callback, so the request is also kept: `check` raises it again at the next safe point, and a timer raises it again
where nothing checks. Only `cli` listens; loops that run for long call `check`.
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Ctrl-C, a scheduler's kill, SLURM's `--signal=USR1@60`, a closed terminal.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
DROPPED_SECONDS = 0.01  # until an interrupt that Python dropped is raised again
UNSEEN_SECONDS = 1.0  # until an interrupt that something swallowed is raised again where nothing calls `check`


class _Request:
    """Whether the process was asked to end, and that nobody has taken the request yet."""

    pending = False
    last_words = False  # the process ends now: later signals are ignored until it is gone


def check() -> None:
    """Raise KeyboardInterrupt if the process was asked to end and the interrupt was swallowed on its way."""
    if _Request.pending and not _ending():
        raise KeyboardInterrupt


def requested() -> bool:
    """Whether the process was asked to end: what fails from then on was interrupted."""
    return _Request.pending


def taken() -> None:
    """Forget the request: the caller answers it, so nothing may raise it again."""
    _Request.pending = False
    if threading.current_thread() is threading.main_thread():
        signal.setitimer(signal.ITIMER_REAL, 0)


def ignore_more() -> None:
    """Ignore further signals until the process is gone: they must not change how it ends."""
    _Request.last_words = True


@contextmanager
def listening() -> Iterator[None]:
    """Answer the signals inside, before engines or jobs start; put the handlers back in the end.

    A signal that the process was started to ignore stays ignored: `nohup` ignores SIGHUP, and a shell ignores SIGINT
    for its background jobs.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGALRM)}
    report = sys.unraisablehook
    _Request.pending = _Request.last_words = False

    def raise_dropped(dropped: "sys.UnraisableHookArgs") -> None:
        """Raise an interrupt again that a destructor dropped; report any other exception as before."""
        if _Request.pending and issubclass(dropped.exc_type, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, DROPPED_SECONDS)
        else:
            report(dropped)

    for number, handler in before.items():
        if number == signal.SIGALRM or handler != signal.SIG_IGN:
            signal.signal(number, _again if number == signal.SIGALRM else _interrupt)
    sys.unraisablehook = raise_dropped
    try:
        yield
    finally:
        taken()
        sys.unraisablehook = report
        for number, handler in before.items():
            ignored = _Request.last_words and number in SIGNALS
            signal.signal(number, signal.SIG_IGN if ignored or handler is None else handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    _Request.pending = True
    _again(number, frame)


def _again(number: int, frame: FrameType | None) -> None:
    # A second signal must not cut short what the first one set off: records are written and engines closed then.
    if _Request.pending:
        signal.setitimer(signal.ITIMER_REAL, UNSEEN_SECONDS)
        if not _ending():
            raise KeyboardInterrupt


def _ending() -> bool:
    """Whether a KeyboardInterrupt is on its way up: an `except` or `finally` block below this call handles it."""
    error = sys.exception()
    seen = set[int]()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.add(id(error))
        error = error.__context__
    return False
