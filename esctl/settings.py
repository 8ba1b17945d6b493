"""Types of numbers in a recipe, so that the frozen dataclass that a room reads is also the schema of its section.

pydantic reads these bounds where it validates a recipe. It is not imported here, so that workers start fast.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, TypeAlias

from annotated_types import Ge, Gt, Le, MinLen


class Whole:
    """Marks an integer that YAML must write as one: pydantic alone would take `true`, `2.0` and `"2"` as well."""

    def __get_pydantic_core_schema__(
        self, source: object, handler: Callable[[object], Mapping[str, object]]
    ) -> dict[str, object]:
        """The schema of the integer, made strict; pydantic calls this."""
        return {**handler(source), "strict": True}


Count: TypeAlias = Annotated[int, Whole(), Ge(1)]
NotNegative: TypeAlias = Annotated[int, Ge(0)]
Positive: TypeAlias = Annotated[float, Gt(0)]
Share: TypeAlias = Annotated[float, Ge(0), Le(1)]
Text: TypeAlias = Annotated[str, MinLen(1)]
