"""What is refused here: a folder of things that are no runs, and a small run to be damaged."""

import json
from pathlib import Path

import pytest
from command import esctl
from miniature import evaluation, write_run
from refusing import SMALL


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two generations, to be copied and damaged."""
    run = tmp_path_factory.mktemp("trained") / "run"
    assert esctl(f"train {SMALL} --generations 2 --run {run}") == 0
    return run


UNTRAINABLE = {
    "moe": {"model_type": "qwen3_moe"},
    "moe-within": {"model_type": "dbrx"},
    "multimodal": {"model_type": "qwen2_vl"},
    "quantised": {"model_type": "qwen2", "quantization_config": {"quant_method": "gptq", "bits": 4}},
}


@pytest.fixture
def stage(tmp_path):
    """A folder with an empty one, empty data, models that cannot be trained, and miniature runs, whole and damaged."""
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
    write_run(tmp_path / "other", evaluation([1, 0]))
    (tmp_path / "other" / "recipe.yaml").unlink()
    (tmp_path / "other" / "recipe.yaml").mkdir()
    return tmp_path
