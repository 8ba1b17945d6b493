"""The layers of the package: which room may import which, and no circles. See docs/architecture.md."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "esctl"
# Lowest first. A module may import its own room and every room of a lower layer. Equals never import each other.
LAYERS = (
    ("errors", "faults", "interrupts", "plain", "settings", "stats", "assets", "recipes", "__init__"),
    ("noise",),
    ("methods", "tasks", "engines"),
    ("runs",),
    ("experiment", "comparison"),
    ("evaluation",),
    ("training",),
    ("reproduce",),
    ("cli",),
    ("__main__",),
)
LAYER = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
# Methods know seeds and scores only: of `noise` they see moves and no weights.
METHODS_SEE = ("noise.moves",)


def modules(package: Path) -> dict[str, Path]:
    """Every module below the package by its dotted name, a package by the name of its folder."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        if len(parts) > 1 and parts[-1] == "__init__":
            parts = parts[:-1]
        found[".".join(parts)] = path
    return found


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports(tree: ast.Module, names: dict[str, Path], executed: bool = False) -> Iterator[tuple[int, str]]:
    """Line and module of every import of the project; only those that run when the module is imported, if asked."""
    nodes: list[ast.AST] = [*tree.body]
    while nodes:
        node = nodes.pop(0)
        if executed and (is_type_checking(node) or isinstance(node, ast.FunctionDef)):
            continue
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            for alias in node.names:
                yield from ((node.lineno, target) for target in targets(f"{node.module}.{alias.name}", names))
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from ((node.lineno, target) for target in targets(alias.name, names))
        nodes += ast.iter_child_nodes(node)


def targets(dotted: str, names: dict[str, Path]) -> Iterator[str]:
    """The longest part of a dotted name that is a module of the project."""
    parts = dotted.split(".")
    if parts[0] != "esctl":
        return
    own = [".".join(parts[1 : n + 1]) for n in range(len(parts) - 1, 0, -1)]
    yield next((name for name in own if name in names), "__init__")


def room_of(module: str) -> str:
    return module.split(".")[0]


def broken_layers(package: Path) -> list[str]:
    """Every import that the table does not allow; late ones and those for types count."""
    names = modules(package)
    found = []
    for module, path in names.items():
        room = room_of(module)
        for line, target in imports(ast.parse(path.read_text()), names):
            other = room_of(target)
            allowed = other == room or LAYER[other] < LAYER[room]
            if room == "methods" and other == "noise":
                allowed = target in METHODS_SEE
            if not allowed:
                found.append(f"{module}:{line} imports {target}")
    return found


def circles(package: Path) -> list[str]:
    """Modules that import themselves through others when they are imported."""
    names = modules(package)
    arrows = {
        m: {t for _, t in imports(ast.parse(p.read_text()), names, executed=True)} - {m} for m, p in names.items()
    }
    found = []
    for start in names:
        seen: set[str] = set()
        todo = [*arrows[start]]
        while todo:
            module = todo.pop()
            if module not in seen:
                seen.add(module)
                todo += arrows[module]
        if start in seen:
            found.append(start)
    return found


def test_every_import_goes_down_the_layers():
    assert broken_layers(PACKAGE) == []


def test_no_module_imports_itself_through_others():
    assert circles(PACKAGE) == []


def test_every_room_has_a_layer_and_few_modules_lie_outside_rooms():
    assert {room_of(m) for m in modules(PACKAGE)} <= LAYER.keys()
    outside = [m for m in modules(PACKAGE) if (PACKAGE / f"{m}.py").is_file() and not m.startswith("__")]
    assert len(outside) <= 6


@pytest.mark.parametrize(
    ("sin", "line"),
    [
        ("import esctl.training.session\n", "runs.files:1 imports training.session"),
        ("from esctl.training import session\n", "runs.files:1 imports training.session"),
        ("def late():\n    from esctl.cli import app\n", "runs.files:2 imports cli.app"),
        (
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from esctl.comparison.rows import Row\n",
            "runs.files:3 imports comparison.rows",
        ),
    ],
)
def test_an_import_up_the_layers_is_found(tmp_path, sin, line):
    package = small_package(tmp_path)
    (package / "runs" / "files.py").write_text(sin)
    assert broken_layers(package) == [line]


def test_an_import_between_equals_is_found(tmp_path):
    package = small_package(tmp_path)
    (package / "comparison" / "rows.py").write_text("from esctl.experiment import recipe\n")
    assert broken_layers(package) == ["comparison.rows:1 imports experiment.recipe"]


def test_methods_that_see_weights_are_found(tmp_path):
    package = small_package(tmp_path)
    (package / "methods" / "es.py").write_text("from esctl.noise.moves import Move\nfrom esctl.noise import cpu\n")
    assert broken_layers(package) == ["methods.es:2 imports noise.cpu"]


def test_a_circle_is_found(tmp_path):
    package = small_package(tmp_path)
    (package / "runs" / "files.py").write_text("from esctl.runs import records\n")
    (package / "runs" / "records.py").write_text("from esctl.runs.files import x\n")
    assert circles(package) == ["runs.files", "runs.records"]


def small_package(folder: Path) -> Path:
    """Empty modules in the shape of the package."""
    package = folder / "esctl"
    modules = "runs/files runs/records training/session cli/app comparison/rows experiment/recipe methods/es"
    for module in [*modules.split(), "noise/cpu", "noise/moves"]:
        path = package / f"{module}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        (path.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    return package
