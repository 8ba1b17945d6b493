"""The RL methods that ES is compared with: `open_trainer` opens the trainer of a recipe's method.

recorder   what both share: metrics (`KEYS`), samples, checkpoints, evaluations, costs
grpo, ppo  the trainers;  losses: the arithmetic of PPO on tensors
tokens     log-probabilities, entropies and values of drawn tokens;  models: policy and critic, and who draws

Their settings are in `methods` (no torch there). Prompts, batches, grader, reward and run directory are those of ES.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from esctl.methods import GRPO, BaselineConfig

if TYPE_CHECKING:
    from esctl.engines import Engine
    from esctl.experiment.experiment import Experiment, Split
    from esctl.experiment.scoring import Rewarded


@dataclass(frozen=True)
class Step:
    """What one optimizer step did, for the recorder."""

    chosen: "Split"  # the step's problems, in the order of its batch
    samples: "list[list[Rewarded]]"  # [problem][sample]
    own: Mapping[str, float]  # the method's own metrics, by the keys of `recorder.KEYS`
    flops: float  # operations of rollouts, forward and backward passes, an estimate
    seconds: float


class Trainer(Protocol):
    """One RL method at work on one policy; opened at θ₀."""

    @property
    def engine(self) -> "Engine":
        """The policy as it is now, for evaluations and to be saved."""
        ...

    def train(self, done: int, record: "Callable[[Step], None]") -> None:
        """Train from after step `done` to the recipe's `generations`, calling `record` after each optimizer step.

        Step g (from 0) trains on `batches.batch(seed, g, …)`, and its sample s of the batch's problem p is drawn with
        `moves.sample_seed(seed, g, p, s)`. `record` may evaluate, save weights and call `save_state`; what it raises
        is not to be caught.
        """
        ...

    def save_state(self, folder: Path) -> None:
        """Write all that the next step depends on (policy, optimizers, …) into an empty folder."""
        ...

    def load_state(self, folder: Path) -> None:
        """Continue, bit for bit, from what `save_state` wrote."""
        ...

    def tensor_bytes(self) -> Mapping[str, int]:
        """Bytes that training holds, by purpose: policy, reference, critic, gradients, optimizer."""
        ...


def open_trainer(experiment: "Experiment", config: BaselineConfig) -> Trainer:
    """The trainer of a recipe's baseline, its model loaded; imports torch."""
    if isinstance(config, GRPO):
        from esctl.training.rl.grpo import GRPOTrainer

        return GRPOTrainer(experiment, config)
    from esctl.training.rl.ppo import PPOTrainer

    return PPOTrainer(experiment, config)
