"""A run directory from a stranger is read, or refused in one line that names the file: never a traceback or a hang."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command import esctl

DEEP = "[" * 100_000
LIMIT_BYTES, LIMIT_SECONDS = 2**30, 30  # of a processor
HANGS_AFTER = 300  # seconds of a clock, on a machine with other work
# One process runs every case: an interpreter for each would take minutes.
RUNNER = """
import json, os, resource, signal, sys, time
sys.path[:0] = json.loads(sys.argv[1])
from command import esctl
import contextlib, io
for line in sys.stdin:
    command = json.loads(line)
    out, err = io.StringIO(), io.StringIO()
    begun = time.process_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = esctl(command)
        except BaseException as error:
            code = f"{type(error).__name__}: {error}"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    answer = {"code": code, "err": err.getvalue(), "peak": peak, "seconds": time.process_time() - begun}
    print("ANSWER " + json.dumps(answer), flush=True)
"""


def cut(at: float) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        data = file.read_bytes()
        file.write_bytes(data[: int(len(data) * at)])

    return damage


def put(text: str) -> Callable[[Path], None]:
    return lambda file: file.write_text(text)


def linked(target: str) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        file.unlink()
        file.symlink_to(target)

    return damage


def huge(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.truncate(200 * 2**30)  # a sparse file of 200 GiB


def fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


DAMAGE: dict[str, Callable[[Path], None]] = {
    "empty": put(""),
    "cut early": cut(0.3),
    "cut late": cut(0.95),
    "null": put("null\n"),
    "a number": put("7\n"),
    "a list": put("[]\n"),
    "a string": put('"x"\n'),
    "an object": put("{}\n"),
    "nested": put(DEEP),
    "nested objects": put('{"a":' * 50_000),
    "bytes": lambda file: file.write_bytes(bytes(range(256)) * 40),
    "huge": huge,
    "zero device": linked("/dev/zero"),
    "itself": linked("run.json"),
    "its own folder": linked("."),
    "nowhere": linked("/nowhere/at/all"),
    "fifo": fifo,
    "folder": folder,
}
EVERY = ("show {run}", "compare {run} {run}", "export {run} {out} --step 1")
TRAINED = (*EVERY, "train --resume --run {run} --generations 3")
STORED = (*EVERY, "eval {run} --split validation -n 4")
# The files of a run, and the commands that are tried after each was damaged.
FILES = {
    "run.json": TRAINED,
    "recipe.yaml": TRAINED,
    "scores.jsonl": TRAINED,
    "metrics.jsonl": EVERY,
    "EVAL.json": STORED,
    "EVAL.jsonl.gz": STORED,
    "samples/00001.jsonl": ("show {run}",),
}


@pytest.fixture(scope="module")
def evaluated(trained, tmp_path_factory) -> Path:
    """The trained run with one stored evaluation."""
    run = tmp_path_factory.mktemp("evaluated") / "run"
    shutil.copytree(trained, run)
    assert esctl(f"eval {run} --split validation -n 4") == 0
    return run


def file_of(run: Path, name: str) -> Path:
    [evaluation] = (run / "evals").glob("*.json")
    return run / name if "EVAL" not in name else evaluation.with_name(name.replace("EVAL", evaluation.stem))


@pytest.fixture(scope="module")
def ask() -> Iterator[Callable[[str], dict[str, object]]]:
    tests = str(Path(__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, "-c", RUNNER, json.dumps([tests, str(Path(tests).parent)])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def answer(command: str) -> dict[str, object]:
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
            watch = threading.Timer(HANGS_AFTER, process.kill)
            watch.start()
            line = process.stdout.readline()
            watch.cancel()
            assert line.startswith("ANSWER "), f"the process died in: {command}"
            return json.loads(line.removeprefix("ANSWER "))

        yield answer
        process.stdin.close()


@pytest.fixture(scope="module")
def warm(ask, evaluated, tmp_path_factory) -> int:
    """Bytes that the commands take where nothing is damaged."""
    folder = tmp_path_factory.mktemp("warm")
    shutil.copytree(evaluated, folder / "run")
    for form in (*TRAINED, STORED[-1]):
        found = ask(form.format(run=folder / "run", out=folder / "out"))
        assert found["code"] == 0 or "no greedy evaluation on test" in str(found["err"]), found
    return int(found["peak"])


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_file_is_one_line_or_no_matter(tmp_path, evaluated, ask, warm, file, damage):
    for n, form in enumerate(FILES[file]):
        run = tmp_path / f"run{n}"
        shutil.copytree(evaluated, run)
        DAMAGE[damage](file_of(run, file))
        found = ask(form.format(run=run, out=tmp_path / f"out{n}"))
        assert found["code"] in (0, 1, 2), (form, found)
        lines = str(found["err"]).splitlines()
        assert not any("Traceback" in line for line in lines)
        assert found["code"] == 0 or any(line.startswith("esctl: ") for line in lines), (form, found)
        assert float(found["seconds"]) < LIMIT_SECONDS, form
        assert int(found["peak"]) < warm + LIMIT_BYTES, (form, found)
