"""What the settings of a baseline may be: each check raises ValueError that names the first field it refuses."""


def check_counts(**counts: int) -> None:
    """Something of which there must be one at least."""
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name}: {value} must be 1 or more")


def check_rates(**rates: float) -> None:
    """A step or a width that would do nothing at 0."""
    for name, value in rates.items():
        if not value > 0:
            raise ValueError(f"{name}: {value} must be above 0")


def check_not_negative(**values: float) -> None:
    """Something that 0 switches off."""
    for name, value in values.items():
        if value < 0:
            raise ValueError(f"{name}: {value} must not be below 0")


def check_shares(**shares: float) -> None:
    """A discount or a weight between 0 and 1."""
    for name, value in shares.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name}: {value} must lie in 0 to 1")
