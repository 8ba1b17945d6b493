"""A user's mistake is one line and an exit code: what is wrong, where, what to do next; and nothing is lost."""

import contextlib
import importlib.util
import json
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from miniature import evaluation, write_run

from esctl.assets import tiny_model_path
from esctl.cli import main
from esctl.engines.center import Center
from esctl.recipe import ALL_METHODS
from esctl.rundir import RunDir

SMALL = (
    "--recipe arithmetic/es --engine transformers --set method.population=4 --set prompts=8"
    " --set sampling.max_tokens=16 --set eval.n=16 --set eval.final=null --set eval.every=0"
)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two generations, to be copied and damaged."""
    run = tmp_path_factory.mktemp("trained") / "run"
    assert esctl(f"train {SMALL} --generations 2 --run {run}") == 0
    return run


def esctl(line: str) -> int:
    """Run the command line in this process; its exit code."""
    before, sys.argv = sys.argv, ["esctl", *shlex.split(line)]
    try:
        main()
    except SystemExit as done:
        return int(done.code or 0)
    finally:
        sys.argv = before
    return 0


def files_below(folder: Path) -> dict[str, bytes]:
    """Every file but locks: what must not be lost."""
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file() and p.name != ".lock"}


def refused(line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and message of a refused command, with `D` for its folder; checks that no file changed."""
    before = files_below(folder)
    capsys.readouterr()
    with contextlib.chdir(folder):
        code = esctl(line.replace("D/", f"{folder}/"))
    printed = capsys.readouterr()
    assert printed.out == ""
    assert files_below(folder) == before
    return code, printed.err.replace(str(folder), "D").rstrip("\n")


