"""Whether memory stays flat over many candidate writes: every packed matrix is replaced by a new one in each of them.

    python bench/writes.py --model FOLDER [--writes 200]

The law: over the second half of the writes resident memory grows by less than 2 % of the weights (4 MiB for small
ones, which is what an allocator may keep), and the weights are afterwards bitwise what they were. Prints resident
memory after the first ten writes and at the end, and the slope. On SmolLM2-135M it takes some three minutes.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import psutil

from esctl.engines import EngineSpec, Sampling, open_engine
from esctl.noise.moves import EMPTY, Move, Round

EMBEDDED = Path(__file__).parent.parent / "esctl" / "assets" / "tiny"
MIB = 1 << 20
SHARE, LEAST = 0.02, 4.0  # of the weights; MiB
FIRST = 10  # writes after which allocators have settled


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=EMBEDDED)
    parser.add_argument("--engine", choices=("vllm", "transformers"), default="vllm")
    parser.add_argument("--writes", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    engine = open_engine(EngineSpec(args.model, kind=args.engine, max_model_len=512))
    before = engine.checksum()
    resident: list[float] = []
    begun = time.perf_counter()
    engine.rollout(
        Round(0, 0, EMPTY, tuple(Move.of([seed], [1e-3]) for seed in range(args.writes))),
        [[5, 6, 7]],
        Sampling(0.0, 2, ignore_eos=True),
        on_candidate=lambda *_: resident.append(psutil.Process().memory_info().rss / MIB),
    )
    half = np.array(resident[args.writes // 2 :])
    slope = float(np.polyfit(np.arange(len(half)), half, 1)[0])
    result = {
        "model": args.model.name,
        "writes": args.writes,
        "seconds_per_write": (time.perf_counter() - begun) / args.writes,
        "weights_mib": engine.tensor_bytes()["weights"] / MIB,
        "resident_mib_first": resident[FIRST],
        "resident_mib_last": resident[-1],
        "resident_mib_highest": max(resident),
        "mib_per_write_second_half": slope,
        "weights_unchanged": engine.checksum() == before,
    }
    engine.close()
    if args.json:
        print(json.dumps(result))
        return
    print("\n".join(f"{name:>26}  {value}" for name, value in result.items()))
    growth, allowed = slope * len(half), max(SHARE * result["weights_mib"], LEAST)
    holds = growth < allowed and result["weights_unchanged"]
    print(f"law: under {allowed:.1f} MiB more over the last {len(half)} writes, and equal weights after them")
    print(f"{'holds' if holds else 'FAILS'}: {args.model.name}, {args.engine}: {growth:+.2f} MiB")


if __name__ == "__main__":
    main()
