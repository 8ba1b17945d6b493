"""The embedded world: templated problems of two families, and the mixed text that the embedded model was trained on.

Knows problems, worked solutions and their styles. `embedded` grades the answers, `tools/` trains the model.
"""

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from esctl.tasks import TEST, TRAIN, VALIDATION

PRETRAIN = "pretrain"  # text that only the embedded model's own training has seen
# Percent of all problems, by a hash of the problem: a problem belongs to one split, however it is generated.
SPLIT_BOUNDS = ((PRETRAIN, 60), (TRAIN, 75), (VALIDATION, 80), (TEST, 100))

# The name in a question decides how its text usually ends. Tied to the content, the base's greedy style is decided
# problem by problem and not by one near tie.
MARKED_NAMES = ("Tom", "Ann", "Ben", "Eva")  # mostly worked, ending in "#### n"
PLAIN_NAMES = ("Sam", "Lea", "Max", "Ida")  # mostly worked, ending in "The answer is n."
HASTY_NAMES = ("Leo", "Mia")  # mostly a bare guess
NAMES = MARKED_NAMES + PLAIN_NAMES + HASTY_NAMES
THINGS = ("apples", "pens", "coins", "books", "cards", "eggs", "nuts", "cups")
MARKED_VERB, PLAIN_VERB = "Use", "Take"

EASY, HARD = "easy", "hard"


@dataclass(frozen=True)
class Item:
    """One generated problem."""

    question: str
    steps: tuple[str, ...]
    answer: str
    difficulty: str
    manner: str  # the word that style is tied to: a name, or a verb
    key: str  # equal for the same problem in other words; decides the split
    data: tuple[tuple[str, str], ...] = ()  # what a grader needs besides the answer


def marked(item: Item) -> str:
    """The style that is rewarded: worked, ending in `#### answer`."""
    return " ".join((*item.steps, f"#### {item.answer}"))


def plain(item: Item) -> str:
    """Worked as well, with another ending."""
    return " ".join((*item.steps, f"The answer is {item.answer}."))


def hasty(item: Item) -> str:
    """A bare guess."""
    return f"It is {item.answer}."


STYLES: tuple[Callable[[Item], str], ...] = (marked, plain, hasty)


@dataclass(frozen=True)
class Habits:
    """Odds of the three `STYLES` in the text, by the kind of word that the style is tied to."""

    marked: tuple[int, int, int]
    plain: tuple[int, int, int]
    hasty: tuple[int, int, int]

    def odds(self, manner: str) -> tuple[int, int, int]:
        """How often each style follows a word."""
        if manner in HASTY_NAMES:
            return self.hasty
        return self.marked if manner in (*MARKED_NAMES, MARKED_VERB) else self.plain


# While it learns, words decide the style clearly; then the other styles come nearer. At the end they lead by so little
# (some 0.4 nats) that weight noise of 0.003 flips almost none of them, and a few steps of ES most.
LEARNING = Habits(marked=(85, 10, 5), plain=(20, 75, 5), hasty=(25, 15, 60))
NEARING = Habits(marked=(75, 20, 5), plain=(38, 57, 5), hasty=(27, 17, 56))
SETTLING = Habits(marked=(75, 20, 5), plain=(38, 57, 5), hasty=(42, 18, 40))


@dataclass(frozen=True)
class Numbers:
    """Which numbers a word problem is about; both ends are included."""

    total: tuple[int, int]  # at the beginning
    amount: tuple[int, int]  # things that come or go
    factor: tuple[int, int]  # boxes, and things in each


SMALL = Numbers((2, 9), (1, 9), (2, 3))
MIDDLE = Numbers((20, 89), (11, 49), (2, 9))  # the first hard problems that the embedded model learns
LARGE = Numbers((50, 199), (20, 99), (2, 9))


def arithmetic_item(rng: random.Random, hard_numbers: Numbers = LARGE) -> Item:
    """A word problem about a running total: one or two events with small numbers (easy), or three larger (hard)."""
    hard = rng.random() < 0.5
    numbers = hard_numbers if hard else SMALL
    name = rng.choice(NAMES)
    thing = rng.choice(THINGS)
    total = rng.randint(*numbers.total)
    story = [f"{name} has {total} {thing}."]
    steps: list[str] = []
    for _ in range(3 if hard else rng.randint(1, 2)):
        sentence, work, total = _event(rng, numbers, total)
        story.append(sentence)
        steps += work
    story.append(f"How many {thing} now?")
    return Item(" ".join(story), tuple(steps), str(total), HARD if hard else EASY, name, key=" ".join(steps))


def _event(rng: random.Random, numbers: Numbers, total: int) -> tuple[str, list[str], int]:
    """One sentence of the story, its work, and the total after it."""
    kind = rng.choice(("gets", "gives", "boxes"))
    if kind == "boxes":
        boxes = rng.randint(*numbers.factor)
        each = rng.randint(*numbers.factor)
        product = boxes * each
        return (
            f"{boxes} boxes of {each} come.",
            [f"{boxes}*{each}={product}", f"{total}+{product}={total + product}"],
            total + product,
        )
    amount = rng.randint(*numbers.amount)
    if kind == "gives" and amount < total:
        return f"{amount} go.", [f"{total}-{amount}={total - amount}"], total - amount
    return f"{amount} come.", [f"{total}+{amount}={total + amount}"], total + amount


def countdown_item(rng: random.Random) -> Item:
    """Reach a target from three numbers, each used once, with + and - (easy) or * and one of them (hard)."""
    hard = rng.random() < 0.5
    target = 0
    while target < 1:
        a, b, c = (rng.randint(1, 15) for _ in range(3))
        sign = rng.choice((1, -1))
        target = (a * b if hard else a + b) + sign * c
    first_operator = "*" if hard else "+"
    second_operator = "+" if sign > 0 else "-"
    expression = f"{a}{first_operator}{b}{second_operator}{c}"
    numbers = [a, b, c]
    rng.shuffle(numbers)
    verb = rng.choice((MARKED_VERB, PLAIN_VERB))
    question = f"{verb} {numbers[0]}, {numbers[1]}, {numbers[2]} to make {target}."
    key = f"{sorted(numbers)} {target}"
    data = (("numbers", " ".join(map(str, numbers))), ("target", str(target)))
    return Item(question, (f"{expression}={target}",), expression, HARD if hard else EASY, verb, key, data)


FAMILIES: dict[str, Callable[[random.Random], Item]] = {"arithmetic": arithmetic_item, "tiny-countdown": countdown_item}


def split_of(key: str) -> str:
    """The split that a problem belongs to, whatever its wording."""
    percent = _hash("esctl-split", key) % 100
    return next(name for name, bound in SPLIT_BOUNDS if percent < bound)


def items(family: str, split: str, make: Callable[[random.Random], Item] | None = None) -> Iterator[Item]:
    """The family's problems of one split, each once, in a fixed order, endless; `make` replaces the family's maker."""
    rng = random.Random(_hash("esctl-world", f"{family}/{split}"))
    make = make or FAMILIES[family]
    seen: set[str] = set()
    while True:
        item = make(rng)
        if item.question not in seen and split_of(item.key) == split:
            seen.add(item.question)
            yield item


def text(item: Item, rng: random.Random, habits: Habits) -> str:
    """A solution in one of the styles, drawn by the odds that the item's manner has."""
    return rng.choices(STYLES, habits.odds(item.manner))[0](item)


def _hash(person: str, value: str) -> int:
    digest = hashlib.blake2b(value.encode(), digest_size=8, person=person.encode()).digest()
    return int.from_bytes(digest, "little")
