"""The weights of any generation, rebuilt from the recipe and the recorded scores: no engine, no training."""

from pathlib import Path

from esctl.engines.weights.center import Center
from esctl.engines.weights.dtypes import BY_NAME
from esctl.errors import RunError, UsageError
from esctl.experiment.experiment import find_model
from esctl.experiment.loading import read_recipe
from esctl.experiment.provenance import noise_here
from esctl.runs.directory import RunDir
from esctl.runs.replay import advance, replay


def export_step(run: RunDir, step: int, target: Path, dtype: str) -> None:
    """Write θ after `step` generations as a model folder; raises where run, base or noise is not the recorded one."""
    if dtype not in BY_NAME:
        raise UsageError(f"--dtype {dtype}: choose {', '.join(BY_NAME)}")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target}: exists; choose a new folder")
    center_at(run, step).save(target, dtype, find_model(read_recipe(run).model))


def center_at(run: RunDir, step: int) -> Center:
    """θ after `step` generations, bit for bit as training had it: from the newest checkpoint before it, or from θ₀."""
    record = run.read_record()
    recipe = read_recipe(run)
    now = noise_here()
    if record.noise != now:
        raise RunError(f"{run.path}: its seeds mean noise {record.noise}, but here {now}; use the esctl that wrote it")
    history = replay(recipe.evolution, recipe.seed, record.dim, run.read_scores(), run.scores)
    if not 0 <= step <= len(history.moves):
        raise UsageError(f"--step {step}: {run.path} has generations 0 to {len(history.moves)}")
    center = Center.load(find_model(recipe.model))
    found = center.weights_sha256()
    if found != record.base.weights_sha256:
        raise RunError(
            f"{run.path}: {recipe.model} has weights {found[:12]}, not the recorded {record.base.weights_sha256[:12]};"
            " restore the base model"
        )
    advance(center, run, history.moves, step)
    return center
