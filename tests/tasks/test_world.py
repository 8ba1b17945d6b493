"""The embedded world: problems that cannot leak, text that the tokenizer spells exactly, a base of known accuracy."""

import hashlib
from itertools import islice
from random import Random
from typing import TYPE_CHECKING

import pytest
from documented import ROOT

from esctl.assets import tiny_model_path
from esctl.errors import TaskError
from esctl.tasks import TEST, TRAIN, Problem
from esctl.tasks.embedded import GRADES, SIZES, EmbeddedTask, world_problems
from esctl.tasks.world import EASY, FAMILIES, HARD, PRETRAIN, SETTLING, STYLES, items, text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TASKS = tuple(EmbeddedTask(name) for name in GRADES)
# SHA-256 over the ids, questions and answers of a split: whoever changes the generator changes the benchmark.
RECORDED = {
    "arithmetic/train": "95ee09b111cb94c6",
    "arithmetic/validation": "b68c3ca3e60c8af7",
    "arithmetic/test": "7e48cf969237d4fe",
    "tiny-countdown/train": "fff485b7e87f1167",
    "tiny-countdown/validation": "a269275de01ff355",
    "tiny-countdown/test": "4ef35c271095d892",
}


@pytest.fixture(scope="module")
def tokenizer() -> "PreTrainedTokenizerFast":
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model_path())


def fingerprint(problems: tuple[Problem, ...]) -> str:
    lines = "\n".join(f"{p.id}\t{p.question}\t{p.answer}" for p in problems)
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", RECORDED)
def test_problems_are_the_recorded_ones(name):
    assert fingerprint(world_problems(*name.split("/"))) == RECORDED[name]


@pytest.mark.parametrize("family", FAMILIES)
def test_no_problem_is_in_two_splits_in_any_words(family):
    keys = {split: {i.key for i in islice(items(family, split), 2500)} for split in (*SIZES, PRETRAIN)}
    assert sum(map(len, keys.values())) == len(set().union(*keys.values()))


@pytest.mark.parametrize("task", TASKS, ids=lambda t: t.name)
def test_ids_and_questions_are_unique_in_a_split(task):
    for split in task.splits:
        problems = task.problems(split)
        assert len(problems) == SIZES[split]
        assert len({p.id for p in problems}) == len({p.question for p in problems}) == len(problems)


@pytest.mark.parametrize("task", TASKS, ids=lambda t: t.name)
def test_both_tiers_are_a_sizeable_share_of_the_test_split(task):
    tiers = [p.difficulty for p in task.problems(TEST)]
    assert set(tiers) == {EASY, HARD}
    assert 0.4 < tiers.count(HARD) / len(tiers) < 0.6


@pytest.mark.parametrize("task", TASKS, ids=lambda t: t.name)
def test_reference_solutions_are_strictly_right_and_wrong_for_the_next_problem(task):
    problems = task.problems(TEST)
    solutions = [p.solution for p in problems]
    assert all(g.strict and g.flexible and g.formatted for g in task.grade(problems, solutions))
    shifted = solutions[1:] + solutions[:1]
    grades = task.grade(problems, shifted)
    # Two expressions of the same characters may reach the same target, as 9+2-4 and 2+9-4 do.
    gold = [sorted(p.answer) for p in problems]
    others = [g for g, a, b in zip(grades, gold, gold[1:] + gold[:1], strict=True) if a != b]
    assert len(others) > 1800
    assert not any(g.strict for g in others)


def test_worked_steps_are_true():
    for item in islice(items("arithmetic", TRAIN), 500):
        for step in item.steps:
            left, right = step.split("=")
            sign = next(s for s in "*+-" if s in left)
            a, b = map(int, left.split(sign))
            assert {"*": a * b, "+": a + b, "-": a - b}[sign] == int(right)


def test_an_unknown_split_is_named():
    with pytest.raises(TaskError, match=r"arithmetic has no split 'tset'; choose train, validation, test"):
        EmbeddedTask("arithmetic").problems("tset")


@pytest.mark.parametrize(
    ("completion", "strict", "flexible", "formatted"),
    [
        ("8*3=24 #### 24", True, True, True),
        ("8*3=24 The answer is 24.", False, True, False),
        ("It is 24.", False, True, False),
        ("#### 24 #### 25", False, False, True),
        ("#### 240", False, False, True),
        ("####", False, False, False),
        ("", False, False, False),
    ],
)
def test_arithmetic_is_graded_by_the_last_marked_number(completion, strict, flexible, formatted):
    (grade,) = EmbeddedTask("arithmetic").grade([Problem("p", "?", "24")], [completion])
    assert (grade.strict, grade.flexible, grade.formatted) == (strict, flexible, formatted)


