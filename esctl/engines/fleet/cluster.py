"""Ray as a fleet needs it: joined or started, quiet, asked for one process per engine, and stopped.

Leaves engines to `replica` and what they are asked to `fleet`. Ray is imported inside functions.
"""

import importlib.util
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from esctl.engines import EngineSpec
from esctl.engines.fleet.replica import Replica
from esctl.errors import EngineError, UsageError

if TYPE_CHECKING:
    from ray.actor import ActorHandle


OBJECT_STORE = 100_000_000  # bytes; some megabytes of completions pass through it, and they leave at once
ENVIRONMENT: Final = {  # read by Ray when it is imported or started
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # a fleet asks each engine anew and forgets what a dead one was asked
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else it warns of a change to come
    "RAY_enable_metrics_collection": "0",
}
# What decides how a model is found and computed; a cluster's machines get it from the machine that trains.
PASSED_ON = ("HF_HOME", "HF_HUB_OFFLINE", "VLLM_BATCH_INVARIANT", "OMP_NUM_THREADS")


class Cluster:
    """Room for `replicas` engines: in the cluster that RAY_ADDRESS names, else in processes of this machine."""

    def __init__(self, spec: EngineSpec) -> None:
        if importlib.util.find_spec("ray") is None:
            raise UsageError(
                f"engine.replicas: {spec.replicas}, but Ray is not installed: pip install 'esctl-lm[ray]',"
                " or set engine.replicas to 1"
            )
        os.environ.update(ENVIRONMENT)
        self._folder: Path | None = None
        self._joined = os.environ.get("RAY_ADDRESS")
        with _sigterm_kept(), _sessions_of_their_own():
            self._own = self._connect(spec)
        try:
            self._pillars = _pillars(self._folder) if self._folder else list[int]()
            self.gpus, self.threads = self._shares(spec)
        except BaseException:
            self.close()
            raise

    def start(self) -> "ActorHandle[Replica]":
        """A process for one engine. It comes to life in its own time, once there is room for it."""
        import ray

        placed = ray.remote(
            num_cpus=self.threads, num_gpus=self.gpus, max_restarts=0, max_task_retries=0, runtime_env=self._passed_on()
        )
        return placed(Replica).remote()

    def stop(self, replica: "ActorHandle[Replica]") -> None:
        """End an engine's process at once, whatever it does; one that is dead already stays so."""
        import ray

        ray.kill(replica)

    def lost(self) -> bool:
        """Whether the Ray that was started here has lost a process that it cannot do without; Linux only."""
        return any(not _read(Path(f"/proc/{pid}/cmdline")) for pid in self._pillars)  # the dead say none

    def close(self) -> None:
        """End every process that was started here; twice is harmless."""
        import ray

        if self._own:
            self._own = False
            family = _family(self._folder) if self._folder else []
            try:
                with _sigterm_kept():
                    ray.shutdown()
            finally:  # on a busy machine Ray's own agents would outlive it by a minute
                for pid in family:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _connect(self, spec: EngineSpec) -> bool:
        """Whether Ray was started or joined here; a program that uses Ray itself keeps its own."""
        import ray

        if ray.is_initialized():
            return False
        if not self._joined:
            _refuse_crowd(spec)
        _be_silent()
        try:
            if self._joined:
                ray.init(address=self._joined, log_to_driver=False, logging_level="critical")
                return True
            # A short path: Ray's sockets lie some 70 characters deeper, and the system allows 107.
            self._folder = Path(tempfile.mkdtemp(prefix="esctl-", dir="/tmp"))
            ray.init(
                address="local",
                num_cpus=spec.replicas * _threads(spec, _cores()),
                include_dashboard=False,
                log_to_driver=False,
                logging_level="critical",
                object_store_memory=OBJECT_STORE,
                _node_ip_address="127.0.0.1",
                _temp_dir=str(self._folder),
            )
        except BaseException as error:
            self._own = True
            self.close()
            if not isinstance(error, Exception):  # Ctrl-C, or SIGTERM that is taken as such
                raise
            # Ray raises this very class where a part of it does not start in time.
            where = f"the cluster at RAY_ADDRESS={self._joined}" if self._joined else "Ray on this machine"
            raise EngineError(
                f"{where} does not answer ({(str(error) or type(error).__name__).splitlines()[0]}); check `ray status`"
            ) from error
        return True

    def _shares(self, spec: EngineSpec) -> tuple[int, int]:
        """GPUs and threads of one engine; UsageError where the machines have no room for all of them."""
        import ray

        there = ray.cluster_resources()
        cores, devices = int(there.get("CPU", 0)), int(there.get("GPU", 0))
        gpus, threads = (spec.tensor_parallel if devices else 0), _threads(spec, cores)
        if gpus * spec.replicas > devices or threads * spec.replicas > cores:
            raise UsageError(
                f"engine.replicas: {spec.replicas} engines of {threads} threads"
                f"{f' and {gpus} GPUs' if gpus else ''} each, but there are {cores} cores and {devices} GPUs;"
                " lower engine.replicas or engine.threads, or join more machines"
            )
        return gpus, threads

    def _passed_on(self) -> dict[str, dict[str, str]]:
        names = [name for name in PASSED_ON if name in os.environ] if self._joined else []
        return {"env_vars": {name: os.environ[name] for name in names}} if names else {}


