"""Laws of a fleet: how many engines there are, and which of them die, moves no bit."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
from oracle import GREEDY, PROMPTS, SHORT, TARGETS, A, B, around

from esctl.assets import tiny_model_path
from esctl.engines import Engine, EngineSpec, open_engine
from esctl.engines.fleet import cluster, patches, workers
from esctl.engines.fleet.engine import COMPARED_EVERY, Fleet
from esctl.errors import GO_ON, EngineError, UsageError
from esctl.experiment.experiment import Experiment
from esctl.experiment.loading import load_recipe
from esctl.noise.moves import EMPTY, Move
from esctl.runs.directory import RunDir
from esctl.runs.records import RunRecord
from esctl.training import session
from esctl.training.evolution import Training

pytest.importorskip("ray", reason="Ray is not installed")
SPEC = EngineSpec(tiny_model_path(), kind="transformers", threads=1, max_model_len=512, probes=True)
SMALL = ("prompts=8", "method.population=4", "generations=3", "eval.every=0", "eval.final=null", "engine.threads=1",
         "sampling.max_tokens=40", "checkpoint_every=2", "engine.kind=transformers")  # fmt: skip
ROUND = around(A, EMPTY, B, A, center=B)
LONG = replace(ROUND, candidates=2 * ROUND.candidates)


@dataclass(frozen=True)
class Subject:
    """A fleet of two engines, its notices, and one engine that it must equal."""

    fleet: Fleet
    notices: list[str]
    one: Engine
    start: Path

    def pids(self) -> list[int]:
        return self.fleet.pool.pids


@pytest.fixture(scope="module")
def opened(tmp_path_factory) -> Iterator[Subject]:
    notices: list[str] = []
    fleet, one = open_engine(replace(SPEC, replicas=2), notices.append), open_engine(SPEC)
    assert isinstance(fleet, Fleet)
    start = tmp_path_factory.mktemp("center") / "start.safetensors"
    one.save_center(start)
    yield Subject(fleet, notices, one, start)
    fleet.close()
    fleet.close()  # twice is harmless


@pytest.fixture
def subject(opened: Subject) -> Subject:
    all_present(opened)
    for engine in (opened.fleet, opened.one):
        engine.load_center(opened.start)
    opened.notices.clear()
    return opened


def train(engine: Engine, folder: Path) -> RunRecord:
    """The same small run by any engine, as `session.train` does it once it has opened one."""
    experiment, run = Experiment(load_recipe("arithmetic/essam", {}, SMALL)), RunDir(folder)
    experiment.check_training()
    with handler_kept():
        return session._train(experiment, run, engine, lambda: Training(experiment, run, engine, print))


@contextmanager
def handler_kept():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def outcome(folder: Path) -> tuple[object, bytes]:
    """All that was scored and sampled, without seconds, and the final weights."""
    scores = [replace(record, seconds=0.0) for record in RunDir(folder).read_scores()]
    samples = [path.read_text() for path in sorted((folder / "samples").iterdir())]
    return (scores, samples), (folder / "weights/model.safetensors").read_bytes()


@contextmanager
def killed_after(subject: Subject, scores: Path, *lines: int) -> Iterator[list[int]]:
    """One engine dies as soon as so many candidates are recorded, each time another process; the dead, by pid."""
    dead, done = list[int](), threading.Event()

    def strike() -> None:
        for n in lines:
            while not done.is_set() and (not scores.exists() or scores.read_bytes().count(b"\n") < n):
                time.sleep(0.002)
            dead.append(subject.pids()[0])
            os.kill(dead[-1], signal.SIGKILL)

    thread = threading.Thread(target=strike)
    thread.start()
    yield dead
    done.set()
    thread.join()


def all_present(subject: Subject) -> None:
    """Rounds go on while an engine starts anew; wait until it has joined them."""
    while len(subject.pids()) < 2:
        subject.fleet.rollout(ROUND, PROMPTS, SHORT)


@pytest.mark.slow
def test_one_engine_two_and_two_of_which_one_dies_twice_train_the_same_bits(subject: Subject, tmp_path: Path) -> None:
    assert train(subject.one, tmp_path / "one").status == "finished"
    train(subject.fleet, tmp_path / "two")
    assert outcome(tmp_path / "two") == outcome(tmp_path / "one")
    assert not subject.notices
    subject.fleet.load_center(subject.start)
    with killed_after(subject, tmp_path / "dying/scores.jsonl", 2, 11) as dead:
        train(subject.fleet, tmp_path / "dying")
    assert [f"process {pid}) died" in notice for pid, notice in zip(dead, subject.notices, strict=True)] == [True, True]
    assert outcome(tmp_path / "dying") == outcome(tmp_path / "one")


@pytest.mark.slow
def test_candidates_come_in_order_and_who_starts_anew_comes_to_the_same_weights(
    subject: Subject, tmp_path: Path
) -> None:
    for engine in (subject.fleet, subject.one):
        engine.commit(A)
        engine.save_center(tmp_path / "center.safetensors")
        engine.commit(B)
    first, seen = subject.pids(), list[int]()
    expected = subject.one.rollout(LONG, PROMPTS, GREEDY)

    def on_candidate(index: int, completions: object) -> None:
        seen.append(index)
        assert completions == expected[index]
        if index == 0:  # the first engine was given the third candidate and the fifth
            os.kill(first[0], signal.SIGKILL)

    assert subject.fleet.rollout(LONG, PROMPTS, GREEDY, on_candidate=on_candidate) == expected
    assert seen == list(range(8))
    assert [f"process {first[0]}) died" in notice for notice in subject.notices] == [True]
    all_present(subject)
    os.kill(first[1], signal.SIGKILL)  # now none is left that saw the moves itself
    assert subject.fleet.nll(ROUND, PROMPTS, TARGETS) == subject.one.nll(ROUND, PROMPTS, TARGETS)
    assert subject.fleet.center_sha256() == subject.fleet.checksum() == subject.one.center_sha256()


@pytest.mark.slow
def test_live_weights_are_theta_whenever_they_are_looked_at(subject: Subject) -> None:
    before = subject.fleet.checksum()
    subject.fleet.rollout(ROUND, PROMPTS, SHORT)
    assert subject.fleet.checksum() == before == subject.one.checksum()
    assert not subject.notices  # engines that differ would be loaded again, and so come to θ too
    subject.fleet.rollout(ROUND, PROMPTS, SHORT)
    for engine in (subject.fleet, subject.one):
        engine.commit(A)
    assert subject.fleet.checksum() == subject.one.checksum() != before


@pytest.mark.slow
def test_an_engine_with_other_weights_is_found_reported_and_loaded_again(subject: Subject) -> None:
    import ray

    all_present(subject)
    astray = subject.fleet.pool.ready[1]
    ray.get(astray.replica.do.remote((), lambda engine: engine.commit(B)))  # a flipped bit would be no different
    for _ in range(COMPARED_EVERY):
        assert not subject.notices
        subject.fleet.commit(A)
        subject.one.commit(A)
    assert subject.fleet.rollout(ROUND, PROMPTS, GREEDY) == subject.one.rollout(ROUND, PROMPTS, GREEDY)
    assert [f"{astray.name} held other weights" in notice for notice in subject.notices].count(True) == 1
    assert subject.fleet.center_sha256() == subject.one.center_sha256()


@pytest.mark.slow
def test_candidates_that_are_no_numbers_change_no_other_candidate(subject: Subject) -> None:
    huge = around(*(4 * [Move.of([1], [1e30]), EMPTY, A]))
    expected = subject.one.rollout(huge, PROMPTS, GREEDY)
    assert not any(c.finite for samples in expected[0] for c in samples)
    assert subject.fleet.rollout(huge, PROMPTS, GREEDY) == expected
    assert subject.fleet.rollout(ROUND, PROMPTS, GREEDY) == subject.one.rollout(ROUND, PROMPTS, GREEDY)
    assert subject.fleet.checksum() == subject.one.checksum()
    assert not subject.notices


@pytest.mark.slow
def test_memory_is_that_of_all_engines(subject: Subject) -> None:
    for engine in (subject.fleet, subject.one):
        engine.rollout(ROUND, PROMPTS, SHORT)
    all_present(subject)
    one, two = subject.one.tensor_bytes(), subject.fleet.tensor_bytes()
    assert {k: two[k] for k in ("weights", "center", "probe")} == {
        k: 2 * one[k] for k in ("weights", "center", "probe")
    }
    assert subject.fleet.held().host > 2 * one["weights"]


@pytest.mark.slow
def test_ctrl_c_sigterm_and_a_dead_ray_end_everything_within_seconds_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    run, recorded = tmp_path / "run", 0
    interrupted = f"go on with: esctl train --resume --run {run}"
    for strike, number, says in (
        (os.killpg, signal.SIGINT, interrupted),  # a terminal tells the whole group
        (os.kill, signal.SIGTERM, interrupted),
        (kill_raylet, signal.SIGKILL, "Ray on this machine died (killed, or out of memory); " + GO_ON),
    ):
        process = start(run)
        while count(run) == recorded and process.poll() is None:
            time.sleep(0.05)
        family = psutil.Process(process.pid).children(recursive=True)
        assert any(child.name().startswith("ray::Replica") for child in family)
        strike(process.pid, number)
        _, errors = process.communicate(timeout=60)
        assert errors.splitlines()[-1].endswith(says)
        assert process.returncode == (130 if says == interrupted else 1)
        assert not psutil.wait_procs(family, timeout=20)[1]
        recorded = count(run)


def start(run: Path) -> "subprocess.Popen[str]":
    """Begin or resume a run of two engines that lasts, in a process group of its own."""
    line = [sys.executable, "-m", "esctl", "train", "--recipe", "arithmetic/essam", "--run", str(run)]
    sets = [part for s in (*SMALL, "generations=99", "engine.replicas=2") for part in ("--set", s)]
    resume = ["--resume"] if run.exists() else []
    # A shell's background job ignores SIGINT, and so would its children.
    return subprocess.Popen(
        [*line, *sets, *resume],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )


def kill_raylet(driver: int, number: int) -> None:
    """Strike the process of Ray that starts all others on a machine."""
    (raylet,) = [child for child in psutil.Process(driver).children() if child.name() == "raylet"]
    raylet.send_signal(number)


def count(run: Path) -> int:
    """Candidates on record."""
    scores = run / "scores.jsonl"
    return scores.read_bytes().count(b"\n") if scores.exists() else 0


@pytest.mark.slow
def test_three_kills_of_driver_or_engine_at_random_moments_change_nothing() -> None:
    script = Path(__file__).parents[2] / "bench/kills.py"
    line = [sys.executable, str(script), "--kills", "3", "--generations", "3", "--seed", "38"]  # engine, driver, engine
    done = subprocess.run(line, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "equal scores and weights after 3 kills" in done.stdout


def test_a_busy_worker_has_its_next_job_and_the_last_jobs_wait_for_the_worker_that_is_free_first() -> None:
    class FakeWorker:
        def __init__(self, number: int) -> None:
            self.number = number

        def submit(self, moves: object, job: object) -> object:
            return object()  # an answer to come

    team = [FakeWorker(1), FakeWorker(2)]
    queue = workers.JobQueue([lambda engine: None] * 7)

    def held() -> list[tuple[int, int]]:
        queue.assign(team, ())
        return sorted((worker.number, index) for worker, index in queue.running.values())

    def done(index: int) -> None:
        [answer] = [answer for answer, (_, own) in queue.running.items() if own == index]
        del queue.running[answer]

    assert held() == [(1, 0), (1, 2), (2, 1), (2, 3)]
    done(0)
    assert held() == [(1, 2), (1, 4), (2, 1), (2, 3)]  # two are left, one for each
    done(1)
    assert held() == [(1, 2), (1, 4), (2, 3)]
    done(3)
    assert held() == [(1, 2), (1, 4), (2, 5)]
    for index in (2, 4):  # the first worker died; another starts in its place
        done(index)
        queue.requeue(index)
    del team[0]
    assert held() == [(2, 2), (2, 5)]
    done(5)
    assert held() == [(2, 2), (2, 4)]
    done(2)
    assert held() == [(2, 4)]
    done(4)
    assert held() == [(2, 6)]


@pytest.mark.parametrize("patch", [patches.silence_worker_deaths, patches.separate_sessions, patches.keep_sigterm])
def test_a_ray_without_a_patched_name_is_refused_in_one_line(patch, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private import services, utils, worker

    monkeypatch.delattr(worker, "print_to_stdstream")
    monkeypatch.delattr(services, "ConsolePopen")
    monkeypatch.delattr(utils, "set_sigterm_handler")

    def applied() -> None:
        context = patch()
        if context is not None:
            with context:
                pass

    with pytest.raises(EngineError, match=r"^Ray \S+ has no ray\._private\.\S+, which .*: install ray 2\.60$"):
        applied()


def test_ray_that_is_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        UsageError, match=r"^engine.replicas: 2, but Ray is not installed: pip install 'esctl-lm\[ray\]"
    ):
        open_engine(replace(SPEC, replicas=2))


def test_more_engines_than_this_machine_can_run_are_refused_before_ray_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # another test's fleet may be open
    with pytest.raises(UsageError, match=r"^engine.replicas: 1000 engines, but this machine has \d+ cores and"):
        open_engine(replace(SPEC, replicas=1000))
