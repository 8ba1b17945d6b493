"""Measure what the embedded model is able to do when it answers in the asked-for style, with transformers alone.

    python tools/measure_tiny_model.py [FOLDER] [--n 512] [--pass-n 96] [--k 64]

The first tokens of the two other styles are forbidden, which no recipe can do. The package measures what the model does
by itself, and how it moves under noise and training:

    esctl eval FOLDER --recipe arithmetic/es -n 1024            greedy accuracy and format rate
    esctl sharpness FOLDER --recipe arithmetic/es --help        accuracy under weight noise
    esctl train --recipe arithmetic/es --model FOLDER           whether it learns
"""

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2ForCausalLM

from esctl.tasks import EMBEDDED, TEST, Problem, Task, TaskSpec, open_task

MAX_TOKENS = 64
BATCH = 512
# First tokens of the two other styles: without them a worked solution with its marked ending is all that is left.
OTHER_STYLES = ("It", " The")


@dataclass(frozen=True)
class Subject:
    """A model, its tokenizer, and the task it is measured on."""

    model: Qwen2ForCausalLM
    tokenizer: PreTrainedTokenizerFast
    task: Task

    @torch.inference_mode()
    def answers(self, problems: Sequence[Problem], temperature: float) -> list[str]:
        """One completion in the worked style for each problem."""
        forbidden = [self.tokenizer.encode(s, add_special_tokens=False)[0] for s in OTHER_STYLES]
        drawing = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
        texts = []
        for first in range(0, len(problems), BATCH):
            turns = [[{"role": "user", "content": p.question}] for p in problems[first : first + BATCH]]
            prompts = list(self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False))
            inputs = self.tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
            out = self.model.generate(**inputs, max_new_tokens=MAX_TOKENS, suppress_tokens=forbidden, **drawing)
            texts += self.tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        return texts

    def right(self, problems: Sequence[Problem], temperature: float = 0.0) -> list[bool]:
        """Which problems are right in the asked-for format."""
        return [g.strict for g in self.task.grade(problems, self.answers(problems, temperature))]


def by_tier(problems: Sequence[Problem], flags: Sequence[bool]) -> str:
    """`overall % (tier %, …)`."""
    parts = []
    for tier in sorted({p.difficulty for p in problems}):
        own = [flag for p, flag in zip(problems, flags, strict=True) if p.difficulty == tier]
        parts.append(f"{tier} {100 * statistics.fmean(own):.1f} %")
    return f"{100 * statistics.fmean(flags):.1f} % ({', '.join(parts)})"


def report(subject: Subject, n: int, n_pass: int, k: int) -> None:
    """Print greedy accuracy and pass@k in the worked style."""
    problems = subject.task.problems(TEST)[:n]
    print(f"{subject.task.name}: worked style, greedy, {n} test problems", by_tier(problems, subject.right(problems)))
    few = problems[:n_pass]
    for temperature in (0.6, 1.0):
        tries = subject.right([p for p in few for _ in range(k)], temperature)
        counts = [sum(tries[i * k : (i + 1) * k]) for i in range(len(few))]
        first = 100 * statistics.fmean(counts) / k
        solved = by_tier(few, [c > 0 for c in counts])
        print(f"  T = {temperature}: pass@1 {first:.1f} %, pass@{k} {solved}", flush=True)


def main() -> None:
    """Measure one folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("esctl/assets/tiny"))
    parser.add_argument("--n", type=int, default=512, help="test problems for greedy numbers")
    parser.add_argument("--pass-n", type=int, default=96, help="test problems for pass@k")
    parser.add_argument("--k", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = Qwen2ForCausalLM.from_pretrained(args.folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(args.folder)
    for name in EMBEDDED:
        report(Subject(model, tokenizer, open_task(TaskSpec(name))), args.n, args.pass_n, args.k)


if __name__ == "__main__":
    main()
