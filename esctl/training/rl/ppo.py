"""PPO at work: rollouts, advantages, and the updates of a policy and a critic. `methods.ppo` describes the method.

`losses` has the arithmetic and `tokens` the forward passes in bounded memory. This trainer is our own: no maintained
package with a critic takes a reward function and installs with this project's other libraries.
"""

import copy
import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from esctl.experiment.experiment import Experiment
from esctl.experiment.scoring import RewardedSamples, each
from esctl.methods.ppo import PPO
from esctl.methods.shaping import is_flat
from esctl.noise.moves import hash64
from esctl.training.rl import Step
from esctl.training.rl.losses import explained, gae, k3, policy_loss, rate, token_rewards, value_loss, whitened
from esctl.training.rl.models import draw, open_policy
from esctl.training.rl.tokens import Critic, Padded, Rollout, Said, padded, said

if TYPE_CHECKING:
    from transformers import PreTrainedModel


STATE = "state.pt"


@dataclass(frozen=True)
class Experience:
    """The rollouts of a step and what was said of their tokens when they were drawn; [rollouts, tokens] each."""

    rollouts: Sequence[Rollout]
    mask: Tensor
    old: Tensor  # log-probabilities under the policy
    values: Tensor
    advantages: Tensor  # whitened
    returns: Tensor
    signal: bool  # whether the rewards differ at all

    @property
    def tokens(self) -> list[int]:
        """Completion tokens of each rollout."""
        return [len(r.completion) for r in self.rollouts]


