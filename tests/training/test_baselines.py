"""The contract of RL baselines: the run directory, the resume and the refusals of ES, for every one in the table."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import pytest

from esctl.engines import EngineSpec, Sampling, vllm_installed
from esctl.errors import RecipeError, UsageError
from esctl.evaluation.target import TargetRequest, find_target
from esctl.experiment.estimates.memory import measured
from esctl.experiment.experiment import Experiment
from esctl.experiment.loading import dump_recipe, load_recipe, recipes
from esctl.experiment.rebuild import center_at
from esctl.faults import VARIABLE
from esctl.methods import BASELINES
from esctl.noise.moves import EMPTY, Round
from esctl.runs.directory import RunDir
from esctl.runs.files import read_gzip_lines
from esctl.runs.metrics import KEYS as COMMON
from esctl.runs.records import EvalRecord, EvalSample, RunRecord
from esctl.training import session
from esctl.training.rl.recorder import KEYS

STEPS = 3
SMALL = (
    f"generations={STEPS}", "prompts=4", "method.samples=2", "method.minibatch=4", "method.microbatch=4",
    "method.lr=0.001", "method.warmup=2", "sampling.max_tokens=24", "eval.every=1", "eval.n=8", "eval.final=null",
    "checkpoint_every=2",
)  # fmt: skip


def command(kind: str, run: Path, *more: str) -> list[str]:
    sets = [part for item in SMALL for part in ("--set", item)]
    line = [sys.executable, "-m", "esctl", "train", "--recipe", f"arithmetic/{kind}"]
    return [*line, "--engine", "transformers", "--run", str(run), *sets, *more]


def train(kind: str, run: Path, *more: str, fault: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({VARIABLE: fault} if fault else {})
    return subprocess.run(command(kind, run, *more), capture_output=True, text=True, env=environment, timeout=600)


def outcome(run: Path) -> tuple[list[dict[str, float]], bytes, list[tuple[object, ...]], dict[str, str]]:
    """Metrics, final bits, evaluations and stored rollouts, without times."""
    directory = RunDir(run)
    metrics = [{k: v for k, v in m.items() if not k.startswith("time/")} for m in directory.read_metrics()]
    evals = sorted((e.step, e.split, e.problems, e.weights_sha256) for e in directory.read_evals())
    samples = {p.name: p.read_text() for p in directory.samples.iterdir()}
    return metrics, (run / "weights/model.safetensors").read_bytes(), [*evals], samples


@pytest.fixture(scope="module", params=list(BASELINES))
def undisturbed(request, tmp_path_factory):
    """(baseline, run directory) of three steps that nothing disturbed."""
    if request.param == "grpo":
        pytest.importorskip("trl", reason="TRL is not installed")
    run = tmp_path_factory.mktemp(request.param) / "run"
    done = train(request.param, run)
    assert done.returncode == 0, done.stderr
    assert all(line.startswith(f"{request.param.upper()} s0") for line in done.stderr.splitlines()), done.stderr
    return request.param, run


@pytest.mark.slow
def test_a_run_has_the_files_costs_and_metrics_of_es(undisturbed):
    kind, run = undisturbed
    directory = RunDir(run)
    record: RunRecord = directory.read_record()
    assert (record.method, record.status, record.generation, record.kept_generation) == (kind, "finished", 3, 3)
    assert (record.train.rollouts, record.peak_bytes.kv > 0) == (STEPS * 8, True)
    assert "rollouts: the policy itself" in record.engine
    assert "trl" in record.versions or kind != "grpo"
    assert record.train.generated_tokens > 0 < record.train.prompt_tokens
    assert record.train.flops > 8 * record.dim * record.train.generated_tokens
    metrics = directory.read_metrics()
    assert [m["generation"] for m in metrics] == [1, 2, 3]
    assert all(m.keys() <= COMMON.keys() | KEYS.keys() for m in metrics)
    assert metrics[-1]["cost/rollouts"] == record.train.rollouts
    evals: list[EvalRecord] = directory.read_evals()
    assert sorted((e.step, e.rollouts_spent) for e in evals) == [(g, 8 * g) for g in range(STEPS + 1)]
    weights = [e.weights_sha256 for e in sorted(evals, key=lambda e: e.step)]
    moved = [before != after for before, after in pairwise(weights)]
    assert any(moved)  # a step whose rewards are equal within every group has no gradient
    assert all(found or m["policy/grad_norm"] == 0 for found, m in zip(moved, metrics, strict=True))
    assert len(list(directory.samples.iterdir())) == STEPS
    assert not directory.scores.exists()


@pytest.mark.slow
def test_the_weights_load_and_are_those_that_were_evaluated(undisturbed):
    from transformers import AutoModelForCausalLM

    from esctl.engines.weights.center import Center

    _, run = undisturbed
    AutoModelForCausalLM.from_pretrained(run / "weights")
    last = max(RunDir(run).read_evals(), key=lambda e: e.step)
    assert Center.load(run / "weights").weights_sha256() == last.weights_sha256


@pytest.mark.slow
def test_how_rollouts_were_drawn_does_not_say_how_weights_are_measured(undisturbed):
    _, run = undisturbed
    kinds = [find_target(TargetRequest(str(run), flags)).recipe.engine.kind for flags in ({}, {"engine.kind": "vllm"})]
    assert kinds == ["auto", "vllm"]


@pytest.mark.slow
def test_equal_seeds_give_equal_runs_and_a_kill_changes_nothing(undisturbed, tmp_path):
    kind, whole = undisturbed
    run = tmp_path / "run"
    died = train(kind, run, fault="mid-checkpoint:1")  # before the first checkpoint is whole: from the start again
    assert died.returncode == -signal.SIGKILL, died.stderr
    died = train(kind, run, "--resume", fault="mid-append:6")  # after it, in its last line
    assert died.returncode == -signal.SIGKILL, died.stderr
    finished = train(kind, run, "--resume")
    assert finished.returncode == 0, finished.stderr
    assert outcome(run) == outcome(whole)


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.parametrize("kind", list(BASELINES))
def test_auto_draws_with_a_copy_in_vllm_that_is_never_stale(kind, tmp_path):
    """What vLLM's copy said after the last step is what the weights that were saved say."""
    if not vllm_installed():
        pytest.skip("vLLM is not installed")
    if kind == "grpo":
        pytest.importorskip("trl", reason="TRL is not installed")
    from esctl.engines.transformers import TransformersEngine

    sets = [*SMALL, "engine.kind=auto", "engine.threads=1", "checkpoint_every=0", f"eval.every={STEPS}"]
    recipe, run = load_recipe(f"arithmetic/{kind}", {}, sets), RunDir(tmp_path / "run")
    record = session.train(recipe, run, False, lambda event: None)
    assert "rollouts: vllm" in record.engine
    [found] = measured([run.path])
    assert (found.setting.copy, found.formula.purposes["rollout copy"]) == (True, 4 * record.dim)
    said = {
        record.step: [s.completion for s in read_gzip_lines(path.with_suffix(".jsonl.gz"), EvalSample)]
        for path, record in zip(run.eval_files(), run.read_evals(), strict=True)
    }
    prompts = Experiment(recipe).split("validation").first(8).token_ids
    reference = TransformersEngine(EngineSpec(run.weights, threads=1))
    [again] = reference.rollout(Round(0, 0, EMPTY, (EMPTY,)), prompts, Sampling(0.0, recipe.sampling.max_tokens))
    assert said[STEPS] == [own[0].text for own in again]
    assert said[0] != said[STEPS]


