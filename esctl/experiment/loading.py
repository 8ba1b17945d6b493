"""Recipes as files: YAML and `--set` become a Recipe, or every mistake at once; a Recipe becomes YAML again.

`recipe` is the schema. Opening what a recipe names is `experiment`.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import cast

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from esctl.errors import RecipeError, RunError, UsageError, did_you_mean
from esctl.experiment.recipe import ALL_METHODS, TRAINED, AnyMethod, Plain, Recipe
from esctl.methods import METHODS
from esctl.methods.checks import SettingError
from esctl.runs.directory import RunDir
from esctl.runs.plain_yaml import parse_yaml, read_yaml

# What a run may change when it is resumed: nothing here decides a weight.
RESUMABLE = ("generations", "eval", "checkpoint_every", "engine")

# Types of pydantic's errors, of its models and of dataclasses.
UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
NO_SECTION = ("model_type", "dataclass_type")
PLAIN_TYPES = ("bool", "int", "str")  # as pydantic names them in the place of a mistake


def load_recipe(source: str | None, overrides: Mapping[str, Plain], sets: Sequence[str] = ()) -> Recipe:
    """Read a recipe by path or shipped name, apply flags and `--set key=value`, and validate it as a whole."""
    mistakes: list[str] = []
    tree, where = read_recipe_file(source) if source else ({}, "recipe")
    for key, value in overrides.items():
        _assign(tree, key, value, mistakes)
    for item in sets:
        key, equals, text = item.partition("=")
        if not equals or not all(key.strip().split(".")):
            mistakes.append(f"--set {item}: write key=value, such as --set method.sigma=0.001")
            continue
        try:
            value = cast(Plain, parse_yaml(text)) if text.strip() else ""  # YAML would read an empty value as null
            _assign(tree, key.strip(), value, mistakes)
        except ValueError as error:
            reason = str(error).removeprefix("line 1: ")
            mistakes.append(f"--set {item}: " + (f"{text!r} is not a YAML value" if "not YAML" in reason else reason))
    return parse_recipe(tree, where, mistakes)


def parse_recipe(tree: Mapping[str, Plain], where: str, mistakes: Sequence[str] = ()) -> Recipe:
    """Validate a whole tree; raises RecipeError with one line per mistake."""
    lines = list(mistakes)
    method, method_lines = _parse_method(tree.get("method"))
    lines += method_lines
    recipe, other_lines = _validated({**tree, "method": method or METHODS["es"]()})
    lines += other_lines
    if lines or recipe is None:
        raise RecipeError([f"{where}: {line}" for line in lines])
    return recipe if recipe.label else recipe.model_copy(update={"label": recipe.kind.upper()})


def read_recipe_file(source: str) -> tuple[dict[str, Plain], str]:
    """The tree of a recipe file, or of a shipped recipe by name, and what to call it in messages."""
    shipped = not Path(source).is_file()
    path = find_recipe(source) if shipped else Path(source)
    where = f"recipe {source}" if shipped else source
    try:
        tree = read_yaml(path)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None
    if not isinstance(tree, dict):
        raise UsageError(f"{where}: a recipe is a mapping of keys to values; copy one with `esctl recipes copy`")
    return cast(dict[str, Plain], tree), where


def find_recipe(name: str) -> Path:
    """The file of a shipped recipe."""
    shipped = recipes()
    if name not in shipped:
        hint = did_you_mean(name, shipped).removeprefix(", ") or "`esctl recipes ls` lists those that ship"
        raise UsageError(f"recipe {name}: no such file and no shipped recipe; {hint}")
    return shipped[name]


def recipes_root() -> Path:
    """The folder of what ships."""
    return Path(str(resources.files("esctl"))) / "recipes"


@cache
def recipes() -> Mapping[str, Path]:
    """Every shipped recipe by name: its path below `recipes/` without the ending. `tables/` holds no recipes."""
    root = recipes_root()
    found = sorted(p for p in root.rglob("*.yaml") if p.parent.name != "tables")
    return {p.relative_to(root).with_suffix("").as_posix(): p for p in found}


def dump_recipe(recipe: Recipe) -> str:
    """YAML with every default spelled out; itself a valid recipe."""
    return yaml.safe_dump(recipe_tree(recipe), sort_keys=False, allow_unicode=True, width=120)


def recipe_tree(recipe: Recipe) -> dict[str, Plain]:
    """The recipe as plain values, in schema order."""
    tree = recipe.model_dump(mode="json", exclude={"method"})
    method = {"kind": recipe.kind, **dataclasses.asdict(recipe.method)}
    return {k: (method if k == "method" else tree[k]) for k in Recipe.model_fields}


def changes(old: Recipe, new: Recipe) -> list[str]:
    """`key: old → new` for every leaf that differs and that a resumed run may not change."""
    a = dict(_leaves(recipe_tree(old)))
    b = dict(_leaves(recipe_tree(new)))
    keys = [k for k in {**a, **b} if a.get(k) != b.get(k) and k.split(".")[0] not in RESUMABLE]
    return [f"{k}: {a.get(k)} → {b.get(k)}" for k in keys]


def _leaves(tree: Plain, prefix: str = "") -> Iterator[tuple[str, Plain]]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _leaves(value, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix, tree


def _assign(tree: dict[str, Plain], key: str, value: Plain, mistakes: list[str]) -> None:
    *parents, leaf = key.split(".")
    node = tree
    for name in parents:
        child = node.setdefault(name, {})
        if not isinstance(child, dict):
            mistakes.append(f"{key}: {name} is a value, not a section")
            return
        node = child
    node[leaf] = value


def _parse_method(section: Plain) -> tuple[AnyMethod | None, list[str]]:
    """The `method:` section by the table of methods: each method's own fields are its schema."""
    if not isinstance(section, dict) or "kind" not in section:
        return None, [f"method.kind: say which method: {', '.join(TRAINED)}"]
    kind = str(section["kind"])
    fields = {str(k): v for k, v in section.items() if k != "kind"}
    if kind not in ALL_METHODS:
        return None, [f"method.kind: unknown method {kind}{did_you_mean(kind, TRAINED)}; choose {', '.join(TRAINED)}"]
    known = [f.name for f in dataclasses.fields(ALL_METHODS[kind])]
    lines = [f"method.{k}: unknown key for {kind}{did_you_mean(k, known)}" for k in fields if k not in known]
    # YAML's `true` would pass as 1.
    numeric = {f.name for f in dataclasses.fields(ALL_METHODS[kind]) if f.type in (int, float)}
    lines += [f"method.{k}: {v} is no number" for k, v in fields.items() if k in numeric and isinstance(v, bool)]
    method, wrong = _built(ALL_METHODS[kind], {k: v for k, v in fields.items() if k in known})
    lines += wrong
    if method is None:
        return None, lines
    numbers = {k: v for k, v in dataclasses.asdict(method).items() if isinstance(v, float)}
    lines += [f"method.{k}: {v} is not a finite number" for k, v in numbers.items() if not math.isfinite(v)]
    return method, lines


