"""GRPO at work: TRL's trainer on our rollouts, rewards, batches and optimizer. `methods.grpo` describes the method.

TRL computes advantages and loss and orders the updates. What TRL would draw at random or keep in its own files is
decided or kept here, so that a run can be continued bit for bit.

This file overrides two things of TRL 1.x, both in one place each: `quiet_trl` hides vLLM while TRL is imported, and
`trainer_class` sets the advantages of groups without signal to exactly 0 (TRL divides a rounding error by 1e-4).
"""

import importlib.util
import math
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from esctl.engines.process import process_kept
from esctl.engines.weights.model import quiet_transformers
from esctl.errors import UsageError
from esctl.experiment.experiment import Experiment, Split
from esctl.experiment.scoring import Rewarded, RewardedSamples, each
from esctl.methods.grpo import GRPO
from esctl.methods.shaping import is_flat
from esctl.noise.moves import hash64
from esctl.tasks.tokenizer import load_tokenizer
from esctl.training.rl import Step
from esctl.training.rl.losses import rate
from esctl.training.rl.models import draw, open_policy

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel, TrainerCallback
    from trl import GRPOConfig
    from trl import GRPOTrainer as TRLTrainer


STATE = "state.pt"
# TRL's names of what it logs after an optimizer step, and ours.
LOGGED = {
    "loss": "policy/loss",
    "grad_norm": "policy/grad_norm",
    "entropy": "policy/entropy",
    "clip_ratio/region_mean": "policy/clip_share",
    "kl": "kl/reference",
}


