"""Checks of a method's settings: each raises a SettingError for the first field it refuses."""


class SettingError(ValueError):
    """A field of a method cannot have its value; `key` is the field, so that a recipe can report the others too."""

    def __init__(self, key: str, problem: str) -> None:
        self.key = key
        super().__init__(f"{key}: {problem}")


def check_counts(**counts: int) -> None:
    """Refuse counts below 1."""
    for name, value in counts.items():
        if value < 1:
            raise SettingError(name, f"{value} must be 1 or more")


def check_rates(**rates: float) -> None:
    """Refuse steps and widths that would do nothing, or are not numbers."""
    for name, value in rates.items():
        if not value > 0:
            raise SettingError(name, f"{value} must be above 0")


def check_not_negative(**values: float) -> None:
    """Refuse negative values; 0 switches the setting off."""
    for name, value in values.items():
        if value < 0:
            raise SettingError(name, f"{value} must not be below 0")


def check_shares(**shares: float) -> None:
    """Refuse discounts and weights outside of 0 to 1."""
    for name, value in shares.items():
        if not 0 <= value <= 1:
            raise SettingError(name, f"{value} must lie in 0 to 1")
