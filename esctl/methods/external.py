"""A model that was trained elsewhere, as a recipe's method: what is known of it in words. Nothing here trains it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class External:
    """Written by `esctl adopt`; evaluations and comparisons need no more."""

    note: str = ""  # trainer, version, settings, hardware: for people
