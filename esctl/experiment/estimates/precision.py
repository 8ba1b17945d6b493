"""How much of a candidate, a probe and a step the serving dtype realises, by class of tensor; no forward pass.

A move asks for Σ = Σᵢ cᵢεᵢ. What is served moves by cast(fl(θ + Σ)) − cast(θ), rounded once to nearest even, as in
every engine. With both as vectors over the weights of a class, the cosine says how much of the direction is left, and
the ratio of norms how much of the length. A step that is not served is not lost: θ keeps it in fp32, and later
steps add to it. What is not served of a candidate is lost: its score is that of what was served.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from esctl.engines.weights.center import Center, cast, tensor_id
from esctl.engines.weights.files import read_into, stored_tensors
from esctl.engines.weights.model import canonical_shapes, check_model
from esctl.errors import UsageError
from esctl.experiment.experiment import find_model
from esctl.experiment.recipe import Recipe
from esctl.methods.protocol import Method
from esctl.noise import cpu
from esctl.noise.moves import EMPTY, Move

CLASSES: Final = ("embedding", "attention", "mlp", "norm", "bias", "output", "other")
SPAN = 1 << 16  # weights that are looked at together
SPANS = 64  # of a tensor at most, evenly spread: cosines of 4 M weights are right to a thousandth

Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Sums:
    """Inner products over so many weights of what was asked and what was served; adds up."""

    weights: int = 0
    moved: int = 0  # weights whose served value changed
    asked: float = 0.0  # ⟨asked, asked⟩
    served: float = 0.0  # ⟨served, served⟩
    both: float = 0.0  # ⟨asked, served⟩

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(
            self.weights + other.weights,
            self.moved + other.moved,
            self.asked + other.asked,
            self.served + other.served,
            self.both + other.both,
        )

    @property
    def cosine(self) -> float:
        """Of the angle between both; 0 where nothing moved."""
        return self.both / math.sqrt(self.asked * self.served) if self.served else 0.0

    @property
    def norm_ratio(self) -> float:
        """‖served‖/‖asked‖."""
        return math.sqrt(self.served / self.asked) if self.asked else 0.0


@dataclass(frozen=True)
class Realised:
    """One model under one method in one serving dtype: `sums[move][class]`."""

    model: str
    method: str
    sigma: float
    dtype: str
    moves: dict[str, int]  # terms of each
    sums: dict[str, dict[str, Sums]]


def realised(recipe: Recipe, dtype: str) -> Realised:
    """Every tensor of the recipe's model under the moves of a first generation; one tensor in memory at a time."""
    if recipe.baseline is not None or recipe.kind == "external":
        raise UsageError(f"method.kind: {recipe.kind} asks for no candidates; choose es, essam or essam-f")
    folder = find_model(recipe.model)
    shapes = canonical_shapes(check_model(folder)[1])
    method = recipe.evolution
    moves = moves_of(method, recipe.seed, sum(map(math.prod, shapes.values())))
    sums: dict[str, dict[str, Sums]] = {kind: {} for kind in moves}
    for name, theta in _tensors(folder):
        for kind, move in moves.items():
            here = sums[kind]
            here[class_of(name)] = here.get(class_of(name), Sums()) + tensor_sums(name, theta, move, dtype)
    terms = {kind: len(move) for kind, move in moves.items()}
    return Realised(recipe.model, recipe.kind, method.sigma, dtype, terms, sums)


def moves_of(method: Method, seed: int, dim: int) -> dict[str, Move]:
    """What a first generation writes if scores are standard normal: a candidate, the probe if any, and the step."""
    scores = random.Random(seed)
    state = method.start(seed, dim)
    found = dict[str, Move]()
    move = EMPTY
    while state.generation == 0:
        round_ = method.ask(state)
        found.setdefault("candidate", round_.candidates[0])
        if round_.center != EMPTY:
            found["probe"] = round_.center
        state, move = method.tell(state, [scores.gauss(0.0, 1.0) for _ in round_.candidates])
    return found | {"step": move}


def class_of(name: str) -> str:
    """The class of a canonical tensor, by its name."""
    parts = name.split(".")
    if parts[-1] == "bias":
        return "bias"
    for word, found in (("norm", "norm"), ("embed", "embedding"), ("lm_head", "output"), ("mlp", "mlp")):
        if any(word in part for part in parts):
            return found
    return "attention" if any("attn" in part or "attention" in part for part in parts) else "other"


def tensor_sums(name: str, theta: Float32, move: Move, dtype: str) -> Sums:
    """One tensor, given as fp32[n]; of a long one, evenly spread spans."""
    total = Sums()
    for start in _starts(theta.size):
        span = theta[start : start + SPAN]
        asked = np.zeros_like(span)
        exact = np.empty_like(span)
        cpu.write(asked, asked, move, tensor_id(name), start)
        cpu.write(exact, span, move, tensor_id(name), start)
        total += _compared(asked.astype(np.float64), _cast(exact, dtype) - _cast(span, dtype))
    return total


def _starts(size: int) -> list[int]:
    spans = math.ceil(size / SPAN)
    return [SPAN * (i * spans // min(spans, SPANS)) for i in range(min(spans, SPANS))]


def _compared(asked: NDArray[np.float64], served: NDArray[np.float64]) -> Sums:
    products = float(asked @ asked), float(served @ served), float(asked @ served)
    return Sums(asked.size, int(np.count_nonzero(served)), *products)


def _cast(values: Float32, dtype: str) -> NDArray[np.float64]:
    found: NDArray[np.float64] = cast(values, dtype).double().numpy()
    return found


def _tensors(model: Path | str) -> Iterator[tuple[str, Float32]]:
    """Each canonical tensor as fp32[n]; a folder in another format is converted as a whole first."""
    folder, config = check_model(model)
    stored = stored_tensors(folder)
    shapes = canonical_shapes(config)
    if {name: tensor.shape for name, tensor in stored.items()} == shapes:
        for name, tensor in stored.items():
            values = np.empty(shapes[name], np.float32)
            read_into(tensor, values)
            yield name, values.reshape(-1)
        return
    center = Center.load(folder)
    yield from ((name, center.tensor(name).reshape(-1)) for name in center.names)