class PPOTrainer:
    """A `Trainer`: policy, critic and frozen reference in fp32, each with what its optimizer keeps."""

    def __init__(self, experiment: Experiment, config: PPO) -> None:
        self.experiment, self.config = experiment, config
        self.policy, self.engine = open_policy(experiment, config.precision)
        self.policy.requires_grad_(True)
        self.critic = Critic(copy.deepcopy(self.policy.base_model), self.policy.config.get_text_config().hidden_size)
        self.reference = copy.deepcopy(self.policy).requires_grad_(False) if config.kl > 0 else None
        if config.gradient_checkpointing:
            backbone: PreTrainedModel = self.critic.backbone
            for model in (self.policy, backbone):
                model.gradient_checkpointing_enable({"use_reentrant": False})
                model.train()  # asked for by the library; there is no dropout that this would turn on
        self.actor = self._optimizer(self.policy, config.lr)
        self.judge = self._optimizer(self.critic, config.critic_lr)
        self._split = experiment.split(experiment.recipe.task.split)
        self._held: dict[str, int] = {}

    def train(self, done: int, record: Callable[[Step], None]) -> None:
        """See `Trainer.train`."""
        for number in range(done, self.experiment.recipe.generations):
            record(self.step(number))

    def save_state(self, folder: Path) -> None:
        """See `Trainer.save_state`; the reference is the base model, and random states follow from the step."""
        torch.save({name: part.state_dict() for name, part in self._parts().items()}, folder / STATE)

    def load_state(self, folder: Path) -> None:
        """See `Trainer.load_state`."""
        state = torch.load(folder / STATE, map_location="cpu", weights_only=True)  # each part puts it where it belongs
        for name, part in self._parts().items():
            part.load_state_dict(state[name])

    def tensor_bytes(self) -> Mapping[str, int]:
        """See `Trainer.tensor_bytes`; as of the last update, when gradients and optimizers are there."""
        return self._held

    def _parts(self) -> "dict[str, PreTrainedModel | Critic | torch.optim.AdamW]":
        return {"policy": self.policy, "critic": self.critic, "actor": self.actor, "judge": self.judge}

    def _optimizer(self, model: nn.Module, lr: float) -> torch.optim.AdamW:
        c = self.config
        betas = (c.adam_beta1, c.adam_beta2)
        return torch.optim.AdamW(model.parameters(), lr, betas, c.adam_epsilon, c.weight_decay)

    def step(self, number: int) -> Step:
        """Draw the rollouts of step `number` (from 0) and make its updates."""
        begun = time.perf_counter()
        chosen, samples = draw(self.experiment, self.engine, self._split, number, self.config.samples)
        drawn = time.perf_counter() - begun
        rollouts = [
            Rollout(prompt, s.completion.token_ids)
            for prompt, own in zip(chosen.token_ids, samples, strict=True)
            for s in own
        ]
        experience, seen = self._look(rollouts, samples)
        own = seen | self._update(number, experience) | {"time/rollout_seconds": drawn}
        tokens = sum(len(r.prompt) + len(r.completion) for r in rollouts)
        return Step(chosen, samples, own, self._flops(tokens), time.perf_counter() - begun)

    def _look(self, rollouts: Sequence[Rollout], samples: RewardedSamples) -> tuple[Experience, dict[str, float]]:
        """What policy, reference and critic say of the rollouts before any update, and metrics of it."""
        columns = [self._say(rollouts[i : i + self.config.microbatch]) for i in self._starts(len(rollouts))]
        mask, old, entropies, values, reference = (_stacked(c) for c in zip(*columns, strict=True))
        given = [s.reward for s in each(samples)]
        rewards = torch.tensor(given, device=old.device)
        known = None if self.reference is None else reference
        per_token = token_rewards(rewards, old, known, mask, self.config.kl)
        advantages = gae(per_token, values, mask, self.config.gamma, self.config.gae_lambda)
        signal, returns = not is_flat(given), advantages + values
        shaped = whitened(advantages, mask) if signal else torch.zeros_like(advantages)
        metrics = {
            "policy/entropy": float(entropies.sum() / mask.sum()),
            "value/explained": explained(values, returns, mask),
        }
        if known is not None:
            metrics["kl/reference"] = k3(old, known, mask)
        return Experience(rollouts, mask, old, values, shaped, returns, signal), metrics

    @torch.no_grad()
    def _say(self, rollouts: Sequence[Rollout]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Mask, log-probabilities, entropies, values, and the reference's log-probabilities (0 without one)."""
        batch = padded(rollouts, self.policy.device)
        with self._products():
            logps, entropies = self._said(self.policy, batch)
            values = self.critic(batch)
            known = torch.zeros_like(logps) if self.reference is None else self._said(self.reference, batch).logps
        return batch.mask, logps, entropies, values, known

    def _update(self, number: int, experience: Experience) -> dict[str, float]:
        """The passes over a step's rollouts; returns metrics, means over the updates."""
        share = rate(number, self.config.warmup, self.config.decay)
        _set_rate(self.actor, self.config.lr * share)
        _set_rate(self.judge, self.config.critic_lr * share)
        totals, updates = defaultdict[str, float](float), 0
        for epoch in range(self.config.epochs):
            order = list(range(len(experience.rollouts)))
            random.Random(hash64("esctl-minibatch", "<qII", self.experiment.recipe.seed, number, epoch)).shuffle(order)
            for start in range(0, len(order), self.config.minibatch):
                updates += 1
                for key, value in self._minibatch(experience, order[start : start + self.config.minibatch]).items():
                    totals[key] += value
        return {key: value / updates for key, value in totals.items()} | {"policy/lr": self.config.lr * share}

    def _minibatch(self, experience: Experience, places: Sequence[int]) -> dict[str, float]:
        """One step of each optimizer on these rollouts; gradients are of means over all their tokens."""
        tokens = sum(experience.tokens[i] for i in places)
        totals = defaultdict[str, float](float)
        for start in self._starts(len(places)):
            for key, value in self._backward(
                experience, places[start : start + self.config.microbatch], tokens
            ).items():
                totals[key] += value
        limit = self.config.max_grad_norm
        if experience.signal:
            totals["policy/grad_norm"] = float(nn.utils.clip_grad_norm_(self.policy.parameters(), limit))
            self.actor.step()
        else:
            totals["policy/grad_norm"] = 0.0
        totals["value/grad_norm"] = float(nn.utils.clip_grad_norm_(self.critic.parameters(), limit))
        self.judge.step()
        self._held = self._count()
        self.actor.zero_grad()
        self.judge.zero_grad()
        return totals

    def _backward(self, experience: Experience, places: Sequence[int], tokens: int) -> dict[str, float]:
        """Add the gradients of one forward pass each of policy and critic."""
        batch, c = padded([experience.rollouts[i] for i in places], self.policy.device), self.config
        rows, width = torch.tensor(places, device=batch.mask.device), batch.mask.shape[1]
        old, values, advantages, returns = (
            t[rows, :width] for t in (experience.old, experience.values, experience.advantages, experience.returns)
        )
        with self._products():
            logps, said_values = self._said(self.policy, batch).logps, self.critic(batch)
        policy = policy_loss(logps, old, advantages, batch.mask, c.clip)
        value = value_loss(said_values, values, returns, batch.mask, c.value_clip)
        torch.autograd.backward((policy.total + value.total) / tokens)
        return {
            "policy/loss": float(policy.total.detach()) / tokens,
            "policy/clip_share": float(policy.held) / tokens,
            "value/loss": float(value.total.detach()) / tokens,
        }

    def _said(self, model: "PreTrainedModel", batch: Padded) -> Said:
        return said(model, batch, self.experiment.recipe.sampling.temperature, self.config.logit_chunk)

    def _starts(self, count: int) -> range:
        return range(0, count, self.config.microbatch)

    def _products(self) -> AbstractContextManager[None]:
        """Matrix products in the recipe's precision."""
        half = self.config.precision == "bfloat16"
        return torch.autocast(self.policy.device.type, torch.bfloat16, enabled=half)

    def _count(self) -> dict[str, int]:
        models: dict[str, nn.Module] = {"policy": self.policy, "critic": self.critic}
        if self.reference is not None:
            models["reference"] = self.reference
        held = {name: sum(p.nbytes for p in model.parameters()) for name, model in models.items()}
        trained = [*self.policy.parameters(), *self.critic.parameters()]
        held["gradients"] = sum(p.grad.nbytes for p in trained if p.grad is not None)
        states = [s for optimizer in (self.actor, self.judge) for s in optimizer.state.values()]
        held["optimizer"] = sum(t.nbytes for s in states for t in s.values() if isinstance(t, Tensor))
        return held

    def _flops(self, tokens: int) -> float:
        """2 per weight and token forward, 4 backward, 2 more where activations are computed again.

        The policy draws, says its log-probabilities once and learns `epochs` times; the critic does all but draw.
        """
        c, policy = self.config, self.engine.dim
        critic = sum(p.numel() for p in self.critic.parameters())
        learning = c.epochs * (8 if c.gradient_checkpointing else 6)
        frozen = 0 if self.reference is None else 2 * policy
        return float(tokens * ((4 + learning) * policy + (2 + learning) * critic + frozen))


def _set_rate(optimizer: torch.optim.AdamW, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    """Rows of several widths as one tensor, 0 where a narrower one ends."""
    width = max(p.shape[1] for p in parts)
    return torch.cat([nn.functional.pad(p, (0, width - p.shape[1])) for p in parts])
