"""A model that was trained elsewhere, as a recipe's method: only words are known about it, and nothing trains it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class External:
    """The method in the recipe that `esctl adopt` writes."""

    note: str = ""  # trainer, version, settings, hardware: for people
