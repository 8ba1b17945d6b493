"""What `esctl train` refuses before a model is loaded."""

import importlib.util

import pytest
from refusing import refused

from esctl.experiment.recipe import TRAINED

# (command, exit code, message). D is the folder that the fixture `stage` makes.
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
        f"recipe: method.kind: unknown method esam, did you mean essam?; choose {', '.join(TRAINED)}",
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
        "prompts: 100000 per generation, but train has 4096 problems; set prompts to 4096 or fewer",
    ),
    (
        "train --method es --set sampling.max_tokens=100000",
        2,
        "train: 4096 prompts and 100000 new tokens do not fit the model's 512 tokens (train-0, train-1, "
        "train-2, …); lower sampling.max_tokens to 467 or less, or prompt.shots",
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
        "train --seed many",
        2,
        "Invalid value for '--seed': Input should be a valid integer, unable to parse string as an integer; "
        "`esctl train --help` lists what there is",
    ),
    ("train --run D/data/train.jsonl/run", 1, "D/data/train.jsonl/run: is a file; choose a directory with --run"),
]


@pytest.mark.parametrize(("line", "code", "says"), PLAIN)
def test_a_mistake_in_what_is_asked_is_told_and_changes_nothing(line, code, says, stage, capsys):
    assert refused(line, stage, capsys) == (code, f"esctl: {says}")


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


def test_grpo_without_trl_says_what_to_install(stage, capsys, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None if name == "trl" else found(name, *rest))
    says = "esctl: method.kind: grpo trains through TRL, which is not installed: pip install 'esctl-lm[rl]'"
    assert refused("train --method grpo --engine transformers", stage, capsys) == (2, says)
