"""What an answer is: numbers, boxes and expressions, found in free text and compared exactly.

Every function is pure, linear in its text, and never raises on what a model wrote. Formulas are compared in `latex`.
"""

import ast
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache

from esctl.tasks import Grade

READ = 50_000  # characters at the end of a completion that are read: an answer stands there, or was never given
LONGEST = 300  # characters of a number; a longer one is noise, and Python refuses to convert it
LONGEST_EXPRESSION = 200  # keeps the parser's depth far from its limits
WINDOW = 96  # characters that hold the last number of nearly every completion

# Separators of thousands: commas, LaTeX's spellings of them, thin spaces.
COMMA = r"(?:,\\!|,|\{,\}|\\,|[\u2009\u202f])"
WHOLE = rf"(?:[0-9]{{1,3}}(?:{COMMA}[0-9]{{3}})+(?![0-9])|[0-9]+)"
NONZERO = r"(?=0*[1-9])[0-9]+"  # a denominator
# The branches stand in order of greed.
NUMBER = re.compile(
    rf"""
    (?:(?P<ones>[0-9]+)[ ](?=[0-9]+/))?(?<!/)(?P<top>{WHOLE})/(?P<bottom>{NONZERO})(?![0-9]|[./][0-9])
    |(?:(?P<latex_ones>[0-9]+)\s?)?\\[dt]?frac\s?
        (?:\{{(?P<latex_top>-?[0-9]+)\}}\s?\{{(?P<latex_bottom>{NONZERO})\}}|(?P<digits>[0-9][1-9]))
    |(?P<decimal>(?:{WHOLE}(?:\.[0-9]+)?|(?<![\w.])\.[0-9]+)(?:[eE][-+]?[0-9]{{1,2}}(?![0-9A-Za-z]))?)
    """,
    re.VERBOSE,
)
BEGINS = re.compile(r"[0-9.]|\\[dt]?frac")  # a cheap scan for where a number can begin
SCALE = re.compile(r"\s(hundred|thousand|million|billion|trillion)\b", re.IGNORECASE)
SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
MINUS = "-\u2212\u2013"
CURRENCY = "$€£¥₹"
CLOSING = ")]}%.'\"" + CURRENCY  # after one of these, or a word, a dash joins two numbers: "3-5", "$3-$5", "50%-60%"
NOTHING = re.compile(r"\s*")
MARK = "####"
# What may stand between the mark and its number, and a sign that belongs to it even with a space: "#### **- $7**".
LEAD = re.compile(
    rf"(?:[\s*_`(\[{CURRENCY}]|\\[$(\[]){{0,12}}(?P<sign>[-+\u2212\u2013]?)(?:[\s*{CURRENCY}]|\\\$){{0,4}}"
)
# What makes the number before it a part of another one: "#### 3,14" is neither 3 nor 14, "1 000" is not 1, and 0x10,
# 1.5e400, 10^3, 5² and 1½ are forms that are not read. A space joins three digits unless a calculation follows them.
FRACTIONS = "\u00bc-\u00be\u2150-\u215e"
POWERS = "\u00b2\u00b3\u00b9\u2070-\u2079"
CUT_SHORT = re.compile(
    r"[.,:/'\u2019_\u00a0\uff0c\uff0e]{0,2}\d|[ ][0-9]{3}(?![0-9]|\s?[-+*/=^])|\*\*[0-9]|\^\s?\{?\s?[-+]?[0-9]"
    rf"|[eE][-+]?[0-9]|[xX][0-9]|(?<=\b0)[xX][0-9a-fA-F]|(?<=\b0)[bBoO][0-7]|\s?[{FRACTIONS}]|[{POWERS}]"
)
# The same for the last number of a text, by what stands before and after it: the 000 of "1 000" is not 0.
PART_BEFORE = re.compile(r"(?:\d['\u2019_\u00a0]|0[xXbBoO]|\d[eE][-+]?|(?![0-9])\d)$")
PART_AFTER = re.compile(rf"(?<=\b0)[xX][0-9a-fA-F]|\s?[{FRACTIONS}]|[{POWERS}]|(?![0-9])\d")
ZERO_GROUP = re.compile(r"(?<=[0-9][ ])0[0-9]{2}(?![0-9])")
# What may stand around a number that is a whole answer: currency, percent, degrees, a unit, a trailing dot.
BEFORE = re.compile(rf"(?:[\s*_`{CURRENCY}]|\\\$){{0,8}}[-+\u2212\u2013]?(?:[\s{CURRENCY}]|\\\$){{0,4}}")
AFTER = re.compile(
    r"[\s*_`]{0,8}(?:\\?%|°|(?:\^\s?\{?\s?\\circ\s?\}?)|percent|degrees?)?[\s.*_`$]{0,8}"
    r"|\s?(?:[kcm]?m|[km]?g|m?l|mph|kph|lbs?|oz|ft|in|[ap]m|cents?|dollars?)\.?"
    r"|\s(?!(?:pi|sqrt|times|plus|minus|over|dozen)\b)[A-Za-z]{2,}(?:\s[A-Za-z]{1,20}){0,3}[.!]?",
)