# What needs no run: (command, exit code, message). D is an empty folder but for those written in `stage`.
PLAIN = [
    (
        "train --recipe arithmetic/es --set generatons=3 --set prompts=many",
        2,
        "recipe arithmetic/es: prompts: 'many' — input should be a valid integer\n"
        "esctl: recipe arithmetic/es: generatons: unknown key, did you mean generations?",
    ),
    (
        "train --method esam",
        2,
        f"recipe: method.kind: unknown method esam, did you mean essam?; choose {', '.join(ALL_METHODS)}",
    ),
    (
        "train --recipe arithmetic/esam",
        2,
        "recipe arithmetic/esam: no such file and no shipped recipe; did you mean arithmetic/essam?",
    ),
    (
        "train --method es --set method.population=1",
        2,
        "recipe arithmetic/es: method.population: 1 is too few: z-scores of one score are undefined, use 2 or more",
    ),
    (
        "train --method es --model D/none",
        2,
        "model: D/none: no such folder; give one, a hub id such as Qwen/Qwen2.5-0.5B-Instruct, or embedded",
    ),
    (
        "train --method es --model D/empty",
        2,
        "model: D/empty has no config.json; give a model folder in Hugging Face format",
    ),
    (
        "train --method es --task arithmetics",
        2,
        "task.name: no task arithmetics, did you mean arithmetic?; choose arithmetic, tiny-countdown, "
        "gsm8k, math, aime24, amc23, countdown, file",
    ),
    (
        "train --method es --set task.split=tests",
        2,
        "task.split: arithmetic may not be trained on tests; trainable: train",
    ),
    (
        "train --method es --set task.split=test",
        2,
        "task.split: arithmetic may not be trained on test; trainable: train",
    ),
    (
        "train --method es --set eval.split=valid",
        2,
        "task.split: arithmetic has no split 'valid'; choose train, validation, test",
    ),
    (
        "train --method es --set prompts=100000",
        2,
        "prompts: 100000 per generation, but train has 4096 problems",
    ),
    (
        "train --method es --set sampling.max_tokens=100000",
        2,
        "train: 4096 prompts and 100000 new tokens do not fit the model's 512 tokens (train-0, train-1, "
        "train-2, …); lower sampling.max_tokens or prompt.shots",
    ),
    (
        "train --method es --task gsm8k --model embedded --data D/data",
        2,
        "task.data: D/data/train.jsonl: no rows; give data that has problems",
    ),
    (
        "train --method es --task gsm8k --model embedded --data D/none",
        2,
        "task.data: D/none: no such file or folder",
    ),
    (
        "train --method es --run D/data/train.jsonl",
        1,
        "D/data/train.jsonl: is a file; choose a directory with --run",
    ),
    (
        "train --method es --run D/data",
        1,
        "D/data: is in use; continue it with --resume, or choose another with --run",
    ),
    (
        "train --method es --resume --run D/empty",
        1,
        "D/empty: no run here to resume (recipe.yaml is missing); leave --resume out",
    ),
    (
        "train --method es --engine vlm",
        2,
        "recipe arithmetic/es: engine.kind: 'vlm' — input should be 'auto', 'vllm' or 'transformers'",
    ),
    (
        "train --method es --set reward.function=no.such:f",
        2,
        "no.such:f: ModuleNotFoundError: No module named 'no'; give package.module:name, importable from "
        "the current folder",
    ),
    (
        "eval D/none",
        2,
        "model: D/none: no such folder; give one, a hub id such as Qwen/Qwen2.5-0.5B-Instruct, or embedded",
    ),
    (
        "eval embedded --split tests",
        2,
        "task.split: arithmetic has no split 'tests'; choose train, validation, test",
    ),
    (
        "eval embedded -n 0",
        2,
        "-n 0: give 1 problem or more, or leave it out for all",
    ),
    (
        "eval embedded -n 4 --engine transformers --run D/data/train.jsonl",
        1,
        "D/data/train.jsonl: is a file; choose a directory with --run",
    ),
    (
        "eval embedded --step 3",
        2,
        "--step 3: embedded is no run directory, and only a run has generations",
    ),
    (
        "eval D/mini --step 99",
        2,
        "--step 99: D/mini has generations 0 to 10",
    ),
    (
        "eval D/mini --run D/other",
        2,
        "--run D/other: results of D/mini stay in it; leave --run out",
    ),
    (
        "eval embedded --task gsm8k,math --data D/data",
        2,
        "--data: is for one task; evaluate the tasks that need it one at a time",
    ),
    (
        "passk embedded --k 1,8 --samples 4",
        2,
        "--samples 4: pass@8 needs 8 samples or more; better 2 × k, the default",
    ),
    (
        "passk embedded --k 1,many",
        2,
        "--k 1,many: write numbers of samples, 1 or more, such as --k 1,8,64",
    ),
    (
        "passk embedded --k 4 --temperature 0",
        2,
        "--temperature 0: 8 greedy samples would be one; give a temperature above 0, or spread weights with "
        "--noise SIGMA",
    ),
    (
        "passk embedded --temperature hot",
        2,
        "--temperature hot: write numbers of 0 or more, such as --temperature 0.6,1.0",
    ),
    (
        "passk embedded --top-p 2",
        2,
        "--top-p 2: give a share above 0 and at most 1",
    ),
    (
        "passk embedded --noise 0",
        2,
        "--noise 0: give a standard deviation of the weights above 0, such as 0.015",
    ),
    (
        "sharpness embedded -n 0",
        2,
        "-n 0: give 1 or more",
    ),
    (
        "sharpness embedded --members 1",
        2,
        "--members 1: give 2 or more",
    ),
    (
        "sharpness embedded --sigmas 0.01,0",
        2,
        "--sigmas 0,0.01: give numbers above 0",
    ),
    (
        "sharpness embedded --scales 1;2",
        2,
        "--scales 1;2: write numbers between commas, such as --scales 0.01,0.02",
    ),
    (
        "sharpness embedded --rho -1",
        2,
        "--rho -1: give numbers above 0",
    ),
    (
        "sharpness embedded --step 3",
        2,
        "--step 3: embedded is no run directory, and only a run has generations",
    ),
    (
        "sharpness embedded --split tests",
        2,
        "task.split: arithmetic has no split 'tests'; choose train, validation, test",
    ),
    (
        "train --method es --set objective.n=4",
        2,
        "recipe arithmetic/es: sampling.temperature: 0 makes the 4 samples of objective.n equal; set it above 0",
    ),
    (
        "train --recipe arithmetic/es-passk --set objective.n=2",
        2,
        "recipe arithmetic/es-passk: objective.n: 2 samples are too few for pass@4; use 4 or more",
    ),
    (
        "train --recipe arithmetic/es --set objective.k=2 --set objective.n=2",
        2,
        "recipe arithmetic/es: objective.k: 2, but the mean has no tries; set objective.kind to pass@k",
    ),
    (
        "train --method grpo --set sampling.temperature=0",
        2,
        "recipe arithmetic/grpo: sampling.temperature: 0 gives grpo nothing to choose from; use 1.0",
    ),
    (
        "train --method ppo --set sampling.temperature=0",
        2,
        "recipe arithmetic/ppo: sampling.temperature: 0 gives ppo nothing to choose from; use 1.0",
    ),
    (
        "train --method grpo --set objective.n=4",
        2,
        "recipe arithmetic/grpo: objective: grpo has none but the mean reward; set method.samples instead",
    ),
    (
        "compare D/empty",
        1,
        "D/empty: no run directory here (nothing below it holds a run.json)",
    ),
    (
        "compare D/none",
        1,
        "D/none: no run directory here (nothing below it holds a run.json)",
    ),
    (
        "compare D/mini --split validation",
        1,
        "D/mini: no greedy evaluation on validation; make one with `esctl eval D/mini --split validation`",
    ),
    (
        "compare D/mini --format html",
        2,
        "--format html: choose table, markdown, csv, json, latex",
    ),
    (
        "compare D/mini --at generations=3",
        2,
        "--at generations=3: write rollouts=N, such as --at rollouts=10000",
    ),
    (
        "compare D/mini --at rollouts=3",
        1,
        "D/mini: no greedy evaluation on test within 3 rollouts; evaluate an earlier generation with --step",
    ),
    (
        "compare D/mini --k 1,x",
        2,
        "--k 1,x: write whole numbers between commas, such as --k 1,8,64",
    ),
    (
        "compare D/mini --k 4",
        2,
        "--k 4: no run has a sampled evaluation; make one with `esctl passk RUN`",
    ),
    (
        "compare D/mini --references esam-gsm8k",
        2,
        "--references esam-gsm8k: choose essam-gsm8k (gsm8k), es-countdown (countdown), coverage-gsm8k (gsm8k), "
        "coverage-math500 (math) or all",
    ),
    (
        "compare D/mini --base D/none",
        1,
        "D/none: no run here (run.json is missing); start one with `esctl train --run`",
    ),
    (
        "show D/none",
        1,
        "D/none: no run here (run.json is missing); start one with `esctl train --run`",
    ),
    (
        "export D/none D/out --step 0",
        1,
        "D/none: no run here (run.json is missing); start one with `esctl train --run`",
    ),
    (
        "adopt D/empty --label X --base embedded --cost rollouts=1 --run D/out",
        2,
        "model: D/empty has no config.json; give a model folder in Hugging Face format",
    ),
    (
        "adopt D/empty --label X --base embedded --cost rollout=1 --run D/out",
        2,
        "--cost rollout=1: unknown cost, did you mean rollouts?; choose rollouts, tokens, prompt_tokens, flops, "
        "seconds, host_gib, device_gib",
    ),
    (
        "adopt D/empty --label X --base embedded --cost rollouts=-1 --run D/out",
        2,
        "--cost rollouts=-1: a cost is 0 or more",
    ),
    (
        "memory --model D/empty",
        2,
        "model: D/empty has no config.json; give a model folder in Hugging Face format",
    ),
    (
        "memory --methods sgd",
        2,
        "--methods sgd: choose from es, essam, essam-f, grpo, ppo",
    ),
    (
        "recipes show arithmetic/esam",
        2,
        "recipe arithmetic/esam: no such file and no shipped recipe; did you mean arithmetic/essam?",
    ),
    (
        "compare D/folder",
        1,
        "D/folder/evals/a.json: cannot be read (Is a directory); restore it or move it away",
    ),
    (
        "show D/mini --generation 4",
        2,
        "--generation 4: D/mini has rollouts of 3 to 3",
    ),
    (
        "recipes copy arithmetic/es D/none/mine.yaml",
        1,
        "D/none/mine.yaml: No such file or directory; check the path, its permissions and the disk",
    ),
    (
        f"show D/{'x' * 300}",
        1,
        f"D/{'x' * 300}/run.json: File name too long; check the path, its permissions and the disk",
    ),
    (
        "recipes copy arithmetic/es D/data/train.jsonl",
        2,
        "D/data/train.jsonl: exists; choose another name",
    ),
]


