"""The reference engine: Transformers' module as it is, with a sampling loop of its own.

It shares no inference code with vLLM, so that the tests can compare the two engines.
"""

import gc
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from typing_extensions import override

from esctl.engines import Engine, EngineSpec, OnCandidate, Samples, Sampling, Seeds, TokenIds
from esctl.engines.candidates import each_candidate
from esctl.engines.checkpoint import Checkpoint, serving_dtype
from esctl.engines.process import Held, held_here, random_states_kept, use_threads
from esctl.engines.sampler import Generator, left_padded, positions_of
from esctl.engines.weights.center import Center
from esctl.engines.weights.device import Part, WrittenWeights
from esctl.engines.weights.dtypes import dtype_name
from esctl.engines.weights.model import check_model, quiet_transformers
from esctl.engines.weights.shards import Partition, Share, piece
from esctl.noise.moves import Move, Round

if TYPE_CHECKING:
    from transformers import PreTrainedModel


NLL_ROWS = 8  # sequences whose logits over all target tokens are held at once


class TransformersEngine(Engine):
    """An `Engine` on one device: CUDA where there is one, else the CPU."""

    def __init__(self, spec: EngineSpec) -> None:
        import transformers

        self._checkpoint = Checkpoint.open(spec)
        self._dtype = serving_dtype(spec)
        self._generator = Generator(self._checkpoint, spec.kv_memory)
        threads = use_threads(spec.threads)
        with random_states_kept():
            center = Center.load(spec.model, spec.probes)
            self._weights: _Weights | None = _Weights(_load(spec.model, self._dtype), center, spec)
        self.dim = center.dim
        device = self._live.device
        self.description = (
            f"transformers {transformers.__version__}, {dtype_name(self._dtype)}, {device}, {threads} threads"
        )

    @property
    def _live(self) -> "_Weights":
        assert self._weights is not None, "the engine is closed"
        return self._weights

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
        """`finite` is known per sequence."""

        def evaluate() -> Samples:
            return self._generator.complete(self._live.module, prompts, sampling, seeds)

        with random_states_kept():
            return each_candidate(self._live, round_, evaluate, on_candidate, stay)

    @override
    def restore(self) -> None:
        self._live.restore()

    @override
    def nll(self, round_: Round, prompts: Sequence[TokenIds], targets: Sequence[TokenIds]) -> list[list[float]]:
        self._checkpoint.room(prompts, 1)
        self._checkpoint.room([[*p, *t] for p, t in zip(prompts, targets, strict=True)], 1)

        def evaluate() -> list[float]:
            spans = range(0, len(prompts), NLL_ROWS)
            return [
                nll
                for i in spans
                for nll in _nll(self._live.module, prompts[i : i + NLL_ROWS], targets[i : i + NLL_ROWS])
            ]

        with random_states_kept():
            return each_candidate(self._live, round_, evaluate)

    @override
    def commit(self, move: Move) -> None:
        self._live.commit(move)

    @override
    def save(self, path: Path) -> None:
        self._live.center.save(path, dtype_name(self._dtype), self._checkpoint.folder)

    @override
    def save_center(self, path: Path) -> None:
        self._live.center.save_center(path)

    @override
    def load_center(self, path: Path) -> None:
        self._live.load_center(path)

    @override
    def checksum(self) -> str:
        return self._live.checksum()

    @override
    def center_sha256(self) -> str:
        return self._live.center.weights_sha256()

    @override
    def tensor_bytes(self) -> Mapping[str, int]:
        """`kv` is the largest cache so far, the cache of one batch."""
        return self._live.bytes() | {"kv": self._generator.kv_bytes}

    @override
    def held(self) -> Held:
        return held_here()

    @override
    def close(self) -> None:
        self._weights = None
        gc.collect()


class _Weights(WrittenWeights):
    """The module's parameters by canonical name, which are its own names, and the center they are written from."""

    def __init__(self, module: "PreTrainedModel", center: Center, spec: EngineSpec) -> None:
        self.module = module
        parameters = dict(module.named_parameters())  # tied tensors once, under the name that save_pretrained keeps
        assert parameters.keys() == center.shapes.keys(), parameters.keys() ^ center.shapes.keys()
        self._live = {name: parameters[name].detach() for name in center.names}
        first = next(iter(self._live.values()))
        self.device = first.device
        parts = [
            Part(piece(name, tuple(live.shape), Partition.WHOLE, Share()), live) for name, live in self._live.items()
        ]
        super().__init__(center, parts, spec.probes, spec.center)
        # fp32 on the host is written in place; what no kernel writes passes through one fp32 tensor on the host.
        self._in_place = self.device.type == "cpu" and first.dtype == torch.float32
        direct = self._in_place or self._device is not None
        self._scratch = torch.empty(0 if direct else max(t.numel() for t in self._live.values()))

    @override
    def write(self, move: Move) -> None:
        if self._device is not None:
            self._device.write(move)
            return
        for name, live in self._live.items():
            if self._in_place:
                self._host.candidate(name, move, live.numpy())
            else:
                exact = self._scratch[: live.numel()].view(live.shape)
                self._host.candidate(name, move, exact.numpy())
                live.copy_(exact)  # the one rounding, to nearest even

    def checksum(self) -> str:
        digest = hashlib.sha256()
        for name, live in self._live.items():
            digest.update(f"{name}\0{list(live.shape)}\0".encode())
            digest.update((live + 0.0).cpu().reshape(-1).view(torch.uint8).numpy().data)  # -0.0 and 0.0 are equal
        return digest.hexdigest()

    def bytes(self) -> dict[str, int]:
        live = sum(t.nbytes for t in self._live.values())
        return {"weights": live, "scratch": self._scratch.nbytes} | self.center_bytes()


def _load(model: Path | str, dtype: torch.dtype) -> "PreTrainedModel":
    from transformers import AutoModelForCausalLM

    folder, config = check_model(model)
    with quiet_transformers():
        module: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=dtype, trust_remote_code=False
        )
    return module.eval().to("cuda" if torch.cuda.is_available() else "cpu")


def _nll(module: "PreTrainedModel", prompts: Sequence[TokenIds], targets: Sequence[TokenIds]) -> list[float]:
    """Padding is on the left, so the targets end each row and only their logits are computed."""
    ids, mask = left_padded([[*p, *t] for p, t in zip(prompts, targets, strict=True)], module.device)
    kept = max(map(len, targets))
    if kept == 0:
        return [0.0] * len(prompts)
    with torch.inference_mode():
        logits = module(
            input_ids=ids, attention_mask=mask, position_ids=positions_of(mask), logits_to_keep=kept + 1
        ).logits[:, :-1]
    losses = torch.nn.functional.cross_entropy(logits.float().transpose(1, 2), ids[:, -kept:], reduction="none")
    return [float(row[kept - len(t) :].double().sum()) for row, t in zip(losses, targets, strict=True)]
