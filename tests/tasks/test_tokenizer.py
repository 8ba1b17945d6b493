"""Tokenizers and chat templates of strangers: right prompts, or one line that names the model."""

import json
import shutil

import pytest

from esctl.errors import TaskError, UsageError
from esctl.tasks import Problem, TaskSpec, open_task
from esctl.tasks.prompts import Prompting, prompt_sha256, refuse_long, render_all
from esctl.tasks.tokenizer import end_of_turn, load_tokenizer, own_system_line

PROBLEM = Problem("p-1", "how many?", "3")
TASK = open_task(TaskSpec("gsm8k"))
TURN = "{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}"
HEADER = "{% if add_generation_prompt %}<|assistant|>{% endif %}"


@pytest.fixture
def tokenizer(tiny_llama):
    return load_tokenizer(tiny_llama)


def ask(tokenizer, prompting=None, problem=PROBLEM):
    [prompt] = render_all([problem], TASK, tokenizer, prompting or Prompting())
    return prompt


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('Conversation roles must alternate') }}", "fails .Conversation roles must alternate"),
        ("{% if %}", "fails "),
        ("{% for m in messages %}{{ m['content'] }}", "fails "),
        ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "fails "),
        ("{{ 1 / 0 }}", "fails .division by zero"),
        ("{{ messages[7].content + 1 }}", "fails "),
        ("<|assistant|>", "leaves out the question"),
        ("{% for m in messages %}{% for c in m['content'] %}{{ c['text'] }}{% endfor %}{% endfor %}", "leaves out the"),
        ("{% for m in messages %}{{ m['content'][:3] }}{% endfor %}<|assistant|>", "leaves out the"),
        ("{% for m in messages %}{{ m['role'] }}{% endfor %}", "leaves out the question"),
        ("{% for m in messages %}" + TURN + "{% endfor %}", "ends the prompt with '<|end|>'"),
        ("{% for m in messages %}" + TURN + "{% endfor %}<|assistant|><|end|>\n", "ends the prompt with"),
    ],
)
def test_a_template_that_cannot_ask_is_one_line_that_names_the_model(tokenizer, template, message):
    tokenizer.chat_template = template
    for prompting in (Prompting(), Prompting(system="")):
        with pytest.raises(UsageError, match=f"model: the chat template of .* {message}") as error:
            ask(tokenizer, prompting)
        assert "\n" not in str(error.value)
        assert tokenizer.name_or_path in str(error.value)
        assert "prompt.style=raw" in str(error.value)


def test_the_token_after_an_answer_ends_a_turn(tokenizer):
    assert end_of_turn(tokenizer) == "<|end|>"
    tokenizer.chat_template = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}"
    assert end_of_turn(tokenizer) is None


@pytest.mark.parametrize("token", ["<|end|>", "<|assistant|>", "<pad>"])
@pytest.mark.parametrize("style", ["chat", "raw"])
def test_a_question_that_spells_a_control_token_is_refused(tokenizer, token, style):
    problem = Problem("p-7", f"how {token} many?", "3")
    with pytest.raises(TaskError, match=r"p-7: holds '<.*>', which is a control token of the model .*; reword it"):
        ask(tokenizer, Prompting(style=style), problem)


def test_a_solution_that_spells_a_control_token_is_refused_only_where_it_is_shown(tokenizer):
    problem = Problem("p-7", "how many?", "3", solution="three <|end|>")
    ask(tokenizer, problem=problem)
    with pytest.raises(TaskError, match=r"p-7: holds '<.end.>'"):
        render_all([PROBLEM], TASK, tokenizer, Prompting(shots=1), [problem])


@pytest.mark.parametrize(
    ("template", "line"),
    [
        (
            "{% if messages[0]['role'] != 'system' %}<|system|>be nice<|end|>{% endif %}" + "{% for m in messages %}",
            "be nice",
        ),
        ("{% for m in messages %}", ""),
    ],
)
def test_the_templates_own_system_line_is_known(tokenizer, template, line):
    tokenizer.chat_template = template + TURN + "{% endfor %}" + HEADER
    assert line in own_system_line(tokenizer, {})
    assert bool(line) == bool(own_system_line(tokenizer, {}))


@pytest.mark.parametrize("template", ["{{ strftime_now('%d %b %Y') }}", "{{ strftime_now('%Y-%m-%d') }}"])
def test_a_template_that_asks_for_the_day_gets_a_fixed_one(tokenizer, template):
    tokenizer.chat_template = template + "{% for m in messages %}" + TURN + "{% endfor %}" + HEADER
    assert ask(tokenizer).text[:11].strip(" <|") in ("26 Jul 2024", "2024-07-26")


def copy(folder, path):
    return shutil.copytree(folder, path / "copy")


@pytest.mark.parametrize("missing", ["tokenizer.json", "tokenizer_config.json tokenizer.json"])
@pytest.mark.parametrize("model", ["tiny_llama", "tiny_qwen2", "embedded"])
def test_a_folder_without_vocabulary_is_refused(missing, model, request, tmp_path):
    from esctl.assets import tiny_model_path

    folder = copy(tiny_model_path() if model == "embedded" else request.getfixturevalue(model), tmp_path)
    for name in missing.split():
        (folder / name).unlink()
    with pytest.raises(UsageError, match=r"model: .*tokenizer.*; add .*tokenizer files") as error:
        load_tokenizer(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", ["{", "[]", '{"model": {"type": "BPE"}}', ""])
def test_a_broken_tokenizer_is_one_line(content, tiny_llama, tmp_path):
    folder = copy(tiny_llama, tmp_path)
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(UsageError, match=r"model: .*tokenizer") as error:
        load_tokenizer(folder)
    assert "\n" not in str(error.value)


def test_questions_that_the_vocabulary_cannot_write_are_refused(tokenizer):
    with pytest.raises(UsageError, match="loses 5 of the 6 different characters of the questions"):
        ask(tokenizer, Prompting(system=""), Problem("p", "東京は何県?", "3"))


@pytest.mark.parametrize(
    ("context", "advice"), [(200, r"lower sampling.max_tokens to \d+ or less"), (20, "or shorten questions of")]
)
def test_prompts_that_do_not_fit_name_the_number_that_fits(tokenizer, context, advice):
    prompt = ask(tokenizer, Prompting(system="a" * 100))
    with pytest.raises(TaskError, match=advice):
        refuse_long("test", [PROBLEM], [prompt], context=context, new=190)


def test_a_model_folder_may_say_which_system_line_it_knows(tiny_llama, tmp_path):
    folder = copy(tiny_llama, tmp_path)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    for line in ("", "be brief"):
        (folder / "tokenizer_config.json").write_text(json.dumps(config | {"esctl_system": line}))
        own = load_tokenizer(folder)
        assert ask(own).text == ask(own, Prompting(system=line)).text
        assert "be nice" in ask(own, Prompting(system="be nice")).text


def test_the_embedded_model_is_asked_without_a_system_line():
    from esctl.assets import tiny_model_path

    embedded = load_tokenizer(tiny_model_path())
    assert ask(embedded).text == ask(embedded, Prompting(system="")).text


def test_the_prompts_hash_knows_a_stated_end_of_thoughts(tokenizer):
    hashes = {prompt_sha256(TASK, tokenizer, Prompting(think=think)) for think in ("auto", "none", "DONE")}
    assert len(hashes) == 3
    assert prompt_sha256(TASK, tokenizer, Prompting()) in hashes
