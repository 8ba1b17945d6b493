"""How fast answers are graded: GSM8K completions here, and math-verify through its pool.

    python bench/grading.py [--problems 1319] [--samples 64] [--hard 1000] [--workers 2] [--json]

The completions are made up: 400 characters of worked solution, half of them ending in `#### n`. The limit is 5 seconds
for 1,319 × 64 = 84,416 of them. Let nothing else run.
"""

import argparse
import json
import random
import sys
import time
from dataclasses import asdict, dataclass

from esctl.tasks import Limits, Problem, TaskSpec, open_task
from esctl.tasks.grading.boxes import BoxGrader

LIMIT_SECONDS = 5.0
LENGTH = 400  # characters


@dataclass(frozen=True)
class Report:
    """What was graded and how fast."""

    completions: int
    seconds: float  # all GSM8K completions, in this process
    right: int  # so that the work is known to be done
    hard_answers: int  # answers that only algebra can tell apart, each another
    hard_seconds: float
    hard_per_second: float  # workers already started
    start_seconds: float  # of a pool: its processes import math-verify
    workers: int
    within_limit: bool


def completion(rng: random.Random, answer: int) -> str:
    """A worked solution of LENGTH characters, right or wrong, in the asked-for format or not."""
    given = answer if rng.random() < 0.5 else rng.randint(1, 1000)
    ending = f"\n#### {given:,}" if rng.random() < 0.5 else f" So the answer is ${given:,}.00."
    steps = []
    while sum(map(len, steps)) < LENGTH - len(ending):
        a, b = rng.randint(1, 99), rng.randint(1, 99)
        steps.append(f"She buys {a} and then {b} more, which makes {a} + {b} = {a + b} of them. ")
    return "".join(steps)[: LENGTH - len(ending)] + ending


def gsm8k_seconds(n_problems: int, n_samples: int) -> tuple[float, int]:
    """Seconds for all completions, graded one sample of every problem at a time, and how many were right."""
    rng = random.Random(0)
    task = open_task(TaskSpec("gsm8k"))
    problems = [Problem(f"p{i}", "?", str(rng.randint(1, 5000))) for i in range(n_problems)]
    rounds = [[completion(rng, int(p.answer)) for p in problems] for _ in range(n_samples)]
    begun = time.perf_counter()
    right = sum(g.strict for texts in rounds for g in task.grade(problems, texts))
    return time.perf_counter() - begun, right


def hard_seconds(n: int, workers: int) -> tuple[float, float]:
    """Seconds to start a pool, and to grade n different answers that are neither text nor numbers."""
    grader = BoxGrader(Limits(timeout_seconds=20, workers=workers))
    begun = time.perf_counter()
    grader.grade(["x+1"] * workers, [f"\\boxed{{1+x+{i}-{i}}}" for i in range(workers)])
    started = time.perf_counter()
    golds = [f"\\left( {i}, \\frac{{\\pi}}{{2}} \\right)" for i in range(n)]
    grades = grader.grade(golds, [f"so \\boxed{{({i}, \\pi/2)}}" for i in range(n)])
    ended = time.perf_counter()
    failed = [g for g in grades if not g.strict]
    assert not failed, failed
    return started - begun, ended - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=1319)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--hard", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    seconds, right = gsm8k_seconds(args.problems, args.samples)
    start, hard = hard_seconds(args.hard, args.workers)
    n = args.problems * args.samples
    report = Report(n, seconds, right, args.hard, hard, args.hard / hard, start, args.workers, seconds < LIMIT_SECONDS)
    if args.json:
        print(json.dumps(asdict(report)))
    else:
        print(f"{n:,} GSM8K completions of {LENGTH} characters: {seconds:.2f} s ({n / seconds:,.0f} a second)")
        rate = f"{report.hard_per_second:,.0f} a second, after {start:.1f} s to start"
        print(f"{args.hard:,} answers through math-verify, {args.workers} workers: {rate}")
    return 0 if report.within_limit else 1


if __name__ == "__main__":
    sys.exit(main())