def _built(method: type[AnyMethod], fields: Mapping[str, Plain]) -> tuple[AnyMethod | None, list[str]]:
    """A method, and all that is wrong with its fields: checks stop at the first, which is then left out."""
    lines: list[str] = []
    while True:
        try:
            return TypeAdapter(method).validate_python(fields), lines
        except ValidationError as error:
            lines += _lines(error, "method")
            wrong = {_field(detail) for detail in error.errors()}
        if not wrong & fields.keys():
            return None, lines
        fields = {k: v for k, v in fields.items() if k not in wrong}


def _field(detail: ErrorDetails) -> str:
    """The field of a method that one of pydantic's errors is about; a method's own checks carry it."""
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, SettingError):
        return cause.key
    return str(detail["loc"][0]) if detail["loc"] else ""


def _validated(tree: "Mapping[str, Plain | AnyMethod]") -> tuple[Recipe | None, list[str]]:
    """A recipe, or all that is wrong with it. Unknown keys hide misfits of other keys, so those are checked without."""
    try:
        return Recipe.model_validate(tree), []
    except ValidationError as error:
        lines = _lines(error)
        unknown = [d["loc"] for d in error.errors() if d["type"] in UNKNOWN_KEY]
        if len(unknown) < error.error_count():
            return None, lines
    known = {
        key: {k: v for k, v in value.items() if (key, k) not in unknown} if isinstance(value, dict) else value
        for key, value in tree.items()
        if (key,) not in unknown
    }
    return None, _validated(known)[1] + lines


def _lines(error: ValidationError, prefix: str = "") -> list[str]:
    """One line per key; a key that may be of two types says both."""
    by_key: dict[str, list[str]] = {}
    own: list[str] = []
    for detail in error.errors():
        key, message = _mistake(detail, prefix)
        if key:
            by_key.setdefault(key, []).append(message)
        else:
            own += message.splitlines()
    return [*own, *(f"{key}: {' or '.join(messages)}" for key, messages in by_key.items())]


def _mistake(detail: ErrorDetails, prefix: str) -> tuple[str, str]:
    """(key, message) of one of pydantic's errors; its names for the members of a union are no part of a key."""
    path = [p for p in (prefix, *map(str, detail["loc"])) if (p.isidentifier() or p.isdigit()) and p not in PLAIN_TYPES]
    key = ".".join(path)
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] in UNKNOWN_KEY:
        inside = _in_sections(key) if len(path) == 1 else ""
        return key, f"unknown key{inside or did_you_mean(path[-1], _keys_at(path[:-1]))}"
    if detail["type"] in NO_SECTION:
        return key, f"{detail['input']!r} — write a section, such as {key}: {{{_keys_at(path)[0]}: …}}"
    if detail["type"] == "value_error":  # our own checks name the field themselves
        return "", f"{prefix}.{message}" if prefix else message
    return key, f"{detail['input']!r} — {message[0].lower()}{message[1:]}"


def _in_sections(leaf: str) -> str:
    """The end of a message about a key that is one of a section, such as `rho` for `method.rho`."""
    methods = {field.name for kind in ALL_METHODS.values() for field in dataclasses.fields(kind)}
    sections = {name: set(_keys_at([name])) for name in Recipe.model_fields} | {"method": methods}
    found = [f"{name}.{leaf}" for name, keys in sections.items() if leaf in keys]
    return f", did you mean {' or '.join(found)}?" if found else ""


def _keys_at(path: Sequence[str]) -> list[str]:
    """The keys of the recipe, or of one of its sections."""
    section: object = Recipe
    for name in path:
        section = Recipe.model_fields[name].annotation if name in Recipe.model_fields else None
    if dataclasses.is_dataclass(section):
        return [field.name for field in dataclasses.fields(section)]
    return list(section.model_fields) if isinstance(section, type) and issubclass(section, BaseModel) else []


def read_recipe(run: RunDir) -> Recipe:
    """The recipe of a run, as recorded."""
    if not run.recipe.is_file() and run.exists:
        raise RunError(f"{run.recipe}: no recipe here, but a run; restore it from a copy")
    if not run.recipe.is_file():
        raise RunError(f"{run.path}: no run here to resume (recipe.yaml is missing); leave --resume out")
    if run.exists:
        run.refuse_edited_recipe(run.read_record())
    tree, where = read_recipe_file(str(run.recipe))
    return parse_recipe(tree, where)
