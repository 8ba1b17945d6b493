"""Processes side by side: none waits for another's failure, and none outlives its parent."""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from esctl.runs.directory import RunDir
from esctl.training.jobs import Job, Progress, run_jobs


def job(tmp_path: Path, name: str, module: str, text: str, work: float = 1.0) -> Job:
    (tmp_path / f"{module}.py").write_text(text)
    return Job(name, (module,), tmp_path / "logs" / f"{name}.log", work)


@pytest.fixture(autouse=True)
def _importable(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_a_failed_job_stops_no_other_and_its_last_words_are_kept(tmp_path):
    bad = job(tmp_path, "bad", "bad", "raise SystemExit('esctl: no such thing')", work=2)
    good = job(tmp_path, "good", "good", "open('done', 'w').close()".replace("done", str(tmp_path / "done")))
    [failure] = run_jobs([bad, good], 1, lambda progress: None)
    assert (failure.job, failure.exit_code, failure.tail) == (bad, 1, "esctl: no such thing")
    assert (tmp_path / "done").exists()


def test_so_many_run_at_once_and_the_longest_begins_first(tmp_path):
    jobs = [job(tmp_path, f"j{i}", "nap", "import time; time.sleep(0.3)", work=i) for i in range(4)]
    seen: list[Progress] = []
    assert run_jobs(jobs, 2, seen.append) == []
    assert max(len(p.running) for p in seen) == 2
    assert seen[0].running == ("j3",)
    assert (seen[-1].done, seen[-1].total, seen[-1].seconds_left) == (4, 4, 0.0)


@pytest.mark.parametrize("at_once", [1, 64])
def test_every_job_gets_its_share_of_the_cores(tmp_path, at_once):
    text = f"import os; open({str(tmp_path / 'threads')!r}, 'w').write(os.environ['OMP_NUM_THREADS'])"
    run_jobs([job(tmp_path, "j", "threads", text)], at_once, lambda progress: None)
    assert int((tmp_path / "threads").read_text()) == max(1, (os.cpu_count() or 1) // at_once)


def is_running(pid: int) -> bool:
    """Whether the process is there and not a zombie, which an orphan stays where nobody reaps it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGKILL])
def test_a_stopped_or_killed_parent_interrupts_its_jobs_and_leaves_none(tmp_path, number):
    """A job gets one SIGTERM and the time to record what it has."""
    nap = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.default_int_handler)\n"
        "open(sys.argv[1], 'w').write(str(os.getpid()))\n"
        "try:\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    open(sys.argv[1] + '.clean', 'w').close()\n"
    )
    (tmp_path / "nap.py").write_text(nap)
    driver = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from pathlib import Path; from esctl.interrupts import listening\n"
        "from esctl.training.jobs import Job, run_jobs\n"
        f"at = Path({str(tmp_path)!r})\n"
        "with listening():\n"
        "    run_jobs([Job(n, ('nap', str(at / n)), at / f'{n}.log', 1) for n in 'ab'], 2, lambda p: None)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", driver], stderr=subprocess.DEVNULL)
    pids = [tmp_path / n for n in "ab"]
    deadline = time.monotonic() + 20
    while not all(p.exists() and p.read_text() for p in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.2)
    parent.send_signal(number)
    parent.wait(20)
    while not all((tmp_path / f"{n}.clean").exists() for n in "ab") and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    assert all((tmp_path / f"{n}.clean").exists() for n in "ab")
    assert not any(is_running(int(pid.read_text())) for pid in pids)


def test_a_job_whose_run_is_locked_waits_for_it_and_delays_no_other(tmp_path):
    """The lock may belong to a job that outlived its driver; it is no failure of this one."""
    run = RunDir(tmp_path / "run")
    text = "from pathlib import Path; from esctl.runs.directory import RunDir\nwith RunDir(Path('RUN')).lock(): pass"
    locked = job(tmp_path, "locked", "takes", text.replace("RUN", str(run.path)), work=2)
    locked = replace(locked, run=run)
    free = replace(job(tmp_path, "free", "nothing", ""), run=RunDir(tmp_path / "other"))
    holder = ExitStack()
    holder.enter_context(run.lock())
    seen: list[Progress] = []

    def release_after_the_free_job(progress: Progress) -> None:
        seen.append(progress)
        if progress.done == 1:
            holder.close()

    assert run_jobs([locked, free], 1, release_after_the_free_job) == []
    assert [p.blocked for p in seen if p.done == 0][-1] == ("locked",)
    assert (seen[-1].done, seen[-1].blocked) == (2, ())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")
def test_a_job_whose_driver_died_while_it_was_started_runs_nothing(tmp_path, monkeypatch):
    orphan = job(tmp_path, "orphan", "orphan", f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    monkeypatch.setattr(os, "getpid", lambda: 1)
    [failure] = run_jobs([orphan], 1, lambda progress: None)
    assert failure.exit_code == 128 + signal.SIGTERM
    assert not (tmp_path / "ran").exists()
