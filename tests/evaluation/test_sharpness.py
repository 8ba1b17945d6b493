"""Laws of sharpness: what is asked of every model alike, what the numbers are, and that measuring leaves no trace."""

import math
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from esctl.cli.texts import sharpness_text
from esctl.engines import Engine, EngineSpec, open_engine
from esctl.evaluation import target
from esctl.evaluation.draw import EvalProgress
from esctl.evaluation.sharpness import (
    EMBEDDED_KIND,
    PRETRAINED,
    Settings,
    default_settings,
    direction_seed,
    estimate_seed,
    measure,
    noise_seed,
)
from esctl.evaluation.sharpness_run import (
    SharpnessOptions,
    StoredSharpness,
    measure_sharpness,
    reference_texts,
    solutions,
)
from esctl.evaluation.target import TargetRequest
from esctl.experiment.experiment import Experiment
from esctl.experiment.loading import load_recipe
from esctl.methods.shaping import z_scores
from esctl.noise.moves import Move, member_seed
from esctl.noise.spec import reference, tensor_id
from esctl.runs.records import SharpnessRecord

DIM = 200
SETTINGS = Settings((0.1, 0.3), 3, 5, 0.2, 0.05, (1.0, 2.5), 4)


# A change here changes every measurement: those of two versions could not be compared.
PUBLISHED = [15297621261978260211, 14367424400426228270, 7190933400749759890]


def epsilon(seed: int) -> np.ndarray:
    """The noise of a model of DIM weights, by its specification."""
    return reference(seed, tensor_id("weight"), 1, DIM)[0].astype(float)


def offset(move: Move) -> np.ndarray:
    """Where a candidate lies, seen from θ."""
    return sum((t.coefficient * epsilon(t.seed) for t in move.terms), np.zeros(DIM))


@dataclass
class Bowl:
    """R(θ + v) = slope·v₀ − curvature·‖v‖² around an optimum; remembers what it was asked."""

    curvature: float
    slope: float = 0.0
    asked: list[Move] = field(default_factory=list)

    def scores(self, candidates: Sequence[Move]) -> list[float]:
        self.asked += candidates
        places = [offset(move) for move in candidates]
        return [float(self.slope * v[0] - self.curvature * (v @ v)) for v in places]

    def nlls(self, candidates: Sequence[Move]) -> list[float]:
        return [2.0 - s for s in Bowl(self.curvature, self.slope).scores(candidates)]


def test_average_is_the_score_lost_at_each_sigma_and_seed():
    shape = measure(SETTINGS, DIM, Bowl(0.7))
    assert shape.score == 0
    for point, sigma in zip(shape.average, SETTINGS.sigmas, strict=True):
        expected = [0.7 * float(np.sum((sigma * epsilon(noise_seed(j))) ** 2)) for j in range(3)]
        assert point.drops == pytest.approx(expected)
        assert point.nll_rises == pytest.approx(expected)


def test_a_sharper_bowl_is_measured_as_sharper_everywhere():
    flat, sharp = (measure(SETTINGS, DIM, Bowl(curvature)) for curvature in (0.5, 1.5))
    for a, b in zip(flat.average, sharp.average, strict=True):
        assert np.array(b.drops) == pytest.approx(3 * np.array(a.drops))
    for c, d in zip(flat.direction, sharp.direction, strict=True):
        assert d.against > c.against > 0
        assert np.array(d.random) == pytest.approx(3 * np.array(c.random))


def test_directional_steps_have_the_norm_of_the_probe_against_and_at_random():
    bowl = Bowl(0.0, slope=1.0)
    shape = measure(SETTINGS, DIM, bowl)
    steps = bowl.asked[-len(SETTINGS.scales) * (1 + SETTINGS.directions) :]
    for c, point in zip(SETTINGS.scales, shape.direction, strict=True):
        norm = c * SETTINGS.rho * math.sqrt(DIM / SETTINGS.members)
        assert point.norm == norm
        own, steps = steps[: 1 + SETTINGS.directions], steps[1 + SETTINGS.directions :]
        assert [move.norm(DIM) for move in own] == pytest.approx([norm] * 5, rel=1e-12)


def test_the_step_goes_against_the_estimate_as_the_probe_of_essam_does():
    bowl = Bowl(0.0, slope=1.0)
    shape = measure(SETTINGS, DIM, bowl)
    members = bowl.asked[7:12]
    against = bowl.asked[12]
    expected = [-SETTINGS.rho * z / 5 for z in z_scores(Bowl(0.0, slope=1.0).scores(members))]
    assert [t.seed for t in against.terms] == [t.seed for move in members for t in move.terms]
    assert [t.coefficient for t in against.terms] == pytest.approx(expected, rel=1e-6)
    assert all(point.against > abs(np.mean(point.random)) for point in shape.direction)


