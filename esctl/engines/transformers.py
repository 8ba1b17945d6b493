"""The reference engine: Transformers' module as it is, with a sampling loop of its own.

Leaves θ to `center`, the order of candidates to `rounds`, and the loop to `generation`. It shares no code with vLLM,
so that each can be held against the other.
"""

import gc
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from esctl.engines import Completion, EngineSpec, Sampling, TokenIds
from esctl.engines.candidates import each_candidate
from esctl.engines.checkpoint import Checkpoint, dtype_name, serving_dtype
from esctl.engines.process import Held, held_here, random_states_kept, use_threads
from esctl.engines.sampler import Generator, left_padded, positions_of
from esctl.engines.weights.center import Center
from esctl.engines.weights.device import Part, open_on_device
from esctl.engines.weights.model import check_model, quiet_transformers
from esctl.engines.weights.shards import Share, Split, piece
from esctl.noise.moves import EMPTY, Move, Round

if TYPE_CHECKING:
    from transformers import PreTrainedModel


NLL_ROWS = 8  # sequences whose logits over all target tokens are held at once


class TransformersEngine:
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

    def rollout(
        self,
        round_: Round,
        prompts: Sequence[TokenIds],
        sampling: Sampling,
        seeds: Sequence[Sequence[int]] | None = None,
        on_candidate: Callable[[int, list[list[Completion]]], None] | None = None,
        *,
        stay: bool = False,
    ) -> list[list[list[Completion]]]:
        """See `Engine.rollout`; `finite` is known per sequence."""

        def evaluate() -> list[list[Completion]]:
            return self._generator.complete(self._live.module, prompts, sampling, seeds)

        with random_states_kept():
            return each_candidate(self._live, round_, evaluate, on_candidate, stay)

    def restore(self) -> None:
        """See `Engine.restore`."""
        self._live.restore()

    def nll(self, round_: Round, prompts: Sequence[TokenIds], targets: Sequence[TokenIds]) -> list[list[float]]:
        """See `Engine.nll`."""
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

    def commit(self, move: Move) -> None:
        """See `Engine.commit`."""
        self._live.commit(move)

    def save(self, path: Path) -> None:
        """See `Engine.save`."""
        self._live.center.save(path, dtype_name(self._dtype), self._checkpoint.folder)

    def save_center(self, path: Path) -> None:
        """See `Engine.save_center`."""
        self._live.center.save_center(path)

    def load_center(self, path: Path) -> None:
        """See `Engine.load_center`."""
        self._live.load_center(path)

    def checksum(self) -> str:
        """See `Engine.checksum`."""
        return self._live.checksum()

    def center_sha256(self) -> str:
        """See `Engine.center_sha256`."""
        return self._live.center.weights_sha256()

    def tensor_bytes(self) -> Mapping[str, int]:
        """See `Engine.tensor_bytes`; `kv` is the largest cache so far, the cache of one batch."""
        return self._live.bytes() | {"kv": self._generator.kv_bytes}

    def held(self) -> Held:
        """See `Engine.held`."""
        return held_here()

    def close(self) -> None:
        """See `Engine.close`."""
        self._weights = None
        gc.collect()


class _Weights:
    """The module's parameters by canonical name, which are its own names, and the center they are written from."""

    def __init__(self, module: "PreTrainedModel", center: Center, spec: EngineSpec) -> None:
        self.module, self._host = module, center
        parameters = dict(module.named_parameters())  # tied tensors once, under the name that save_pretrained keeps
        assert parameters.keys() == center.shapes.keys(), parameters.keys() ^ center.shapes.keys()
        self._live = {name: parameters[name].detach() for name in center.names}
        first = next(iter(self._live.values()))
        self.device = first.device
        parts = [Part(piece(name, tuple(live.shape), Split.WHOLE, Share()), live) for name, live in self._live.items()]
        self._device = open_on_device(center, parts, spec.probes, spec.center)
        # fp32 on the host is written where it lies; what no kernel writes passes through one fp32 tensor on the host.
        self._in_place = self.device.type == "cpu" and first.dtype == torch.float32
        direct = self._in_place or self._device is not None
        self._scratch = torch.empty(0 if direct else max(t.numel() for t in self._live.values()))

    @property
    def center(self) -> Center:
        """θ on the host, up to date."""
        return self._host if self._device is None else self._device.host()

    def stage(self, move: Move) -> None:
        (self._device or self._host).stage(move)

    def commit(self, move: Move) -> None:
        (self._device or self._host).commit(move)
        self.restore()

    def load_center(self, path: Path) -> None:
        self._host.load_center(path)
        if self._device is not None:
            self._device.load()
        self.restore()

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

    def restore(self) -> None:
        (self._device or self._host).unstage()
        self.write(EMPTY)

    def checksum(self) -> str:
        digest = hashlib.sha256()
        for name, live in self._live.items():
            digest.update(f"{name}\0{list(live.shape)}\0".encode())
            digest.update((live + 0.0).cpu().reshape(-1).view(torch.uint8).numpy().data)  # -0.0 and 0.0 are equal
        return digest.hexdigest()

    def bytes(self) -> dict[str, int]:
        live = sum(t.nbytes for t in self._live.values())
        return {"weights": live, "scratch": self._scratch.nbytes} | (self._device or self._host).bytes()


def _load(model: Path | str, dtype: torch.dtype) -> "PreTrainedModel":
    from transformers import AutoModelForCausalLM

    folder, config = check_model(model)
    with quiet_transformers():
        module: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=dtype)
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
