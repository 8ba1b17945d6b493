"""How much faster two one-core engines roll out a generation than one one-core engine.

    python bench/fleet.py                                               # embedded model, 64 prompts × 32 tokens
    python bench/fleet.py --probe                                       # candidates around a probe, as in ESSAM
    python bench/fleet.py --model FOLDER --prompts 32 --members 4       # a real model

The law: at least 1.8 times, the median over turns. One engine and the fleet take turns on the same round, the order
reversed each time, so that a busy machine slows both; needs two idle cores. Each must give the same tokens.

The bound is what the machine allows: each engine of the fleet does the whole round at the same time as the others, so
that nothing is handed out and none waits. Two cores that share a clock and a memory are not twice one. Takes three
minutes.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from esctl.engines import Completion, Engine, EngineSpec, Sampling, open_engine
from esctl.engines.fleet.engine import Fleet
from esctl.noise.moves import EMPTY, Move, Round

EMBEDDED = Path(__file__).parent.parent / "esctl" / "assets" / "tiny"
CONTEXT = 512
LIMIT = 1.8

Rollouts = list[list[list[Completion]]]


class Turn(NamedTuple):
    """Seconds of the same round."""

    alone: float  # by one engine
    together: float  # by the fleet
    apart: float  # by every engine of the fleet, each the whole of it, at the same time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=EMBEDDED)
    parser.add_argument("--engine", choices=("auto", "vllm", "transformers"), default="auto")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--members", type=int, default=16, help="candidates of a round")
    parser.add_argument("--probe", action="store_true", help="stage a probe of as many terms under the candidates")
    parser.add_argument("--turns", type=int, default=11)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    spec = EngineSpec(args.model, kind=args.engine, threads=1, max_model_len=CONTEXT, probes=args.probe)
    prompts = [[5 + (7 * i + 3 * j) % 200 for j in range(24)] for i in range(args.prompts)]
    sampling = Sampling(0.0, args.tokens, ignore_eos=True)
    round_ = round_of(args.members, args.probe)
    one, fleet = open_engine(spec), open_engine(replace(spec, replicas=args.replicas))
    assert isinstance(fleet, Fleet), "one engine is no fleet: give --replicas 2 or more"

    def roll(engine: Engine) -> Rollouts:
        return engine.rollout(round_, prompts, sampling)

    try:
        turns = [turn(one, fleet, roll, backwards=bool(i % 2)) for i in range(args.turns + 1)][1:]  # the first compiles
    finally:
        fleet.close()
        one.close()
    report(args, turns)


def round_of(members: int, probe: bool) -> Round:
    """As many candidates of one seed each, around θ or around a probe of as many seeds."""
    center = Move.of(range(1000, 1000 + members), [1e-4] * members) if probe else EMPTY
    return Round(0, 0, center, tuple(Move.of([seed], [1e-3]) for seed in range(members)))


def turn(one: Engine, fleet: Fleet, roll: Callable[[Engine], Rollouts], backwards: bool) -> Turn:
    """Each does the same round once, in this order or the other way round."""
    contestants: list[Callable[[], list[Rollouts]]] = [
        lambda: [roll(one)],
        lambda: [roll(fleet)],
        lambda: list(fleet.pool.all(roll).values()),  # the one place that asks engines past the fleet
    ]
    done = [timed(contestant) for contestant in (reversed(contestants) if backwards else contestants)]
    (alone, [expected]), (together, shared), (apart, each) = reversed(done) if backwards else done
    assert all(found == expected for found in [*shared, *each]), "the fleet gave other tokens than one engine"
    return Turn(alone, together, apart)


def timed(roll: Callable[[], list[Rollouts]]) -> tuple[float, list[Rollouts]]:
    """Seconds of a round, and what it gave."""
    begun = time.perf_counter()
    completions = roll()
    return time.perf_counter() - begun, completions


def report(args: argparse.Namespace, turns: list[Turn]) -> None:
    speedups = sorted(turn.alone / turn.together for turn in turns)
    bounds = sorted(args.replicas * turn.alone / turn.apart for turn in turns)
    found = {
        "replicas": args.replicas,
        "members": args.members,
        "one_seconds": statistics.median(turn.alone for turn in turns),
        "fleet_seconds": statistics.median(turn.together for turn in turns),
        "speedup": statistics.median(speedups),
        "speedup_lowest": speedups[0],
        "speedup_highest": speedups[-1],
        "bound": statistics.median(bounds),
        "turns": len(turns),
    }
    if args.json:
        print(json.dumps(found))
        return
    print("\n".join(f"{name:>15}  {value}" for name, value in found.items()))
    print(f"speed-up {found['speedup']:.2f} (the law: {LIMIT} for two; this machine allows {found['bound']:.2f})")


if __name__ == "__main__":
    main()
