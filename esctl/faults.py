"""Named points where a test may kill the process, to prove that nothing recorded is lost. Off by default."""

import os
import signal
from collections import Counter

VARIABLE = "ESCTL_FAULT"  # "point:n" kills at the n-th arrival at the point
POINTS = ("mid-candidate", "mid-append", "mid-rename", "mid-checkpoint")
_arrivals: Counter[str] = Counter()


def reach(point: str) -> None:
    """Die by SIGKILL here when the environment says so."""
    point_and_count = os.environ.get(VARIABLE)
    if point_and_count is None:
        return
    name, _, count = point_and_count.partition(":")
    _arrivals[point] += 1
    if name == point and _arrivals[point] == int(count or 1):
        os.kill(os.getpid(), signal.SIGKILL)