def test_members_that_score_alike_leave_no_direction():
    shape = measure(SETTINGS, DIM, Bowl(0.0))
    assert shape.direction == []
    assert [point.drops for point in shape.average] == [[0.0] * 3] * 2


def test_every_model_is_asked_the_same_but_for_what_its_own_estimate_says():
    flat, steep = Bowl(0.5, slope=1.0), Bowl(2.0, slope=-3.0)
    for bowl in (flat, steep):
        measure(SETTINGS, DIM, bowl)
    seeds = [[[t.seed for t in move.terms] for move in bowl.asked] for bowl in (flat, steep)]
    assert seeds[0] == seeds[1]
    assert flat.asked[:12] == steep.asked[:12]  # θ, the average and the members, coefficients too


def test_seeds_are_published_constants_and_no_training_meets_them():
    assert [noise_seed(0), estimate_seed(0), direction_seed(0)] == PUBLISHED
    every = [f(i) for f in (noise_seed, estimate_seed, direction_seed) for i in range(50)]
    every += [member_seed(0, g, r, m) for g in range(5) for r in range(2) for m in range(30)]
    assert len(set(every)) == len(every)


def test_defaults_follow_from_the_number_of_weights_alone():
    assert default_settings(835_456) == EMBEDDED_KIND
    assert default_settings(494_032_768) == PRETRAINED
    assert SharpnessOptions(seeds=2, sigmas=(0.1,)).settings(1000) == replace(EMBEDDED_KIND, seeds=2, sigmas=(0.1,))
    # The longest step is as long as one perturbation, within a half: c·ρ/√N against σ'.
    for settings in (EMBEDDED_KIND, PRETRAINED):
        assert settings.scales[-1] * settings.rho / math.sqrt(settings.members) == pytest.approx(
            settings.sigma, rel=0.5
        )


SMALL = SharpnessOptions(n=5, seeds=2, sigmas=(1e-30, 0.03), members=3, directions=2, scales=(1.0, 4.0))
# The number of threads is said: readings of an engine with another number are not taken for its own.
SETS = ("sampling.max_tokens=24", "engine.kind=transformers", "engine.threads=1")
LINE = (
    "sharpness embedded -n 5 --seeds 2 --sigmas 1e-30,0.03 --members 3 --directions 2 --scales 1,4"
    " --set sampling.max_tokens=24 --set engine.threads=1 --engine transformers"
)
READINGS = 2 * (1 + 2 * 2) + 3 + 2 * (1 + 2)


@dataclass(frozen=True)
class Measured:
    """One measurement, the checksums of the live weights before and after it, and its run directory."""

    record: SharpnessRecord
    live: list[str]
    folder: Path


def probed(folder: Path, flags: SharpnessOptions = SMALL) -> tuple[StoredSharpness, list[EvalProgress]]:
    told: list[EvalProgress] = []
    asked = TargetRequest("embedded", {}, SETS, folder)
    return measure_sharpness(asked, flags, lambda what, progress: told.append(progress)), told


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    live: list[str] = []

    def watched(spec: EngineSpec) -> Engine:
        engine = open_engine(spec)
        live.append(engine.checksum())
        close = engine.close

        def looked_at_and_closed() -> None:
            live.append(engine.checksum())
            close()

        engine.close = looked_at_and_closed
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "open_engine", watched)
        found, told = probed(tmp_path_factory.mktemp("sharp") / "base")
    assert [p.done for p in told] == list(range(1, READINGS + 1))
    return Measured(found.record, live, found.folder)


def without_seconds(record: SharpnessRecord) -> SharpnessRecord:
    return replace(record, cost=replace(record.cost, seconds=0.0))


@pytest.mark.slow
def test_measuring_leaves_live_weights_and_center_bitwise_as_they_were(measured):
    before, after = measured.live
    assert before == after
    experiment = Experiment(load_recipe("arithmetic/es", {}))
    assert measured.record.weights_sha256 == experiment.center().weights_sha256()


@pytest.mark.slow
def test_no_noise_loses_nothing(measured):
    nothing, much = measured.record.average
    assert nothing.drops == [0.0, 0.0]
    assert nothing.nll_rises == [0.0, 0.0]
    assert all(abs(rise) > 1e-4 for rise in much.nll_rises)


