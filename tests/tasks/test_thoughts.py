"""Thoughts before an answer are not graded, whatever the grader and however the tags are spelled."""

import pytest

from esctl.tasks import Problem, TaskSpec, open_task
from esctl.tasks.grading.thoughts import TAGS, answer_of, opened_by

COUNTDOWN = (("numbers", "1 2 3"), ("target", "9"))
GRADERS = {
    "gsm8k": ("7", "#### 7", "#### 8", ()),
    "math": ("7", "\\boxed{7}", "\\boxed{8}", ()),
    "countdown": ("9", "<answer>(1+2)*3</answer>", "<answer>1+2+3</answer>", COUNTDOWN),
    "arithmetic": ("7", "#### 7", "#### 8", ()),
    "tiny-countdown": ("(1+2)*3", "#### (1+2)*3", "#### 1+2+3", COUNTDOWN),
    "number": ("7", "#### 7", "#### 8", ()),
    "boxed": ("7", "\\boxed{7}", "\\boxed{8}", ()),
    "text": ("Rome", "#### Rome", "#### Paris", ()),
}


@pytest.fixture(params=GRADERS)
def grade(request, tmp_path):
    """A function from a completion's pattern to its verdict, for every task and grader."""
    gold, right, wrong, data = GRADERS[request.param]
    if request.param in ("number", "boxed", "text"):
        (tmp_path / "test.csv").write_text("question,answer\n?,1\n")
        spec = TaskSpec("file", str(tmp_path), grader=request.param)
    else:
        spec = TaskSpec(request.param)
    task = open_task(spec)

    def verdict(pattern):
        text = pattern.replace("RIGHT", right).replace("WRONG", wrong)
        [found] = task.grade([Problem("p", "?", gold, data=data)], [text])
        return found.strict, found.flexible, found.formatted

    return verdict


@pytest.mark.parametrize(("opening", "closing"), TAGS)
def test_an_answer_is_what_follows_the_thought(grade, opening, closing):
    assert grade(f"{opening}maybe WRONG no{closing}\nRIGHT") == (True, True, True)
    assert grade(f"{opening}maybe RIGHT no{closing}\nWRONG") == (False, False, True)
    assert grade(f"the template opened it: RIGHT{closing} WRONG") == (False, False, True)
    assert grade(f"{opening}RIGHT{closing}{opening}WRONG{closing}RIGHT") == (True, True, True)


@pytest.mark.parametrize(("opening", "closing"), TAGS)
def test_a_thought_without_end_or_without_answer_is_no_answer(grade, opening, closing):
    for text in (f"{opening}\nTry RIGHT", f"{opening}a{closing}{opening}RIGHT", f"{opening}RIGHT{closing}", opening):
        assert grade(text) == (False, False, False)


def test_a_text_without_tags_is_an_answer():
    for text in ("#### 7", "a < b > c", "I think so. #### 7", "x</answer>"):
        assert answer_of(text) == text


def test_tags_are_read_in_any_case():
    assert answer_of("<THINK>7</Think>8") == "8"
    assert answer_of("İİİ<think>7</think>8") == "8"


def test_the_recipe_may_name_the_end_or_switch_it_off():
    assert answer_of("7 DONE 8", "DONE") == " 8"
    assert answer_of("<think>7</think>8", "DONE") == ""
    assert answer_of("<think>7</think>8", "none") == "<think>7</think>8"


@pytest.mark.parametrize(
    ("prompt", "opening"),
    [
        ("<|assistant|><think>\n", "<think>"),
        ("<|assistant|>[THINK]", "[THINK]"),
        ("<|assistant|><think>\n\n</think>\n\n", ""),
        ("<|assistant|>", ""),
        ("is <think> a word? <|assistant|>", ""),
    ],
)
def test_a_prompt_may_open_the_thought(prompt, opening):
    assert opened_by(prompt) == opening
