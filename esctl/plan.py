"""What a recipe would do and cost, before anything is trained: recipe, first prompt, rollouts, memory, replay."""

from esctl.display import duration
from esctl.engines import chosen_kind
from esctl.experiment import Experiment
from esctl.memory import DTYPES, GIB, ITEMSIZE, Footprint, Setting, footprint, weights_alone
from esctl.recipe import Recipe, dump_recipe

TERMS_PER_SECOND = 5e8  # noise terms a core writes each second, measured by bench/noise.py; for orders of magnitude


def plan_text(recipe: Recipe) -> str:
    """The dry run, as text for a person; opens the tokenizer and the data, but no weights."""
    experiment = Experiment(recipe)
    experiment.check_training()
    prompt = experiment.split(recipe.task.split).prompts[0]
    sections = {
        "recipe": dump_recipe(recipe).rstrip("\n"),
        f"first prompt ({len(prompt.token_ids)} tokens, sha256 {experiment.prompt_sha256[:12]})": prompt.text,
        "cost": "\n".join(f"{key:22}{value}" for key, value in costs(experiment).items()),
    }
    return "\n\n".join(f"── {name}\n{text}" for name, text in sections.items())


def costs(experiment: Experiment) -> dict[str, str]:
    """Upper bounds: every rollout may run to max_tokens."""
    recipe = experiment.recipe
    dim, rollouts = dimension(experiment), rollouts_planned(recipe)
    prompts = experiment.split(recipe.task.split).prompts
    prompt_tokens = round(rollouts * sum(len(p.token_ids) for p in prompts) / len(prompts))
    n_evals = recipe.generations // recipe.eval.every + 1 if recipe.eval.every else 0
    final = len(experiment.split(recipe.eval.final).problems) if recipe.eval.final else 0
    return {
        "weights": f"{dim:,}",
        "generations": _work(recipe),
        "training rollouts": f"{rollouts:,}",
        "evaluation rollouts": f"{n_evals * recipe.eval.n + final:,}",
        "prompt tokens": f"{prompt_tokens:,}",
        "generated tokens": f"at most {rollouts * recipe.sampling.max_tokens:,}",
        **(_evolution_costs(recipe, dim) if recipe.baseline is None else _gradient_costs(recipe, dim)),
    }


def rollouts_planned(recipe: Recipe) -> int:
    """Training rollouts of the whole run."""
    if recipe.baseline is not None:
        return recipe.generations * recipe.prompts * recipe.baseline.samples
    return recipe.generations * sum(recipe.evolution.rounds) * recipe.prompts * recipe.objective.n


def _work(recipe: Recipe) -> str:
    """What the run consists of, in words."""
    if recipe.baseline is not None:
        return f"{recipe.generations:,} steps of {recipe.prompts} prompts × {recipe.baseline.samples} samples"
    candidates, n = sum(recipe.evolution.rounds), recipe.objective.n
    words = f"{recipe.generations:,} of {candidates} candidates × {recipe.prompts} prompts"
    return words + (f" × {n} samples" if n > 1 else "")


def _evolution_costs(recipe: Recipe, dim: int) -> dict[str, str]:
    """What only seeds cost: served weights, centers, and the way back from recorded scores."""
    terms = recipe.generations * recipe.evolution.rounds[-1] * dim
    seconds = terms / TERMS_PER_SECOND
    some = f"some {duration(seconds)}" if seconds >= 1 else "under 1 s"
    return {
        "engines": f"{recipe.engine.replicas}",
        "served weights": served_text(recipe, dim),
        "fp32 center": center_text(recipe, dim),
        "replay": f"{terms:.1e} noise terms, {some} on one core without checkpoints",
    }


def served_text(recipe: Recipe, dim: int) -> str:
    """What the weights that models read take, in all engines. A dtype that is left open depends on the machine."""
    engine = recipe.engine

    def held(dtype: str) -> str:
        return f"{_size(ITEMSIZE[DTYPES[dtype]] * dim * engine.replicas)} in {dtype}"

    if engine.dtype == "auto":
        return f"{held('float32')} on a CPU; {held('bfloat16')} on GPUs that have it"
    return held(engine.dtype)


def center_text(recipe: Recipe, dim: int) -> str:
    """Where θ lies, with θ' where a method probes, beside served weights and KV cache.

    Each rank of each engine keeps a whole center on the host.
    """
    section, theta = recipe.engine, 4 * dim
    held, engines = theta * (1 + (len(recipe.evolution.rounds) > 1)), section.replicas
    hosts = section.tensor_parallel * engines
    on_host = f"{_size(held * hosts)} in host memory"
    on_device = f"{_size(held * engines)} on GPUs and {_size(theta * hosts)} in host memory"
    either = f"{on_host}; where GPUs have room, {on_device}"
    return {"host": on_host, "device": on_device, "auto": either}[section.center]


def _size(size: float) -> str:
    """Bytes as a person says them: also what a model of a million weights holds is more than 0.00."""
    return f"{size / GIB:.2f} GiB" if size >= GIB / 10 else f"{size * 1024 / GIB:.1f} MiB"


def _gradient_costs(recipe: Recipe, dim: int) -> dict[str, str]:
    """What only RL costs: gradients and copies, and the weights that draw its rollouts."""
    states = _size(planned_footprint(recipe, dim).states)
    return {
        "rollouts drawn by": "a copy of the policy in vLLM" if copies_policy(recipe) else "the policy itself",
        "memory": f"{states} of weights, gradients, optimizer and copies, beside activations and KV cache",
    }


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
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(experiment.model))
    return sum(p.numel() for p in model.parameters())
