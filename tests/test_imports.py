"""What starting costs, who prints, and the size of files: what a reader may rely on without reading everything."""

import ast
import subprocess
import sys
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
    "module",
    [
        "stats",
        "runs.records",
        "runs.files",
        "runs.directory",
        "runs.metrics",
        "runs.replay",
        "comparison.selection",
        "comparison.groups",
        "comparison.rows",
        "comparison.compare",
        "comparison.tables",
        "comparison.report",
        "comparison.curves",
        "comparison.plots",
        "experiment.recipe",
        "experiment.loading",
        "evaluation.coverage",
        "methods",
        "noise.moves",
    ],
)
def test_what_reads_runs_needs_no_heavy_package(module):
    assert not loaded_by(f"import esctl.{module}") & set(HEAVY)


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


@pytest.mark.parametrize("source", SOURCES, ids=name_of)
def test_text_is_read_and_written_as_utf_8_under_every_locale(source):
    calls = [n for n in ast.walk(ast.parse(source.read_text(encoding="utf-8"))) if isinstance(n, ast.Call)]
    texts = [c for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr in ("read_text", "write_text")]
    named = {c.lineno: [ast.unparse(value) for value in (*c.args, *(k.value for k in c.keywords))] for c in texts}
    assert [line for line, values in named.items() if "'utf-8'" not in values] == []
