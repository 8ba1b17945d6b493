"""How often the 95 % intervals of `esctl compare` hold the truth, where the truth is known.

    python bench/intervals.py [--trials 1000] [--quick] [--markdown]

A problem has a difficulty, a seed a strength; an answer is right with probability logistic(level + difficulty +
strength). `ratio` is the variance of the seeds' true accuracies over p(1−p)/problems, what the choice of problems alone
does to one run. With three or more seeds the truth is the mean over all problems and all seeds; with fewer, over all
problems for these very runs. A row's interval and the interval of a paired difference are counted apart.
"""

import argparse
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from esctl.comparison.rows import difference, mean_estimate
from esctl.stats import resampled

Floats = NDArray[np.float64]
DIFFICULTY_SD = 1.5  # of logits over problems: answers of one model to one problem are far from independent
SHARED = 0.8  # correlation of a problem's difficulty for the two rows of a pair
ENOUGH_SEEDS = 3
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(61)


@dataclass(frozen=True)
class Cell:
    """One setting of the simulation."""

    p: float  # accuracy of the first row; the second's is lower by a quarter of 1 − p
    problems: int
    seeds: int
    ratio: float
    samples: int = 1  # answers to each problem by each seed


@dataclass(frozen=True)
class Coverage:
    """Shares of trials in which the interval held the truth, and mean widths."""

    row: float
    row_width: float
    pair: float
    pair_width: float


@dataclass(frozen=True)
class World:
    """A row's answers: its level and how strongly seeds move it, both in logits."""

    level: float
    seed_sd: float

    def truth(self, strengths: Floats) -> float:
        """True accuracy: of all seeds, or of those whose strengths are given."""
        if len(strengths) >= ENOUGH_SEEDS:
            return expected(self.level, np.hypot(DIFFICULTY_SD, self.seed_sd))
        return float(np.mean([expected(self.level + s, DIFFICULTY_SD) for s in strengths]))


def logistic(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))


def expected(level: float, sd: float) -> float:
    """Mean of logistic(level + sd·z) over a standard normal z, by quadrature."""
    return float(logistic(level + sd * NODES) @ WEIGHTS / WEIGHTS.sum())


def world(p: float, cell: Cell) -> World:
    """The row with accuracy p whose seeds spread as the cell asks."""
    seed_sd, level = 0.0, 0.0
    wanted = cell.ratio * p * (1 - p) / cell.problems
    for _ in range(8 if cell.ratio else 1):  # both depend on each other
        level = root(lambda x, sd=seed_sd: expected(x, np.hypot(DIFFICULTY_SD, sd)) - p, -30.0, 30.0)
        seed_sd = root(lambda x, at=level: seed_variance(at, x) - wanted, 0.0, 20.0) if cell.ratio else 0.0
    return World(level, seed_sd)


def seed_variance(level: float, seed_sd: float) -> float:
    """Variance over seeds of a seed's true accuracy."""
    share = WEIGHTS / WEIGHTS.sum()
    means = logistic(level + seed_sd * NODES[:, None] + DIFFICULTY_SD * NODES[None, :]) @ share
    return float(share @ means**2 - (share @ means) ** 2)


def root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a rising function crosses zero, by bisection."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return (low + high) / 2


def answers(rng: np.random.Generator, row: World, difficulty: Floats, strengths: Floats, samples: int) -> Floats:
    """Shares right, seeds × problems."""
    chance = logistic(row.level + difficulty[None, :] + strengths[:, None])
    return rng.binomial(samples, chance) / samples


def simulate(cell: Cell, trials: int, seed: int = 0) -> Coverage:
    """Coverage of a row's interval and of a pair's, over independent trials."""
    rng = np.random.default_rng(seed)
    rows = world(cell.p, cell), world(cell.p - (1 - cell.p) / 4, cell)
    drawn = [trial(rng, cell, rows) for _ in range(trials)]
    stacked = np.array([scores.mean(axis=0) for both, _ in drawn for scores in both])
    draws = resampled(stacked)
    row_hits, pair_hits, widths = 0, 0, np.zeros(2)
    for number, ((first, second), (truth, gap)) in enumerate(drawn):
        row = mean_estimate(first, cell.samples)
        pair = difference(draws, 2 * number, 2 * number + 1, first.mean(axis=1).tolist(), second.mean(axis=1).tolist())
        row_hits += row.low <= truth <= row.high
        pair_hits += pair.low <= gap <= pair.high
        widths += (row.high - row.low, pair.high - pair.low)
    return Coverage(row_hits / trials, widths[0] / trials, pair_hits / trials, widths[1] / trials)


def trial(
    rng: np.random.Generator, cell: Cell, rows: tuple[World, World]
) -> tuple[tuple[Floats, ...], tuple[float, float]]:
    """The answers of both rows, and what their intervals should hold: the first row's accuracy, and the difference."""
    common = rng.normal(size=cell.problems) * np.sqrt(SHARED)
    found, truths = [], []
    for row in rows:
        own = rng.normal(size=cell.problems) * np.sqrt(1 - SHARED)
        strengths = row.seed_sd * rng.normal(size=cell.seeds)
        found.append(answers(rng, row, DIFFICULTY_SD * (common + own), strengths, cell.samples))
        truths.append(row.truth(strengths))
    return tuple(found), (truths[0], truths[0] - truths[1])


def grid(quick: bool) -> list[Cell]:
    """The cells of the table, greedy answers first; one seed has no ratio, since its interval is for that run alone."""
    if quick:
        return [Cell(0.5, 200, 1, 0.0), Cell(0.99, 200, 3, 0.0), Cell(0.9, 200, 5, 1.0)]
    cells = []
    for p, problems in itertools.product((0.5, 0.9, 0.97, 0.99), (100, 200, 1319)):
        cells += [Cell(p, problems, 1, 0.0), Cell(p, problems, 2, 1.0)]
        cells += [Cell(p, problems, *rest) for rest in itertools.product((3, 5, 10), (0.0, 1.0, 4.0))]
    return [*cells, *(Cell(p, 200, seeds, 1.0, samples=16) for p in (0.5, 0.99) for seeds in (1, 3))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="three cells")
    parser.add_argument("--markdown", action="store_true")
    asked = parser.parse_args()
    names = ("p", "problems", "seeds", "ratio", "samples", "row %", "width", "pair %", "width")
    mark = "| " if asked.markdown else ""
    print(mark + (" | " if mark else "").join(f"{n:>8}" for n in names))
    if mark:
        print("|---" * len(names) + "|")
    for cell in grid(asked.quick):
        c = simulate(cell, asked.trials)
        numbers = (cell.p, cell.problems, cell.seeds, cell.ratio, cell.samples)
        found = (f"{100 * c.row:.1f}", f"{100 * c.row_width:.1f}", f"{100 * c.pair:.1f}", f"{100 * c.pair_width:.1f}")
        print(mark + (" | " if mark else "").join(f"{n!s:>8}" for n in (*numbers, *found)), flush=True)


if __name__ == "__main__":
    main()