def strict_number(text: str) -> str | None:
    """The last number that stands right after a `####`, in normal form, or None."""
    if MARK not in text:
        return None
    last = None
    pieces = text[-READ:].split(MARK)[1:]
    for piece in pieces[-64:]:  # a completion of marks alone stays cheap
        last = _leading_number(piece) or last
    return last


def flexible_number(text: str) -> str | None:
    """What the text means as a number: after the last `####`, else in the last box, else the last one anywhere.

    So whatever is right strictly is right flexibly, and the difference between the two is format alone.
    """
    marked = strict_number(text)
    if marked is not None:
        return marked
    box = boxed(text) if "\\boxed" in text else None
    return (last_number(box) if box is not None else None) or last_number(text)


def last_number(text: str) -> str | None:
    """The last number of the text in normal form, or None; one of more than LONGEST characters is no number."""
    # From the end in growing windows. A window may cut a number in two, which only a match near its start can show.
    for size in (WINDOW, 16 * WINDOW, READ):
        start = max(0, len(text) - size)
        found = None
        for match in _numbers(text, start):
            found = match
        if found is not None and (start == 0 or found.start() - start >= WINDOW // 2):
            return _normal_form(text, found)
        if start == 0:
            break
    return _normal_form(text, found) if found is not None else None


def _numbers(text: str, start: int) -> Iterator[re.Match[str]]:
    """Every number from `start` on, none inside another."""
    end = start
    for place in BEGINS.finditer(text, start):
        found = NUMBER.match(text, place.start()) if place.start() >= end else None
        if found is not None:
            end = found.end()
            yield found


def same_number(a: str, b: str) -> bool:
    """Whether both are numbers, as people write them, of equal value: "$1,000.00" and "1000" are, "t+1" is none."""
    first = number(a)
    return first is not None and first == number(b)


def number(text: str) -> Fraction | None:
    """The exact value of a text that is one number with its currency, unit or percent sign, or None. 50% is 50."""
    return _number(text, AFTER) if len(text) <= LONGEST else None


def bare_number(text: str) -> Fraction | None:
    """The exact value of a text that is one number and nothing else, where letters may be variables: "3m" is none."""
    return _number(text, NOTHING) if len(text) <= LONGEST else None


@lru_cache(maxsize=65536)
def _number(text: str, ending: re.Pattern[str]) -> Fraction | None:
    """Cached because golds and answers come again with every member of a population."""
    before = BEFORE.match(text)
    found = NUMBER.match(text, before.end()) if before else None
    if found is None or before is None:
        return None
    value = _value(found)
    scale, end = _scale(text, found)
    if value is None or ending.fullmatch(text, end) is None:
        return None
    negative = any(sign in before[0] for sign in MINUS)
    return (-value if negative else value) * scale


def grade_number(gold: str, text: str) -> Grade:
    """Strict by the last `#### n`; flexible by `flexible_number`."""
    marked = strict_number(text)
    answer = marked if marked is not None else flexible_number(text)
    right = answer is not None and same_number(answer, gold)
    return Grade(strict=right and marked is not None, flexible=right, formatted=marked is not None, answer=answer)


TOKENS = re.compile(r"\\(?:boxed|fbox)\s?\{|\\.|[{}]", re.DOTALL)


def boxed(text: str) -> str | None:
    r"""The content of the last complete \boxed{…} or \fbox{…}, braces matched, innermost where nested; or None."""
    seen = text[-READ:]
    opened: list[int] = []  # where the content of each open brace begins; -1 for a brace that is no box
    last = None
    for token in TOKENS.finditer(seen):
        if token[0].startswith(("\\boxed", "\\fbox")):
            opened.append(token.end())
        elif token[0] == "{":
            opened.append(-1)
        elif token[0] == "}" and opened:
            start = opened.pop()
            if start >= 0 and (last is None or start > last[0]):
                last = (start, token.start())
    return seen[last[0] : last[1]].strip() if last else None


Operator = Callable[[Fraction, Fraction], Fraction]
OPERATORS: dict[type[ast.operator], Operator] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
TYPESET = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "[": "(", "]": ")"})
EXPRESSION = re.compile(r"[-+*/() 0-9]+")


