"""What the commands refuse that measure one set of weights: eval, passk, sharpness, memory, adopt."""

import pytest
from refusing import refused

# (command, exit code, message). D is the folder that the fixture `stage` makes.
PLAIN = [
    (
        "eval D/none",
        2,
        "D/none: no run and no model folder here; `esctl show D` lists the runs there",
    ),
    (
        "passk runs/none",
        2,
        "runs/none: no run and no model folder here; `esctl show runs` lists the runs there",
    ),
    (
        "sharpness D/mine/none",
        2,
        "model: D/mine/none: no such folder; give one, a hub id such as Qwen/Qwen2.5-0.5B-Instruct, or embedded",
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
        "--sigmas 0.01,0: give numbers above 0, such as --sigmas 0.01,0.02",
    ),
    (
        "sharpness embedded --scales 1;2",
        2,
        "--scales 1;2: write numbers between commas, such as --scales 0.5,1,2",
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
        "eval D/data/train.jsonl",
        2,
        "model: D/data/train.jsonl: no such folder; give one, a hub id such as Qwen/Qwen2.5-0.5B-Instruct, or embedded",
    ),
    (
        "eval embedded -n many",
        2,
        "Invalid value for '-n': Input should be a valid integer, unable to parse string as an integer; "
        "`esctl eval --help` lists what there is",
    ),
    (
        "eval embedded --seed 1",
        2,
        "No such option: --seed (Possible options: --set, --step); `esctl eval --help` lists what there is",
    ),
    ("eval", 2, "Missing argument 'RUN|MODEL'; `esctl eval --help` lists what there is"),
    ("passk D/mini --step 99", 2, "--step 99: D/mini has generations 0 to 10"),
    ("passk embedded --k 0", 2, "--k 0: write numbers of samples, 1 or more, such as --k 1,8,64"),
    ("passk embedded --seed 99999999999999999999", 2, "--seed 99999999999999999999: give a whole number of 64 bits"),
    ("passk embedded --split nope", 2, "task.split: arithmetic has no split 'nope'; choose train, validation, test"),
    ("sharpness D/mini --step 99", 2, "--step 99: D/mini has generations 0 to 10"),
    ("sharpness embedded --seeds 0", 2, "--seeds 0: give 1 or more"),
    ("memory D/none", 1, "D/none: no run directory here (nothing below it holds a run.json)"),
    ("memory D/data/train.jsonl", 1, "D/data/train.jsonl: no run directory here (nothing below it holds a run.json)"),
    ("memory D/other", 1, "D/other/recipe.yaml: no recipe here, but a run; restore it from a copy"),
    ("memory --seq 0", 2, "--seq 0: give 1 or more"),
    (
        "adopt D/none --label X --base embedded --cost rollouts=1 --run D/out",
        2,
        "D/none: no such folder; give a model folder in Hugging Face format",
    ),
    (
        "adopt D/empty --label ' ' --base embedded --cost rollouts=1 --run D/out",
        2,
        "--label: is empty; give the name of its row in tables",
    ),
    (
        "adopt D/empty --label X --base embedded --cost rollouts=1 --run D/mini",
        1,
        "D/mini: is in use; continue it with --resume, or choose another with --run",
    ),
]


@pytest.mark.parametrize(("line", "code", "says"), PLAIN)
def test_a_mistake_in_what_is_asked_is_told_and_changes_nothing(line, code, says, stage, capsys):
    assert refused(line, stage, capsys) == (code, f"esctl: {says}")
