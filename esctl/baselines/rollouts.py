"""The rollouts of one step of a baseline, graded: equal prompts, seeds by hash, the grader and reward of ES.

Leaves what follows from their rewards to the trainers.
"""

from esctl.batches import batch
from esctl.engines import Sampling
from esctl.engines.policy import PolicyEngine
from esctl.errors import RunError
from esctl.experiment import Experiment, Split
from esctl.grades import Scored
from esctl.moves import sample_seed


def draw(
    experiment: Experiment, engine: PolicyEngine, split: Split, step: int, samples: int
) -> tuple[Split, list[list[Scored]]]:
    """The problems of step (from 0), and [problem][sample] of what the policy makes of them.

    Raises RunError for logits that are not finite: what follows from them is no direction.
    """
    recipe = experiment.recipe
    chosen = split.subset(batch(recipe.seed, step, recipe.prompts, range(len(split.problems))))
    seeds = [[sample_seed(recipe.seed, step, p, s) for s in range(samples)] for p in range(len(chosen.problems))]
    s = recipe.sampling
    completions = engine.complete(chosen.token_ids, Sampling(s.temperature, s.max_tokens, s.top_p), seeds)
    if not all(c.finite for own in completions for c in own):
        raise RunError(f"step {step}: the policy's logits are not finite; start another run with a lower method.lr")
    flat = experiment.score(
        [p for p in chosen.problems for _ in range(samples)], [c for own in completions for c in own]
    )
    return chosen, [flat[i : i + samples] for i in range(0, len(flat), samples)]
