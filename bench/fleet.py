"""How much faster two one-core engines roll out a generation than one one-core engine.

    python bench/fleet.py                                               # embedded model, 64 prompts × 32 tokens
    python bench/fleet.py --probe                                       # candidates around a probe, as in ESSAM
    python bench/fleet.py --model FOLDER --prompts 32 --members 4       # a real model

The law: at least 1.8 times, the median over pairs. One engine and the fleet take turns on the same round, so that a
busy machine slows both; needs two idle cores. Each must give the same tokens. Takes two minutes.
"""

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

from esctl.engines import Completion, Engine, EngineSpec, Sampling, open_engine
from esctl.moves import EMPTY, Move, Round

EMBEDDED = Path(__file__).parent.parent / "esctl" / "assets" / "tiny"
CONTEXT = 512
LIMIT = 1.8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=EMBEDDED)
    parser.add_argument("--engine", choices=("auto", "vllm", "transformers"), default="auto")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--members", type=int, default=16, help="candidates of a round")
    parser.add_argument("--probe", action="store_true", help="stage a probe of as many terms under the candidates")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    spec = EngineSpec(args.model, kind=args.engine, threads=1, max_model_len=CONTEXT, probes=args.probe)
    prompts = [[5 + (7 * i + 3 * j) % 200 for j in range(24)] for i in range(args.prompts)]
    sampling = Sampling(0.0, args.tokens, ignore_eos=True)
    round_ = round_of(args.members, args.probe)
    one, fleet = open_engine(spec), open_engine(replace(spec, replicas=args.replicas))
    try:
        pairs = [pair(one, fleet, round_, prompts, sampling) for _ in range(args.pairs + 1)][1:]  # the first compiles
    finally:
        fleet.close()
        one.close()
    report(args, pairs)


def round_of(members: int, probe: bool) -> Round:
    """As many candidates of one seed each, around θ or around a probe of as many seeds."""
    center = Move.of(range(1000, 1000 + members), [1e-4] * members) if probe else EMPTY
    return Round(0, 0, center, tuple(Move.of([seed], [1e-3]) for seed in range(members)))


def pair(
    one: Engine, fleet: Engine, round_: Round, prompts: list[list[int]], sampling: Sampling
) -> tuple[float, float]:
    """Seconds of one engine and of the fleet, on the same round."""
    (alone, expected), (together, found) = (timed(engine, round_, prompts, sampling) for engine in (one, fleet))
    assert found == expected, "the fleet gave other tokens than one engine"
    return alone, together


def timed(
    engine: Engine, round_: Round, prompts: list[list[int]], sampling: Sampling
) -> tuple[float, list[list[list[Completion]]]]:
    """Seconds of a round, and what it gave."""
    begun = time.perf_counter()
    completions = engine.rollout(round_, prompts, sampling)
    return time.perf_counter() - begun, completions


def report(args: argparse.Namespace, pairs: list[tuple[float, float]]) -> None:
    speedup = statistics.median(alone / together for alone, together in pairs)
    alone, together = (statistics.median(seconds) for seconds in zip(*pairs, strict=True))
    found = {"one_seconds": alone, "fleet_seconds": together, "replicas": args.replicas, "speedup": speedup}
    if args.json:
        print(json.dumps(found))
        return
    print(
        f"one engine {alone:.2f} s, {args.replicas} engines {together:.2f} s for a round of {args.members} candidates"
    )
    print(f"speed-up {speedup:.2f} (the law: {LIMIT} for two), median over {len(pairs)} pairs")


if __name__ == "__main__":
    main()
