"""The method, recipe, task and engine of CONTRIBUTING.md, applied to a copy, pass the contract tests and train."""

import os
import shutil
import subprocess
import sys

import pytest
from documented import FENCE, ROOT

pytestmark = pytest.mark.slow
BLOCKS = FENCE.findall((ROOT / "CONTRIBUTING.md").read_text())
CONTRACTS = [
    ["tests/methods", "-k", "Best or best"],
    ["tests/tasks/test_tasks.py", "-k", "sums"],
    ["tests/test_docs.py", "-k", "best or reference"],
    ["tests/engines/test_engines.py", "-k", "unbatched and tiny_qwen2"],
    ["tests/test_layers.py"],
]
SMALL = "--set generations=1 --set prompts=4 --set method.population=2 --set eval.every=0 --set eval.final=null"


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The project with every block of the page applied."""
    root = tmp_path_factory.mktemp("project")
    for name in ("esctl", "recipes", "tests", "docs", "results", "tools", "bench"):
        shutil.copytree(ROOT / name, root / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for path in [*ROOT.glob("*.md"), ROOT / "pyproject.toml", ROOT / "Makefile"]:
        shutil.copy(path, root)
    for language, block in BLOCKS:
        first, rest = block.split("\n", 1)
        if language == "diff":
            for hunk in block.split("@@\n"):
                change(root, hunk.splitlines())
        elif language in ("python", "yaml"):
            target = root / first.removeprefix("# ")
            assert not target.exists()
            target.write_text(rest)
    return root


def change(root, hunk):
    """Apply a hunk where the package has its old lines, which is in one place."""
    old, new = ("".join(line[1:] + "\n" for line in hunk if line[0] in f" {sign}") for sign in "-+")
    [path] = [p for p in (root / "esctl").rglob("*.py") if f"\n{old}" in p.read_text()]
    text = path.read_text()
    assert text.count(f"\n{old}") == 1, (path, old)
    path.write_text(text.replace(f"\n{old}", f"\n{new}"))


def run(root, words):
    environment = os.environ | {"PYTHONPATH": str(root)}  # its own package, not the installed one
    done = subprocess.run([sys.executable, *words], cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_what_is_added_passes_the_contract_tests(copy):
    run(copy, ["tools/make_reference.py"])
    for contract in CONTRACTS:
        run(copy, ["-m", "pytest", "-p", "no:cacheprovider", *contract])


@pytest.mark.parametrize("engine", ["transformers", "unbatched"])
@pytest.mark.parametrize("task", ["arithmetic", "sums"])
def test_what_is_added_trains(copy, engine, task, tmp_path):
    flags = f"--recipe arithmetic/best --task {task} --engine {engine} {SMALL} --run {tmp_path / 'run'}".split()
    run(copy, ["-m", "esctl", "train", *flags])
