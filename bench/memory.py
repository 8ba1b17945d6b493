"""Whether a process holds what the formula says: peak memory of training above the loaded library, KV cache apart.

    python bench/memory.py --model FOLDER [--engine vllm|transformers]

The law: the peak above the library, KV apart, is within 10 % of the sum of tensors. The library is what remains of a
run on the embedded model, 3 MB of weights, without its own tensors. Each run is a process of its own: start, one round
of each of a two-round method's kinds, a commit. On SmolLM2-135M it takes some two minutes.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from esctl.engines import EngineSpec, Sampling, open_engine
from esctl.engines.process import host_peak
from esctl.noise.moves import EMPTY, Move, Round

EMBEDDED = Path(__file__).parent.parent / "esctl" / "assets" / "tiny"
MIB = 1 << 20
WITHIN = 0.10
KV_GIB = 0.25  # small enough to be apart, and the same for both models


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--engine", choices=("vllm", "transformers"), default="vllm")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)  # in the child
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.model, args.engine)))
    else:
        report(args, in_a_process(EMBEDDED, args.engine), in_a_process(args.model, args.engine))


def measure(model: Path, kind: str) -> dict[str, int]:
    """Bytes of one process: its peak, its tensors by purpose."""
    engine = open_engine(EngineSpec(model, kind=kind, max_model_len=256, kv_memory=KV_GIB, probes=True))
    prompts, sampling = [[5 + (i + j) % 40 for j in range(16)] for i in range(8)], Sampling(0.0, 8, ignore_eos=True)
    probe, candidates = Move.of([9], [1e-3]), tuple(Move.of([seed], [1e-3]) for seed in range(3))
    engine.rollout(Round(0, 0, EMPTY, candidates), prompts, sampling)
    engine.rollout(Round(0, 1, probe, candidates), prompts, sampling)
    engine.commit(probe)
    found = {"peak": host_peak(), **engine.tensor_bytes()}
    engine.close()
    return found


def in_a_process(model: Path, kind: str) -> dict[str, int]:
    command = [sys.executable, __file__, "--measure", "--model", str(model), "--engine", kind]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    found: dict[str, int] = json.loads(output.splitlines()[-1])
    return found


def report(args: argparse.Namespace, small: dict[str, int], large: dict[str, int]) -> None:
    library = small["peak"] - sum(v for name, v in small.items() if name != "peak")
    formula = sum(v for name, v in large.items() if name not in ("peak", "kv"))
    measured = large["peak"] - library - large["kv"]
    result = {name: round(value / MIB, 1) for name, value in large.items()} | {
        "library": round(library / MIB, 1),
        "formula": round(formula / MIB, 1),
        "measured": round(measured / MIB, 1),
        "measured_over_formula": round(measured / formula, 3),
    }
    if args.json:
        print(json.dumps(result))
        return
    print("MiB, and a ratio", *(f"{name:>22}  {value}" for name, value in result.items()), sep="\n")
    holds = abs(measured / formula - 1) <= WITHIN
    print(f"law: peak above the library, KV apart, within {WITHIN:.0%} of the formula")
    print(f"{'holds' if holds else 'FAILS'}: {args.model.name}, {args.engine}: {measured / formula - 1:+.1%}")


if __name__ == "__main__":
    main()