def _refuse_crowd(spec: EngineSpec) -> None:
    """Refuse more engines than this machine has cores or GPUs: Ray would start a process for each before it counts."""
    import torch

    cores, devices = _cores(), torch.cuda.device_count()
    if spec.replicas > max(cores, devices):
        raise UsageError(
            f"engine.replicas: {spec.replicas} engines, but this machine has {cores} cores and {devices} GPUs;"
            " lower engine.replicas, or name a cluster in RAY_ADDRESS"
        )


def _threads(spec: EngineSpec, cores: int) -> int:
    """Threads of one engine: as asked, else as OMP_NUM_THREADS says, else an equal share of the cores."""
    said, _, _ = os.environ.get("OMP_NUM_THREADS", "").partition(",")  # OpenMP reads a list, one number per level
    asked = spec.threads or (int(said) if said.isdigit() else 0)
    return asked or max(1, cores // spec.replicas)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _be_silent() -> None:
    """Keep Ray from printing on stdout that a process died: the fleet says so, and stdout is for results."""
    from ray._private import worker

    worker.print_to_stdstream = lambda data, ignore_prefix: None


def _pillars(folder: Path) -> list[int]:
    """The processes that the Ray in `folder` cannot do without."""
    lines = {pid: _read(Path(f"/proc/{pid}/cmdline")) for pid in _own(folder)}
    return [pid for pid, line in lines.items() if line.split(b"\0")[0].endswith((b"/raylet", b"/gcs_server"))]


def _own(folder: Path) -> list[int]:
    """The children of this process that were told of `folder`; one that dies meanwhile may hide another."""
    return [pid for pid in _children("self") if str(folder).encode() in _read(Path(f"/proc/{pid}/cmdline"))]


def _family(folder: Path) -> list[int]:
    """The processes of the Ray that keeps its files in `folder`, and those that they started; Linux only."""
    own = _own(folder)
    for pid in own:  # grows as it goes
        own += _children(pid)
    return own


def _children(pid: int | str) -> list[int]:
    lists = map(_read, Path(f"/proc/{pid}/task").glob("*/children"))
    return [int(child) for children in lists for child in children.split()]


def _read(path: Path) -> bytes:
    """What a file of a process says; nothing where the process is gone."""
    with suppress(OSError):
        return path.read_bytes()
    return b""


@contextmanager
def _sessions_of_their_own() -> Iterator[None]:
    """Keep from Ray's processes what a terminal or a scheduler sends to all of a job: the driver ends them.

    Ray's core would wait half a minute for a server that died of the signal while Ray starts.
    """
    from ray._private import services

    launch = services.ConsolePopen
    services.ConsolePopen = partial(launch, start_new_session=True)
    try:
        yield
    finally:
        services.ConsolePopen = launch


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Keep the handler of SIGTERM: Ray sets one that ends the process without a word, and its core another."""
    from ray._private import utils

    before, theirs = signal.getsignal(signal.SIGTERM), utils.set_sigterm_handler
    utils.set_sigterm_handler = lambda handler: None  # also while Ray starts
    try:
        yield
    finally:
        utils.set_sigterm_handler = theirs
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
