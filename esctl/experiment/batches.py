"""Which problems a generation sees: a function of the run's seed and the generation, never of the round or engine."""

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

from esctl.noise.moves import hash64

T = TypeVar("T")


def batch(seed: int, generation: int, size: int, items: Sequence[T]) -> list[T]:
    """The items of one generation, `size` of them.

    Generations walk through epochs, each a permutation of all items, so every item is seen equally often. A batch that
    straddles two epochs can hold an item twice. Both rounds of a two-round method get the same batch.
    """
    places = range(generation * size, (generation + 1) * size)
    return [items[permutation(seed, place // len(items), len(items))[place % len(items)]] for place in places]


@lru_cache(maxsize=4)
def permutation(seed: int, epoch: int, n: int) -> tuple[int, ...]:
    """The order of n items in an epoch, from a hash of seed and epoch."""
    order = list(range(n))
    random.Random(hash64("esctl-epoch", "<qI", seed, epoch)).shuffle(order)
    return tuple(order)
