"""What TensorBoard shows is metrics.jsonl: every key, every generation once, also after a resume, for ES and RL."""

import importlib.util
import shlex
from pathlib import Path

import pytest
from command import esctl

from esctl.errors import UsageError
from esctl.runs.directory import RunDir
from esctl.runs.files import append_lines, keep_lines
from esctl.training.events import GenerationDone, Notice
from esctl.training.tensorboard import check_sink, tracked

SMALL = "prompts=4 eval.every=0 eval.final=null sampling.max_tokens=8"


def train(run: Path, method: str, generations: int, *more: str) -> int:
    """Exit code of `esctl train --track tensorboard` in this process."""
    sets = [word for item in (*SMALL.split(), *more) for word in ("--set", item)]
    resume = ["--resume"] if run.exists() else []
    words = ["train", "--method", method, "--engine", "transformers", "--generations", str(generations)]
    return esctl(shlex.join([*words, "--run", str(run), "--track", "tensorboard", *sets, *resume]))


def shown(run: Path) -> list[dict[str, float]]:
    """One entry per step, as TensorBoard reads the folder; fails where it has a step twice."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    found: dict[int, dict[str, float]] = {}
    for key in events.Tags()["scalars"]:
        for event in events.Scalars(key):
            here = found.setdefault(event.step, {"generation": event.step})
            assert key not in here, (key, event.step)
            here[key] = event.value
    return [found[step] for step in sorted(found)]


def same(run: Path) -> bool:
    """Whether both say the same; TensorBoard keeps fp32."""
    recorded = RunDir(run).read_metrics()
    return [pytest.approx(metrics, rel=1e-6) for metrics in recorded] == shown(run)


needs_tensorboard = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="TensorBoard is not installed"
)


@pytest.mark.slow
@needs_tensorboard
@pytest.mark.parametrize(
    ("method", "more"),
    [("es", ["method.population=2"]), ("grpo", ["method.samples=2", "checkpoint_every=1"])],
)
def test_tensorboard_shows_each_generation_once_also_after_a_resume(
    method: str, more: list[str], tmp_path: Path
) -> None:
    if method == "grpo":
        pytest.importorskip("trl", reason="TRL is not installed")
    run = tmp_path / "run"
    assert train(run, method, 1, *more) == 0
    assert same(run)
    assert train(run, method, 2, *more) == 0
    assert len(shown(run)) == 2
    assert same(run)


@needs_tensorboard
def test_what_a_kill_cut_off_or_a_baseline_does_again_is_shown_as_recorded(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    seen: list[object] = []

    def session(*generations: dict[str, float]) -> None:
        with tracked("tensorboard", run, seen.append) as report:
            report(Notice("begun"))
            for metrics in generations:
                append_lines(run.metrics, [metrics])
                report(GenerationDone(metrics, 9, 1.0, 1.0))

    session({"generation": 1, "reward/mean": 0.1}, {"generation": 2, "reward/mean": 0.2})
    append_lines(run.metrics, [{"generation": 3, "reward/mean": 0.3}])  # and then killed
    session({"generation": 4, "reward/mean": 0.4})
    assert same(tmp_path)
    keep_lines(run.metrics, 2)  # a baseline goes back to its checkpoint
    session({"generation": 3, "reward/mean": 0.35})
    assert same(tmp_path)
    assert len(seen) == 7
    keep_lines(run.metrics, 1)
    session()
    assert same(tmp_path)


@needs_tensorboard
def test_a_session_that_is_refused_writes_nothing(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    append_lines(run.metrics, [{"generation": 1, "reward/mean": 0.1}])
    with pytest.raises(UsageError), tracked("tensorboard", run, print):
        raise UsageError("in use")
    assert not run.tensorboard.exists()


def test_a_sink_that_is_unknown_or_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="--track wandb: choose tensorboard"):
        check_sink("wandb")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"TensorBoard is not installed: pip install 'esctl-lm\[tensorboard\]'"):
        check_sink("tensorboard")
