"""What a run refuses that does not fit what is asked of it, and that its history is kept."""

import resource
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from command import esctl
from refusing import SMALL, files_below

from esctl.assets import tiny_model_path
from esctl.engines.weights.center import Center
from esctl.errors import EngineError
from esctl.runs.directory import RunDir
from esctl.runs.records import Cost


def _no_damage(run: Path) -> None:
    pass


def _spoil_scores(run: Path) -> None:
    lines = (run / "scores.jsonl").read_text().splitlines(keepends=True)
    (run / "scores.jsonl").write_text("".join([lines[0], "{\n", *lines[2:]]))


def _swap_scores(run: Path) -> None:
    lines = (run / "scores.jsonl").read_text().splitlines(keepends=True)
    (run / "scores.jsonl").write_text("".join([lines[1], lines[0], *lines[2:]]))


def _other_base(run: Path) -> None:
    record = RunDir(run).read_record()
    RunDir(run).write_record(replace(record, base=replace(record.base, weights_sha256="0" * 64)))


def _other_noise(run: Path) -> None:
    record = RunDir(run).read_record()
    RunDir(run).write_record(replace(record, noise=replace(record.noise, version=0)))


def _later_schema(run: Path) -> None:
    (run / "run.json").write_text('{"schema": 9}')


def _no_weights(run: Path) -> None:
    shutil.rmtree(run / "weights")


RESUME = "train --resume --run D/run --generations 3"
# What a run refuses: (damage, command, exit code, start of the message).
DAMAGED = [
    (_no_damage, f"train {SMALL} --run D/run", 1, "D/run: is in use; continue it with --resume, or choose another"),
    (_no_damage, f"{RESUME} --set method.sigma=1", 1, "D/run: --resume cannot change method.sigma: 0.015 → 1.0; start"),
    (_no_damage, RESUME.replace("3", "1"), 1, "D/run: has 2 generations, --resume cannot make them 1; give 2"),
    (_spoil_scores, RESUME, 1, "D/run/scores.jsonl:2: line: Invalid JSON"),
    (_swap_scores, RESUME, 1, "D/run/scores.jsonl:1: holds generation, round, member (0, 0, 1) where (0, 0, 0) must"),
    (_other_base, RESUME, 1, "D/run: the base weights are not as recorded (00"),
    (_other_noise, RESUME, 1, "D/run: the noise is not as recorded ("),
    (_later_schema, RESUME, 1, "D/run/run.json: schema 9, but this esctl reads 1; use the esctl that wrote it"),
    (_spoil_scores, "export D/run D/out --step 1", 1, "D/run/scores.jsonl:2: line: Invalid JSON"),
    (_other_base, "export D/run D/out --step 1", 1, "D/run: embedded has weights "),
    (_other_noise, "export D/run D/out --step 1", 1, "D/run: its seeds mean noise "),
    (_no_damage, "export D/run D/out --step 3", 2, "--step 3: D/run has generations 0 to 2"),
    (_no_damage, "export D/run D/out --step 1 --dtype int8", 2, "--dtype int8: choose float32, bfloat16, float16"),
    (_no_damage, "export D/run D/run --step 1", 2, "D/run: exists; choose a new folder"),
    (
        _no_damage,
        "compare D/run",
        1,
        "D/run: no greedy evaluation on test; make one with `esctl eval D/run --split test`",
    ),
    (_no_damage, "show D/run --generation 7", 2, "--generation 7: D/run has rollouts of 0 to 1"),
    (_no_weights, "eval D/run", 2, "D/run: has no weights yet; finish it with `esctl train --resume --run D/run`"),
]


def history(folder: Path) -> dict[str, bytes]:
    """What no refusal may touch: all but how the last session ended, and what follows from scores."""
    follows = ("run.json", "recipe.yaml", "metrics.jsonl")
    return {path: data for path, data in files_below(folder).items() if not path.endswith(follows)}


