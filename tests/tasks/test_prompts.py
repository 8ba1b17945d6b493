from dataclasses import replace

import pytest

from esctl.errors import TaskError, UsageError
from esctl.tasks import Problem, TaskSpec, open_task
from esctl.tasks.prompts import (
    WORDINGS,
    Prompting,
    examples,
    problems_sha256,
    prompt_sha256,
    refuse_long,
    render_all,
)
from esctl.tasks.tokenizer import load_tokenizer

PROBLEM = Problem("p", "how many?", "3")
TASK = open_task(TaskSpec("gsm8k"))
REFUSES_SYSTEM = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
)
DROPS_SYSTEM = "{% for m in messages if m['role'] != 'system' %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
THINKS = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}{% if enable_thinking %}<think>{% endif %}"
)
DATED = (
    "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}{{ date_string }}"
    "{% for m in messages %}{{ m['content'] }}{% endfor %}"
)


@pytest.fixture
def tokenizer(tiny_llama):
    return load_tokenizer(tiny_llama)


@pytest.fixture
def with_bos(tokenizer):
    """A tokenizer that begins every text with its BOS, as Llama's does."""
    from tokenizers import processors

    tokenizer.bos_token = "<unk>"
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<unk> $A", special_tokens=[("<unk>", tokenizer.bos_token_id)]
    )
    assert tokenizer.encode("a", add_special_tokens=True)[0] == tokenizer.bos_token_id
    return tokenizer


def ask(tokenizer, prompting=None, shots=(), problem=PROBLEM):
    [prompt] = render_all([problem], TASK, tokenizer, prompting or Prompting(), shots)
    return prompt


def test_the_chat_template_writes_system_and_user_turns(tokenizer):
    prompt = ask(tokenizer, Prompting(system="be brief"))
    assert prompt.text == "<|system|>be brief<|end|><|user|>how many?<|end|><|assistant|>"
    assert tokenizer.decode(prompt.token_ids) == prompt.text


def test_the_task_says_how_to_answer_unless_the_recipe_does(tokenizer):
    assert TASK.system in ask(tokenizer).text
    assert WORDINGS["math"].system in ask(tokenizer, Prompting(name="math")).text
    after = ask(tokenizer, Prompting(name="gsm8k-after")).text
    assert "<|system|>" not in after
    assert "how many? Think step by step" in after
    assert ask(tokenizer, Prompting(name="none")).text == "<|user|>how many?<|end|><|assistant|>"


def test_an_unknown_wording_names_those_that_exist(tokenizer):
    with pytest.raises(UsageError, match=r"prompt.name: no prompt gsm9k; choose none, gsm8k, gsm8k-after, math"):
        ask(tokenizer, Prompting(name="gsm9k"))


@pytest.mark.parametrize("template", [REFUSES_SYSTEM, DROPS_SYSTEM])
def test_a_system_line_joins_the_user_turn_where_the_template_has_no_place_for_it(tokenizer, template):
    tokenizer.chat_template = template
    assert ask(tokenizer, Prompting(system="be brief")).text == "<user>be brief\n\nhow many?"


@pytest.mark.parametrize("style", ["chat", "raw"])
@pytest.mark.parametrize("template", [REFUSES_SYSTEM, DROPS_SYSTEM, "{{ bos_token }}" + REFUSES_SYSTEM])
def test_a_prompt_has_exactly_one_bos(with_bos, template, style):
    with_bos.chat_template = template
    ids = ask(with_bos, Prompting(style=style)).token_ids
    assert ids[0] == with_bos.bos_token_id
    assert ids.count(with_bos.bos_token_id) == 1


def test_a_bos_that_texts_do_not_begin_with_is_not_added(tokenizer):
    tokenizer.bos_token = "<|user|>"  # as models have it whose turns open with a token that is called BOS
    assert ask(tokenizer, Prompting(style="raw", system="")).text == "Question: how many?\nAnswer:"


