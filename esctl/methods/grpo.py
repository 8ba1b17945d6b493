"""GRPO on language models: what its settings mean. The trainer is `training.rl.grpo`, so that recipes need no TRL.

Shao et al. 2024 (arXiv 2402.03300). Each of a step's prompts gets a group of G rollouts; π is the policy, π₀ a frozen
copy of it before training, `old` what it was when the rollouts were drawn, R the reward of a rollout.

    advantage        A = (R − mean R)/(std R + 1e-4)   mean over the group, std as `scale_rewards` says: of the group,
                     of the whole step, or none, which only centres (Dr. GRPO, Liu et al. 2025, arXiv 2503.20783)
    token loss       ℓ_t = max(−ρ_t A, −clip(ρ_t, 1 − ε, 1 + ε') A) + β (π₀/π − log π₀/π − 1),  ρ_t = π(y_t)/π_old(y_t)
                     ε = `clip`, ε' = `clip_high` (`clip` where it is not given), β = `kl`; G = `samples`
    loss             `loss_type` says which mean of ℓ_t it is:
                     grpo     over the tokens of each rollout, then over rollouts
                     dr_grpo  the sum over tokens, divided by rollouts × `sampling.max_tokens`
                     bnpo     over all tokens of a micro-batch
                     dapo     over all tokens of an optimizer step (Yu et al. 2025, arXiv 2503.14476)

One step of the recipe's `generations` is one batch of `prompts` × `samples` rollouts and `epochs` passes over it in
minibatches of `minibatch` rollouts, each one AdamW step. By default that is a single AdamW step, so ρ = 1 and the clip
holds nothing back.

Deviation from the paper: std R is that of a sample (divided by G − 1), as TRL computes it. A group whose rewards are
all equal has advantages of exactly zero. A step in which every group is such carries no signal: it changes no bit of
the weights or of the optimizer, whatever its momentum, weight decay and the KL term would do.
"""

from dataclasses import dataclass
from typing import Literal

from esctl.methods.checks import SettingError, check_counts, check_not_negative, check_rates


@dataclass(frozen=True)
class GRPO:
    """The symbols are those of the module."""

    samples: int = 8  # rollouts per prompt, G
    lr: float = 1e-6  # learning rate of AdamW
    warmup: int = 0  # steps over which the rate rises linearly from 0
    decay: int = 0  # steps after warm-up over which it falls linearly to 0; 0 keeps it constant
    epochs: int = 1  # passes over the rollouts of a step, μ in the paper
    minibatch: int = 0  # rollouts per optimizer step; 0 is all of the step's
    microbatch: int = 8  # rollouts per forward and backward pass: memory only, but for `loss_type: bnpo`
    loss_type: Literal["grpo", "dr_grpo", "bnpo", "dapo"] = "grpo"  # which mean of token losses
    scale_rewards: Literal["group", "batch", "none"] = "group"  # what the deviation that divides advantages is of
    clip: float = 0.2  # ε
    clip_high: float | None = None  # ε', the upper clip; null: as `clip`
    kl: float = 0.0  # β; 0 needs no reference
    max_grad_norm: float = 1.0  # gradients longer than this are scaled down to it
    adam_beta1: float = 0.9  # AdamW's decay of the mean of gradients
    adam_beta2: float = 0.999  # AdamW's decay of the mean of their squares
    adam_epsilon: float = 1e-8  # added to the denominator of AdamW
    weight_decay: float = 0.0  # of AdamW; 0 is none
    precision: Literal["float32", "bfloat16"] = "float32"  # of products; weights and optimizer are fp32
    gradient_checkpointing: bool = False  # compute activations again in the backward pass: less memory, more time

    def __post_init__(self) -> None:
        check_counts(epochs=self.epochs, microbatch=self.microbatch)
        check_rates(lr=self.lr, clip=self.clip, max_grad_norm=self.max_grad_norm)
        if self.samples < 2:
            raise SettingError("samples", f"{self.samples} is too few: a group of one has no advantage, use 2 or more")
        if self.clip_high is not None and self.clip_high < self.clip:
            raise SettingError("clip_high", f"{self.clip_high} must not be below clip, {self.clip}")
        check_not_negative(
            kl=self.kl,
            warmup=self.warmup,
            decay=self.decay,
            weight_decay=self.weight_decay,
            minibatch=self.minibatch,
        )
