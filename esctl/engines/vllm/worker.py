"""What runs inside vLLM's worker: it holds the center and the live weights, and obeys calls by name with plain values.

Leaves scheduling, text and the order of candidates to `engines.vllm`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from esctl.engines import Where
from esctl.engines.process import Held, held_here
from esctl.engines.vllm.layers import FusedModel, LiveWeights, drop_packed
from esctl.engines.weights.center import Center
from esctl.noise.moves import Move


class ServedModel(FusedModel, Protocol):
    """A model that turns hidden states into logits."""

    compute_logits: Callable[[Tensor], Tensor | None]


class ModelRunner(Protocol):
    """The part of vLLM's model runner that is used here."""

    model: ServedModel
    kv_caches: list[Tensor]


class LogitWatch:
    """Whether every logit under the live weights was finite: one reduction per step, read once per candidate.

    A sum is finite unless a logit is not (or logits near the largest number are as good as infinite); it stays on the
    device, so that no step waits for it.
    """

    def __init__(self, model: ServedModel) -> None:
        self._compute = model.compute_logits
        self._total = torch.zeros(())
        model.compute_logits = self

    def __call__(self, hidden_states: Tensor) -> Tensor | None:
        """The model's logits, as they are."""
        logits = self._compute(hidden_states)
        if logits is not None:
            self._total = self._total.to(logits.device) + logits.sum(dtype=torch.float32)
        return logits

    def start(self) -> None:
        """Forget the logits of other weights."""
        self._total = torch.zeros(())

    def finite(self) -> bool:
        """Whether all were; waits for the device."""
        return bool(self._total.isfinite())


class WorkerExtension:
    """Mixed into vLLM's worker class; every method has a prefix of its own, since they share one namespace."""

    model_runner: ModelRunner  # vLLM's, as the one below
    rank: int
    esctl_weights: LiveWeights
    esctl_watch: LogitWatch

    def esctl_attach(self, model: str, probes: bool, where: Where) -> int:
        """Load the center, make θ live, and return dim."""
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

    def esctl_save(self, path: str, dtype: str, source: str) -> None:
        """Write θ as a model folder; every rank holds all of it, and the first writes."""
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
