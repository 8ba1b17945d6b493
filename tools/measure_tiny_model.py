"""Measure what the embedded model can do and what it is inclined to, with transformers alone.

Knows sampling, weight noise and a plain ES loop; leaves problems and grading to the tasks.

    python tools/measure_tiny_model.py [FOLDER] [--es 10]
"""

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2ForCausalLM

from esctl.tasks import TEST, TRAIN, Problem, Task
from esctl.tasks.embedded import ArithmeticTask, TinyCountdownTask

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

    def prompts(self, problems: Sequence[Problem]) -> list[str]:
        """The rendered conversations, up to where the answer begins."""
        turns = [[{"role": "user", "content": p.question}] for p in problems]
        return list(self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False))

    @torch.inference_mode()
    def answers(self, problems: Sequence[Problem], temperature: float = 0.0, worked: bool = False) -> list[str]:
        """One completion for each problem; `worked` forbids the other styles."""
        suppressed = [self.tokenizer.encode(s, add_special_tokens=False)[0] for s in OTHER_STYLES] if worked else None
        drawing = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
        texts = []
        for first in range(0, len(problems), BATCH):
            prompts = self.prompts(problems[first : first + BATCH])
            inputs = self.tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
            out = self.model.generate(**inputs, max_new_tokens=MAX_TOKENS, suppress_tokens=suppressed, **drawing)
            texts += self.tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        return texts

    def right(self, problems: Sequence[Problem], temperature: float = 0.0, worked: bool = False) -> list[bool]:
        """Which problems are right in the asked-for format."""
        return [g.strict for g in self.task.grade(problems, self.answers(problems, temperature, worked))]

    def rewards(self, problems: Sequence[Problem]) -> float:
        """Mean reward, as the shipped recipes have it: strict + 0.1 · formatted."""
        grades = self.task.grade(problems, self.answers(problems))
        return statistics.fmean(g.strict + 0.1 * g.formatted for g in grades)


def share(flags: Sequence[bool]) -> float:
    """Percent of flags that are true."""
    return 100 * sum(flags) / len(flags)


def by_tier(problems: Sequence[Problem], flags: Sequence[bool]) -> str:
    """`overall % (tier %, …)`."""
    tiers = sorted({p.difficulty for p in problems})
    parts = [
        f"{t} {share([f for p, f in zip(problems, flags, strict=True) if p.difficulty == t]):.1f} %" for t in tiers
    ]
    return f"{share(flags):.1f} % ({', '.join(parts)})"


@torch.no_grad()
def shift(model: Qwen2ForCausalLM, terms: Sequence[tuple[int, float]]) -> None:
    """θ ← θ + Σ c·ε(seed); torch's noise, since this is a check of the model and not of the noise."""
    for seed, coefficient in terms:
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=coefficient)


def under_noise(subject: Subject, problems: Sequence[Problem], sigma: float, seeds: Sequence[int]) -> list[float]:
    """Greedy strict accuracy in percent, once for each seed; the weights come back exactly."""
    kept = {k: v.clone() for k, v in subject.model.state_dict().items()}
    found = []
    for seed in seeds:
        shift(subject.model, [(seed, sigma)])
        found.append(share(subject.right(problems)))
        subject.model.load_state_dict(kept)
    return found


def evolve(subject: Subject, test: Sequence[Problem], generations: int, seed: int, every: int = 5) -> None:
    """ES, θ ← θ + (α/N) Σ zᵢεᵢ, with N = 16, σ = α = 0.015 and 64 prompts; prints test accuracy on the way."""
    n, sigma = 16, 0.015
    train = subject.task.problems(TRAIN)
    for generation in range(generations):
        batch = train[generation * 64 : generation * 64 + 64]
        seeds = [10**6 * seed + 1000 * generation + i for i in range(n)]
        kept = {k: v.clone() for k, v in subject.model.state_dict().items()}
        scores = []
        for s in seeds:
            shift(subject.model, [(s, sigma)])
            scores.append(subject.rewards(batch))
            subject.model.load_state_dict(kept)
        mean, sd = statistics.fmean(scores), statistics.pstdev(scores)
        shift(subject.model, [(s, sigma / n * (r - mean) / (sd + 1e-8)) for s, r in zip(seeds, scores, strict=True)])
        line = f"  ES seed {seed} generation {generation + 1}: reward {mean:.3f} ± {sd:.3f}"
        if (generation + 1) % every == 0:
            grades = by_tier(test, subject.right(test)), share(subject.right(test, worked=True))
            line += f", test {grades[0]}, worked {grades[1]:.1f} %"
        print(line, flush=True)


def report(subject: Subject, n: int, n_pass: int, k: int) -> None:
    """Print what the model is inclined to, what it is able to, and how stable both are."""
    problems = subject.task.problems(TEST)[:n]
    grades = subject.task.grade(problems, subject.answers(problems))
    print(f"{subject.task.name}: {n} test problems")
    print("  greedy strict", by_tier(problems, [g.strict for g in grades]))
    print(
        f"  greedy flexible {share([g.flexible for g in grades]):.1f} %, "
        f"formatted {share([g.formatted for g in grades]):.1f} %"
    )
    print("  worked style, greedy", by_tier(problems, subject.right(problems, worked=True)), flush=True)
    few = problems[:n_pass]
    for temperature in (0.6, 1.0):
        tries = subject.right([p for p in few for _ in range(k)], temperature, worked=True)
        counts = [sum(tries[i * k : (i + 1) * k]) for i in range(len(few))]
        print(
            f"  worked style, T = {temperature}: pass@1 {100 * statistics.fmean(counts) / k:.1f} %, pass@{k}",
            by_tier(few, [c > 0 for c in counts]),
            flush=True,
        )


def stability(subject: Subject) -> None:
    """Print how greedy accuracy moves under small and under ES-sized weight noise."""
    test = subject.task.problems(TEST)[:256]
    small = under_noise(subject, test, 0.003, range(5))
    print(f"  sigma 0.003, 5 seeds: {min(small):.1f}-{max(small):.1f} %")
    spread = under_noise(subject, subject.task.problems(TRAIN)[:64], 0.015, range(16))
    print(
        f"  sigma 0.015, 16 members x 64 prompts: {statistics.fmean(spread):.1f} ± {statistics.pstdev(spread):.1f} %, "
        f"best {max(spread):.1f} %",
        flush=True,
    )


def main() -> None:
    """Measure one folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("esctl/assets/tiny"))
    parser.add_argument("--n", type=int, default=512, help="test problems for greedy numbers")
    parser.add_argument("--pass-n", type=int, default=96, help="test problems for pass@k")
    parser.add_argument("--k", type=int, default=64)
    parser.add_argument("--es", type=int, default=0, help="generations of ES")
    parser.add_argument("--seeds", type=int, default=1, help="runs of ES")
    parser.add_argument("--tasks", nargs="*", default=["arithmetic", "tiny-countdown"])
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    for task in (ArithmeticTask(), TinyCountdownTask()):
        if task.name not in args.tasks:
            continue
        subject = load(args.folder, task)
        report(subject, args.n, args.pass_n, args.k)
        stability(subject)
        for seed in range(args.seeds if args.es else 0):
            fresh = load(args.folder, task)
            evolve(fresh, task.problems(TEST)[: args.n], args.es, seed)


def load(folder: Path, task: Task) -> Subject:
    """Read a model folder for a task."""
    return Subject(Qwen2ForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder), task)


if __name__ == "__main__":
    main()
