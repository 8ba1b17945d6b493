"""What a serving dtype realises of a move: the figure for norms by Gaussian integrals, and the engines' own cast."""

import json
import math
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from command import esctl

from esctl.cli.estimates import precision_text
from esctl.engines.weights.center import Center
from esctl.engines.weights.files import read_into, stored_tensors
from esctl.errors import UsageError
from esctl.experiment.estimates.precision import SPAN, SPANS, Sums, class_of, moves_of, realised, tensor_sums
from esctl.experiment.loading import load_recipe
from esctl.methods import ESSAM
from esctl.noise.moves import Move

SIGMA = 1e-3


def test_a_norm_weight_of_one_realises_0_37_in_bfloat16() -> None:
    """Numbers in bf16 are 2⁻⁸ apart below 1 and 2⁻⁷ above, so σε counts from half of that on: two moments."""
    normal, below, above = NormalDist(), 2**-8, 2**-7
    a, b = below / 2 / SIGMA, above / 2 / SIGMA
    first = below * normal.pdf(a) + above * normal.pdf(b)  # E[ε·served], of unit noise
    second = below**2 * normal.cdf(-a) + above**2 * normal.cdf(-b)  # E[served²]
    cosine, ratio = first / math.sqrt(second), math.sqrt(second) / SIGMA
    assert cosine == pytest.approx(0.37, abs=0.005)
    found = tensor_sums("model.norm.weight", np.ones(1 << 20, np.float32), Move.of([1], [SIGMA]), "bfloat16")
    assert (found.cosine, found.norm_ratio) == pytest.approx((cosine, ratio), rel=0.02)
    assert found.moved / found.weights == pytest.approx(normal.cdf(-a) + normal.cdf(-b), rel=0.02)


def test_fp32_realises_everything_and_no_change_nothing() -> None:
    ones = np.ones(1 << 16, np.float32)
    found = tensor_sums("model.norm.weight", ones, Move.of([1, 2], [SIGMA, -SIGMA]), "float32")
    assert (found.cosine, found.norm_ratio) == pytest.approx((1, 1), abs=1e-6)
    nothing = tensor_sums("model.norm.weight", ones, Move.of([1], [1e-6]), "bfloat16")
    assert (nothing.cosine, nothing.norm_ratio, nothing.moved) == (0, 0, 0)


def test_what_is_said_to_be_served_is_what_a_saved_model_holds(tiny_llama: Path, tmp_path: Path) -> None:
    recipe = load_recipe(None, {"method.kind": "es", "model": str(tiny_llama)})
    center = Center.load(tiny_llama)
    center.save(tmp_path / "before", "bfloat16", tiny_llama)
    move = moves_of(recipe.evolution, recipe.seed, center.dim)["step"]
    asked = Center(center.shapes)
    asked.commit(move)
    center.commit(move)
    center.save(tmp_path / "after", "bfloat16", tiny_llama)
    expected: dict[str, np.ndarray] = {}
    for name in center.names:
        before, after = (np.empty(center.shape(name), np.float32) for _ in range(2))
        read_into(stored_tensors(tmp_path / "before")[name], before)
        read_into(stored_tensors(tmp_path / "after")[name], after)
        served, wanted = (after.astype(float) - before).ravel(), asked.tensor(name).astype(float).ravel()
        sums = np.array([served.size, np.count_nonzero(served), wanted @ wanted, served @ served, wanted @ served])
        expected[class_of(name)] = expected.get(class_of(name), 0) + sums
    found = realised(recipe, "bfloat16").sums["step"]
    assert found.keys() == {"embedding", "attention", "mlp", "norm", "output"} == expected.keys()
    for name, sums in found.items():
        assert (sums.weights, sums.moved, sums.asked, sums.served, sums.both) == pytest.approx(tuple(expected[name]))


def test_of_a_long_tensor_every_so_many_th_span_is_read() -> None:
    theta = np.zeros((2 * SPANS, SPAN), np.float32)
    theta[1::2] = np.inf
    found = tensor_sums("lm_head.weight", theta.reshape(-1), Move.of([1], [1.0]), "float32")
    assert found.weights == SPANS * SPAN
    assert found.cosine == pytest.approx(1)


def test_every_method_says_what_it_writes() -> None:
    moves = moves_of(ESSAM(population=4, sigma=0.1, alpha=0.2, rho=0.3), 5, 100)
    assert [(kind, len(move)) for kind, move in moves.items()] == [("candidate", 1), ("probe", 4), ("step", 4)]
    assert moves["candidate"].terms[0].coefficient == 0.1
    assert math.fsum(t.coefficient**2 for t in moves["step"].terms) == pytest.approx(0.2**2 / 4)
    assert math.fsum(t.coefficient**2 for t in moves["probe"].terms) == pytest.approx(0.3**2 / 4)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.embed_tokens.weight", "embedding"),
        ("model.layers.0.self_attn.q_norm.weight", "norm"),
        ("model.layers.0.post_attention_layernorm.weight", "norm"),
        ("model.layers.0.self_attn.q_proj.bias", "bias"),
        ("model.layers.0.self_attn.o_proj.weight", "attention"),
        ("model.layers.11.mlp.down_proj.weight", "mlp"),
        ("lm_head.weight", "output"),
        ("score.weight", "other"),
    ],
)
def test_a_tensor_s_class_is_in_its_name(name: str, kind: str) -> None:
    assert class_of(name) == kind


def shown_by(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert esctl(line) == 0
    return capsys.readouterr().out


def test_the_command_warns_of_what_is_hardly_served(capsys: pytest.CaptureFixture[str]) -> None:
    shown = shown_by("precision", capsys)
    assert shown.startswith("embedded: es, σ = 0.001, served in bfloat16")
    assert "warning: norm: a candidate realises 0." in shown
    tree = json.loads(shown_by("precision --sigma 0.015 --json", capsys))
    assert tree["sigma"] == 0.015
    assert tree["terms"] == {"candidate": 1, "step": 30}
    assert tree["realised"]["candidate"]["mlp"]["cosine"] > 0.99
    exact = shown_by("precision arithmetic/essam --dtype float32", capsys)
    assert "warning" not in exact
    assert "probe, 16 terms" in exact


def test_what_asks_for_no_candidates_is_refused() -> None:
    with pytest.raises(UsageError, match=r"method\.kind: grpo asks for no candidates; choose es, essam or essam-f"):
        realised(load_recipe("arithmetic/grpo", {}), "bfloat16")


def test_sums_of_nothing_say_nothing() -> None:
    assert (Sums().cosine, Sums().norm_ratio) == (0, 0)
    assert precision_text(realised(load_recipe("arithmetic/es", {}), "float32")).count("warning") == 0