@pytest.mark.parametrize(
    ("completion", "strict", "flexible", "formatted"),
    [
        ("3*4+5=17 #### 3*4+5", True, True, True),
        ("#### 5 + 4 * 3", True, True, True),
        ("#### (3*4)+5.", True, True, True),
        ("3*4+5=17 The answer is 3*4+5.", False, True, False),
        ("It is 3*4+5.", False, True, False),
        ("#### 17", False, False, True),
        ("#### 3*4+4+1", False, False, True),
        ("#### 3+4+5+5", False, False, True),
        ("#### 3**4", False, False, True),
        ("#### 3*(4+5", False, False, True),
        ("#### 34-17", False, False, True),
        ("#### the sum", False, False, False),
        ("#### " + "9" * 10_000, False, False, True),
        ("(" * 100_000, False, False, False),
        ("", False, False, False),
    ],
)
def test_countdown_is_graded_by_the_value_of_the_last_marked_expression(completion, strict, flexible, formatted):
    problem = Problem("p", "?", "3*4+5", data=(("numbers", "5 3 4"), ("target", "17")))
    (grade,) = EmbeddedTask("tiny-countdown").grade([problem], [completion])
    assert (grade.strict, grade.flexible, grade.formatted) == (strict, flexible, formatted)


def test_styles_are_mixed_by_the_odds_of_the_manner():
    rng = Random(0)
    item = next(items("arithmetic", PRETRAIN))
    endings = [text(item, rng, SETTLING) for _ in range(2000)]
    expected = [share / 100 for share in SETTLING.odds(item.manner)]
    found = [endings.count(style(item)) / len(endings) for style in STYLES]
    assert found == pytest.approx(expected, abs=0.04)


@pytest.mark.parametrize("family", FAMILIES)
def test_tokenizer_gives_back_the_world_exactly_in_whole_words(tokenizer, family):
    rng = Random(0)
    longest = 0
    for item in islice(items(family, TEST), 1000):
        for line in (item.question, *(style(item) for style in STYLES), text(item, rng, SETTLING)):
            ids = tokenizer.encode(line, add_special_tokens=False)
            assert tokenizer.decode(ids, skip_special_tokens=True) == line
            # Ids below 256 are single bytes: only digits, spaces and signs are spelled by them, never a word.
            assert all(
                not t.strip("Ġ").isalpha() or i >= 256 for t, i in zip(tokenizer.tokenize(line), ids, strict=True)
            )
        longest = max(longest, len(tokenizer.encode(STYLES[0](item))))
    assert longest < 64  # with the end of turn, inside the shipped recipes' max_tokens


def test_every_token_is_given_back_and_digits_are_single(tokenizer):
    from transformers import AutoConfig

    assert AutoConfig.from_pretrained(tiny_model_path()).vocab_size == len(tokenizer)
    whole = [i for i in range(len(tokenizer)) if "\ufffd" not in tokenizer.decode([i])]
    assert all(tokenizer.encode(tokenizer.decode([i]), add_special_tokens=False) == [i] for i in whole)
    assert [len(tokenizer.encode(n)) for n in ("7", "18", "118")] == [1, 2, 3]


def test_the_chat_template_ends_where_the_answer_begins(tokenizer):
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Use 1, 2, 3 to make 6."}]
    rendered = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    assert rendered.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.decode(tokenizer.encode(rendered), skip_special_tokens=False) == rendered


def test_the_embedded_model_is_under_four_megabytes():
    assert sum(f.stat().st_size for f in tiny_model_path().iterdir()) < 4_000_000


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_base_accuracy_is_what_the_model_card_and_the_readme_state(tokenizer, task):
    """On half of the card's problems: their standard error is 2 points, and the two halves share one card."""
    from transformers import AutoModelForCausalLM

    problems = task.problems(TEST)[:512]
    turns = [[{"role": "user", "content": p.question}] for p in problems]
    prompts = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(tiny_model_path()).eval()
    out = model.generate(**inputs, max_new_tokens=64, do_sample=False)
    texts = tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    measured = 100 * sum(g.strict for g in task.grade(problems, texts)) / len(problems)
    stated = stated_accuracy(TASKS.index(task))
    assert abs(measured - stated) < 4
    if task.name == "arithmetic":
        assert 20 <= stated <= 40
        assert abs(measured - readme_accuracy()) < 4


def stated_accuracy(column: int) -> float:
    """Greedy strict accuracy in percent, from the table of the model card."""
    card = (tiny_model_path() / "README.md").read_text()
    row = next(line for line in card.splitlines() if line.startswith("| greedy, strict"))
    return float(row.split("|")[2 + column].split("%")[0])


def readme_accuracy() -> float:
    """The base's greedy strict accuracy in percent, from the README's table of methods; all 2,048 test problems."""
    row = next(line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| base | "))
    return float(row.split("|")[2].split("(")[0])
