"""Laws of training: what was recorded is the whole history, whatever kills the process."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from esctl.experiment.rebuild import center_at
from esctl.faults import POINTS
from esctl.runs.directory import RunDir

SMALL = ("prompts=8", "method.population=4", "eval.every=1", "eval.n=8", "eval.final=null", "sampling.max_tokens=40")
pytestmark = pytest.mark.slow


def command(run: Path, engine: str, *more: str) -> list[str]:
    sets = [item for s in (*SMALL, "checkpoint_every=2") for item in ("--set", s)]
    line = [sys.executable, "-m", "esctl", "train", "--recipe", "arithmetic/essam", "--generations", "3"]
    return [*line, "--engine", engine, "--run", str(run), *sets, *more]


def train(run: Path, engine: str, *more: str, fault: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({"ESCTL_FAULT": fault} if fault else {})
    return subprocess.run(command(run, engine, *more), capture_output=True, text=True, env=environment, timeout=300)


def outcome(run: Path) -> tuple[list[tuple[object, ...]], bytes, str, list[object]]:
    """Scores, final bits, the fp32 center, and every evaluation, without times."""
    directory = RunDir(run)
    scores = [(r.generation, r.round, r.member, r.score) for r in directory.read_scores()]
    evals = [(e.step, e.split, e.problems, e.weights_sha256) for e in directory.read_evals()]
    center = center_at(directory, 3).weights_sha256()
    return scores, (run / "weights/model.safetensors").read_bytes(), center, sorted(evals, key=lambda e: e[0])


@pytest.fixture(scope="module", params=["transformers", pytest.param("vllm", marks=pytest.mark.vllm)])
def undisturbed(request, tmp_path_factory):
    """(engine, run directory) of a run that nothing disturbed."""
    if request.param == "vllm":
        pytest.importorskip("vllm", reason="vLLM is not installed")
    run = tmp_path_factory.mktemp("whole") / "run"
    done = train(run, request.param)
    assert done.returncode == 0, done.stderr
    return request.param, run


def test_kills_at_every_fault_point_change_nothing(undisturbed, tmp_path):
    engine, whole = undisturbed
    # vLLM takes long to start, so it dies at three points and the reference engine at all of them, twice.
    faults = (
        [f"{p}:{n}" for p in POINTS for n in (1, 3)] if engine == "transformers" else [f"{p}:2" for p in POINTS[:3]]
    )
    run, kills = tmp_path / "run", 0
    for fault in faults:
        resume = ["--resume"] if (run / "recipe.yaml").exists() else []
        died = train(run, engine, *resume, fault=fault)
        kills += died.returncode == -signal.SIGKILL
    finished = train(run, engine, *(["--resume"] if (run / "recipe.yaml").exists() else []))
    assert finished.returncode == 0, finished.stderr
    assert kills >= len(faults) - 2  # a point that lies behind what was done already kills nobody
    assert outcome(run) == outcome(whole)


def test_kills_at_random_moments_change_nothing(undisturbed, tmp_path):
    engine, whole = undisturbed
    if engine != "transformers":
        pytest.skip("random moments are for the engine that starts fast")
    run, rng = tmp_path / "run", random.Random(0)
    for _ in range(2):
        resume = ["--resume"] if (run / "recipe.yaml").exists() else []
        process = subprocess.Popen(command(run, engine, *resume), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        time.sleep(rng.uniform(4, 12))
        process.kill()
        process.wait()
    finished = train(run, engine, *(["--resume"] if (run / "recipe.yaml").exists() else []))
    assert finished.returncode == 0, finished.stderr
    assert outcome(run) == outcome(whole)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_says_how_to_go_on_and_resume_ends_alike(undisturbed, tmp_path, number):
    engine, whole = undisturbed
    if (engine, number) not in (("transformers", signal.SIGINT), ("vllm", signal.SIGTERM)):
        pytest.skip("each engine gets one of the two signals")
    run = tmp_path / "run"
    # A shell's background job ignores SIGINT, and so would its children.
    process = subprocess.Popen(
        command(run, engine),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )
    while not (run / "scores.jsonl").exists():
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert f"go on with: esctl train --resume --run {run}" in errors.splitlines()[-1]
    assert process.returncode == 130
    assert json.loads((run / "run.json").read_text())["status"] == "interrupted"
    resumed = subprocess.run([sys.executable, "-m", "esctl", "train", "--resume", "--run", str(run)], timeout=300)
    assert resumed.returncode == 0
    assert outcome(run) == outcome(whole)


def test_export_is_the_center_at_that_generation(undisturbed, tmp_path):
    _, whole = undisturbed
    by_step = {e.step: e.weights_sha256 for e in RunDir(whole).read_evals()}
    assert len(set(by_step.values())) == 4
    for step, sha256 in by_step.items():
        assert center_at(RunDir(whole), step).weights_sha256() == sha256
    replayed = tmp_path / "run"
    shutil.copytree(whole, replayed)
    shutil.rmtree(replayed / "checkpoints")
    assert center_at(RunDir(replayed), 3).weights_sha256() == by_step[3]


def test_resume_can_lengthen_a_run_and_nothing_else(undisturbed, tmp_path):
    engine, whole = undisturbed
    if engine != "transformers":
        pytest.skip("what may change is decided before an engine starts")
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    refused = train(run, engine, "--resume", "--set", "method.sigma=0.5")
    assert refused.returncode == 1
    assert "--resume cannot change method.sigma: 0.015 → 0.5" in refused.stderr
    longer = train(run, engine, "--resume", "--generations", "4")
    assert longer.returncode == 0, longer.stderr
    scores = RunDir(run).read_scores()
    assert scores[: len(RunDir(whole).read_scores())] == RunDir(whole).read_scores()
    assert scores[-1].generation == 3


def test_best_validation_keeps_the_first_of_the_best_weights(tmp_path):
    run = tmp_path / "run"
    wild = ["--set", "select=best-validation", "--set", "method.alpha=0.2", "--set", "eval.final=validation"]
    done = train(run, "transformers", *wild)
    assert done.returncode == 0, done.stderr
    directory = RunDir(run)
    kept = directory.read_record().kept_generation
    shares = {e.step: sum(e.problems.strict) for e in directory.read_evals() if len(e.problems.id) == 8}
    assert shares[kept] == max(shares.values())
    assert all(shares[step] < shares[kept] for step in range(kept))
    [final] = [e for e in directory.read_evals() if len(e.problems.id) > 8]
    assert final.step == kept
    assert final.weights_sha256 == center_at(directory, kept).weights_sha256()
