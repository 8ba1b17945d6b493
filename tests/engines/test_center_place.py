"""Where θ lies is a choice of memory: on a CPU no choice at all, on a GPU refused where it does not fit."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from esctl.engines import EngineSpec, Where, open_engine
from esctl.engines.weights.center import Center
from esctl.engines.weights.device import Part, open_on_device
from esctl.engines.weights.shards import Partition, Share, piece
from esctl.errors import EngineError, RecipeError
from esctl.experiment.experiment import Experiment
from esctl.experiment.loading import load_recipe
from esctl.noise.moves import Move


@dataclass(frozen=True)
class OnGPU:
    """A live tensor that says it is on a GPU, where there is none."""

    elements: int
    is_cuda: bool = True
    device: str = "cuda:0"

    def numel(self) -> int:
        return self.elements


def parts(elements: int) -> list[Part]:
    return [Part(piece("weight", (elements,), Partition.WHOLE, Share()), OnGPU(elements))]


def test_a_cpu_has_one_place_whatever_is_asked(tiny_qwen2: Path) -> None:
    seen = []
    for where in ("auto", "device", "host"):
        engine = open_engine(EngineSpec(tiny_qwen2, kind="transformers", center=where))
        engine.commit(Move.of([1], [0.1]))
        seen.append((engine.checksum(), engine.center_sha256(), dict(engine.tensor_bytes())))
        engine.close()
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize(("probes", "gib"), [(False, "3.7"), (True, "7.5")])
def test_a_center_that_does_not_fit_is_refused_or_stays_on_the_host(
    probes: bool, gib: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 << 30, 80 << 30))
    big = parts(10**9)
    with pytest.raises(EngineError, match=rf"^engine\.center: device, but it takes {gib} GiB and 2\.0 are free: lower"):
        open_on_device(Center({"weight": (1,)}), big, probes, "device")
    assert open_on_device(Center({"weight": (1,)}), big, probes, "auto") is None


def test_a_center_asked_for_on_the_host_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (80 << 30, 80 << 30))
    assert open_on_device(Center({"weight": (1,)}), parts(1), False, "host") is None


def test_the_recipe_s_keys_reach_the_engine() -> None:
    where: Where = "host"
    recipe = load_recipe("arithmetic/es", {"engine.center": where, "engine.tensor_parallel": 2})
    experiment = Experiment(recipe)
    experiment.split("train")
    spec = experiment.engine_spec()
    assert spec == replace(spec, center=where, tensor_parallel=2)
    with pytest.raises(RecipeError, match=r"engine\.center: 'gpu'"):
        load_recipe("arithmetic/es", {"engine.center": "gpu"})
