"""Laws of the methods, on a quadratic whose gradient is known, and on scores alone."""

import dataclasses
import math
import random
from typing import get_args, get_type_hints

import numpy as np
import pytest

from esctl.methods import METHODS
from esctl.methods.es import ES
from esctl.methods.essam import ESSAM, ESSAMF
from esctl.methods.protocol import Method
from esctl.methods.shaping import centred_ranks, fill_missing, z_scores
from esctl.noise.moves import EMPTY, Move, member_seed, probe_seed
from esctl.noise.spec import reference

DIM = 64
CURVATURE = np.linspace(0.5, 2.0, DIM)
SMALL = {"population": 8, "sigma": 0.01, "alpha": 0.02}
# For every numeric setting that only some methods have, a value at which a quadratic in 64 dimensions can be climbed.
OWN = {"rho": 0.05, "probe_population": 4, "probe_norm": 0.5}


def variants(cls):
    """The method as it is by default, with each other choice of each setting, and with the last choice of all."""
    hints = get_type_hints(cls)
    names = [f.name for f in dataclasses.fields(cls)]
    small = SMALL | {name: value for name, value in OWN.items() if name in names}
    choices = {name: (False, True) if hints[name] is bool else get_args(hints[name]) for name in names}
    unknown = [name for name in names if not choices[name] and name not in small]
    assert not unknown, f"{cls.__name__}: give {unknown} a value in OWN"
    yield cls(**small)
    for name in names:
        yield from (cls(**small | {name: choice}) for choice in choices[name][1:])
    yield cls(**small | {name: choices[name][-1] for name in names if choices[name]})


VARIANTS = [method for cls in METHODS.values() for method in variants(cls)]


def epsilon(seed):
    return reference(seed, 7, 1, DIM)[0].astype(np.float64)


def vector(move):
    return sum((t.coefficient * epsilon(t.seed) for t in move.terms), np.zeros(DIM))


def reward(theta):
    return -0.5 * float(np.sum(CURVATURE * theta**2))


def scores_of(method, state, theta):
    round_ = method.ask(state)
    return [reward(theta + vector(round_.center) + vector(c)) for c in round_.candidates]


def generation(method, state, theta):
    """One generation by the protocol: (next state, update, the probe that the last round stood at)."""
    start = state.generation
    while state.generation == start:
        probe = state.probe
        state, move = method.tell(state, scores_of(method, state, theta))
    return state, move, probe


def z(values):
    r = np.asarray(values)
    return (r - r.mean()) / (r.std() + 1e-8)


@pytest.mark.parametrize("method", VARIANTS, ids=repr)
def test_every_method_climbs_the_quadratic(method):
    theta = np.ones(DIM)
    state = method.start(0, DIM)
    for _ in range(60):
        state, move, _ = generation(method, state, theta)
        theta = theta + vector(move)
    assert reward(theta) > 0.95 * reward(np.ones(DIM))  # ranks take the smallest steps


@pytest.mark.parametrize("method", VARIANTS, ids=repr)
def test_rounds_states_the_candidates_asked_for(method):
    state, asked = method.start(3, DIM), []
    while state.generation == 0:
        round_ = method.ask(state)
        asked.append(len(round_.candidates))
        state, _ = method.tell(state, [float(i % 3) for i in range(len(round_.candidates))])
    assert tuple(asked) == method.rounds


@pytest.mark.parametrize("method", VARIANTS, ids=repr)
def test_a_method_probes_where_it_asks_for_candidates_around_another_point(method):
    state, centers = method.start(3, DIM), []
    while state.generation == 0:
        round_ = method.ask(state)
        centers.append(round_.center)
        state, _ = method.tell(state, [float(i % 3) for i in range(len(round_.candidates))])
    assert method.probes == any(center != EMPTY for center in centers)


@pytest.mark.parametrize("method", VARIANTS, ids=repr)
@pytest.mark.parametrize("spread", [0.0, 1e-7])
def test_flat_scores_move_nothing(method, spread):
    state = method.start(1, DIM)
    while state.generation == 0:
        n = len(method.ask(state).candidates)
        state, move = method.tell(state, [0.5 + spread * (i == 0) * 0.99 for i in range(n)])
    assert move == EMPTY


@pytest.mark.parametrize("method", VARIANTS, ids=repr)
def test_a_shift_of_all_scores_changes_no_step(method):
    state = method.start(1, DIM)
    for _ in range(len(method.rounds)):
        n = len(method.ask(state).candidates)
        scores = [float((i * 7) % 5) for i in range(n)]
        (a, move), (b, shifted) = method.tell(state, scores), method.tell(state, [s + 64.0 for s in scores])
        assert np.allclose(vector(move), vector(shifted), rtol=1e-9)
        assert np.allclose(vector(a.probe), vector(b.probe), rtol=1e-9)
        state = a


def test_es_step_is_its_equation():
    theta, method = np.linspace(-1, 1, DIM), ES(**SMALL)
    state = method.start(5, DIM)
    _, move, _ = generation(method, state, theta)
    eps = [epsilon(member_seed(5, 0, 0, m)) for m in range(8)]
    weights = z([reward(theta + 0.01 * e) for e in eps])
    assert np.allclose(vector(move), 0.02 / 8 * sum(w * e for w, e in zip(weights, eps, strict=True)), rtol=1e-6)


def test_mirrored_step_is_its_equation():
    theta, method = np.linspace(-1, 1, DIM), ES(**SMALL, mirrored=True)
    _, move, _ = generation(method, method.start(5, DIM), theta)
    eps = [epsilon(member_seed(5, 0, 0, m)) for m in range(4)]
    weights = z([reward(theta + s * 0.01 * e) for e in eps for s in (1, -1)])
    expected = 0.02 / 8 * sum((weights[2 * i] - weights[2 * i + 1]) * e for i, e in enumerate(eps))
    assert len(move) == 4
    assert np.allclose(vector(move), expected, rtol=1e-6)


