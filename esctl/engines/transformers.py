"""The reference engine: Transformers' module as it is, with a sampling loop of its own.

Leaves θ to `center` and the order of candidates to `rounds`. It shares no code with vLLM, so that each can be held
against the other.
"""

import gc
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from esctl.engines import Completion, EngineSpec, Sampling, TokenIds
from esctl.engines.caller import random_states_kept, use_threads
from esctl.engines.center import Center, check_model, quiet_transformers
from esctl.engines.checkpoint import Checkpoint, dtype_name, grouped, serving_dtype
from esctl.engines.rounds import each_candidate
from esctl.moves import EMPTY, Move, Round

if TYPE_CHECKING:
    from transformers import PreTrainedModel

GIB = 1 << 30
ROWS = 128  # sequences in a batch, where no KV budget says otherwise
NLL_ROWS = 8  # sequences whose logits over all target tokens are held at once


class TransformersEngine:
    """An `Engine` on one device: CUDA where there is one, else the CPU."""

    def __init__(self, spec: EngineSpec) -> None:
        import transformers

        self._checkpoint = Checkpoint.open(spec)
        self._dtype = serving_dtype(spec)
        self._kv_budget = spec.kv_memory
        self._kv_bytes = 0
        threads = use_threads(spec.threads)
        with random_states_kept():
            center = Center.load(spec.model, spec.probes)
            self._weights: _Weights | None = _Weights(_load(spec.model, self._dtype), center)
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
    ) -> list[list[list[Completion]]]:
        """See `Engine.rollout`; `finite` is known per sequence."""
        seeds = [[0]] * len(prompts) if seeds is None else seeds
        room = self._checkpoint.room(prompts, sampling.max_tokens)
        rows = [
            _Row(prompt, limit, seed) for prompt, limit, own in zip(prompts, room, seeds, strict=True) for seed in own
        ]
        sizes = [len(own) for own in seeds]

        def evaluate() -> list[list[Completion]]:
            return grouped(self._generate(rows, sampling), sizes)

        with random_states_kept():
            return each_candidate(self._live, round_, evaluate, on_candidate)

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
        self._live.center.commit(move)
        self._live.restore()

    def save(self, path: Path) -> None:
        """See `Engine.save`."""
        self._live.center.save(path, dtype_name(self._dtype), self._checkpoint.folder)

    def save_center(self, path: Path) -> None:
        """See `Engine.save_center`."""
        self._live.center.save_center(path)

    def load_center(self, path: Path) -> None:
        """See `Engine.load_center`."""
        self._live.center.load_center(path)
        self._live.restore()

    def checksum(self) -> str:
        """See `Engine.checksum`."""
        return self._live.checksum()

    def center_sha256(self) -> str:
        """See `Engine.center_sha256`."""
        return self._live.center.weights_sha256()

    def tensor_bytes(self) -> Mapping[str, int]:
        """See `Engine.tensor_bytes`; `kv` is the largest cache so far, the cache of one batch."""
        return self._live.bytes() | {"kv": self._kv_bytes}

    def close(self) -> None:
        """See `Engine.close`."""
        self._weights = None
        gc.collect()

    def _generate(self, rows: "Sequence[_Row]", sampling: Sampling) -> list[Completion]:
        stops = frozenset[int]() if sampling.ignore_eos else self._checkpoint.stop_ids
        size = self._batch_rows(rows)
        batches = [rows[i : i + size] for i in range(0, len(rows), size)]
        samples = [s for batch in batches for s in _sample(self._live.module, batch, sampling, stops)]
        self._kv_bytes = max([self._kv_bytes, *map(self._cache_bytes, batches)])
        return self._checkpoint.completions([s.tokens for s in samples], [s.finite for s in samples], sampling)

    def _batch_rows(self, rows: "Sequence[_Row]") -> int:
        """As many sequences as the KV budget holds, at least one; a constant without a budget."""
        if self._kv_budget is None or not rows:
            return ROWS
        return max(1, int(self._kv_budget * GIB) * len(rows) // self._cache_bytes(rows))

    def _cache_bytes(self, batch: "Sequence[_Row]") -> int:
        longest = max(len(row.prompt) for row in batch) + max(row.limit for row in batch)
        return len(batch) * longest * self._checkpoint.kv_elements * self._dtype.itemsize


class _Weights:
    """The module's parameters by canonical name, which are its own names, and the center they are written from."""

    def __init__(self, module: "PreTrainedModel", center: Center) -> None:
        self.module, self.center = module, center
        parameters = dict(module.named_parameters())  # tied tensors once, under the name that save_pretrained keeps
        assert parameters.keys() == center.shapes.keys(), parameters.keys() ^ center.shapes.keys()
        self._live = {name: parameters[name].detach() for name in center.names}
        first = next(iter(self._live.values()))
        self.device = first.device
        # fp32 on the host is written where it lies; anything else passes through one fp32 tensor on the host.
        self._in_place = self.device.type == "cpu" and first.dtype == torch.float32
        self._scratch = torch.empty(0 if self._in_place else max(t.numel() for t in self._live.values()))

    def stage(self, move: Move) -> None:
        self.center.stage(move)

    def write(self, move: Move) -> None:
        for name, live in self._live.items():
            if self._in_place:
                self.center.candidate(name, move, live.numpy())
            else:
                exact = self._scratch[: live.numel()].view(live.shape)
                self.center.candidate(name, move, exact.numpy())
                live.copy_(exact)  # the one rounding, to nearest even

    def restore(self) -> None:
        self.center.unstage()
        self.write(EMPTY)

    def checksum(self) -> str:
        digest = hashlib.sha256()
        for name, live in self._live.items():
            digest.update(f"{name}\0{list(live.shape)}\0".encode())
            digest.update((live + 0.0).cpu().reshape(-1).view(torch.uint8).numpy().data)  # -0.0 and 0.0 are equal
        return digest.hexdigest()

    def bytes(self) -> dict[str, int]:
        live = sum(t.nbytes for t in self._live.values())
        return {"weights": live, "scratch": self._scratch.nbytes} | self.center.bytes()


@dataclass(frozen=True)
class _Row:
    """One sequence to be sampled."""

    prompt: TokenIds
    limit: int  # new tokens at most
    seed: int


@dataclass(frozen=True)
class _Sample:
    tokens: list[int]
    finite: bool


def _load(model: Path | str, dtype: torch.dtype) -> "PreTrainedModel":
    from transformers import AutoModelForCausalLM

    folder, config = check_model(model)
    with quiet_transformers():
        module: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=dtype)
    return module.eval().to("cuda" if torch.cuda.is_available() else "cpu")