def test_switches_reach_the_template(tokenizer):
    tokenizer.chat_template = THINKS
    assert ask(tokenizer, Prompting(template={"enable_thinking": True})).text.endswith("<think>")
    assert not ask(tokenizer, Prompting(template={"enable_thinking": False})).text.endswith("<think>")


def test_a_switch_that_the_template_never_reads_is_an_error(tokenizer):
    tokenizer.chat_template = THINKS
    with pytest.raises(UsageError, match=r"prompt.template.enable_thinkin: .* never reads it"):
        ask(tokenizer, Prompting(template={"enable_thinkin": True}))


def test_a_template_that_writes_the_date_gets_a_fixed_one(tokenizer):
    tokenizer.chat_template = DATED
    assert ask(tokenizer).text.startswith("26 Jul 2024")
    assert ask(tokenizer, Prompting(template={"date_string": "1 Jan 2030"})).text.startswith("1 Jan 2030")


def test_chat_without_a_template_says_the_way_out(tokenizer):
    tokenizer.chat_template = None
    with pytest.raises(UsageError, match=r"no chat template; use --set prompt.style=raw"):
        ask(tokenizer)


def test_raw_is_plain_text(tokenizer):
    assert ask(tokenizer, Prompting("raw", system="be brief")).text == "be brief\n\nQuestion: how many?\nAnswer:"


@pytest.mark.parametrize("style", ["chat", "raw"])
def test_examples_come_first_and_none_is_its_own(tokenizer, style):
    solved = [Problem(f"t-{i}", f"question {i}", "1", solution=f"worked {i}") for i in range(5)]
    prompting = Prompting(style=style, shots=2)
    shots = examples(solved, prompting)
    text = ask(tokenizer, prompting, shots).text
    assert text.index("question 0") < text.index("worked 0") < text.index("question 1") < text.index("how many?")
    own = ask(tokenizer, prompting, shots, solved[0]).text
    assert "worked 0" not in own
    assert "worked 2" in own


def test_too_few_worked_solutions_for_the_examples_is_an_error():
    with pytest.raises(UsageError, match=r"prompt.shots: 2, but the data has 1 reference solutions"):
        examples([PROBLEM, replace(PROBLEM, solution="3")], Prompting(shots=2))


def test_the_prompt_hash_tells_prompts_apart_and_not_problems(tokenizer):
    tokenizer.chat_template = THINKS
    variants = [
        Prompting(),
        Prompting(style="raw"),
        Prompting(name="math"),
        Prompting(system="be brief"),
        Prompting(system=""),
        Prompting(template={"enable_thinking": True}),
    ]
    hashes = {prompt_sha256(TASK, tokenizer, p) for p in variants}
    hashes.add(prompt_sha256(TASK, tokenizer, Prompting(shots=1), [replace(PROBLEM, solution="3")]))
    assert len(hashes) == 7
    assert prompt_sha256(TASK, tokenizer, Prompting()) in hashes


def test_the_problems_hash_sees_every_id_question_answer_and_their_order():
    other = Problem("q", "how few?", "2")
    sets = [[PROBLEM, other], [other, PROBLEM], [PROBLEM], [PROBLEM, replace(other, answer="1")]]
    assert len({problems_sha256(s) for s in sets}) == 4


def test_prompts_that_do_not_fit_are_counted_and_named(tokenizer):
    long = [Problem(f"long-{i}", "why " * 100, "1") for i in range(5)]
    problems = [PROBLEM, *long]
    prompts = render_all(problems, TASK, tokenizer, Prompting(system=""))
    with pytest.raises(TaskError, match=r"test: 5 prompts and 64 new tokens do not fit .* 128 tokens \(long-0, long-1"):
        refuse_long("test", problems, prompts, context=128, new=64)
    refuse_long("test", problems[:1], prompts[:1], context=128, new=64)