@pytest.mark.slow
def test_no_generation_is_exported_and_the_refusal_says_where_the_weights_are(undisturbed):
    kind, run = undisturbed
    with pytest.raises(UsageError) as error:
        center_at(RunDir(run), 1)
    assert str(error.value) == f"{kind} keeps no history of scores to rebuild weights from; use those in weights/"


@pytest.mark.parametrize("kind", list(BASELINES))
def test_every_baseline_ships_a_recipe_and_spells_out_its_own_fields(kind):
    assert f"arithmetic/{kind}" in recipes()
    recipe = load_recipe(f"arithmetic/{kind}", {})
    assert recipe.baseline is not None
    section = dump_recipe(recipe).split("method:")[1].split("\n")
    written = {line.split(":")[0].strip() for line in section if line.startswith("  ")}
    assert {f.name for f in fields(BASELINES[kind])} <= written


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ("sampling.temperature=0", "sampling.temperature: 0 gives K nothing to choose from; use 1.0"),
        ("sampling.top_p=0.9", "sampling.top_p: 0.9 is not the policy that K trains; use 1"),
        ("objective={n: 4}", "objective: K has none but the mean reward; set method.samples instead"),
        ("method.zzzz=0.1", "method.zzzz: unknown key for K"),
        ("method.lr=0", "method.lr: 0.0 must be above 0"),
        ("method.microbatch=0", "method.microbatch: 0 must be 1 or more"),
        ("method.kl=-1", "method.kl: -1.0 must not be below 0"),
    ],
)
@pytest.mark.parametrize("kind", list(BASELINES))
def test_what_a_baseline_would_ignore_is_refused(kind, item, says):
    with pytest.raises(RecipeError) as error:
        load_recipe(f"arithmetic/{kind}", {}, [item])
    [line] = str(error.value).splitlines()
    assert line == f"recipe arithmetic/{kind}: " + says.replace("K", kind)


@pytest.mark.slow
def test_best_validation_keeps_the_first_of_the_best_weights(tmp_path):
    run = tmp_path / "run"
    wild = ["--set", "select=best-validation", "--set", "method.lr=0.05", "--set", "eval.final=validation"]
    done = train("ppo", run, *wild)
    assert done.returncode == 0, done.stderr
    directory = RunDir(run)
    kept = directory.read_record().kept_generation
    shares = {e.step: sum(e.problems.strict) for e in directory.read_evals() if len(e.problems.id) == 8}
    assert shares[kept] == max(shares.values())
    assert all(shares[step] < shares[kept] for step in range(kept))
    [final] = [e for e in directory.read_evals() if len(e.problems.id) > 8]
    before = next(e for e in directory.read_evals() if e.step == kept and len(e.problems.id) == 8)
    assert (final.step, final.weights_sha256) == (kept, before.weights_sha256)
    assert json.loads((run / "run.json").read_text())["status"] == "finished"
