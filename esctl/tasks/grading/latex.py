"""When two mathematical answers in LaTeX are the same: one normal form, then numbers, then the library math-verify.

`decide` is cheap and runs in this process; `equivalent` may hang on a hostile answer, so only a pool calls it.
"""

import logging
import re
from functools import lru_cache

from esctl.tasks.grading.answers import bare_number

LONGEST = 1000  # characters of an answer; a longer one is none

# Spellings that a reader would not tell apart, in the order in which they are undone.
SPELLINGS = tuple(
    (re.compile(pattern), plain)
    for pattern, plain in (
        (r"\{,\}|,\\!", ""),
        (r"\\(?:left|right|displaystyle|big|Big|bigl|bigr|,|!|;|:|quad|qquad)(?![A-Za-z])", ""),
        (r"\\[dt]frac(?![A-Za-z])", r"\\frac"),
        (r"\\frac\s?([0-9])\s?([0-9])", r"\\frac{\1}{\2}"),
        (r"\\(?:text|mathrm|textbf|mathbf|textrm|mbox)\s?\{([^{}]*)\}", r"\1"),
        (r"\^\s?(?:\{\s?\\circ\s?\}|\\circ)|\\degree(?![A-Za-z])|°", ""),
        (r"\\?[%$]|\\\s|~", ""),
        (r"_\s?\{\s?([0-9]+)\s?\}", r"_\1"),
        (r"\\(?:le|leq|leqslant)(?![A-Za-z])", "<="),
        (r"\\(?:ge|geq|geqslant)(?![A-Za-z])", ">="),
        (r"\\(?:cdot|times)(?![A-Za-z])", "*"),
        (r"\s+", ""),
    )
)
# A unit written as words after a value; "2x" and "5 pi" have none.
UNIT = re.compile(r"(?<=[0-9}])\s*\\(?:text|mathrm|mbox)\s?\{\s?[^{}\\]*\}(?:\s?\^\s?\{?[23]\}?)?[\s.]*$")
NAMED = re.compile(r"^\s*[A-Za-z]\s*=\s*(?=[^=]+$)")  # "x = 5" names its answer
BASED = re.compile(r"[0-9]+_[0-9]+")  # "52_8" names its base; math-verify would drop it
WORDS = re.compile(r"\\(?:text|mathrm|textbf|mbox)\s?\{[A-Za-z ,]+\}")


@lru_cache(maxsize=65536)
def normal(answer: str) -> str:
    r"""One form for spellings that mean the same: "\dfrac 12" is "\frac{1}{2}", "10,\!080" is "10080"."""
    plain = answer.strip().strip("$").rstrip(". ")
    plain = NAMED.sub("", UNIT.sub("", plain))
    for pattern, spelled in SPELLINGS:
        plain = pattern.sub(spelled, plain)
    return plain


def decide(gold: str, answer: str) -> bool | None:
    """Equal, different, or None: only algebra can tell. Numbers are decided exactly, words by their letters."""
    if len(answer) > LONGEST:
        return False
    first, second = normal(gold), normal(answer)
    if first == second:
        return True
    a, b = bare_number(first), bare_number(second)
    if a is not None and b is not None:
        return a == b
    if WORDS.fullmatch(gold.strip()):
        return first.casefold() == second.casefold()
    if not second or BASED.fullmatch(first) or BASED.fullmatch(second):
        return False
    return None


def equivalent(gold: str, answer: str) -> bool:
    """Whether math-verify finds both equal. It solves, simplifies and may not return: call it in a pool."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
    from sympy.core import random as sympy_random

    sympy_random.seed(0)  # its equality tests try random numbers: an answer must not be right on some days
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it warns that its own time limit is off
    # Its time limit is a signal of the main thread; ours is the end of the process.
    config = (LatexExtractionConfig(), ExprExtractionConfig())
    expected = parse(f"\\boxed{{{gold}}}", extraction_config=config, parsing_timeout=None)
    given = parse(f"\\boxed{{{answer}}}", extraction_config=config, parsing_timeout=None)
    if not expected or not given:
        return False
    return bool(verify(expected, given, timeout_seconds=None))
