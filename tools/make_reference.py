"""Write docs/reference/ from the code: every key of a recipe, and every metric of a run.

Meanings are the comments of the fields in their source, so that they are written once.
"""

import ast
import dataclasses
import inspect
import tokenize
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from esctl.experiment.recipe import ALL_METHODS, Recipe
from esctl.runs.metrics import KEYS
from esctl.training.rl.recorder import KEYS as RL_KEYS

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
MADE = "<!-- Written by tools/make_reference.py; edit the comments in the source instead. -->\n"
WORDS = {int: "integer", float: "number", str: "text", bool: "true or false", NoneType: "null"}
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def comments(cls: type) -> dict[str, str]:
    """The comment of each field: at the end of its lines, or on the lines above it."""
    source = inspect.cleandoc("\n" + inspect.getsource(cls))
    tokens = [t for t in tokenize.generate_tokens(StringIO(source).readline) if t.type == tokenize.COMMENT]
    at = {t.start[0]: t.string.removeprefix("#").strip() for t in tokens}
    alone = {t.start[0] for t in tokens if not t.line[: t.start[1]].strip()}
    [tree] = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            above = node.lineno - 1
            while above in alone:
                above -= 1
            lines = [*range(above + 1, node.lineno), *range(node.lineno, (node.end_lineno or node.lineno) + 1)]
            found[node.target.id] = " ".join(at[line] for line in lines if line in at)
    return found


def words(kind: object) -> str:
    """A type as one would say it."""
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *limits = get_args(kind)
        limits = [limit for given in limits for limit in getattr(given, "metadata", [given])]
        bounds = [
            f"{sign} {value(getattr(limit, name))}"
            for limit in limits
            for name, sign in BOUNDS.items()
            if hasattr(limit, name)
        ]
        return " ".join([words(inner), *bounds])
    if origin is Literal:
        return " or ".join(f"`{value(v)}`" for v in get_args(kind))
    if origin in (Union, UnionType):
        return " or ".join(words(k) for k in get_args(kind))
    if origin is dict:
        return "mapping"
    return WORDS[kind] if isinstance(kind, type) and kind in WORDS else "section"


def value(default: object) -> str:
    """A default as YAML has it."""
    if default is None:
        return "null"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, int) and abs(default) >= 2**62:
        return f"{'−' * (default < 0)}2^{abs(default).bit_length() - 1}"
    return '""' if default == "" else str(default)


@dataclasses.dataclass(frozen=True)
class Key:
    """One field of a section."""

    name: str
    kind: object
    default: object  # `dataclasses.MISSING` where there is none
    meaning: str


def keys(cls: type) -> Iterator[Key]:
    """The fields of a dataclass or of a pydantic model, in order."""
    said = {name: text for parent in reversed(cls.__mro__[:-1]) if parent.__module__.startswith("esctl")
            for name, text in comments(parent).items()}  # fmt: skip
    kinds = get_type_hints(cls, include_extras=True)
    if dataclasses.is_dataclass(cls):
        for field in dataclasses.fields(cls):
            factory = field.default_factory
            default = field.default if factory is dataclasses.MISSING else factory()
            yield Key(field.name, kinds[field.name], default, said[field.name])
    elif issubclass(cls, BaseModel):
        for name, field in cls.model_fields.items():
            default = dataclasses.MISSING if field.is_required() else field.get_default(call_default_factory=True)
            yield Key(name, kinds[name], default, said[name])


def is_section(key: Key) -> bool:
    """Whether a key holds keys of its own."""
    return dataclasses.is_dataclass(key.default) or isinstance(key.default, BaseModel)


def table(prefix: str, rows: list[Key]) -> str:
    """The keys of one section."""
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for key in rows:
        default = "" if key.default is dataclasses.MISSING else f"`{value(key.default)}`"
        cells = [f"`{prefix}{key.name}`", words(key.kind), default, key.meaning]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def first_line(thing: object) -> str:
    """The first sentence of a docstring."""
    return (inspect.getdoc(thing) or "").split("\n")[0]


def recipe_page() -> str:
    """Every key of a recipe, section by section; a method's keys depend on its kind."""
    top = list(keys(Recipe))
    parts = [
        MADE,
        "# Recipe keys\n",
        "Every key of a recipe with its default. [Recipes](../recipes.md) explains how to write and change one.\n",
        table("", [k for k in top if not is_section(k) and k.name != "method"]),
    ]
    for key in top:
        if is_section(key):
            section = type(key.default)
            parts += [f"## {key.name}\n", first_line(section) + "\n", table(f"{key.name}.", list(keys(section)))]
        elif key.name == "method":
            parts.append("## method\n\n`method.kind` names the method; the other keys of this section depend on it.\n")
            for kind, cls in ALL_METHODS.items():
                own = list(keys(cls))
                parts += [f"### {kind}\n", first_line(cls) + "\n", *([table("method.", own)] if own else [])]
    return "\n".join(parts)


def metrics_page() -> str:
    """Every key of metrics.jsonl."""
    head = "| key | meaning |\n|---|---|\n"
    es, rl = ("".join(f"| `{k}` | {v} |\n" for k, v in found.items()) for found in (KEYS, RL_KEYS))
    return "\n".join([
        MADE,
        "# Metrics\n",
        "Each line of `metrics.jsonl` holds the numbers of one generation (of RL: one step).\n",
        head + es,
        "## Further metrics of GRPO and PPO\n",
        "The keys above have the same meaning, with a rollout in the place of a member. A method writes its own.\n",
        head + rl,
    ])  # fmt: skip


PAGES = {"recipe.md": recipe_page, "metrics.md": metrics_page}


def main() -> None:
    """Write every page."""
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())


if __name__ == "__main__":
    main()
