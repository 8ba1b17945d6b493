"""What a fleet replaces in Ray's private modules. For Ray 2.60; each guard ends in one line where a name is gone.

Every name is looked up before it is replaced: another Ray may have moved it, and a silent miss would bring the fault
back that the patch prevents.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType

from esctl.errors import EngineError

RAY = "2.60"  # the version these patches were written for and are tested with


def silence_worker_deaths() -> None:
    """Keep Ray from printing to stdout that a process died: the pool reports it, and stdout is for results.

    `ray.init(log_to_driver=False)` does not cover this message (ray 2.60, `ray/_private/worker.py`).
    """
    from ray._private import worker

    guard(worker, "print_to_stdstream")
    worker.print_to_stdstream = lambda data, ignore_prefix: None


@contextmanager
def separate_sessions() -> Iterator[None]:
    """Start Ray's processes in sessions of their own, so that no terminal or scheduler signals them: the driver does.

    Ray has no option for this. If its control server dies of a Ctrl-C while Ray starts, Ray's core waits for it for
    half a minute (ray 2.60, `ray/_private/services.py`).
    """
    from ray._private import services

    guard(services, "ConsolePopen")
    launch = services.ConsolePopen
    services.ConsolePopen = partial(launch, start_new_session=True)
    try:
        yield
    finally:
        services.ConsolePopen = launch


@contextmanager
def keep_sigterm() -> Iterator[None]:
    """Keep the program's handler of SIGTERM: Ray sets one that ends the process at once, and its core sets another.

    There is no option for this (ray 2.60, `ray/_private/utils.py`).
    """
    from ray._private import utils

    guard(utils, "set_sigterm_handler")
    before = signal.getsignal(signal.SIGTERM)
    theirs = utils.set_sigterm_handler
    utils.set_sigterm_handler = lambda handler: None  # also while Ray starts
    try:
        yield
    finally:
        utils.set_sigterm_handler = theirs
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def guard(module: ModuleType, name: str) -> None:
    """EngineError, one line, where Ray no longer has a name that is replaced here."""
    if not hasattr(module, name):
        import ray

        raise EngineError(
            f"Ray {ray.__version__} has no {module.__name__}.{name}, which engine.replicas needs: install ray {RAY}"
        )
