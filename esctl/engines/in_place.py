"""A module that an RL trainer updates, as an engine: it samples from the module itself, or from a server's copy.

Candidates are refused: an RL policy has one set of weights.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch
from typing_extensions import override

from esctl.engines import OWN_ROLLOUTS, Engine, EngineSpec, OnCandidate, Samples, Sampling, Seeds, TokenIds
from esctl.engines.checkpoint import Checkpoint
from esctl.engines.process import Held, held_here, random_states_kept
from esctl.engines.sampler import Generator
from esctl.engines.weights.center import Center
from esctl.engines.weights.dtypes import dtype_name
from esctl.errors import EngineError
from esctl.noise.moves import EMPTY, Move, Round

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class PolicyEngine(Engine):
    """An `Engine` without candidates, around a live module in fp32.

    Products are computed in `precision`, as in training; files hold fp32. A `server` is another engine of the same
    model that samples instead of the module; it receives the weights before each call, so they are never stale.
    """

    def __init__(
        self, module: "PreTrainedModel", spec: EngineSpec, precision: torch.dtype, server: Engine | None = None
    ) -> None:
        import transformers

        self._module, self._precision, self._server = module, precision, server
        self._checkpoint = Checkpoint.open(spec)
        self._generator = Generator(self._checkpoint, spec.kv_memory)
        self._parameters = {
            n: p
            for n, p in module.named_parameters(remove_duplicate=False)
            if n not in set(module.all_tied_weights_keys)
        }
        self.dim = sum(p.numel() for p in self._parameters.values())
        drawn = OWN_ROLLOUTS if server is None else f"rollouts: {server.description}"
        self.description = (
            f"transformers {transformers.__version__}, {dtype_name(precision)}, {module.device},"
            f" {torch.get_num_threads()} threads; {drawn}"
        )

    @override
    def rollout(
        self,
        round_: Round,
        prompts: Sequence[TokenIds],
        sampling: Sampling,
        seeds: Seeds | None = None,
        on_candidate: OnCandidate | None = None,
        *,
        stay: bool = False,
    ) -> list[Samples]:
        """Every candidate must be θ itself."""
        results: list[Samples] = []
        for index, candidate in enumerate(round_.candidates):
            _refuse_moves(round_.center, candidate)
            results.append(self.complete(prompts, sampling, seeds))
            if on_candidate is not None:
                on_candidate(index, results[-1])
        return results

    @override
    def restore(self) -> None:
        """Θ always is."""

    def complete(self, prompts: Sequence[TokenIds], sampling: Sampling, seeds: Seeds | None) -> Samples:
        """Sample from θ in evaluation mode, then restore the module's mode."""
        if self._server is not None:
            return self._served(self._server, prompts, sampling, seeds)
        training, autocast = self._module.training, self._precision != torch.float32
        self._module.eval()
        try:
            with random_states_kept(), torch.autocast(self._module.device.type, self._precision, enabled=autocast):
                return self._generator.complete(self._module, prompts, sampling, seeds)
        finally:
            self._module.train(training)

    def _served(self, server: Engine, prompts: Sequence[TokenIds], sampling: Sampling, seeds: Seeds | None) -> Samples:
        with TemporaryDirectory() as folder:
            weights = Path(folder) / "weights.safetensors"
            self.save_center(weights)
            server.load_center(weights)
        [found] = server.rollout(Round(0, 0, EMPTY, (EMPTY,)), prompts, sampling, seeds)
        return found

    @override
    def nll(self, round_: Round, prompts: Sequence[TokenIds], targets: Sequence[TokenIds]) -> list[list[float]]:
        """Refused: save the policy and open the folder as another engine."""
        raise EngineError("a policy in training draws rollouts only: measure its saved weights")

    @override
    def commit(self, move: Move) -> None:
        """Only the empty move: gradients move these weights."""
        _refuse_moves(move)

    @override
    def save(self, path: Path) -> None:
        """In fp32, so that nothing of θ is lost."""
        self._as_center().save(path, "float32", self._checkpoint.folder)

    @override
    def save_center(self, path: Path) -> None:
        self._as_center().save_center(path)

    @override
    def load_center(self, path: Path) -> None:
        """Also reads the weights file of what `save` wrote."""
        center = self._as_center()
        center.load_center(path)
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(torch.from_numpy(center.tensor(name)))

    @override
    def checksum(self) -> str:
        """The live weights are θ."""
        return self.center_sha256()

    @override
    def center_sha256(self) -> str:
        return self._as_center().weights_sha256()

    @override
    def tensor_bytes(self) -> Mapping[str, int]:
        """`kv` is the largest cache so far."""
        served = {} if self._server is None else {f"server {k}": n for k, n in self._server.tensor_bytes().items()}
        kv = served.pop("server kv", self._generator.kv_bytes)
        return {"weights": sum(p.nbytes for p in self._parameters.values()), "kv": kv} | served

    @override
    def held(self) -> Held:
        return held_here()

    @override
    def close(self) -> None:
        """Free the server; the module belongs to its trainer."""
        if self._server is not None:
            self._server.close()

    def _as_center(self) -> Center:
        """A copy of θ on the host, for as long as a file or a hash is made of it."""
        center = Center({name: tuple(p.shape) for name, p in self._parameters.items()})
        for name, parameter in self._parameters.items():
            center.tensor(name)[...] = parameter.detach().float().cpu().numpy()
        return center


def _refuse_moves(*moves: Move) -> None:
    if any(move != EMPTY for move in moves):
        raise EngineError("a policy in training has no candidates: measure its saved weights")
