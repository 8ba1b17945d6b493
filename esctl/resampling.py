"""Bootstrap over problems: one drawing of problems, shared by every row, gives every pair of rows its interval.

Leaves what is resampled to `pairs`, and intervals in closed form to `stats`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from esctl.stats import Estimate

Floats = NDArray[np.float64]
RESAMPLES = 2000
SEED = 20260203  # of the drawing: equal inputs give equal intervals
BLOCK = 1 << 20  # draws at a time: 8 MiB of counts whatever the number of problems


@dataclass(frozen=True)
class Resamples:
    """Rows of per-problem scores, and their means when the problems are drawn again."""

    values: Floats  # (rows,) means over the problems as they are
    means: Floats  # (resamples, rows), of scores and two added problems that count 0
    tilt: Floats  # (resamples,) what the two added problems add to a difference

    def difference(self, first: int, second: int) -> Estimate:
        """Mean of row `first` minus mean of row `second`, with its 95 % percentile interval."""
        value = float(self.values[first] - self.values[second])
        low, high = np.quantile(self.means[:, first] - self.means[:, second] + self.tilt, (0.025, 0.975))
        return Estimate(value, min(float(low), value), max(float(high), value))


def resampled(scores: Floats, resamples: int = RESAMPLES) -> Resamples:
    """Draw the problems of `scores` (rows × problems, in [0, 1]) again and again, the same way for every row.

    A row's scores are averaged over its seeds, so that a problem is drawn with all of its answers. To every difference
    belong two more problems, one that the first row wins and one that the second wins, as Agresti & Min (2005) add for
    Wald's interval: otherwise rows that agree on all, or almost all, problems would get an interval of no width.
    """
    n_problems = scores.shape[1]
    n = n_problems + 2
    rng = np.random.default_rng(SEED)
    step = max(1, BLOCK // n)
    means, tilts = [], []
    for done in range(0, resamples, step):
        counts = _counts(rng, min(step, resamples - done), n)
        means.append(counts[:, :n_problems] @ scores.T / n)
        tilts.append((counts[:, -2] - counts[:, -1]) / n)
    return Resamples(scores.mean(axis=1), np.concatenate(means), np.concatenate(tilts))


def _counts(rng: np.random.Generator, resamples: int, n: int) -> Floats:
    """How often each of n problems was drawn, in each resample of n draws with replacement."""
    draws = rng.integers(0, n, size=(resamples, n), dtype=np.int32)
    draws += np.arange(0, resamples * n, n, dtype=np.int32)[:, None]
    return np.bincount(draws.ravel(), minlength=resamples * n).reshape(resamples, n).astype(np.float64)