@pytest.mark.parametrize(("probe", "sign"), [("against", -1), ("flipped", 1)])
def test_essam_estimates_at_the_probe_and_steps_at_theta(probe, sign):
    theta, method = np.linspace(-1, 1, DIM), ESSAM(**SMALL, rho=0.05, probe=probe)
    _, move, at = generation(method, method.start(5, DIM), theta)
    first = [epsilon(member_seed(5, 0, 0, m)) for m in range(8)]
    second = [epsilon(member_seed(5, 0, 1, m)) for m in range(8)]
    z0 = z([reward(theta + 0.01 * e) for e in first])
    offset = sign * 0.05 / 8 * sum(w * e for w, e in zip(z0, first, strict=True))
    z1 = z([reward(theta + offset + 0.01 * e) for e in second])
    assert np.linalg.norm(vector(at)) > 1e-3  # θ' is another point than θ
    assert np.allclose(vector(at), offset, rtol=1e-6)
    assert np.allclose(vector(move), 0.02 / 8 * sum(w * e for w, e in zip(z1, second, strict=True)), rtol=1e-6)


def test_essam_probe_goes_downhill_and_its_flip_uphill():
    theta = np.ones(DIM)
    for probe, better in (("against", False), ("flipped", True)):
        _, _, at = generation(ESSAM(**SMALL, rho=0.05, probe=probe), ESSAM(**SMALL).start(2, DIM), theta)
        assert (reward(theta + vector(at)) > reward(theta)) is better


def test_essam_f_probe_has_the_norm_asked_for_and_its_direction():
    theta, method = np.linspace(-1, 1, DIM), ESSAMF(**SMALL, probe_population=4, probe_norm=0.5)
    _, _, at = generation(method, method.start(5, DIM), theta)
    eps = [epsilon(member_seed(5, 0, 0, m)) for m in range(4)]
    r = np.array([reward(theta + 0.01 * e) for e in eps])
    g = sum((ri - r.mean()) * e for ri, e in zip(r, eps, strict=True)) / 4
    cosine = -vector(at) @ g / np.linalg.norm(vector(at)) / np.linalg.norm(g)
    assert at.norm(DIM) == pytest.approx(0.5)
    assert np.linalg.norm(vector(at)) == pytest.approx(0.5, rel=0.3)  # √(d Σc²) is exact only for large d
    assert cosine == pytest.approx(1.0, abs=1e-9)


def test_random_probe_has_essams_norm_and_its_own_seeds():
    method = ESSAM(**SMALL, rho=0.05, probe="random")
    state = method.start(5, DIM)
    assert state.probe.norm(DIM) == pytest.approx(0.05 * math.sqrt(DIM / 8))
    assert [t.seed for t in state.probe.terms] == [probe_seed(5, 0, 0, 0)]
    after, _ = method.tell(state, [float(i) for i in range(8)])
    assert after.probe != state.probe


def test_z_scores_give_the_probe_the_norm_rho_root_d_over_n():
    rng = random.Random(1)
    scores = [rng.random() for _ in range(8)]
    state, _ = ESSAM(**SMALL, rho=0.05).tell(ESSAM(**SMALL).start(0, DIM), scores)
    assert state.probe.norm(DIM) == pytest.approx(0.05 * math.sqrt(DIM / 8), rel=1e-6)


def test_both_rounds_draw_different_noise_and_seeds_differ_between_runs():
    method = ESSAM(**SMALL)
    first = method.ask(method.start(0, DIM))
    state, _ = method.tell(method.start(0, DIM), [float(i) for i in range(8)])
    other = method.ask(method.start(42, DIM))
    seeds = [{t.seed for c in r.candidates for t in c.terms} for r in (first, method.ask(state), other)]
    assert len(set.union(*seeds)) == 24


def test_centred_ranks_average_ties_and_sum_to_zero():
    assert centred_ranks([3.0, 1.0, 2.0]) == [0.5, -0.5, 0.0]
    assert centred_ranks([1.0, 5.0, 1.0, 5.0]) == pytest.approx([-1 / 3, 1 / 3, -1 / 3, 1 / 3])
    assert math.fsum(centred_ranks([0.0, 0.0, 1.0, 2.0, 2.0])) == pytest.approx(0.0)


def test_a_candidate_without_a_score_gets_the_lowest_of_its_round():
    assert fill_missing([0.5, None, -0.25, None]) == [0.5, -0.25, -0.25, -0.25]
    with pytest.raises(ValueError, match="no candidate had finite logits"):
        fill_missing([None, None])


def test_z_scores_use_the_population_std():
    assert z_scores([0.0, 1.0]) == pytest.approx([-1.0, 1.0], rel=1e-7)


@pytest.mark.parametrize("kind", METHODS)
def test_every_method_refuses_a_population_of_one(kind):
    with pytest.raises(ValueError, match="population: 1 is too few"):
        METHODS[kind](population=1)


@pytest.mark.parametrize("kind", METHODS)
def test_every_method_is_a_frozen_value(kind):
    method: Method = METHODS[kind]()
    assert dataclasses.replace(method) == method
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.sigma = 1.0


def test_moves_concatenate_and_never_merge():
    a, b = Move.of([1, 2], [0.5, 1.0]), Move.of([2], [-1.0])
    assert (a + b).terms == ((1, 0.5), (2, 1.0), (2, -1.0))
    assert -a == a * -1
    assert a + EMPTY == a
    assert EMPTY.norm(10) == 0.0
    with pytest.raises(ValueError, match="shorter"):
        Move.of([1], [])
