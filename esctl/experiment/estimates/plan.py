"""What a recipe would do and hold, before anything is trained: rollouts, tokens, replay, bytes."""

from dataclasses import dataclass

from esctl.engines import chosen_kind
from esctl.experiment.estimates.memory import DTYPES, FP32, ITEMSIZE, Footprint, Setting, footprint, weights_alone
from esctl.experiment.experiment import Experiment
from esctl.experiment.recipe import Recipe

TERMS_PER_SECOND = 5e8  # noise terms a core writes each second, measured by bench/noise.py; for orders of magnitude


@dataclass(frozen=True)
class Estimate:
    """What a run consists of; upper bounds, since every rollout may run to max_tokens."""

    dim: int
    rollouts: int  # of training
    evaluation_rollouts: int
    prompt_tokens: int  # of training
    generated_tokens: int  # of training, at most


@dataclass(frozen=True)
class Replay:
    """The way back from recorded scores to the last weights, without a checkpoint."""

    terms: int  # noise terms
    seconds: float  # on one core


@dataclass(frozen=True)
class Centers:
    """Bytes of θ in fp32, and of θ' where a method probes, in all engines; each rank has a center on its host."""

    on_host: int  # where all of them are on the host
    on_device: int  # where they are beside the model
    mirrors: int  # on the host, where they are beside the model


def estimate(experiment: Experiment) -> Estimate:
    """Count what the recipe asks for; opens the data, but no weights."""
    recipe = experiment.recipe
    rollouts = rollouts_planned(recipe)
    prompts = experiment.split(recipe.task.split).prompts
    n_evals = recipe.generations // recipe.eval.every + 1 if recipe.eval.every else 0
    final = len(experiment.split(recipe.eval.final).problems) if recipe.eval.final else 0
    return Estimate(
        dim=experiment.dim,
        rollouts=rollouts,
        evaluation_rollouts=n_evals * recipe.eval.n + final,
        prompt_tokens=round(rollouts * sum(len(p.token_ids) for p in prompts) / len(prompts)),
        generated_tokens=rollouts * recipe.sampling.max_tokens,
    )


def rollouts_planned(recipe: Recipe) -> int:
    """Training rollouts of the whole run."""
    if recipe.baseline is not None:
        return recipe.generations * recipe.prompts * recipe.baseline.samples
    return recipe.generations * sum(recipe.evolution.rounds) * recipe.prompts * recipe.objective.n


def planned_replay(recipe: Recipe, dim: int) -> Replay:
    """What rebuilding the last weights from their seeds costs; an update has a term per member of its last round."""
    terms = recipe.generations * recipe.evolution.rounds[-1] * dim
    return Replay(terms, terms / TERMS_PER_SECOND)


def served_bytes(recipe: Recipe, dim: int, dtype: str) -> int:
    """Bytes of the weights that models read, in all engines, in a dtype by its name in recipes."""
    return ITEMSIZE[DTYPES[dtype]] * dim * recipe.engine.replicas


def center_bytes(recipe: Recipe, dim: int) -> Centers:
    """What the fp32 centers of all engines take."""
    engine = recipe.engine
    theta = FP32 * dim
    held = 2 * theta if recipe.evolution.probes else theta
    ranks = engine.tensor_parallel * engine.replicas
    return Centers(on_host=held * ranks, on_device=held * engine.replicas, mirrors=theta * ranks)


def copies_policy(recipe: Recipe) -> bool:
    """Whether RL's rollouts are drawn, on this machine, by a copy of the policy in vLLM."""
    return recipe.baseline is not None and chosen_kind(recipe.engine.kind) == "vllm"


def planned_footprint(recipe: Recipe, dim: int) -> Footprint:
    """What a recipe's method holds of so many weights; activations and KV cache are left out. An open dtype is bf16."""
    return footprint(recipe.kind, weights_alone(dim), _setting(recipe))


def _setting(recipe: Recipe) -> Setting:
    place = "device" if recipe.engine.center == "device" else "host"
    rl = recipe.baseline
    if rl is None:
        return Setting(DTYPES.get(recipe.engine.dtype, "bf16"), center=place)
    return Setting(DTYPES[rl.precision], reference=rl.kl > 0, copy=copies_policy(recipe), center=place)