@pytest.mark.slow
def test_likelihood_at_the_weights_is_the_loss_that_transformers_gives(measured):
    import torch
    from transformers import AutoModelForCausalLM

    experiment = Experiment(load_recipe("arithmetic/es", {}, SETS))
    told = solutions(experiment, experiment.split("test").first(5))
    model = AutoModelForCausalLM.from_pretrained(experiment.model, dtype=torch.float32)
    sums = []
    for prompt, solution in zip(told.prompts, told.targets, strict=True):
        ids = torch.tensor([[*prompt, *solution]])
        labels = torch.tensor([[-100] * len(prompt) + list(solution)])
        sums.append(model(input_ids=ids, labels=labels).loss.item() * len(solution))
    assert measured.record.nll == pytest.approx(math.fsum(sums) / told.tokens, rel=1e-4)


@pytest.mark.slow
def test_a_killed_measurement_goes_on_and_ends_in_the_same_file(measured, tmp_path):
    run = tmp_path / "base"
    line = [sys.executable, "-m", "esctl", *LINE.split(), "--run", str(run)]
    died = subprocess.run(line, env=os.environ | {"ESCTL_FAULT": "mid-append:12"}, timeout=300, capture_output=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    [part] = (run / "sharpness").iterdir()
    kept = part.read_bytes().count(b"\n")
    assert kept == 11  # and a torn twelfth
    found, told = probed(run)
    assert [p.drawn for p in told] == list(range(1, READINGS - kept + 1))
    assert without_seconds(found.record) == without_seconds(measured.record)
    assert [p.name for p in (run / "sharpness").iterdir()] == [
        p.name for p in (measured.folder / "sharpness").iterdir()
    ]


@pytest.mark.slow
def test_a_stored_measurement_is_read_and_another_is_not_taken_for_it(measured, monkeypatch):
    def refused(spec: EngineSpec) -> Engine:
        raise RuntimeError("an engine was started")

    monkeypatch.setattr(target, "open_engine", refused)
    found, told = probed(measured.folder)
    assert (found.record, told) == (measured.record, [])
    for other in (replace(SMALL, rho=0.1), replace(SMALL, n=4), replace(SMALL, seeds=3)):
        with pytest.raises(RuntimeError, match="an engine was started"):
            probed(measured.folder, other)


@pytest.mark.slow
def test_costs_count_every_answer_and_every_forward_pass(measured):
    cost = measured.record.cost
    assert cost.rollouts == 5 * (READINGS - 5)
    experiment = Experiment(load_recipe("arithmetic/es", {}, SETS))
    split = experiment.split("test").first(5)
    told = solutions(experiment, split)
    prompts = sum(map(len, split.token_ids))
    assert cost.prompt_tokens == prompts * (READINGS - 5) + 5 * (prompts + told.tokens)
    assert cost.flops == 2 * 835_456 * (cost.prompt_tokens + cost.generated_tokens)


@pytest.mark.slow
def test_the_report_names_what_was_asked_and_how_sure_it_is(measured):
    told = sharpness_text(measured.record, 835_456)
    assert "5 problems, generation 0, greedy, at most 24 tokens" in told
    assert "one problem is 20.0 points" in told
    assert "mean over 2 noise seeds (95 %, Student's t)" in told
    assert "N = 3, σ = 0.015" in told
    one = replace(measured.record, average=[replace(p, drops=p.drops[:1]) for p in measured.record.average])
    assert "mean over 1 noise seed, no interval from one" in sharpness_text(one, 835_456)


def test_references_are_solutions_else_golds_in_the_form_that_their_task_calls_right():
    arithmetic = Experiment(load_recipe("arithmetic/es", {})).task
    problem = arithmetic.problems("test")[0]
    bare = replace(problem, solution="")
    assert reference_texts(arithmetic, [problem, bare]) == [problem.solution, f"#### {problem.answer}"]
    countdown = Experiment(load_recipe("tiny-countdown/es", {})).task
    [puzzle] = countdown.problems("test")[:1]
    assert reference_texts(countdown, [replace(puzzle, solution="", answer="no expression")]) == [""]


def test_solutions_after_a_raw_prompt_begin_with_a_space_and_all_leave_room_to_generate():
    for style, lead in (("raw", " "), ("chat", "")):
        experiment = Experiment(load_recipe("arithmetic/es", {"prompt.style": style}, ["sampling.max_tokens=9"]))
        split = experiment.split("test").first(3)
        told = solutions(experiment, split)
        whole = [experiment.tokenizer.encode(lead + p.solution, add_special_tokens=False) for p in split.problems]
        assert [list(t) for t in told.targets] == [ids[:8] for ids in whole]
