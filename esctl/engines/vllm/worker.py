"""What runs inside vLLM's worker: the center, the live weights and the watch on logits, called by name.

Arguments and results are plain values, because they may cross a process border. `ranks` calls these methods.
"""

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from esctl.engines import Where
from esctl.engines.process import Held, held_here
from esctl.engines.vllm.layers import FusedModel, LiveWeights, drop_packed
from esctl.engines.vllm.patches import ComputesLogits, keep_transformers_usable, replace_logits
from esctl.engines.weights.center import Center
from esctl.noise.moves import Move


class ServedModel(FusedModel, ComputesLogits, Protocol):
    """A model as vLLM serves it."""


class ModelConfig(Protocol):
    """The part of vLLM's model config that is used here."""

    def get_sliding_window(self) -> int | None:
        """Tokens that a layer looks back at most; None: all of them."""


class ModelRunner(Protocol):
    """The part of vLLM's model runner that is used here."""

    model: ServedModel
    model_config: ModelConfig
    kv_caches: list[Tensor]


class LogitWatch:
    """Whether every logit under the live weights was finite: one reduction per step, read once per candidate.

    The sum is finite unless a logit is not, or logits are so large that they add up to infinity. It stays on the
    device, so that no step waits for it.
    """

    def __init__(self, model: ServedModel) -> None:
        self._compute = model.compute_logits
        self._total = torch.zeros(())
        self.used = False  # whether anything was computed since `start`
        replace_logits(model, self)

    def __call__(self, hidden_states: Tensor) -> Tensor | None:
        """The model's logits, as they are."""
        logits = self._compute(hidden_states)
        self.used = True
        if logits is not None:
            self._total = self._total.to(logits.device) + logits.sum(dtype=torch.float32)
        return logits

    def start(self) -> None:
        """Forget the logits of other weights."""
        self._total = torch.zeros(())
        self.used = False

    def finite(self) -> bool:
        """Whether all were; waits for the device."""
        return bool(self._total.isfinite())


class WorkerExtension:
    """Mixed into vLLM's worker class. The prefix `esctl_` avoids clashes with vLLM's own names."""

    model_runner: ModelRunner  # set by vLLM
    rank: int  # set by vLLM
    esctl_weights: LiveWeights
    esctl_watch: LogitWatch

    def esctl_attach(self, model: str, probes: bool, where: Where) -> int:
        """Load the center, make θ live, and return dim."""
        keep_transformers_usable(module for _, module in self.model_runner.model.named_modules())
        drop_packed(self.model_runner.model)
        self.esctl_weights = LiveWeights(self.model_runner.model, Center.load(model, probes), probes, where)
        self.esctl_watch = LogitWatch(self.model_runner.model)
        return self.esctl_weights.center.dim

    def esctl_stage(self, seeds: list[int], coefficients: list[float]) -> None:
        """Stage θ' for the candidates to come."""
        self.esctl_weights.stage(Move.of(seeds, coefficients))

    def esctl_write(self, seeds: list[int], coefficients: list[float]) -> None:
        """Make a candidate live."""
        self.esctl_watch.start()
        self.esctl_weights.write(Move.of(seeds, coefficients))

    def esctl_restore(self) -> None:
        """Make θ live."""
        self.esctl_weights.restore()

    def esctl_commit(self, seeds: list[int], coefficients: list[float]) -> None:
        """Move θ, and make it live."""
        self.esctl_weights.commit(Move.of(seeds, coefficients))

    def esctl_finite(self) -> bool:
        """Whether every logit of this candidate was finite."""
        return self.esctl_watch.finite()

    def esctl_caches_finite(self) -> bool:
        """Whether the KV caches hold finite numbers only, as far as this rank can know.

        A value that is not finite reaches the logits, unless it lies outside of every window that leads to them: so a
        model with a sliding window is looked at itself.
        """
        if not self.esctl_watch.used:
            return True
        if self.model_runner.model_config.get_sliding_window() is None:
            return self.esctl_watch.finite()
        return all(bool(cache.sum(dtype=torch.float32).isfinite()) for cache in self.model_runner.kv_caches)

    def esctl_clear_caches(self) -> None:
        """Zero the KV caches. Attention masks stale values by multiplying with 0, and 0·NaN is NaN."""
        for cache in self.model_runner.kv_caches:
            cache.zero_()
        self.esctl_watch.start()

    def esctl_save(self, path: str, dtype: str, source: str) -> None:
        """Write θ as a model folder. Every rank holds the whole center; the first one writes."""
        if self.rank == 0:
            self.esctl_weights.center.save(Path(path), dtype, source)

    def esctl_save_center(self, path: str) -> None:
        """Write θ in fp32."""
        if self.rank == 0:
            self.esctl_weights.center.save_center(Path(path))

    def esctl_load_center(self, path: str) -> None:
        """Read θ, and make it live."""
        self.esctl_weights.load_center(Path(path))

    def esctl_checksum(self) -> str:
        """SHA-256 of the live weights."""
        return self.esctl_weights.checksum()

    def esctl_center_sha256(self) -> str:
        """SHA-256 of θ in fp32."""
        return self.esctl_weights.center.weights_sha256()

    def esctl_bytes(self) -> dict[str, int]:
        """Bytes held, by purpose."""
        return self.esctl_weights.bytes() | {"kv": sum(cache.nbytes for cache in self.model_runner.kv_caches)}

    def esctl_held(self) -> Held:
        """The most bytes that this process has held."""
        return held_here()