class _RuleBrokenError(Exception):
    """An expression holds what Countdown does not allow."""


def countdown_value(expression: str, numbers: Sequence[int]) -> Fraction | None:
    """The exact value of an expression that uses each given number exactly once, or None where it breaks a rule.

    Only + - * / and brackets over whole numbers are read. It is parsed and walked, never evaluated as code: `**`, `//`,
    names and calls are refused by what they are, division by zero by having no value.
    """
    plain = expression.strip().translate(TYPESET)
    if len(plain) > LONGEST_EXPRESSION or not EXPRESSION.fullmatch(plain):
        return None
    used: list[int] = []
    try:
        value = _evaluate(ast.parse(plain, mode="eval").body, used)
    except (SyntaxError, RecursionError, MemoryError, ZeroDivisionError, _RuleBrokenError):
        return None
    return value if sorted(used) == sorted(numbers) else None


def _evaluate(node: ast.expr, used: list[int]) -> Fraction:
    match node:
        case ast.Constant(value=int() as n):
            used.append(n)
            return Fraction(n)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_evaluate(inner, used)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_evaluate(left, used), _evaluate(right, used))
    raise _RuleBrokenError


def _leading_number(text: str) -> str | None:
    """The number that a text begins with, in normal form."""
    lead = LEAD.match(text)
    found = NUMBER.match(text, lead.end()) if lead else None
    if lead is None or found is None or CUT_SHORT.match(text, found.end()):
        return None
    return _form(text, found, negative=lead["sign"] in tuple(MINUS))


def _normal_form(text: str, found: re.Match[str]) -> str | None:
    """The last number of a text, or None where it is a part of one that is written in a form that is not read."""
    start = found.start()
    if PART_BEFORE.search(text, max(0, start - 3), start) or PART_AFTER.match(text, found.end()):
        return None
    if ZERO_GROUP.match(text, start):
        return None
    return _form(text, found, negative=_is_negative(text, found.start()))


def _form(text: str, found: re.Match[str], negative: bool) -> str | None:
    """One spelling for each value, so that votes and entropies count values: "-1000", "0.5", "1/3"."""
    if found.end() - found.start() > LONGEST:
        return None
    decimal = found["decimal"]
    if decimal is not None and decimal.isdigit() and not text[found.end() : found.end() + 1].isspace():
        digits = decimal.lstrip("0")
        return ("-" if negative else "") + digits if digits else "0"
    value = _value(found)
    if value is None:
        return None
    scaled = value * _scale(text, found)[0]
    return spelled(-scaled if negative else scaled)


def spelled(value: Fraction) -> str:
    """A whole number, else a decimal of at most six places, else a fraction in lowest terms."""
    if value.denominator == 1:
        return str(value.numerator)
    millionths = value * 10**6
    if millionths.denominator != 1:
        return f"{value.numerator}/{value.denominator}"
    whole, rest = divmod(abs(millionths.numerator), 10**6)
    return f"{'-' if value < 0 else ''}{whole}.{rest:06d}".rstrip("0")


def _is_negative(text: str, start: int) -> bool:
    """Whether a minus, not a dash between two numbers, stands before the number: "-7", "-$7", "$-7", not "3-5"."""
    before = text[max(0, start - 4) : start].rstrip(CURRENCY + "\\")
    if not before or before[-1] not in MINUS:
        return False
    previous = before[:-1].rstrip("\\")[-1:]
    return not (previous.isalnum() or (previous != "" and previous in CLOSING and previous not in CURRENCY))


def _value(found: re.Match[str]) -> Fraction | None:
    if found.end() - found.start() > LONGEST:
        return None
    if found["decimal"] is not None:
        return Fraction(re.sub(COMMA, "", found["decimal"]))
    if found["digits"] is not None:
        top, bottom = int(found["digits"][0]), int(found["digits"][1])
    elif found["latex_top"] is not None:
        top, bottom = int(found["latex_top"]), int(found["latex_bottom"])
    else:
        top, bottom = int(re.sub(COMMA, "", found["top"])), int(found["bottom"])
    ones = int(found["ones"] or found["latex_ones"] or 0)
    return ones + Fraction(top, bottom) if 0 < top < bottom else Fraction(top, bottom)


def _scale(text: str, found: re.Match[str]) -> tuple[int, int]:
    """What a following word multiplies the number by, and where it ends: "2.5 million"."""
    word = SCALE.match(text, found.end())
    return (SCALES[word[1].lower()], word.end()) if word else (1, found.end())
