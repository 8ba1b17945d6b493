"""Ray: start it here or join a cluster, count what fits, start one process per engine, stop everything.

Ray is imported inside functions. What has to be replaced in Ray's private modules is in `patches`.
"""

import importlib.util
import os
import shutil
import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from esctl.engines import EngineSpec
from esctl.engines.fleet.patches import keep_sigterm, separate_sessions, silence_worker_deaths
from esctl.engines.fleet.replica import Replica
from esctl.errors import EngineError, UsageError

if TYPE_CHECKING:
    from ray.actor import ActorHandle


OBJECT_STORE = 100_000_000  # bytes; completions pass through it, some megabytes at a time
ENVIRONMENT: Final = {  # read by Ray when it is imported or started
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # the pool requeues the jobs of a dead worker itself
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else Ray warns of a future default
    "RAY_enable_metrics_collection": "0",
}
# Variables that decide how a model is found and computed; the driver passes them to the machines of a cluster.
PASSED_ON = ("HF_HOME", "HF_HUB_OFFLINE", "VLLM_BATCH_INVARIANT", "OMP_NUM_THREADS")


class Cluster:
    """Where `replicas` engines run: in the cluster that RAY_ADDRESS names, else in processes of this machine."""

    def __init__(self, spec: EngineSpec) -> None:
        if importlib.util.find_spec("ray") is None:
            raise UsageError(
                f"engine.replicas: {spec.replicas}, but Ray is not installed: pip install 'esctl-lm[ray]',"
                " or set engine.replicas to 1"
            )
        os.environ.update(ENVIRONMENT)
        self._folder: Path | None = None
        self._joined = os.environ.get("RAY_ADDRESS")
        with keep_sigterm(), separate_sessions():
            self._own = self._connect(spec)
        try:
            self._essential = _essential(self._folder) if self._folder else list[int]()
            self.gpus, self.threads = self._shares(spec)
        except BaseException:
            self.close()
            raise

    def start(self) -> "ActorHandle[Replica]":
        """A process for one engine. Returns at once; Ray starts it when resources are free."""
        import ray

        placed = ray.remote(
            num_cpus=self.threads, num_gpus=self.gpus, max_restarts=0, max_task_retries=0, runtime_env=self._passed_on()
        )
        return placed(Replica).remote()

    def stop(self, replica: "ActorHandle[Replica]") -> None:
        """End an engine's process at once, whatever it does; harmless if it is dead already."""
        import ray

        ray.kill(replica)

    def lost(self) -> bool:
        """Whether the Ray that was started here has lost one of its essential processes; Linux only."""
        return any(not _read(Path(f"/proc/{pid}/cmdline")) for pid in self._essential)  # empty once a process died

    def close(self) -> None:
        """End every process that was started here; twice is harmless."""
        import ray

        if self._own:
            self._own = False
            family = _family(self._folder) if self._folder else []
            try:
                with keep_sigterm():
                    ray.shutdown()
            finally:  # on a busy machine Ray's agents would outlive it by a minute
                for pid in family:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _connect(self, spec: EngineSpec) -> bool:
        """Start or join Ray; whether it was done here. A program that already uses Ray keeps its own."""
        import ray

        if ray.is_initialized():
            return False
        if not self._joined:
            _refuse_crowd(spec)
        silence_worker_deaths()
        try:
            if self._joined:
                ray.init(address=self._joined, log_to_driver=False, logging_level="critical")
                return True
            # A short path: Ray's socket names add some 70 characters, and Linux allows 107.
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
            if not isinstance(error, Exception):  # Ctrl-C or SIGTERM
                raise
            # Ray raises the base class Exception where a part of it does not start in time.
            where = f"the cluster at RAY_ADDRESS={self._joined}" if self._joined else "Ray on this machine"
            raise EngineError(
                f"{where} does not answer ({(str(error) or type(error).__name__).splitlines()[0]}); check `ray status`"
            ) from error
        return True

    def _shares(self, spec: EngineSpec) -> tuple[int, int]:
        """GPUs and threads of one engine; UsageError where the machines cannot hold all engines."""
        import ray

        resources = ray.cluster_resources()
        cores = int(resources.get("CPU", 0))
        devices = int(resources.get("GPU", 0))
        gpus = spec.tensor_parallel if devices else 0
        threads = _threads(spec, cores)
        if gpus * spec.replicas > devices or threads * spec.replicas > cores:
            each = f"{threads} threads and {gpus} GPUs" if gpus else f"{threads} threads"
            raise UsageError(
                f"engine.replicas: {spec.replicas} engines of {each} each,"
                f" but there are {cores} cores and {devices} GPUs;"
                " lower engine.replicas or engine.threads, or join more machines"
            )
        return gpus, threads

    def _passed_on(self) -> dict[str, dict[str, str]]:
        names = [name for name in PASSED_ON if name in os.environ] if self._joined else []
        return {"env_vars": {name: os.environ[name] for name in names}} if names else {}


def _refuse_crowd(spec: EngineSpec) -> None:
    """Refuse more engines than this machine has cores or GPUs: Ray would start a process for each before it counts."""
    import torch

    cores = _cores()
    devices = torch.cuda.device_count()
    if spec.replicas > max(cores, devices):
        raise UsageError(
            f"engine.replicas: {spec.replicas} engines, but this machine has {cores} cores and {devices} GPUs;"
            " lower engine.replicas, or name a cluster in RAY_ADDRESS"
        )


def _threads(spec: EngineSpec, cores: int) -> int:
    """Threads of one engine: `engine.threads`, else OMP_NUM_THREADS, else an equal share of the cores."""
    if spec.threads != "auto":
        return spec.threads
    level, _, _ = os.environ.get("OMP_NUM_THREADS", "").partition(",")  # OpenMP reads a list, one number per level
    if level.isdigit() and int(level) > 0:
        return int(level)
    return max(1, cores // spec.replicas)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _essential(folder: Path) -> list[int]:
    """The processes without which the Ray in `folder` cannot work: the raylet and its control server."""
    lines = {pid: _read(Path(f"/proc/{pid}/cmdline")) for pid in _own(folder)}
    return [pid for pid, line in lines.items() if line.split(b"\0")[0].endswith((b"/raylet", b"/gcs_server"))]


def _own(folder: Path) -> list[int]:
    """The children of this process whose command line names `folder`.

    If a child exits while the kernel lists the children, the kernel may skip another one.
    """
    return [pid for pid in _children("self") if str(folder).encode() in _read(Path(f"/proc/{pid}/cmdline"))]


def _family(folder: Path) -> list[int]:
    """The processes of the Ray that keeps its files in `folder`, and their descendants; Linux only."""
    own = _own(folder)
    for pid in own:  # the list grows while it is walked
        own += _children(pid)
    return own


def _children(pid: int | str) -> list[int]:
    lists = map(_read, Path(f"/proc/{pid}/task").glob("*/children"))
    return [int(child) for children in lists for child in children.split()]


def _read(path: Path) -> bytes:
    """The content of a file in /proc; empty where the process is gone."""
    with suppress(OSError):
        return path.read_bytes()
    return b""