class SignalAdamW(torch.optim.AdamW):
    """AdamW whose `step` changes neither weights nor moments while `signal` is False.

    Momentum of earlier steps and weight decay would otherwise move the weights in a step whose rewards say nothing.
    """

    signal = True

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Make a step of AdamW, or none."""
        return super().step(closure) if self.signal else None


class GRPOTrainer:
    """A `Trainer`: the policy in fp32 and what AdamW keeps of it; TRL adds a frozen reference where `kl` is above 0."""

    def __init__(self, experiment: Experiment, config: GRPO) -> None:
        check_here(experiment, config)
        self.experiment, self.config = experiment, config
        self.policy, self.engine = open_policy(experiment, config.precision)
        self.policy.requires_grad_(True)
        betas = (config.adam_beta1, config.adam_beta2)
        self.optimizer = SignalAdamW(
            self.policy.parameters(), config.lr, betas, config.adam_epsilon, config.weight_decay
        )
        self._held: dict[str, int] = {}

    def train(self, done: int, record: Callable[[Step], None]) -> None:
        """See `Trainer.train`."""
        hook = Hook(self, done, record)
        with tempfile.TemporaryDirectory() as folder, quiet_transformers():
            with quiet_trl():
                trainer = self.trl_trainer(done, hook, folder)
            hook.reference = trainer.ref_model
            trainer.train()

    def save_state(self, folder: Path) -> None:
        """See `Trainer.save_state`; the reference is the base model, and random states follow from the step."""
        parts = {"policy": self.policy.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(parts, folder / STATE)

    def load_state(self, folder: Path) -> None:
        """See `Trainer.load_state`."""
        state = torch.load(folder / STATE, map_location=self.policy.device, weights_only=True)
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])

    def tensor_bytes(self) -> Mapping[str, int]:
        """See `Trainer.tensor_bytes`; as of the last update, when gradients and optimizer are there."""
        return self._held

    def count(self, reference: "PreTrainedModel | None") -> None:
        """Count the tensors that are held now."""
        held = {"policy": sum(p.nbytes for p in self.policy.parameters())}
        if reference is not None:
            held["reference"] = sum(p.nbytes for p in reference.parameters())
        held["gradients"] = sum(p.grad.nbytes for p in self.policy.parameters() if p.grad is not None)
        states = [t for s in self.optimizer.state.values() for t in s.values() if isinstance(t, Tensor)]
        self._held = held | {"optimizer": sum(t.nbytes for t in states)}

    def flops(self, tokens: int) -> float:
        """2 per weight and token forward, 4 backward, 2 more where activations are computed again.

        The policy draws and learns `epochs` times; with several updates a step it first says its log-probabilities.
        """
        c = self.config
        learning = c.epochs * (8 if c.gradient_checkpointing else 6)
        looks = (updates(self.experiment, c) > 1) + (c.kl > 0)
        return float(tokens * (2 + learning + 2 * looks) * self.engine.dim)

    def trl_trainer(self, done: int, hook: "Hook", folder: str) -> "TRLTrainer":
        """TRL's trainer for the steps that are left."""
        from transformers import PrinterCallback

        c = self.config
        per_step = updates(self.experiment, c)
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] = c.lr  # what the schedule's share is of, also after `load_state`

        def share(update: int) -> float:
            return rate(done + update // per_step, c.warmup, c.decay)

        trainer = trainer_class()(
            model=self.policy,
            reward_funcs=[reward],
            args=arguments(self.experiment, c, done, folder),
            train_dataset=self._rows(done),
            processing_class=load_tokenizer(self.experiment.model),  # TRL gives its tokenizer a padding token
            callbacks=[callback_class()(hook)],
            optimizers=(self.optimizer, torch.optim.lr_scheduler.LambdaLR(self.optimizer, share)),
            rollout_func=hook.rollout,
        )
        trainer.remove_callback(PrinterCallback)
        return trainer

    def _rows(self, done: int) -> "Dataset":
        """One row per prompt of each step that is left; the rollouts find their problems by the step alone."""
        from datasets import Dataset

        recipe = self.experiment.recipe
        return Dataset.from_dict({"prompt": [""] * (recipe.prompts * (recipe.generations - done))})


@contextmanager
def quiet_trl() -> Iterator[None]:
    """Hold back what TRL says while it starts, and hide vLLM, which it would import for nothing.

    That import takes longer than all else at a start, and its memory would be counted against GRPO.
    """
    hidden = {} if "vllm" in sys.modules else {"vllm": None}  # to Python, a package that is not installed
    with process_kept(), warnings.catch_warnings():
        os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
        warnings.simplefilter("ignore")
        sys.modules.update(hidden)  # type: ignore[arg-type]
        try:
            yield
        finally:
            for name in hidden:
                del sys.modules[name]


@dataclass
class Hook:
    """What TRL calls while it trains: for rollouts before an update, and with its numbers after one."""

    trainer: GRPOTrainer
    step: int  # steps done
    record: Callable[[Step], None]
    reference: "PreTrainedModel | None" = None
    begun: float = 0.0
    drawn: float = 0.0
    chosen: Split | None = None
    samples: list[list[Rewarded]] = field(default_factory=list)
    logs: list[dict[str, float]] = field(default_factory=list)  # of the updates of this step so far

    def rollout(self, prompts: Sequence[str], trl: "TRLTrainer") -> dict[str, list[list[int]] | list[float] | None]:
        """Draw and grade this step's rollouts, [problem][sample] in one list each, as TRL repeats its rows."""
        self.begun, experiment, samples = time.perf_counter(), self.trainer.experiment, self.trainer.config.samples
        split = experiment.split(experiment.recipe.task.split)
        self.chosen, self.samples = draw(experiment, self.trainer.engine, split, self.step, samples)
        flat = each(self.samples)
        self.trainer.optimizer.signal = any(group_signals(self.samples))
        assert len(flat) == len(prompts), (len(flat), len(prompts))
        # TRL next shuffles the rollouts by torch's global generator: from here, not from what came before.
        torch.manual_seed(hash64("esctl-shuffle", "<qI", experiment.recipe.seed, self.step) >> 1)
        self.drawn = time.perf_counter() - self.begun
        return {
            "prompt_ids": [list(ids) for ids in self.chosen.token_ids for _ in range(samples)],
            "completion_ids": [list(s.completion.token_ids) for s in flat],
            "logprobs": None,  # old log-probabilities are those of the policy in training, which drew
            "reward": [s.reward for s in flat],
            "signal": [float(signal) for signal in group_signals(self.samples) for _ in range(samples)],
        }

    def update_done(self, logged: Mapping[str, float]) -> None:
        """Keep what TRL says of an update; after the last of a step, record the step."""
        self.logs.append({ours: logged[theirs] for theirs, ours in LOGGED.items() if theirs in logged})
        if len(self.logs) < updates(self.trainer.experiment, self.trainer.config):
            return
        assert self.chosen is not None
        done = Step(self.chosen, self.samples, self._metrics(), self.trainer.flops(self._tokens()), self._seconds())
        self.step, self.logs = self.step + 1, []
        self.record(done)

    def _metrics(self) -> dict[str, float]:
        c = self.trainer.config
        means = {key: math.fsum(log[key] for log in self.logs) / len(self.logs) for key in self.logs[0]}
        means["signal/groups"] = sum(group_signals(self.samples))
        if not self.trainer.optimizer.signal:
            means["policy/grad_norm"] = 0.0  # the optimizer did not use the gradient (of KL alone, if any)
        if self.reference is not None:
            means["drift/norm"] = distance(self.trainer.policy, self.reference)
        return means | {"policy/lr": c.lr * rate(self.step, c.warmup, c.decay), "time/rollout_seconds": self.drawn}

    def _tokens(self) -> int:
        assert self.chosen is not None
        prompts = zip(self.chosen.token_ids, self.samples, strict=True)
        return sum(len(ids) + len(s.completion.token_ids) for ids, own in prompts for s in own)

    def _seconds(self) -> float:
        return time.perf_counter() - self.begun


def group_signals(samples: RewardedSamples) -> list[bool]:
    """Of each problem's group, whether its rewards differ."""
    return [not is_flat([s.reward for s in own]) for own in samples]


def trainer_class() -> "type[TRLTrainer]":
    """TRL's trainer with advantages of exactly 0 in groups whose rewards are equal.

    TRL 1.16 computes (R − mean R)/(std R + 1e-4) in fp32, where the mean of equal rewards such as 0.1 is not 0.1: the
    rounding error becomes an advantage near 1e-4, which Adam turns into full steps.
    """
    from trl import GRPOTrainer as TRLTrainer

    class SignalTrainer(TRLTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: list[dict[str, object]]) -> dict[str, Tensor]:
            made: dict[str, Tensor] = super()._generate_and_score_completions(inputs)
            signal = torch.tensor([row["signal"] == 1.0 for row in inputs], device=made["advantages"].device)
            made["advantages"] = made["advantages"].where(signal, 0.0)
            return made

    return SignalTrainer


def callback_class() -> "Callable[[Hook], TrainerCallback]":
    """The class of callbacks, made here since the library's base class is imported late."""
    from transformers import TrainerCallback, TrainerControl, TrainerState

    class HookCallback(TrainerCallback):  # type: ignore[misc]
        def __init__(self, hook: Hook) -> None:
            self.hook = hook

        def on_optimizer_step(
            self, args: "GRPOConfig", state: TrainerState, control: TrainerControl, **_: object
        ) -> None:
            self.hook.trainer.count(self.hook.reference)

        def on_log(
            self,
            args: "GRPOConfig",
            state: TrainerState,
            control: TrainerControl,
            logs: dict[str, float],
            **_: object,
        ) -> None:
            if "grad_norm" in logs:  # the summary at the end has none
                self.hook.update_done(logs)

    return HookCallback


def reward(reward: list[float], **_: object) -> list[float]:
    """What the rollouts were graded with; TRL hands back what `Hook.rollout` gave it."""
    return reward


def rollouts_of(experiment: Experiment, config: GRPO) -> int:
    """Rollouts of one step."""
    return experiment.recipe.prompts * config.samples


def updates(experiment: Experiment, config: GRPO) -> int:
    """Optimizer steps of one step."""
    total = rollouts_of(experiment, config)
    return config.epochs * (total // (config.minibatch or total))


def arguments(experiment: Experiment, config: GRPO, done: int, folder: str) -> "GRPOConfig":
    """The recipe in TRL's words; what it would do beside training is off."""
    from trl import GRPOConfig

    recipe, total = experiment.recipe, rollouts_of(experiment, config)
    minibatch = config.minibatch or total
    microbatch = min(config.microbatch, minibatch)
    return GRPOConfig(
        output_dir=folder,
        max_steps=(recipe.generations - done) * updates(experiment, config),
        num_generations=config.samples,
        num_iterations=config.epochs,
        per_device_train_batch_size=microbatch,
        gradient_accumulation_steps=minibatch // microbatch,
        steps_per_generation=total // microbatch,
        max_completion_length=recipe.sampling.max_tokens,
        temperature=recipe.sampling.temperature,
        top_p=recipe.sampling.top_p,
        loss_type=config.loss_type,
        scale_rewards=config.scale_rewards,
        beta=config.kl,
        epsilon=config.clip,
        epsilon_high=config.clip if config.clip_high is None else config.clip_high,
        max_grad_norm=config.max_grad_norm,
        bf16=config.precision == "bfloat16",
        gradient_checkpointing=config.gradient_checkpointing,
        disable_dropout=True,
        shuffle_dataset=False,
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
        seed=0,  # for what is drawn by nobody: rollouts and the shuffle have seeds of their own
        logging_strategy="steps",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def check_here(experiment: Experiment, config: GRPO) -> None:
    """Refuse, before a model is loaded, what cannot be trained as asked."""
    if any(importlib.util.find_spec(name) is None for name in ("trl", "accelerate")):
        raise UsageError("method.kind: grpo trains through TRL, which is not installed: pip install 'esctl-lm[rl]'")
    total = rollouts_of(experiment, config)
    minibatch = config.minibatch or total
    if total % minibatch:
        raise UsageError(f"method.minibatch: {minibatch} does not divide the {total} rollouts of a step")
    if minibatch % min(config.microbatch, minibatch):
        raise UsageError(f"method.microbatch: {config.microbatch} does not divide minibatches of {minibatch} rollouts")
    if torch.cuda.device_count() > 1:
        raise UsageError("method.kind: grpo trains on one GPU; choose it, such as CUDA_VISIBLE_DEVICES=0")


@torch.no_grad()
def distance(policy: "PreTrainedModel", reference: "PreTrainedModel") -> float:
    """‖θ − θ₀‖ over parameters, tied ones once."""
    pairs = zip(policy.parameters(), reference.parameters(), strict=True)
    return math.sqrt(math.fsum(float((a - b).double().square().sum()) for a, b in pairs))