UNTRAINABLE = {
    "moe": {"model_type": "qwen3_moe"},
    "moe-within": {"model_type": "dbrx"},
    "multimodal": {"model_type": "qwen2_vl"},
    "quantised": {"model_type": "qwen2", "quantization_config": {"quant_method": "gptq", "bits": 4}},
}


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("moe", "it is a mixture of experts (num_local_experts)"),
        ("moe-within", "it is a mixture of experts (moe_num_experts)"),
        ("multimodal", "it is multimodal (vision_config)"),
        ("quantised", "its weights are quantised (quantization_config)"),
    ],
)
@pytest.mark.parametrize("command", ["train --method es --model", "eval"])
def test_a_model_that_cannot_be_trained_is_refused_by_its_config(command, model, why, stage, capsys):
    says = f"esctl: model D/{model} cannot be trained, because {why}: use a dense text model"
    assert refused(f"{command} D/{model}", stage, capsys) == (1, says)


@pytest.fixture
def stage(tmp_path):
    """A folder with an empty one, empty data, and a miniature run."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").touch()
    for name, config in UNTRAINABLE.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    write_run(tmp_path / "mini", evaluation([1, 0]))
    (tmp_path / "mini" / "samples").mkdir()
    for name in ("00003.jsonl", "notes.jsonl"):
        (tmp_path / "mini" / "samples" / name).touch()
    write_run(tmp_path / "folder")
    (tmp_path / "folder" / "evals" / "a.json").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(("line", "code", "says"), PLAIN)
def test_a_mistake_in_what_is_asked_is_told_and_changes_nothing(line, code, says, stage, capsys):
    assert refused(line, stage, capsys) == (code, f"esctl: {says}")


def test_grpo_without_trl_says_what_to_install(stage, capsys, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None if name == "trl" else found(name, *rest))
    says = "esctl: method.kind: grpo trains through TRL, which is not installed: pip install 'esctl-lm[rl]'"
    assert refused("train --method grpo --engine transformers", stage, capsys) == (2, says)


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


def _not_a_number(folder: Path) -> None:
    """Copy the embedded model to `folder`/nan, with one weight that is no number."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(tiny_model_path(), folder / "nan")
    path = folder / "nan" / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"][3] = torch.nan
    save_file(tensors, path, metadata={"format": "pt"})


def _embedded(folder: Path) -> None:
    pass


# What only rollouts can tell: (model, command, exit code, status of the run, last line).
NO_SIGNAL = [
    (
        _not_a_number,
        f"train {SMALL} --model D/nan --generations 2 --run D/run",
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
        "ES s0  note: no signal: every member scored 0 for 3 generations; raise sigma or ease the task",
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
