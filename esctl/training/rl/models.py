"""The model that an RL method trains, in fp32, the engine that draws from it, and the graded rollouts of one step.

Prompts, sampling seeds, grader and reward are those of ES.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch

from esctl.engines import Engine, EngineSpec, chosen_kind, open_engine
from esctl.engines.in_place import PolicyEngine
from esctl.engines.process import random_states_kept, use_threads
from esctl.engines.weights.model import check_model, load_module
from esctl.errors import RunError, UsageError
from esctl.experiment.batches import batch
from esctl.experiment.experiment import Experiment, Split
from esctl.experiment.scoring import Rewarded
from esctl.noise.moves import sample_seed

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Keys of a config by which a model does more to its logits than project its last state.
RESCALED = ("final_logit_softcapping", "logits_scaling", "logit_scale")
Precision = Literal["float32", "bfloat16"]  # of training's products
KV_BESIDE = 2.0  # GiB of KV cache on a GPU that a trainer shares; alone, vLLM would take all that is free


def open_policy(
    experiment: Experiment, precision: Literal["float32", "bfloat16"]
) -> "tuple[PreTrainedModel, PolicyEngine]":
    """The recipe's model on the device, without dropout; UsageError for what a baseline would ignore.

    `engine.kind: vllm` draws with a copy of the policy in vLLM, and so does `auto` where vLLM is installed;
    `transformers` draws with the policy itself, which needs no copy and whose runs are equal bit for bit on a CPU.
    """
    section, spec = experiment.recipe.engine, experiment.engine_spec()
    if section.dtype != "auto":
        raise UsageError("engine.dtype: RL computes in method.precision; leave it at auto")
    use_threads(spec.threads)
    folder, config = check_model(spec.model)
    rescaled = [key for key in RESCALED if config.to_dict().get(key) not in (None, 1.0)]
    if rescaled:
        raise UsageError(
            f"model: {folder} rescales its logits ({rescaled[0]}), which RL here does not know; take another"
        )
    # Old and new log-probabilities must differ by the weights alone.
    config.update({key: 0.0 for key in config.to_dict() if key.endswith(("dropout", "_pdrop"))})
    with random_states_kept():
        module = load_module(folder, config)
    server = open_server(spec, precision) if chosen_kind(spec.kind) == "vllm" else None
    module = module.to("cuda" if torch.cuda.is_available() else "cpu")  # after vLLM, which wants to start on a free GPU
    products = {"float32": torch.float32, "bfloat16": torch.bfloat16}[precision]
    return module.eval(), PolicyEngine(module, spec, products, server)


def open_server(spec: EngineSpec, precision: Precision) -> Engine:
    """VLLM with a copy of the policy, in the dtype of training's products, leaving room on a GPU for the trainer."""
    kv = KV_BESIDE if spec.kv_memory == "auto" and torch.cuda.is_available() else spec.kv_memory
    center = "host" if spec.center == "auto" else spec.center
    return open_engine(replace(spec, kind="vllm", dtype=precision, kv_memory=kv, center=center))


def draw(
    experiment: Experiment, engine: PolicyEngine, split: Split, step: int, samples: int
) -> tuple[Split, list[list[Rewarded]]]:
    """The problems of step (from 0), and [problem][sample] of what the policy makes of them.

    Raises RunError for logits that are not finite: what follows from them is no direction.
    """
    recipe = experiment.recipe
    chosen = split.subset(batch(recipe.seed, step, recipe.prompts, range(len(split.problems))))
    seeds = [[sample_seed(recipe.seed, step, p, s) for s in range(samples)] for p in range(len(chosen.problems))]
    sampling = experiment.sampling(recipe.sampling.temperature, recipe.sampling.top_p)
    completions = engine.complete(chosen.token_ids, sampling, seeds)
    if not all(c.finite for own in completions for c in own):
        raise RunError(f"step {step}: the policy's logits are not finite; start another run with a lower method.lr")
    return chosen, experiment.reward(chosen.problems, completions)
