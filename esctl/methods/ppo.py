"""PPO on language models: what its settings mean. The trainer is `training.rl.ppo`, so that recipes need no torch.

Schulman et al. 2017 (arXiv 1707.06347), with the per-token form that RLHF made of it (Ouyang et al. 2022, arXiv
2203.02155). A rollout is tokens y₁..y_T after a prompt; π is the policy, π₀ a frozen copy of it before training, V a
critic of its own weights with a value head, `old` what they were when the rollouts were drawn.

    reward per token      r_t = −β (log π_old(y_t) − log π₀(y_t)) + [t = T] R        β = `kl`, R the rollout's reward
    GAE                   δ_t = r_t + γ V_old(t+1) − V_old(t),  A_t = δ_t + γλ A_t+1,  V_old(T+1) = 0
                          γ = `gamma`, λ = `gae_lambda`
    returns               G_t = A_t + V_old(t)
    whitening             Â = (A − mean A)/(std A + 1e-8) over all tokens of the step
    policy loss           mean over tokens of max(−ρ_t Â_t, −clip(ρ_t, 1 − ε, 1 + ε) Â_t),  ρ_t = π(y_t)/π_old(y_t)
                          ε = `clip`
    value loss            ½ mean over tokens of max((V_t − G_t)², (clip(V_t, V_old ± `value_clip`) − G_t)²)

One step of the recipe's `generations` is one such iteration: `prompts` × `samples` rollouts, then `epochs` passes over
them in minibatches of `minibatch` rollouts, each one AdamW step of the policy and one of the critic.

Rollouts whose rewards are all equal carry no signal: the advantages are exactly zero and the policy is not touched
(AdamW would still move on its momentum); the critic learns.

Deviations from common implementations: critic and policy have separate weights, optimizers and gradient norms; no
entropy bonus; no bootstrap at a completion that was cut, whose reward is the grader's.
"""

from dataclasses import dataclass
from typing import Literal

from esctl.methods.checks import check_counts, check_not_negative, check_rates, check_shares


@dataclass(frozen=True)
class PPO:
    """The symbols are those of the module."""

    samples: int = 4  # rollouts per prompt
    lr: float = 1e-6  # learning rate of the policy
    critic_lr: float = 1e-5  # learning rate of the critic
    warmup: int = 0  # steps over which both rates rise linearly from 0
    decay: int = 0  # steps after warm-up over which they fall linearly to 0; 0 keeps them constant
    epochs: int = 1  # passes over the rollouts of a step
    minibatch: int = 64  # rollouts per optimizer step
    microbatch: int = 8  # rollouts per forward and backward pass: memory only
    clip: float = 0.2  # ε
    value_clip: float = 0.2  # furthest that a value may move from the old one before its loss is clipped
    gamma: float = 1.0  # discount, γ
    gae_lambda: float = 0.95  # λ of generalised advantage estimation
    kl: float = 0.001  # β, weight of the KL penalty in the reward; 0 needs no reference
    max_grad_norm: float = 1.0  # gradients longer than this are scaled down to it
    adam_beta1: float = 0.9  # AdamW's decay of the mean of gradients
    adam_beta2: float = 0.999  # AdamW's decay of the mean of their squares
    adam_epsilon: float = 1e-8  # added to the denominator of AdamW
    weight_decay: float = 0.0  # of AdamW; 0 is none
    precision: Literal["float32", "bfloat16"] = "float32"  # of products; weights and optimizer are fp32
    gradient_checkpointing: bool = False  # compute activations again in the backward pass: less memory, more time
    logit_chunk: int = 1024  # tokens whose logits over the vocabulary are held at once: memory only

    def __post_init__(self) -> None:
        check_counts(
            samples=self.samples,
            epochs=self.epochs,
            minibatch=self.minibatch,
            microbatch=self.microbatch,
            logit_chunk=self.logit_chunk,
        )
        check_rates(lr=self.lr, critic_lr=self.critic_lr, clip=self.clip, value_clip=self.value_clip)
        check_shares(gamma=self.gamma, gae_lambda=self.gae_lambda)
        check_not_negative(kl=self.kl, warmup=self.warmup, decay=self.decay, weight_decay=self.weight_decay)
