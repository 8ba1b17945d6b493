"""What a recipe would do and cost, before anything is trained: recipe, first prompt, rollouts, memory, replay."""

import math

from esctl.engines import chosen_kind
from esctl.engines.weights.model import canonical_shapes, load_config
from esctl.experiment.estimates.memory import DTYPES, Footprint, Setting, footprint, weights_alone
from esctl.experiment.experiment import Experiment
from esctl.experiment.recipe import Recipe


def rollouts_planned(recipe: Recipe) -> int:
    """Training rollouts of the whole run."""
    if recipe.baseline is not None:
        return recipe.generations * recipe.prompts * recipe.baseline.samples
    return recipe.generations * sum(recipe.evolution.rounds) * recipe.prompts * recipe.objective.n


def copies_policy(recipe: Recipe) -> bool:
    """Whether RL's rollouts are drawn, on this machine, by a copy of the policy in vLLM."""
    return recipe.baseline is not None and chosen_kind(recipe.engine.kind) == "vllm"


def planned_footprint(recipe: Recipe, dim: int) -> Footprint:
    """What a recipe's method holds of so many weights; activations and KV cache are left out. An open dtype is bf16."""
    rl, place = recipe.baseline, "device" if recipe.engine.center == "device" else "host"
    setting = (
        Setting(DTYPES.get(recipe.engine.dtype, "bf16"), center=place)
        if rl is None
        else Setting(DTYPES[rl.precision], reference=rl.kl > 0, copy=copies_policy(recipe), center=place)
    )
    return footprint(recipe.kind, weights_alone(dim), setting)


def dimension(experiment: Experiment) -> int:
    """Number of weights, from the config alone: parameters on the meta device, tied ones once."""
    return sum(math.prod(shape) for shape in canonical_shapes(load_config(experiment.model)).values())