@pytest.mark.slow
@pytest.mark.parametrize(("damage", "line", "code", "says"), DAMAGED)
def test_a_run_that_does_not_fit_is_refused_and_keeps_its_history(damage, line, code, says, trained, tmp_path, capsys):
    shutil.copytree(trained, tmp_path / "run")
    damage(tmp_path / "run")
    before = history(tmp_path)
    capsys.readouterr()
    assert esctl(line.replace("D/", f"{tmp_path}/")) == code
    told = [x for x in capsys.readouterr().err.replace(str(tmp_path), "D").splitlines() if x.startswith("esctl: ")]
    assert len(told) == 1
    assert told[0].startswith(f"esctl: {says}")
    assert history(tmp_path) == before


def _overflowing(folder: Path) -> None:
    """Copy the embedded model to `folder`/huge, with finite weights whose logits are not."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(tiny_model_path(), folder / "huge")
    path = folder / "huge" / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"][:] = torch.finfo(torch.float32).max
    save_file(tensors, path, metadata={"format": "pt"})


def _embedded(folder: Path) -> None:
    pass


# What only rollouts can tell: (model, command, exit code, status of the run, last line).
NO_SIGNAL = [
    (
        _overflowing,
        f"train {SMALL} --model D/huge --generations 2 --run D/run",
        1,
        "failed",
        "esctl: generation 0, round 0: no candidate had finite logits; check the model's weights, or start another run"
        " with a lower method.sigma",
    ),
    (
        _embedded,  # one token holds no answer
        f"train {SMALL} --set sampling.max_tokens=1 --generations 3 --run D/run",
        0,
        "finished",
        "ES s0  note: no signal: every member scored 0 for 3 generations, and 100 % of rollouts were cut at 1 tokens;"
        " raise sampling.max_tokens",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "line", "code", "status", "says"), NO_SIGNAL)
def test_scores_without_a_signal_are_told_and_move_no_weight(model, line, code, status, says, tmp_path, capsys):
    model(tmp_path)
    assert esctl(line.replace("D/", f"{tmp_path}/")) == code
    assert capsys.readouterr().err.splitlines()[-1] == says
    run = RunDir(tmp_path / "run")
    record = run.read_record()
    assert record.status == status
    assert {r.score for r in run.read_scores()} == ({None} if code else {0.0})
    assert run.weights.exists() == (code == 0)
    if run.weights.exists():
        assert Center.load(run.weights).weights_sha256() == record.base.weights_sha256


@pytest.mark.slow
def test_a_locked_run_is_refused(trained, tmp_path, capsys):
    shutil.copytree(trained, tmp_path / "run")
    with RunDir(tmp_path / "run").lock():
        assert esctl(f"train --resume --run {tmp_path}/run --generations 3") == 1
    assert capsys.readouterr().err.endswith("/run: another process is using this run; wait for it or stop it\n")


@pytest.mark.slow
def test_a_generation_that_a_full_disk_kept_out_of_the_record_is_in_it_after_resume(trained, tmp_path):
    run = RunDir(tmp_path / "run")
    shutil.copytree(trained, run.path)
    whole = run.read_record()
    run.write_record(replace(whole, status="failed", generation=1, train=Cost(), kept_generation=None))
    _no_weights(run.path)
    assert esctl(f"train --resume --run {run.path}") == 0
    found = run.read_record()
    assert (found.generation, found.kept_generation, found.train) == (2, 2, whole.train)


@pytest.mark.parametrize("what", ["save", "save_center"])
def test_weights_that_a_disk_refuses_are_one_line_and_leave_no_half(what, tmp_path):
    center = Center.load(tiny_model_path())
    write = {
        "save": lambda: center.save(tmp_path / "out", "float32", tiny_model_path()),
        "save_center": lambda: center.save_center(tmp_path / "out"),
    }[what]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that a limit is an error as a full disk's is
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(EngineError, match=r"/out: cannot be written \(File too large\); make room"):
            write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(tmp_path.iterdir()) == []
