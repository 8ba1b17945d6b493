"""What a model says of tokens that were drawn: their log-probabilities, entropies and values, in bounded memory.

Leaves drawing to `engines`, and what follows from these numbers to `losses`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from esctl.engines import TokenIds
from esctl.engines.sampler import left_padded, positions_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Rollout:
    """One sequence: a prompt and the tokens drawn after it, one at least."""

    prompt: TokenIds
    completion: TokenIds


class Padded(NamedTuple):
    """Rollouts as one batch: prompts padded on the left, completions on the right."""

    ids: Tensor  # [rows, prompt + completion]
    attention: Tensor  # [rows, prompt + completion], 1 where there is a token
    completion: Tensor  # [rows, completion], the tokens drawn
    mask: Tensor  # [rows, completion], fp32, 1 where there is a token


class Said(NamedTuple):
    """[rows, completion] each, 0 at padding."""

    logps: Tensor
    entropies: Tensor  # in nats; no gradient flows through them


def padded(rollouts: Sequence[Rollout], device: torch.device) -> Padded:
    """The batch of these rollouts, as wide as its longest prompt and its longest completion."""
    ids, attention = left_padded([r.prompt for r in rollouts], device)
    longest = max(len(r.completion) for r in rollouts)
    rows = [list(r.completion) + [0] * (longest - len(r.completion)) for r in rollouts]
    here = [[1] * len(r.completion) + [0] * (longest - len(r.completion)) for r in rollouts]
    completion, mask = torch.tensor(rows, device=device), torch.tensor(here, device=device)
    return Padded(torch.cat([ids, completion], 1), torch.cat([attention, mask], 1), completion, mask.float())


def hidden(backbone: nn.Module, batch: Padded) -> Tensor:
    """[rows, completion, hidden]: the state from which each completion token was drawn, before it was seen."""
    width = batch.mask.shape[1]
    output = backbone(
        input_ids=batch.ids,
        attention_mask=batch.attention,
        position_ids=positions_of(batch.attention),
        use_cache=False,
    )
    states: Tensor = output.last_hidden_state[:, -width - 1 : -1]
    return states


def said(model: "PreTrainedModel", batch: Padded, temperature: float, chunk: int) -> Said:
    """Log-probabilities of the drawn tokens at this temperature, `chunk` tokens' logits at a time.

    For a backward pass the logits of a chunk are computed again, never kept.
    """
    here = batch.mask.bool()
    states, targets = hidden(model.base_model, batch)[here], batch.completion[here]
    head = model.get_output_embeddings()
    parts = [
        checkpoint(_said, head, states[i : i + chunk], targets[i : i + chunk], temperature, use_reentrant=False)
        for i in range(0, len(targets), chunk)
    ]
    logps, entropies = (torch.cat(column) for column in zip(*parts, strict=True))
    empty = torch.zeros_like(batch.mask)
    return Said(empty.masked_scatter(here, logps), empty.masked_scatter(here, entropies))


def _said(head: nn.Module, states: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """([tokens], [tokens]) of [tokens, hidden]; the softmax is fp32 whatever the products are."""
    logps = (head(states).float() / temperature).log_softmax(-1)
    with torch.no_grad():
        entropies = -(logps.exp() * logps).sum(-1)
    return logps.gather(-1, targets[:, None])[:, 0], entropies


class Critic(nn.Module):
    """A language model's body with a value head that starts at 0."""

    def __init__(self, backbone: "PreTrainedModel", hidden_size: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.value = nn.Linear(hidden_size, 1, device=next(backbone.parameters()).device)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    def forward(self, batch: Padded) -> Tensor:
        """[rows, completion]: the value of the state before each completion token, 0 at padding."""
        values: Tensor = self.value(hidden(self.backbone, batch)).squeeze(-1).float()
        return values * batch.mask
