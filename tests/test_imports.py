"""The arrows between modules, and the size of files: what a reader may rely on without reading everything."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "esctl"
SOURCES = sorted(PACKAGE.rglob("*.py"))
HEAVY = (
    "torch",
    "transformers",
    "vllm",
    "ray",
    "triton",
    "matplotlib",
    "datasets",
    "math_verify",
    "scipy",
    "tensorboard",
)
HELP = "import sys; sys.argv = ['esctl', '--help']\nfrom esctl.cli import main\ntry: main()\nexcept SystemExit: pass\n"


def name_of(source: Path) -> str:
    return source.relative_to(PACKAGE).as_posix()


def imported(tree: ast.AST) -> Iterator[str]:
    """Every module that a tree names in an import, `from a import b` as `a.b` too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def project_imports(source: Path) -> set[str]:
    """The parts of the project (first name below esctl) that a file imports, anywhere in it."""
    names = imported(ast.parse(source.read_text()))
    return {n.split(".")[1] for n in names if n.startswith("esctl.")}


def loaded_by(code: str) -> set[str]:
    """Top-level packages in sys.modules after a fresh interpreter ran the code."""
    end = "\nimport sys; print('LOADED', *{m.split('.')[0] for m in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code + end], capture_output=True, text=True, check=True)
    return set(done.stdout.rsplit("LOADED", 1)[1].split())


def test_help_is_instant_and_imports_nothing_heavy():
    assert not loaded_by(HELP) & {*HEAVY, "pydantic", "numpy"}
    best = min(_processor_seconds([sys.executable, "-m", "esctl", "--help"]) for _ in range(3))
    assert best < 0.5


def _processor_seconds(command: list[str]) -> float:
    """User and system seconds of a child: what it takes on an idle machine, whatever else runs now."""
    import resource

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize(
    "module", ["compare", "stats", "tables", "plots", "coverage", "rundir", "recipe", "records", "replay", "metrics"]
)
def test_what_reads_runs_needs_no_heavy_package(module):
    assert not loaded_by(f"import esctl.{module}") & set(HEAVY)


@pytest.mark.parametrize("source", sorted((PACKAGE / "methods").glob("*.py")), ids=name_of)
def test_methods_import_moves_only(source):
    assert project_imports(source) <= {"methods", "moves"}


@pytest.mark.parametrize("source", sorted((PACKAGE / "tasks").glob("*.py")), ids=name_of)
def test_tasks_know_no_engine(source):
    assert project_imports(source) <= {"tasks", "errors", "moves", "assets"}


@pytest.mark.parametrize("source", sorted((PACKAGE / "engines").glob("*.py")), ids=name_of)
def test_engines_import_noise_and_moves_only(source):
    assert project_imports(source) <= {"engines", "noise", "noise_triton", "moves", "errors", "faults"}


@pytest.mark.parametrize("source", SOURCES, ids=name_of)
def test_only_the_command_line_prints_or_exits(source):
    if source.parent.name == "cli" or source.name == "__main__.py":
        pytest.skip("it may")
    calls = {ast.unparse(n.func) for n in ast.walk(ast.parse(source.read_text())) if isinstance(n, ast.Call)}
    assert not calls & {"print", "sys.exit", "exit", "quit"}


@pytest.mark.parametrize("source", SOURCES, ids=name_of)
def test_files_and_functions_stay_small_and_say_what_they_know(source):
    text = source.read_text()
    tree = ast.parse(text)
    assert len(text.splitlines()) <= 400
    long = [
        f"{node.name}: {size}"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and (size := (node.end_lineno or 0) - node.lineno + 1) > 80
    ]
    assert not long
    assert ast.get_docstring(tree), "a module opens with what it knows"
    assert source.stem not in ("utils", "util", "common", "helpers", "manager", "misc")
