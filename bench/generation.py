"""What a candidate costs above the same generate call in vLLM as it ships: write, reset, finite check, grading.

    python bench/generation.py                                                  # embedded model, 64 prompts × 32 tokens
    python bench/generation.py --model FOLDER --prompts 32 --tokens 64 --members 2

The law: at most 1.10 times the plain calls, the median over rounds. Both engines live in one process and take turns by
the decoding step, so that a machine whose speed changes from second to second slows both. Takes one minute, and with
SmolLM2-135M some six.
"""

import argparse
import json
import re
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from esctl.engines import Completion, EngineSpec, Sampling
from esctl.engines.process import process_kept
from esctl.engines.vllm.engine import VLLMEngine
from esctl.engines.vllm.patches import llvmlite_hidden
from esctl.noise.moves import EMPTY, Move, Round

if TYPE_CHECKING:
    from vllm import LLM, PoolingRequestOutput, RequestOutput

EMBEDDED = Path(__file__).parent.parent / "esctl" / "assets" / "tiny"
CONTEXT = 512
LIMIT = 1.10
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=EMBEDDED)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--members", type=int, default=4, help="candidates of a round, and as many plain calls")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu counts this process only, on a busy machine"
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    engine = VLLMEngine(EngineSpec(args.model, kind="vllm", max_model_len=CONTEXT))
    plain = as_it_ships(args.model)
    prompts = [[5 + (7 * i + 3 * j) % 200 for j in range(24)] for i in range(args.prompts)]
    rounds = [
        measure(engine, plain, prompts, args.tokens, args.members, CLOCKS[args.clock]) for _ in range(args.rounds + 1)
    ][1:]  # the first compiles and fills caches
    engine.close()
    report(args, rounds)


def as_it_ships(model: Path) -> "LLM":
    """Start vLLM with its own loader, tokenizer and packed weights, and the same KV budget."""
    from vllm import LLM

    with process_kept(), llvmlite_hidden():
        return LLM(
            str(model),
            dtype="float32",
            enforce_eager=True,
            max_model_len=CONTEXT,
            max_num_seqs=256,
            kv_cache_memory_bytes=1 << 30,
        )


def measure(
    engine: VLLMEngine, plain: "LLM", prompts: list[list[int]], tokens: int, members: int, clock: Callable[[], float]
) -> tuple[float, float]:
    """Seconds per candidate of one round, its restore included; and of as many plain calls, made between its steps."""
    theirs, calls, graded = 0.0, plain_calls(plain, prompts, tokens, members), list[int]()
    llm_engine = engine.ranks.llm.llm_engine
    step = llm_engine.step

    def plain_step() -> bool:
        nonlocal theirs
        begun = clock()
        more = next(calls, False)
        theirs += clock() - begun
        return more

    def both_step() -> "list[RequestOutput | PoolingRequestOutput]":
        plain_step()
        return step()

    def grade(_: int, completions: list[list[Completion]]) -> None:
        graded.extend(len(re.findall(r"\d+", sample.text)) for samples in completions for sample in samples)

    round_ = Round(0, 0, EMPTY, tuple(Move.of([seed], [1e-3]) for seed in range(members)))
    llm_engine.step = both_step
    begun = clock()
    engine.rollout(round_, prompts, Sampling(0.0, tokens, ignore_eos=True), on_candidate=grade)
    ours = clock() - begun - theirs
    del llm_engine.step  # the class's own again
    while plain_step():
        pass
    assert len(graded) == members * len(prompts), len(graded)
    return ours / members, theirs / members


def plain_calls(plain: "LLM", prompts: list[list[int]], tokens: int, members: int) -> Iterator[bool]:
    """What `plain.generate` does, so many times, a step at a time: True after each step."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    for _ in range(members):
        plain.reset_prefix_cache()  # else only the first call would read the prompts
        plain.enqueue([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        while plain.llm_engine.has_unfinished_requests():
            plain.llm_engine.step()
            yield True


def report(args: argparse.Namespace, rounds: list[tuple[float, float]]) -> None:
    ratios = sorted(ours / theirs for ours, theirs in rounds)
    result = {
        "model": args.model.name,
        "prompts": args.prompts,
        "tokens": args.tokens,
        "esctl_seconds": statistics.median(ours for ours, _ in rounds),
        "vllm_seconds": statistics.median(theirs for _, theirs in rounds),
        "ratio": statistics.median(ratios),
        "ratio_lowest": ratios[0],
        "ratio_highest": ratios[-1],
        "rounds": len(rounds),
    }
    if args.json:
        print(json.dumps(result))
    else:
        print("\n".join(f"{name:>14}  {value}" for name, value in result.items()))
        ratio = statistics.median(ratios)
        print(f"law: a candidate costs at most {LIMIT:.2f} times the same calls in vLLM as it ships, grading included")
        print(f"{'holds' if ratio <= LIMIT else 'FAILS'}: {args.model.name}, {args.clock} time: {ratio:.3f} times")


if __name__ == "__main__":
    main()
