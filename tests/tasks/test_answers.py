"""Reading and comparing answers: a table of cases, properties, and completions that mean harm."""

import random
import time
from fractions import Fraction
from pathlib import Path

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from esctl.tasks import Limits, Problem
from esctl.tasks.countdown import CountdownTask
from esctl.tasks.file import grade_text
from esctl.tasks.grading.answers import (
    bare_number,
    boxed,
    countdown_value,
    flexible_number,
    grade_number,
    last_number,
    number,
    same_number,
    spelled,
    strict_number,
)
from esctl.tasks.grading.boxes import BoxGrader, unboxed
from esctl.tasks.grading.latex import decide, normal

CASES = yaml.safe_load((Path(__file__).parents[1] / "data" / "answers.yaml").read_text())
NUMBERS_3_4_5 = (("numbers", "3 4 5"), ("target", "17"))


def verdict(grade):
    return grade.strict, grade.flexible


def test_the_table_is_large():
    assert sum(map(len, CASES.values())) >= 150


@pytest.mark.parametrize(("text", "gold", "strict", "flexible"), CASES["number"])
def test_numbers(text, gold, strict, flexible):
    assert verdict(grade_number(gold, text)) == (strict, flexible)


@pytest.mark.parametrize(("text", "gold", "strict", "flexible"), CASES["number"])
def test_an_answer_is_found_before_and_after_much_other_text(text, gold, strict, flexible):
    if strict:
        told = f"First, 99 things. {'word ' * 80}\n{text}\n{' other words follow,' * 20} 99 of them"
        assert verdict(grade_number(gold, told)) == (True, True)


@pytest.fixture(scope="module")
def boxes():
    return BoxGrader(Limits(timeout_seconds=20, workers=1))


def test_boxes(boxes):
    texts, golds, *expected = zip(*CASES["boxed"], strict=True)
    found = [verdict(g) for g in boxes.grade(golds, texts)]
    wrong = [(t, g, f) for t, g, f, e in zip(texts, golds, found, zip(*expected, strict=True), strict=True) if f != e]
    assert not wrong


@pytest.mark.parametrize(("text", "gold", "strict", "flexible"), CASES["countdown"])
def test_countdown(text, gold, strict, flexible):
    [grade] = CountdownTask().grade([Problem("p", "?", gold, data=NUMBERS_3_4_5)], [text])
    assert verdict(grade) == (strict, flexible)


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        ("#### New York", True, True),
        ("#### new  york.\nbecause", True, True),
        ("so\n**New York**", False, True),
        ("#### York", False, False),
        ("#### New York City", False, False),
        ("####", False, False),
        ("", False, False),
    ],
)
def test_text_is_compared_whole(text, strict, flexible):
    assert verdict(grade_text("New York", text)) == (strict, flexible)


def test_equal_values_are_spelled_alike():
    told = ["#### 1,000", "#### $1000.00", "#### 2000/2", "#### 1 thousand", "#### 1e3"]
    assert {strict_number(t) for t in told} == {"1000"}
    assert [last_number(t) for t in ("1/2", "0.50", "2/3", "-.25")] == ["0.5", "0.5", "2/3", "-0.25"]


def test_text_that_is_no_number_equals_nothing():
    assert not same_number("t+1", "t+1")
    assert not same_number("t+1", "a+1")
    assert not same_number("", "")
    assert number("2 pi") is None
    assert bare_number("3m") is None
    assert bare_number("-\\frac{3}{4}") == Fraction(-3, 4)


def test_the_last_complete_box_wins():
    assert boxed("\\boxed{a{b}c} then \\boxed{d") == "a{b}c"
    assert boxed("}} \\boxed{\\{1\\}}") == "\\{1\\}"
    assert boxed("none") is None
    assert unboxed("so \\(t+1\\) follows") == "t+1"


def test_normal_forms_keep_what_differs_apart():
    assert normal("(10,100)") != normal("(10100)")
    assert decide("x", "X") is None
    assert decide("\\text{A}", "a")
    assert decide("5", "y" * 10_000) is False


@pytest.mark.parametrize("expression", ["3 4", "3+4", "3+4+5+5", "+3+4+5", "3+4+5;1", "(3)(4)(5)", "3_0+4+5", "03+4+5"])
def test_countdown_refuses_what_its_rules_do_not_name(expression):
    assert countdown_value(expression, [3, 4, 5]) is None


def test_countdown_is_exact():
    assert countdown_value("5/3*3", [3, 5, 3]) == 5
    assert countdown_value("8/(3-8/3)", [8, 3, 8, 3]) == 24


# Properties

settings.register_profile("esctl", deadline=None)  # a busy machine is not a slow grader
settings.load_profile("esctl")

finite = st.fractions(min_value=-(10**9), max_value=10**9, max_denominator=10**4)
whole = st.integers(min_value=-(10**12), max_value=10**12)
STYLES = {
    "plain": str,
    "commas": lambda n: f"{n:,}",
    "decimal": lambda n: f"{n}.00",
    "dot": lambda n: f"{n}.",
    "dollars": lambda n: f"${n:,}",
    "signed dollars": lambda n: f"-${-n:,}" if n < 0 else f"${n:,}",
    "latex dollars": lambda n: f"\\${n}",
    "percent": lambda n: f"{n}%",
    "unit": lambda n: f"{n} apples",
    "bold": lambda n: f"**{n}**",
    "minus sign": lambda n: str(n).replace("-", "−"),
    "latex commas": lambda n: f"{n:,}".replace(",", "{,}"),
    "fraction": lambda n: f"{2 * n}/2",
    "leading zeros": lambda n: f"-00{-n}" if n < 0 else f"00{n}",
}


