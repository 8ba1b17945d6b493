"""What engines are held against: a plain Transformers module whose noise is the specification's, and what to ask.

Leaves opening engines, and every assertion, to the tests.
"""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from esctl.engines import ENGINES, Completion, Sampling
from esctl.noise import spec
from esctl.noise.moves import EMPTY, Move, Round

KINDS = tuple(ENGINES)
SHORT, GREEDY = Sampling(0.0, 1), Sampling(0.0, 12, ignore_eos=True)
A, B = Move.of([1, 2], [0.05, -0.03]), Move.of([3], [0.04])
PROMPTS = [[7 + (5 * i + 3 * j) % 45 for j in range(4 + 3 * i)] for i in range(4)]
TARGETS = [[9, 20, 31], [40], [12, 13], [50, 8, 17, 30]]


def around(*candidates: Move, center: Move = EMPTY) -> Round:
    return Round(0, 0, center, candidates)


def module_of(folder: Path, write: Callable[[str, np.ndarray], np.ndarray] = lambda _, theta: theta):
    """A Transformers module whose canonical tensors are `write(name, θ)`."""
    from transformers import AutoModelForCausalLM

    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for name, parameter in module.named_parameters():
        parameter.data = torch.from_numpy(write(name, parameter.detach().numpy()))
    return module


def moved(*moves: Move) -> Callable[[str, np.ndarray], np.ndarray]:
    """θ after one move and then the next, by the specification."""

    def write(name: str, theta: np.ndarray) -> np.ndarray:
        for move in moves:
            flat = spec.reference_write(theta.reshape(-1), move, spec.tensor_id(name))
            theta = flat.reshape(theta.shape)
        return theta

    return write


def reference_nll(module, prompt: Sequence[int], target: Sequence[int]) -> float:
    """One sequence, no padding, no cache."""
    with torch.no_grad():
        logits = module(torch.tensor([[*prompt, *target]])).logits[0, len(prompt) - 1 : -1]
    return -float(logits.double().log_softmax(-1).gather(1, torch.tensor(target)[:, None]).sum())


def reference_greedy(module, prompt: Sequence[int], n: int) -> tuple[int, ...]:
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(n):
            ids.append(int(module(torch.tensor([ids])).logits[0, -1].argmax()))
    return tuple(ids[len(prompt) :])


def expected_nll(folder: Path, *moves: Move) -> list[float]:
    module = module_of(folder, moved(*moves))
    return [reference_nll(module, p, t) for p, t in zip(PROMPTS, TARGETS, strict=True)]


def tokens_of(candidate: list[list[Completion]]) -> list[tuple[int, ...]]:
    return [samples[0].token_ids for samples in candidate]


def random_states() -> tuple[object, ...]:
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


def close_to(values: Sequence[float]):
    return pytest.approx(values, rel=2e-5, abs=1e-4)
