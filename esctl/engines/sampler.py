"""Completions from a Transformers module under its present weights: the sampling loop, and padding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from esctl.engines import GIB, Completion, Samples, Sampling, Seeds, TokenIds
from esctl.engines.checkpoint import Checkpoint, grouped

if TYPE_CHECKING:
    from transformers import PreTrainedModel


ROWS = 128  # sequences in a batch, where no KV budget says otherwise


class Generator:
    """Samples in batches of fixed order from the module of its caller; holds no weights."""

    def __init__(self, checkpoint: Checkpoint, kv_budget: float | Literal["auto"]) -> None:
        self._checkpoint, self._kv_budget = checkpoint, kv_budget  # the budget in GiB
        self.kv_bytes = 0  # the largest cache so far, the cache of one batch

    def complete(
        self,
        module: "PreTrainedModel",
        prompts: Sequence[TokenIds],
        sampling: Sampling,
        seeds: Seeds | None,
    ) -> Samples:
        """[prompt][sample]; `seeds[prompt][sample]` as in `Engine.rollout`, None is one greedy sample each."""
        seeds = [[0]] * len(prompts) if seeds is None else seeds
        room = self._checkpoint.room(prompts, sampling.max_tokens)
        rows = [
            Row(prompt, limit, seed) for prompt, limit, own in zip(prompts, room, seeds, strict=True) for seed in own
        ]
        return grouped(self._generate(module, rows, sampling), [len(own) for own in seeds])

    def _generate(self, module: "PreTrainedModel", rows: "Sequence[Row]", sampling: Sampling) -> list[Completion]:
        stops = frozenset[int]() if sampling.ignore_eos else self._checkpoint.stop_ids
        token_bytes = self._checkpoint.kv_elements * module.dtype.itemsize
        size = self._batch_rows(rows, token_bytes)
        batches = [rows[i : i + size] for i in range(0, len(rows), size)]
        samples = [s for batch in batches for s in sample(module, batch, sampling, stops)]
        self.kv_bytes = max([self.kv_bytes, *(cache_bytes(batch, token_bytes) for batch in batches)])
        return self._checkpoint.completions([s.tokens for s in samples], [s.finite for s in samples], sampling)

    def _batch_rows(self, rows: "Sequence[Row]", token_bytes: int) -> int:
        """As many sequences as the KV budget holds, at least one; a constant without a budget."""
        if self._kv_budget == "auto" or not rows:
            return ROWS
        return max(1, int(self._kv_budget * GIB) * len(rows) // cache_bytes(rows, token_bytes))


@dataclass(frozen=True)
class Row:
    """One sequence to be sampled."""

    prompt: TokenIds
    limit: int  # new tokens at most
    seed: int


@dataclass(frozen=True)
class Sample:
    """The tokens of one row; an end token is the last."""

    tokens: list[int]
    finite: bool


def sample(module: "PreTrainedModel", rows: Sequence[Row], sampling: Sampling, stops: frozenset[int]) -> list[Sample]:
    """Generate one batch: a prefill, then one token per step for every row until all have ended.

    A row that has ended stays in the batch, so that the batch, and with it every rounding, depends on the inputs only.
    """
    device = module.device
    ids, mask = left_padded([row.prompt for row in rows], device)
    uniform = _uniforms(rows, sampling).to(device)
    limits = torch.tensor([row.limit for row in rows], device=device)
    ends = torch.tensor(sorted(stops), dtype=torch.long, device=device)
    finite = torch.ones(len(rows), dtype=torch.bool, device=device)
    length, drawn = torch.zeros_like(limits), torch.empty((len(rows), 0), dtype=torch.long, device=device)
    active, positions, cache = finite.clone(), positions_of(mask), None
    with torch.inference_mode():
        for step in range(max(row.limit for row in rows)):
            output = module(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,  # whatever a trainer has told the module's config
                logits_to_keep=1,
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
    return [Sample(t, ok) for t, ok in zip(tokens, finite.tolist(), strict=True)]


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


def _uniforms(rows: Sequence[Row], sampling: Sampling) -> Tensor:
    """[rows, steps] in [0, 1), each row from its own seed, so that no sample depends on the rest of its batch."""
    steps = max(row.limit for row in rows)
    if sampling.temperature == 0:
        return torch.zeros(len(rows), steps)
    return torch.stack([torch.rand(steps, generator=torch.Generator().manual_seed(row.seed)) for row in rows])


def left_padded(rows: Sequence[TokenIds], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask, [rows, longest]; the pad id is never attended to."""
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows], device=device)
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=device)
    return ids, mask


def positions_of(mask: Tensor) -> Tensor:
    """The first token of each row is at position 0, whatever padding precedes it."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


def cache_bytes(batch: Sequence[Row], token_bytes: int) -> int:
    """Keys and values of a whole batch, every row as long as the longest may become."""
    longest = max(len(row.prompt) for row in batch) + max(row.limit for row in batch)
    return len(batch) * longest * token_bytes