@pytest.mark.parametrize("style", STYLES)
@given(value=whole)
def test_a_number_in_any_style_grades_equal(style, value):
    text = f"Well. #### {STYLES[style](value)}"
    assert verdict(grade_number(str(value), text)) == (True, True)


@pytest.mark.parametrize("style", STYLES)
@given(value=whole, other=whole)
def test_another_number_in_any_style_never_grades_equal(style, value, other):
    assume(value != other)
    assert verdict(grade_number(str(value), f"#### {STYLES[style](other)}")) == (False, False)
    assert verdict(grade_number(STYLES[style](value), f"so {other}")) == (False, False)


@given(value=finite)
def test_a_fraction_is_spelled_and_read_back(value):
    assert number(spelled(value)) == value
    assert bare_number(f"\\frac{{{value.numerator}}}{{{value.denominator}}}") == value
    assert last_number(f"it is {spelled(value)}") == spelled(value)


@given(a=finite, b=finite)
def test_numbers_are_equal_just_when_their_values_are(a, b):
    assert same_number(spelled(a), spelled(b)) == (a == b)


@given(text=st.text(max_size=300))
def test_right_strictly_is_right_flexibly(text):
    grade = grade_number("7", text)
    assert grade.flexible or not grade.strict
    assert grade.formatted or not grade.strict


@settings(max_examples=300)
@given(lead=st.integers(0, 400), text=st.sampled_from(["1 1/2", "12,345", "-7", "\\frac{1}{2}", "3/4", "9" * 120]))
def test_the_last_number_does_not_depend_on_where_it_stands(lead, text):
    assert last_number("x " * lead + text) == last_number("x " + text)
    assert last_number(text + " y" * lead) == last_number(text)


# Completions that mean harm

HOSTILE = {
    "power": "#### 9**9**9 \\boxed{9**9**9} <answer>9**9**9</answer>",
    "digits": "9" * 10_000_000,
    "marked digits": "#### " + "9" * 10_000_000,
    "brackets": "(" * 5_000_000 + ")" * 5_000_000,
    "braces": "{" * 10_000_000,
    "boxes": "\\boxed{" * 1_000_000,
    "closed boxes": "\\boxed{" * 5_000 + "}" * 5_000,
    "marks": "####" * 2_500_000,
    "numbered marks": "#### 9" * 1_000_000,
    "spaces": "#### " + " " * 10_000_000,
    "commas": "1," * 5_000_000,
    "thousands": "1,111" * 2_000_000,
    "slashes": "1/" * 5_000_000,
    "mixed": "1 1/" * 2_500_000,
    "dots": ".1" * 5_000_000,
    "fractions": "\\frac{" * 1_000_000,
    "dollars": "$" * 10_000_000,
    "inline": "$a" * 5_000_000,
    "answers": "<answer>" * 1_000_000,
    "operators": "+-" * 5_000_000,
    "exponents": "1e9" * 3_000_000,
    "minus": "-" * 10_000_000,
    "zeros": "#### 1/" + "0" * 10_000_000,
    "nothing": "\0" * 10_000_000,
    "words": "\\text{" * 1_000_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_completion_costs_under_100_milliseconds(name, boxes):
    text, countdown = HOSTILE[name], CountdownTask()
    problem = Problem("p", "?", "17", data=NUMBERS_3_4_5)
    for grade in (
        lambda: grade_number("7", text),
        lambda: boxes.grade(["7"], [text]),
        lambda: countdown.grade([problem], [text]),
        lambda: grade_text("7", text),
    ):
        assert min(seconds(grade) for _ in range(2)) < 0.1


def seconds(action):
    begun = time.process_time()  # a busy machine is not a slow grader
    action()
    return time.process_time() - begun


PIECES = [
    *("####", "\\boxed{", "}", "{", "\\frac", "<answer>", "</answer>", "$", "\\(", "\\)", "\n", " ", "-", "−", "–"),
    *(".", ",", "/", "*", "(", ")", "e", "9" * 30, "0", "7", "1,000", "\\text{", "_", "^", "%", "\\", "million"),
    *("\u0663", "🙂"),
]
SOUND = ["so 3*4+5 = 17\n#### 17", "\\[ \\boxed{\\frac{1}{2}} \\]", "<answer>3*4+5</answer>", "$1,000.50"]


def mutated(rng):
    base = rng.choice(SOUND)
    kind = rng.random()
    if kind < 0.4:
        return "".join(rng.choices(PIECES, k=rng.randint(0, 30)))
    if kind < 0.8:
        place = rng.randint(0, len(base))
        return base[:place] + rng.choice(PIECES) + base[place + rng.randint(0, 3) :]
    return "".join(map(chr, rng.choices(range(1, 0x2FFF), k=rng.randint(0, 60))))


@pytest.mark.slow
def test_100_000_random_and_mutated_completions_raise_nothing():
    rng, countdown = random.Random(0), CountdownTask()
    problem = Problem("p", "?", "17", data=NUMBERS_3_4_5)
    for _ in range(100_000):
        text = mutated(rng)
        grade = grade_number("17", text)
        assert grade.flexible or not grade.strict
        [grade] = countdown.grade([problem], [text])
        assert grade.flexible or not grade.strict
        answer = boxed(text)
        decide("\\frac{1}{2}", answer if answer is not None else unboxed(text) or "")
        flexible_number(text)


@pytest.mark.slow
def test_2_000_mutated_answers_pass_through_math_verify(boxes):
    rng = random.Random(1)
    texts = [f"\\boxed{{{mutated(rng)[:60]}}}" for _ in range(2_000)]
    grades = boxes.grade(["\\frac{x}{2}"] * len(texts), texts)
    failed = [g.failure for g in grades if g.failure is not None]
    assert len(failed) <= 20, failed
    assert sum(g.flexible for g in grades) == 0