def _sample(
    module: "PreTrainedModel", rows: Sequence[_Row], sampling: Sampling, stops: frozenset[int]
) -> list[_Sample]:
    """Generate one batch: a prefill, then one token per step for every row until all have ended.

    A row that has ended rides along, so that the batch, and with it every rounding, depends on the inputs only.
    """
    device = module.device
    ids, mask = _left_padded([row.prompt for row in rows], device)
    uniform = _uniforms(rows, sampling).to(device)
    limits = torch.tensor([row.limit for row in rows], device=device)
    ends = torch.tensor(sorted(stops), dtype=torch.long, device=device)
    finite = torch.ones(len(rows), dtype=torch.bool, device=device)
    length, drawn = torch.zeros_like(limits), torch.empty((len(rows), 0), dtype=torch.long, device=device)
    active, positions, cache = finite.clone(), _positions(mask), None
    with torch.inference_mode():
        for step in range(max(row.limit for row in rows)):
            output = module(
                input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, logits_to_keep=1
            )
            logits, cache = output.logits[:, -1].float(), output.past_key_values
            finite &= logits.isfinite().all(-1) | ~active
            ids = _choose(logits, sampling, uniform[:, step : step + 1])
            drawn, length = torch.cat([drawn, ids], 1), length + active
            active &= ~torch.isin(ids[:, 0], ends) & (length < limits)
            if not active.any():
                break
            mask, positions = torch.cat([mask, mask.new_ones(len(rows), 1)], 1), positions[:, -1:] + 1
    tokens = [row[:n] for row, n in zip(drawn.tolist(), length.tolist(), strict=True)]
    return [_Sample(t, ok) for t, ok in zip(tokens, finite.tolist(), strict=True)]


def _choose(logits: Tensor, sampling: Sampling, uniform: Tensor) -> Tensor:
    """[rows, 1] token ids: the largest logit, or the inverse of the nucleus' distribution function at `uniform`."""
    if sampling.temperature == 0:
        return logits.argmax(-1, keepdim=True)
    weight, order = (logits / sampling.temperature).softmax(-1).sort(dim=-1, descending=True, stable=True)
    before = weight.cumsum(-1) - weight
    mass = (weight * (before < sampling.top_p)).cumsum(-1)
    place = torch.searchsorted(mass, uniform * mass[:, -1:], right=True).clamp(max=logits.shape[-1] - 1)
    chosen: Tensor = order.gather(-1, place)
    return chosen


def _uniforms(rows: Sequence[_Row], sampling: Sampling) -> Tensor:
    """[rows, steps] in [0, 1), each row from its own seed, so that no sample depends on what shares its batch."""
    steps = max(row.limit for row in rows)
    if sampling.temperature == 0:
        return torch.zeros(len(rows), steps)
    return torch.stack([torch.rand(steps, generator=torch.Generator().manual_seed(row.seed)) for row in rows])


def _nll(module: "PreTrainedModel", prompts: Sequence[TokenIds], targets: Sequence[TokenIds]) -> list[float]:
    """Padding is on the left, so the targets end each row and only their logits are computed."""
    ids, mask = _left_padded([[*p, *t] for p, t in zip(prompts, targets, strict=True)], module.device)
    kept = max(map(len, targets))
    if kept == 0:
        return [0.0] * len(prompts)
    with torch.inference_mode():
        logits = module(
            input_ids=ids, attention_mask=mask, position_ids=_positions(mask), logits_to_keep=kept + 1
        ).logits[:, :-1]
    losses = torch.nn.functional.cross_entropy(logits.float().transpose(1, 2), ids[:, -kept:], reduction="none")
    return [float(row[kept - len(t) :].double().sum()) for row, t in zip(losses, targets, strict=True)]


def _left_padded(rows: Sequence[TokenIds], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask, [rows, longest]; the pad id is never attended to."""
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows], device=device)
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=device)
    return ids, mask


def _positions(mask: Tensor) -> Tensor:
    """A row's first token stands at 0, whatever padding precedes it."""
    return (mask.cumsum(-1) - 1).clamp(min=0)
