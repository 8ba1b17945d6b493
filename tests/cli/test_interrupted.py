"""Every command can be ended from outside: one line says how to go on, the exit code is 130, the record says so."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from miniature import evaluation, write_run

from esctl.cli.app import AGAIN, interruptible
from esctl.errors import Interrupted
from esctl.interrupts import listening
from esctl.runs.directory import RunDir

SMALL = (
    "--recipe arithmetic/es --engine transformers --set method.population=4 --set prompts=8"
    " --set sampling.max_tokens=16 --set eval.n=16 --set eval.final=null --set eval.every=0"
)
BEGUN = "nothing recorded is lost, go on with: esctl train --resume --run"
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP]


def start(line: str, folder: Path, code: str = "") -> subprocess.Popen[str]:
    """`esctl` in a process that no parent made deaf to Ctrl-C, after the given code."""
    command = [sys.executable, "-c", f"{code}\nfrom esctl.cli import main\nmain()", *line.split()]
    return subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )


# Commands that wait for a file while a signal comes, by the function that they call: (line, module, function).
WAITING = [
    ("compare mini", "esctl.comparison.compare", "load"),
    ("memory", "esctl.experiment.estimates.memory", "analytic"),
    ("export mini out --step 1", "esctl.experiment.rebuild", "export_step"),
    ("show mini", "esctl.cli.show", "story"),
    ("eval embedded", "esctl.evaluation.evaluate", "evaluate"),
    ("recipes ls", "esctl.experiment.loading", "recipes"),
]


@pytest.mark.parametrize(("line", "module", "function"), WAITING)
def test_every_command_is_interrupted_alike(line, module, function, tmp_path):
    write_run(tmp_path / "mini", evaluation([1, 0]))
    wait = "lambda *args, **more: (open('ready', 'w').close(), __import__('time').sleep(60))"
    process = start(line, tmp_path, f"import {module} as m\nm.{function} = {wait}")
    while not (tmp_path / "ready").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    for _ in range(2):  # twice within 10 ms
        process.send_signal(random.Random(line).choice(SIGNALS))
        time.sleep(0.005)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (out, errors.count("\n")) == ("", 1)
    assert errors.startswith("esctl: interrupted; ")


def dies_of_a_signal() -> None:
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    except KeyboardInterrupt:
        raise RuntimeError("a worker died") from None


def test_a_library_that_fails_because_of_the_signal_does_not_hide_it():
    with listening(), pytest.raises(Interrupted, match=AGAIN):  # noqa: SIM117  the order matters
        with interruptible():
            dies_of_a_signal()


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_at_any_time_of_a_start_leaves_one_line(number, tmp_path):
    """While Python starts, torch is imported, the model is loaded and the first rollouts run."""
    for n, seconds in enumerate((0.5, 1.5, 3.0, 5.0)):
        run = tmp_path / f"run{n}"
        process = start(f"train {SMALL} --generations 500 --run {run}", tmp_path)
        time.sleep(seconds)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        said = [line for line in errors.splitlines() if line.startswith("esctl: ")]
        assert process.returncode == 130, errors
        assert "Traceback" not in errors
        assert len(said) == 1
        begun = RunDir(run).exists
        assert (BEGUN if begun else AGAIN) in said[0]
        assert not begun or RunDir(run).read_record().status == "interrupted"


@pytest.mark.slow
def test_destructors_that_swallow_the_first_signal_do_not_keep_a_run_going(tmp_path):
    """As packed matrices of vLLM do, which every candidate frees by the hundred."""
    frees = """
import os, signal
class Frees:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        sum(range(1000))
import esctl.runs.directory as directory
append = directory.RunDir.write_record
def write_record(self, record):
    append(self, record)
    if record.generation == 1:
        Frees()
directory.RunDir.write_record = write_record
"""
    process = start(f"train {SMALL} --generations 500 --run run", tmp_path, frees)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert BEGUN in errors.splitlines()[-1]
    record = RunDir(tmp_path / "run").read_record()
    assert record.status == "interrupted"
    assert record.generation < 20
