"""How fast a seed becomes a step: noise v1 beside `torch.randn` plus addition, and one update of 30 terms beside 30.

    python bench/noise.py [--model esctl/assets/tiny] [--engine auto] [--repeats 7] [--json]

Each ratio is the median over interleaved pairs of runs, so that a busy machine slows both alike. Let nothing else run;
it takes some two minutes.

A term is drawn at the same cost in one pass as in its own, so 30 passes of the kernel itself cost more only by what a
pass adds: reading the center, adding, writing. That is less than a draw unless memory is slow, and the better the pass,
the smaller this ratio: it is shown, and not promised. What is promised is an update: 30 terms committed to an engine
at once, its serving weights written and packed once, beside 30 commits of a term each.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numba
import numpy as np
import torch

from esctl.engines import EngineSpec, open_engine
from esctl.engines.weights.center import Center
from esctl.noise import cpu, spec
from esctl.noise.moves import Move, member_seed

TINY = Path(__file__).parent.parent / "esctl" / "assets" / "tiny"
SIGMA = 1e-3
N_TERMS = 30


@dataclass(frozen=True)
class Row:
    """One comparison; rates are in millions of (element, term) pairs per second."""

    what: str
    threads: int
    against: str
    esctl_rate: float
    other_rate: float
    ratio: float  # median of the pairs' ratios, larger is better
    target: float  # what the project promises; 0 where it promises nothing


def seconds(run: Callable[[], None], loops: int) -> float:
    begin = time.perf_counter()
    for _ in range(loops):
        run()
    return (time.perf_counter() - begin) / loops


def compare(
    what: str,
    against: str,
    work: int,
    ours: Callable[[], None],
    other: Callable[[], None],
    *,
    target: float,
    repeats: int,
) -> Row:
    """Time the two in turn; `work` counts (element, term) pairs of one run of either."""
    ours()
    other()
    loops = max(1, round(0.05 / seconds(ours, 1)))  # at least 50 ms each, so that the clock does not count
    pairs = [(seconds(ours, loops), seconds(other, loops)) for _ in range(repeats)]
    our_rate, other_rate = (work / median(column) / 1e6 for column in zip(*pairs, strict=True))
    ratio = median(theirs / own for own, theirs in pairs)
    return Row(what, numba.get_num_threads(), against, our_rate, other_rate, ratio, target)


def step(n_terms: int) -> Move:
    return Move.of([member_seed(0, 0, 0, i) for i in range(n_terms)], [SIGMA / (i + 1) for i in range(n_terms)])


class Weights:
    """Tensors with their fp32 centers, and the two ways of perturbing all of them."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self.centers = [np.zeros(int(np.prod(shape)), np.float32) for shape in shapes.values()]
        self.outs = [np.empty_like(c) for c in self.centers]
        self.ids = [spec.tensor_id(name) for name in shapes]
        self.torch = [(torch.from_numpy(o), torch.from_numpy(c)) for o, c in zip(self.outs, self.centers, strict=True)]
        self.size = sum(c.size for c in self.centers)

    def write(self, move: Move) -> None:
        """Every tensor in one pass."""
        for out, center, tensor in zip(self.outs, self.centers, self.ids, strict=True):
            cpu.write(out, center, move, tensor)

    def write_apart(self, move: Move) -> None:
        """The same step as a pass per term, in place."""
        for term in move.terms:
            one = Move((term,))
            for out, tensor in zip(self.outs, self.ids, strict=True):
                cpu.write(out, out, one, tensor)

    def randn_add(self, n_terms: int = 1) -> None:
        """A pass per term, as a seeded normal sample that is scaled and added."""
        for seed in range(n_terms):
            generator = torch.Generator().manual_seed(seed)
            for out, center in self.torch:
                torch.add(center, torch.randn(center.shape, generator=generator), alpha=SIGMA, out=out)


def one_term(weights: Weights, label: str, repeats: int, target: float) -> Row:
    move = step(1)
    return compare(
        f"{label}, 1 term",
        "randn + add",
        weights.size,
        lambda: weights.write(move),
        weights.randn_add,
        target=target,
        repeats=repeats,
    )


def many_terms(weights: Weights, label: str, repeats: int) -> list[Row]:
    move, work = step(N_TERMS), weights.size * N_TERMS
    passes: dict[str, tuple[Callable[[], None], float]] = {
        f"{N_TERMS} x (randn + add)": (lambda: weights.randn_add(N_TERMS), 3),
        f"{N_TERMS} passes of esctl": (lambda: weights.write_apart(move), 0),
    }
    return [
        compare(
            f"{label}, {N_TERMS} terms",
            against,
            work,
            lambda: weights.write(move),
            other,
            target=target,
            repeats=repeats,
        )
        for against, (other, target) in passes.items()
    ]


def update(model: Path, kind: str, repeats: int) -> Row:
    """One commit of all terms beside a commit per term, as a training loop meets them."""
    engine, move = open_engine(EngineSpec(model, kind=kind)), step(N_TERMS)

    def apart() -> None:
        for term in move.terms:
            engine.commit(Move((term,)))

    row = compare(
        f"{engine.description.split()[0]} engine, {N_TERMS} terms",
        f"{N_TERMS} commits",
        engine.dim * N_TERMS,
        lambda: engine.commit(move),
        apart,
        target=3,
        repeats=repeats,
    )
    engine.close()
    return row


def measure(model: Path, kind: str, repeats: int) -> list[Row]:
    found: list[Row] = []
    shapes = Center.load(model).shapes
    million, all_tensors = Weights({"weight": (1 << 20,)}), Weights(shapes)
    for threads in sorted({1, min(2, numba.config.NUMBA_NUM_THREADS)}):
        numba.set_num_threads(threads)
        torch.set_num_threads(threads)
        target = 2 if threads == 1 else 3
        found.append(one_term(million, "1 M elements", repeats, target))
        found.append(one_term(Weights({"weight": (1 << 24,)}), "16 M elements", repeats, target))
        found.append(one_term(all_tensors, f"{len(shapes)} tensors of {model.name}", repeats, 2))
        found += many_terms(million, "1 M elements", repeats)
        found += many_terms(all_tensors, f"{len(shapes)} tensors of {model.name}", repeats)
    return [*found, update(model, kind, repeats)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=TINY, help="folder whose tensors are perturbed")
    parser.add_argument("--engine", default="auto", help="the engine whose commits are timed")
    parser.add_argument("--repeats", type=int, default=7, help="interleaved pairs per ratio")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    arguments = parser.parse_args()
    found = measure(arguments.model, arguments.engine, arguments.repeats)
    if arguments.json:
        print(json.dumps([asdict(row) for row in found], indent=2))
        return
    print(f"{'what':30} {'threads':>7} {'against':20} {'M/s':>6} {'M/s':>6} {'ratio':>6} {'target':>6}")
    for row in found:
        rates = f"{row.esctl_rate:6.0f} {row.other_rate:6.0f} {row.ratio:6.2f}"
        target = f"{row.target:6.1f}" if row.target else " " * 6
        print(f"{row.what:30} {row.threads:7} {row.against:20} {rates} {target}")
    missed = [row.what for row in found if row.ratio < row.target]
    print(f"below target: {', '.join(missed)}" if missed else "every ratio reaches its target")
    if os.getloadavg()[0] > 2:
        print("the machine is busy: the ratios with two threads mean little", file=sys.stderr)


if __name__ == "__main__":
    main()
