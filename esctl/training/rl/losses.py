"""The arithmetic of PPO on tensors: advantages, the clipped losses, the rate of a step. The equations are in `ppo`.

Every tensor is [rollouts, tokens] over completion tokens, padded on the right; `mask` is 1 where there is a token.
Leaves models and optimizers to `ppo_trainer`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

FLAT = 1e-7  # numbers closer together than this are equal


def token_rewards(rewards: Tensor, old: Tensor, reference: Tensor | None, mask: Tensor, kl: float) -> Tensor:
    """r_t = −β (log π_old − log π₀) at every token, plus the rollout's reward at its last one.

    `rewards` is [rollouts]; without a reference there is no penalty.
    """
    found = torch.zeros_like(old) if reference is None else -kl * (old - reference) * mask
    last = (mask.sum(-1, keepdim=True) - 1).long()
    return found.scatter_add(-1, last, rewards[:, None].to(found.dtype))


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, gae_lambda: float) -> Tensor:
    """A_t = δ_t + γλ A_t+1 with δ_t = r_t + γ V_t+1 − V_t; nothing follows the last token. 0 at padding."""
    values = values * mask
    following = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], 1)
    deltas = (rewards + gamma * following - values) * mask
    advantages = torch.zeros_like(deltas)
    after = torch.zeros_like(deltas[:, 0])
    for t in reversed(range(deltas.shape[1])):
        after = deltas[:, t] + gamma * gae_lambda * after
        advantages[:, t] = after
    return advantages


def whitened(advantages: Tensor, mask: Tensor) -> Tensor:
    """(A − mean)/(std + 1e-8) over all tokens, with the population's std; exactly 0 where all are equal."""
    present = advantages[mask.bool()]
    if present.max() - present.min() <= FLAT:
        return torch.zeros_like(advantages)
    return (advantages - present.mean()) / (present.std(correction=0) + 1e-8) * mask


@dataclass(frozen=True)
class Clipped:
    """A clipped loss, summed over tokens, and on how many of them the clip took the gradient away."""

    total: Tensor  # scalar, with gradient
    held: Tensor  # scalar


def policy_loss(logps: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, clip: float) -> Clipped:
    """Σ max(−ρ A, −clip(ρ, 1 ± ε) A), ρ = exp(log π − log π_old)."""
    ratio = (logps - old).exp()
    free, bounded = -ratio * advantages, -ratio.clamp(1 - clip, 1 + clip) * advantages
    return Clipped((torch.maximum(free, bounded) * mask).sum(), ((bounded > free) * mask).sum())


def value_loss(values: Tensor, old: Tensor, returns: Tensor, mask: Tensor, clip: float) -> Clipped:
    """½ Σ max((V − G)², (clip(V, V_old ± ε) − G)²)."""
    free = (values - returns) ** 2
    bounded = (old + (values - old).clamp(-clip, clip) - returns) ** 2
    return Clipped(0.5 * (torch.maximum(free, bounded) * mask).sum(), ((bounded > free) * mask).sum())


def explained(values: Tensor, returns: Tensor, mask: Tensor) -> float:
    """1 − var(G − V)/var(G) over tokens; 0 where the returns are all equal."""
    here = mask.bool()
    spread = returns[here].var(correction=0)
    if spread <= FLAT:
        return 0.0
    return float(1 - (returns - values)[here].var(correction=0) / spread)


def k3(old: Tensor, reference: Tensor, mask: Tensor) -> float:
    """The mean over tokens of exp(log π₀ − log π) − (log π₀ − log π) − 1, which is never negative."""
    ratio = reference - old
    return float(((ratio.exp() - ratio - 1) * mask).sum() / mask.sum())


def rate(step: int, warmup: int, decay: int) -> float:
    """The share of the learning rate at a step (from 0): a rise over `warmup` steps, then a fall to 0 over `decay`."""
    if step < warmup:
        return (step + 1) / warmup
    return max(0.0, 1 - (step - warmup) / decay) if decay else 1.0
