"""Whether RL holds what the formula says: peak memory of two steps above the loaded library, KV cache apart.

    python bench/rl_memory.py --model FOLDER [--methods grpo,ppo]

The library is what remains of the same steps on the embedded model, 3 MB of weights, without what the formula says of
it. Each run is a process of its own. The law: measured over formula lies within 15 % of 1.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch

from esctl.engines.process import host_peak
from esctl.experiment.estimates.memory import Setting, architecture, footprint
from esctl.experiment.experiment import Experiment
from esctl.experiment.loading import load_recipe
from esctl.experiment.recipe import EMBEDDED
from esctl.training.rl import Step, open_trainer

MIB = 1 << 20
PROMPTS, SAMPLES, MICROBATCH, NEW_TOKENS = 4, 4, 4, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--methods", default="grpo,ppo")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # in the child: the model
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.methods, args.measure)))
        return
    for method in args.methods.split(","):
        report(method, in_a_process(method, EMBEDDED), in_a_process(method, str(args.model)))


def measure(method: str, model: str) -> dict[str, int]:
    """Bytes of one process: its peak, its KV cache, and the formula in the setting that it met."""
    recipe = load_recipe(
        f"arithmetic/{method}",
        {"model": model, "generations": 2, "prompts": PROMPTS, "method.samples": SAMPLES},
        [f"method.microbatch={MICROBATCH}", f"sampling.max_tokens={NEW_TOKENS}", "eval.every=0", "eval.final=null"],
    )
    experiment = Experiment(recipe)
    experiment.check_training()
    baseline = recipe.baseline
    assert baseline is not None
    trainer, lengths = open_trainer(experiment, baseline), list[int]()

    def record(step: Step) -> None:
        for ids, own in zip(step.chosen.token_ids, step.samples, strict=True):
            lengths.extend(len(ids) + len(s.completion.token_ids) for s in own)

    trainer.train(0, record)
    setting = Setting(
        "fp32",
        max(lengths),
        MICROBATCH,
        rollouts=PROMPTS * SAMPLES,
        reference=baseline.kl > 0,
        copy=False,
        cpu=not torch.cuda.is_available(),
    )
    formula = footprint(method, architecture(model), setting)
    held = trainer.tensor_bytes()
    kv = trainer.engine.tensor_bytes()["kv"]
    return {"peak": host_peak(), "kv": kv, "formula": formula.total, "live": sum(held.values()), "seq": max(lengths)}


def in_a_process(method: str, model: str) -> dict[str, int]:
    command = [sys.executable, __file__, "--methods", method, "--model", model, "--measure", model]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    found: dict[str, int] = json.loads(output.splitlines()[-1])
    return found


def report(method: str, small: dict[str, int], large: dict[str, int]) -> None:
    library = small["peak"] - small["formula"]
    measured = large["peak"] - library
    print(
        f"{method}: measured {measured / MIB:,.0f} MiB above a library of {library / MIB:,.0f},"
        f" formula {large['formula'] / MIB:,.0f} at {MICROBATCH} × {large['seq']} tokens:"
        f" ratio {measured / large['formula']:.3f}; states counted on live tensors {large['live'] / MIB:,.0f},"
        f" KV cache apart {large['kv'] / MIB:,.0f}"
    )


if __name__ == "__main__":
    main()
