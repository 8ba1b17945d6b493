"""Make the embedded model again: its tokenizer, its training from scratch, and what it can do.

    python tools/make_tiny_model.py [--out esctl/assets/tiny] [--learned FOLDER] [--threads 2]

A Qwen2 architecture of under a million parameters, trained on the mixed text of `esctl.tasks.world`.
"""

import argparse
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, Qwen2TokenizerFast

from esctl.tasks.world import (
    FAMILIES,
    LARGE,
    LEARNING,
    MIDDLE,
    NEARING,
    PRETRAIN,
    SETTLING,
    Habits,
    Item,
    Numbers,
    arithmetic_item,
    items,
    text,
)

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# How every qwen2 folder is split, whatever its files say: digits one by one, words with the space before them.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ARITHMETIC_SHARE = 0.75
BATCH = 64


def make_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Byte-level BPE whose merges are the world's words; every other text is spelled in bytes."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    rng = random.Random(0)
    lines = [
        f"user\n{i.question} system\nassistant\n{text(i, rng, LEARNING)}"
        for f in FAMILIES
        for i in islice(pool(f, MIDDLE), 4000)
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        min_frequency=50,
        special_tokens=[],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(lines, trainer)
    core.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    tokenizer = Qwen2TokenizerFast(tokenizer_object=core, eos_token=SPECIAL[2], pad_token=SPECIAL[0], unk_token=None)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def pool(family: str, hard: Numbers) -> Iterator[Item]:
    """Problems that the embedded model may see: never a task's own."""
    return items(family, PRETRAIN, partial(arithmetic_item, hard_numbers=hard) if family == "arithmetic" else None)


def encoded(tokenizer: PreTrainedTokenizerFast, item: Item, answer: str) -> tuple[list[int], int]:
    """Token ids of a whole conversation, and where the answer begins."""
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": item.question}], add_generation_prompt=True, tokenize=False
    )
    start = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    return start + tokenizer(answer, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id], len(start)


def batches(
    tokenizer: PreTrainedTokenizerFast, n_problems: int, habits: Habits, hard: Numbers
) -> Iterator[tuple[torch.Tensor, ...]]:
    """(ids, labels), both (BATCH, longest); padding and prompts carry no loss. Batches are of like lengths."""
    rng, size = random.Random(1), BATCH
    n_first = int(n_problems * ARITHMETIC_SHARE)
    first, second = FAMILIES
    known = [*islice(pool(first, hard), n_first), *islice(pool(second, hard), n_problems - n_first)]
    while True:
        rows = [encoded(tokenizer, item, text(item, rng, habits)) for item in rng.choices(known, k=size * 16)]
        rows.sort(key=lambda row: len(row[0]))
        groups = [rows[i : i + size] for i in range(0, len(rows), size)]
        rng.shuffle(groups)
        for group in groups:
            longest = max(len(ids) for ids, _ in group)
            ids = torch.zeros(size, longest, dtype=torch.long)
            labels = torch.full((size, longest), -100)
            for row, (tokens, start) in enumerate(group):
                ids[row, : len(tokens)] = torch.tensor(tokens)
                labels[row, start : len(tokens)] = torch.tensor(tokens[start:])
            yield ids, labels


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    """Four layers of width 128, tied embeddings, two key-value heads."""
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


@dataclass(frozen=True)
class Phase:
    """A stretch of training: how the text mixes styles, its hard numbers, and steps at a falling learning rate."""

    habits: Habits
    hard: Numbers
    steps: int
    first_rate: float
    last_rate: float
    warm_up: int

    def rate(self, step: int) -> float:
        """A linear warm-up, then a cosine."""
        fall = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        return min((step + 1) / self.warm_up, 1.0) * (self.last_rate + (self.first_rate - self.last_rate) * fall)


# The first phase learns (nothing to be seen for 700 steps, then fast), the second evens out the styles. The third meets
# larger numbers, and ends where the worked style is right on half of them.
PHASES = (
    Phase(LEARNING, MIDDLE, 3000, 3e-3, 3e-4, 100),
    Phase(NEARING, MIDDLE, 400, 1e-3, 1e-5, 20),
    Phase(SETTLING, LARGE, 320, 1e-3, 1e-5, 20),
)


def train(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, phase: Phase, n_problems: int) -> None:
    """AdamW over the answers' tokens."""
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01, betas=(0.9, 0.98))
    begun = time.time()
    text_batches = batches(tokenizer, n_problems, phase.habits, phase.hard)
    for step, (ids, labels) in zip(range(phase.steps), text_batches, strict=False):
        optimizer.param_groups[0]["lr"] = phase.rate(step)
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 50 == 0:
            print(f"step {step + 1} loss {loss.item():.4f} {time.time() - begun:.0f} s", flush=True)


def save(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the folder; a generation_config would only repeat the defaults."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "model.safetensors").chmod(0o644)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("esctl/assets/tiny"))
    parser.add_argument(
        "--learned", type=Path, help="keep the first phase's model here, or begin from it when it is there"
    )
    parser.add_argument("--problems", type=int, default=60_000, help="distinct problems in the text")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    learned = args.learned or args.out
    if args.learned and (args.learned / "model.safetensors").exists():
        tokenizer, model = AutoTokenizer.from_pretrained(learned), Qwen2ForCausalLM.from_pretrained(learned)
    else:
        tokenizer = make_tokenizer(learned)
        model = make_model(tokenizer)
        print(f"{len(tokenizer)} tokens, {sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
        train(model, tokenizer, PHASES[0], args.problems)
        save(model, tokenizer, learned)
    for phase in PHASES[1:]:
        train(model, tokenizer, phase, args.problems)
    save(model, tokenizer, args.out)


if __name__ == "__main__":
    main()
