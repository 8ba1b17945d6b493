"""A model that was trained elsewhere joins as a run that can be evaluated and compared, or is refused in one line."""

import shutil
from pathlib import Path

import pytest

from esctl.assets import tiny_model_path
from esctl.errors import RunError, UsageError
from esctl.evaluation.adopt import Adoption, adopt, parse_costs, settings_of
from esctl.evaluation.target import sections
from esctl.experiment.loading import load_recipe
from esctl.runs.directory import RunDir, find_runs

GIB = 2**30


@pytest.fixture(scope="session")
def foreign(tmp_path_factory) -> Path:
    """The embedded model with one weight moved, as another trainer would have saved it."""
    from safetensors.numpy import load_file, save_file

    folder = tmp_path_factory.mktemp("foreign") / "model"
    shutil.copytree(tiny_model_path(), folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"] * 1.01
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def taken_in(folder: Path, run: Path, copy: bool = False, **costs: float) -> RunDir:
    adoption = Adoption(str(folder), "GRPO (verl)", "embedded", {"rollouts": 512, **costs}, "verl 0.4, 8 × H100", copy)
    adopt(adoption, sections(settings_of("embedded", None)), (), RunDir(run))
    return RunDir(run)


def test_an_adopted_run_says_what_was_said_and_whose_base_it_has(foreign, tmp_path):
    from esctl.engines.weights.center import Center

    run = taken_in(foreign, tmp_path / "run", tokens=9000, seconds=3.5, device_gib=2)
    record, recipe = run.read_record(), load_recipe(str(run.recipe), {})
    base = Center.load(tiny_model_path())
    assert (record.label, record.method, record.status) == ("GRPO (verl)", "external", "finished")
    assert (record.train.rollouts, record.train.generated_tokens, record.train.seconds) == (512, 9000, 3.5)
    assert (record.peak_bytes.device, record.peak_bytes.host) == (2 * GIB, 0)
    assert (record.base.weights_sha256, record.dim) == (base.weights_sha256(), base.dim)
    assert "verl 0.4" in record.engine
    assert (recipe.kind, recipe.sampling.max_tokens) == (
        "external",
        load_recipe("arithmetic/es", {}).sampling.max_tokens,
    )


def test_weights_are_linked_to_or_copied(foreign, tmp_path):
    linked, copied = taken_in(foreign, tmp_path / "a"), taken_in(foreign, tmp_path / "b", copy=True)
    assert linked.weights.resolve() == foreign.resolve()
    assert not copied.weights.is_symlink()
    for run in (linked, copied):
        assert (run.weights / "model.safetensors").read_bytes() == (foreign / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_an_adopted_run_is_evaluated_and_compared_with_its_base(foreign, tmp_path):
    from esctl.comparison.compare import CompareOptions, compare
    from esctl.comparison.selection import Request
    from esctl.evaluation.evaluate import evaluate
    from esctl.evaluation.target import TargetRequest

    taken_in(foreign, tmp_path / "runs" / "theirs")
    flags = {"engine.kind": "transformers", "sampling.max_tokens": 8}
    theirs = TargetRequest(str(tmp_path / "runs" / "theirs"), flags)
    base = TargetRequest("embedded", flags, run=tmp_path / "runs" / "base")
    [own], [plain] = (evaluate(asked, ["arithmetic"], "test", 8) for asked in (theirs, base))
    assert own.record.weights_sha256 != plain.record.weights_sha256
    assert own.record.prompt_sha256 == plain.record.prompt_sha256
    assert own.record.rollouts_spent == 512
    rows = compare(find_runs([tmp_path / "runs"]), CompareOptions(Request("test"))).rows
    assert {row.label for row in rows} == {"GRPO (verl)", "base"}


@pytest.mark.parametrize(
    ("items", "says"),
    [
        ([], "--cost: give the training rollouts at least, such as --cost rollouts=256000"),
        (["rollout=5"], "--cost rollout=5: unknown cost, did you mean rollouts?; choose rollouts, tokens, "),
        (["rollouts=-5"], "--cost rollouts=-5: a cost is 0 or more"),
        (["rollouts=inf"], "--cost rollouts=inf: a cost is 0 or more"),
        (["rollouts=many"], "--cost rollouts=many: 'many' is not a number; write such as rollouts=256000"),
        (["rollouts"], "--cost rollouts: '' is not a number; write such as rollouts=256000"),
        (["rollouts=1", "rollouts=2"], "--cost rollouts=2: rollouts is there twice; give each cost once"),
    ],
)
def test_a_cost_that_says_nothing_is_named(items, says):
    with pytest.raises(UsageError) as error:
        parse_costs(items)
    assert str(error.value).startswith(says)


def test_a_model_that_was_not_trained_from_that_base_is_refused(foreign, tiny_llama, tmp_path):
    with pytest.raises(UsageError, match=r"differs from it in the shape of .*give the model it was trained from"):
        taken_in(tiny_llama, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"none: no such folder"):
        taken_in(tmp_path / "none", tmp_path / "run")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"empty has no config\.json"):
        taken_in(tmp_path / "empty", tmp_path / "run")


def test_a_used_directory_is_refused(foreign, tmp_path):
    taken_in(foreign, tmp_path / "run")
    with pytest.raises(RunError, match="is in use"):
        taken_in(foreign, tmp_path / "run")


def test_nothing_here_trains_it():
    from esctl.experiment.experiment import Experiment

    with pytest.raises(UsageError, match="esctl adopt"):
        Experiment(load_recipe(None, {"method.kind": "external", "task.name": "arithmetic"})).check_training()
