"""One contract for every engine, held against a plain Transformers module that got its noise from the specification."""

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from oracle import (
    GREEDY,
    KINDS,
    PROMPTS,
    SHORT,
    TARGETS,
    A,
    B,
    around,
    close_to,
    expected_nll,
    module_of,
    moved,
    random_states,
    reference_greedy,
    reference_nll,
    tokens_of,
)

from esctl import engines
from esctl.engines import Completion, Engine, EngineSpec, Sampling, open_engine
from esctl.engines.checkpoint import Checkpoint
from esctl.engines.weights.center import Center
from esctl.errors import EngineError
from esctl.noise.moves import EMPTY, Move

MODELS = ("tiny_qwen2", "tiny_llama")


@dataclass(frozen=True)
class Subject:
    """An engine under test, the folder it came from, and θ as it was loaded."""

    kind: str
    folder: Path
    engine: Engine
    start: Path


@pytest.fixture(scope="module", params=[(k, m) for k in KINDS for m in MODELS], ids=lambda p: f"{p[0]}-{p[1]}")
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    kind, model = request.param
    if kind == "vllm" and not engines.vllm_installed():
        pytest.skip("vLLM is not installed")
    folder = request.getfixturevalue(model)
    engine = open_engine(EngineSpec(folder, kind=kind))
    start = tmp_path_factory.mktemp("center") / "start.safetensors"
    engine.save_center(start)
    yield Subject(kind, folder, engine, start)
    engine.close()
    engine.close()  # twice is harmless


@pytest.fixture
def subject(opened: Subject) -> Subject:
    opened.engine.load_center(opened.start)
    return opened


# Live weights


@pytest.mark.slow
def test_rollout_leaves_weights_bitwise_unchanged(subject: Subject) -> None:
    before = subject.engine.checksum()
    assert before == subject.engine.center_sha256()  # fp32 is served as it is
    subject.engine.rollout(around(A, B, center=B), PROMPTS, GREEDY)
    subject.engine.nll(around(A, B, center=B), PROMPTS, TARGETS)
    assert subject.engine.checksum() == before


@pytest.mark.slow
def test_an_exception_in_the_middle_leaves_weights_bitwise_unchanged(subject: Subject) -> None:
    before = subject.engine.checksum()
    seen = []

    def fail(index: int, completions: list[list[Completion]]) -> None:
        seen.append(subject.engine.checksum())
        if index == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        subject.engine.rollout(around(A, B, A), PROMPTS, SHORT, on_candidate=fail)
    assert len({*seen, before}) == 3  # each candidate was live
    assert subject.engine.checksum() == before


@pytest.mark.slow
def test_a_hundred_candidates_leave_weights_bitwise_unchanged(subject: Subject) -> None:
    before = subject.engine.checksum()
    subject.engine.rollout(around(*(Move.of([s], [0.1]) for s in range(100)), center=A), PROMPTS[:2], SHORT)
    assert subject.engine.checksum() == before


@pytest.mark.slow
def test_the_last_candidate_stays_live_where_that_is_asked_for_and_theta_comes_back(subject: Subject) -> None:
    before, seen = subject.engine.checksum(), list[str]()

    def look(*_: object) -> None:
        seen.append(subject.engine.checksum())

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    pieces = [around(candidate, center=B) for candidate in (A, EMPTY)]
    subject.engine.rollout(around(A, EMPTY, center=B), PROMPTS, SHORT, on_candidate=look)
    for piece, whole in zip(pieces, seen, strict=True):
        subject.engine.rollout(piece, PROMPTS, SHORT, stay=True)
        assert subject.engine.checksum() == whole != before
    subject.engine.restore()
    assert subject.engine.checksum() == before
    with pytest.raises(KeyboardInterrupt):
        subject.engine.rollout(pieces[0], PROMPTS, SHORT, on_candidate=fail, stay=True)
    assert subject.engine.checksum() == before


@pytest.mark.slow
def test_live_weights_of_a_candidate_are_the_specification(subject: Subject) -> None:
    center = Center.load(subject.folder)
    for name in center.names:
        center.tensor(name)[...] = moved(B, A)(name, center.tensor(name))
    seen: list[str] = []
    subject.engine.rollout(
        around(A, center=B), PROMPTS, SHORT, on_candidate=lambda *_: seen.append(subject.engine.checksum())
    )
    assert seen == [center.weights_sha256()]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_16_bit_weight_is_the_candidate_rounded_once(kind: str, tiny_qwen2: Path) -> None:
    engine = open_engine(EngineSpec(tiny_qwen2, kind=kind, dtype="bfloat16"))
    seen: list[str] = []
    engine.rollout(around(A, center=B), PROMPTS, SHORT, on_candidate=lambda *_: seen.append(engine.checksum()))
    engine.close()
    center = Center.load(tiny_qwen2)
    digest = hashlib.sha256()
    for name, shape in center.shapes.items():
        rounded = torch.from_numpy(moved(B, A)(name, center.tensor(name))).to(torch.bfloat16)
        digest.update(f"{name}\0{list(shape)}\0".encode())
        digest.update(rounded.view(-1).view(torch.uint8).numpy().data)
    assert seen == [digest.hexdigest()]


# What the model computes

CLASSES = {
    "linears": lambda name: "proj.weight" in name,
    "embeddings": lambda name: "embed_tokens" in name,
    "heads": lambda name: "lm_head" in name,
    "norms": lambda name: "norm" in name,
    "biases": lambda name: name.endswith("bias"),
}


@pytest.mark.slow
@pytest.mark.parametrize("chosen", CLASSES)
def test_each_class_of_tensors_alone_moves_the_logits_as_in_transformers(
    subject: Subject, chosen: str, tmp_path: Path
) -> None:
    center = Center.load(subject.folder)
    names = set(filter(CLASSES[chosen], center.names))
    if not names:
        pytest.skip(f"the model has no {chosen} of its own")
    for name in names:
        center.tensor(name)[...] = moved(A)(name, center.tensor(name))
    center.save_center(tmp_path / "moved.safetensors")
    subject.engine.load_center(tmp_path / "moved.safetensors")
    module = module_of(subject.folder, lambda name, theta: moved(A)(name, theta) if name in names else theta)
    expected = [reference_nll(module, p, t) for p, t in zip(PROMPTS, TARGETS, strict=True)]
    assert subject.engine.nll(around(EMPTY), PROMPTS, TARGETS) == [close_to(expected)]
    assert expected != pytest.approx(expected_nll(subject.folder), abs=0.01)  # the class matters


@pytest.mark.slow
def test_candidates_have_the_likelihoods_of_the_specification(subject: Subject) -> None:
    found = subject.engine.nll(around(A, EMPTY, B, center=B), PROMPTS, TARGETS)
    assert found == [close_to(expected_nll(subject.folder, B, move)) for move in (A, EMPTY, B)]


@pytest.mark.slow
def test_greedy_tokens_are_those_of_an_unpadded_forward_pass(subject: Subject) -> None:
    found = subject.engine.rollout(around(EMPTY, A), PROMPTS, GREEDY)
    for candidate, move in zip(found, (EMPTY, A), strict=True):
        module = module_of(subject.folder, moved(move))
        assert tokens_of(candidate) == [reference_greedy(module, p, GREEDY.max_tokens) for p in PROMPTS]


@pytest.mark.slow
def test_no_cache_of_other_weights_is_read(subject: Subject) -> None:
    long = [[7 + (j * j) % 43 for j in range(300)] + tail for tail in ([8], [9, 10])]  # whole blocks of a prefix cache
    found = subject.engine.rollout(around(EMPTY, A, EMPTY, A), long, GREEDY)
    assert found[:2] == found[2:]
    for candidate, move in zip(found, (EMPTY, A), strict=False):
        module = module_of(subject.folder, moved(move))
        assert tokens_of(candidate) == [reference_greedy(module, p, GREEDY.max_tokens) for p in long]


@pytest.mark.slow
def test_equal_inputs_give_equal_outputs(subject: Subject) -> None:
    round_, sampling, seeds = around(A, A, center=B), Sampling(1.0, 8, 0.9), [[1, 2], [3], [4], [5]]
    first = subject.engine.rollout(round_, PROMPTS, sampling, seeds)
    assert first[0] == first[1]
    assert subject.engine.rollout(round_, PROMPTS, sampling, seeds) == first
    assert subject.engine.nll(round_, PROMPTS, TARGETS) == subject.engine.nll(round_, PROMPTS, TARGETS)


@pytest.mark.slow
def test_more_seeded_prompts_than_one_step_reads_are_sampled(subject: Subject) -> None:
    prompts = [[1 + (row + place) % 50 for place in range(99)] for row in range(100)]  # vLLM reads some 4,000 tokens
    seeds = [[row] for row in range(100)]
    [found] = subject.engine.rollout(around(EMPTY), prompts, replace(SHORT, temperature=1.0), seeds)
    assert all(len(own) == 1 and own[0].token_ids for own in found)


@pytest.mark.slow
def test_a_weight_that_is_no_number_is_reported(subject: Subject, tmp_path: Path) -> None:
    center = Center.load(subject.folder)
    center.tensor("model.norm.weight")[3] = np.nan
    center.save_center(tmp_path / "nan.safetensors")
    subject.engine.load_center(tmp_path / "nan.safetensors")
    assert not any(c.finite for s in subject.engine.rollout(around(A), PROMPTS, SHORT)[0] for c in s)
    subject.engine.load_center(subject.start)
    assert all(c.finite for s in subject.engine.rollout(around(A), PROMPTS, SHORT)[0] for c in s)


def damage(value: float, *parts: str) -> Callable[[str, np.ndarray], np.ndarray]:
    """Every fifth element of the tensors whose names contain one of `parts` becomes `value`."""

    def write(name: str, theta: np.ndarray) -> np.ndarray:
        changed = theta.copy()
        if any(part in name for part in parts):
            changed.reshape(-1)[::5] = value
        return changed

    return write


EARLY = "layers.0."
DAMAGES = {
    "NaN in the first norm": damage(np.nan, EARLY + "input_layernorm"),
    "inf in the first norm": damage(np.inf, EARLY + "input_layernorm"),
    "NaN in the first values": damage(np.nan, EARLY + "self_attn.v_proj.weight"),
    "-inf in the first keys": damage(-np.inf, EARLY + "self_attn.k_proj.weight"),
    "NaN behind the first attention": damage(np.nan, EARLY + "mlp.down_proj"),
    "keys overflow": damage(3e38, "k_proj.weight"),
    "values overflow": damage(3e38, "v_proj.weight"),
    "keys overflow in the last layer": damage(-3e38, "layers.1.self_attn.k_proj.weight"),
    "values overflow in the last layer": damage(-3e38, "layers.1.self_attn.v_proj.weight"),
    "every product overflows": damage(1e30, "norm", "proj"),
    "large but finite": damage(1e6, "k_proj.weight", "v_proj.weight"),
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_weights_that_are_no_numbers_leave_nothing_behind(subject: Subject, damage: str, tmp_path: Path) -> None:
    sampling = Sampling(0.0, 48, ignore_eos=True)
    round_ = around(EMPTY, A, center=B)
    prompts = [*PROMPTS, [9] * 140]  # more than one block of the KV cache
    before = subject.engine.checksum()
    first = subject.engine.rollout(round_, prompts, sampling)
    likelihoods = subject.engine.nll(round_, PROMPTS, TARGETS)
    assert all(c.finite for candidate in first for samples in candidate for c in samples)
    center = Center.load(subject.folder)
    for name in center.names:
        center.tensor(name)[...] = DAMAGES[damage](name, center.tensor(name))
    center.save_center(tmp_path / "damaged.safetensors")
    subject.engine.load_center(tmp_path / "damaged.safetensors")
    [damaged] = subject.engine.rollout(around(EMPTY), prompts, sampling)
    assert all(c.finite for samples in damaged for c in samples) == (damage == "large but finite")
    subject.engine.load_center(subject.start)
    assert subject.engine.checksum() == before
    assert subject.engine.rollout(round_, prompts, sampling) == first
    assert subject.engine.nll(round_, PROMPTS, TARGETS) == likelihoods


@pytest.mark.slow
def test_a_huge_candidate_between_others_changes_none_of_them(subject: Subject) -> None:
    sampling = Sampling(0.0, 48, ignore_eos=True)
    huge = Move.of([1], [1e30])
    [*clean] = subject.engine.rollout(around(EMPTY, A), PROMPTS, sampling)
    found = subject.engine.rollout(around(EMPTY, huge, EMPTY, A, huge), PROMPTS, sampling)
    assert found[0] == found[2] == clean[0]
    assert found[3] == clean[1]
    subject.engine.nll(around(huge), PROMPTS, TARGETS)
    assert subject.engine.rollout(around(EMPTY, A), PROMPTS, sampling) == clean


@pytest.mark.slow
def test_an_interrupted_candidate_that_is_no_number_leaves_nothing_behind(subject: Subject) -> None:
    sampling = Sampling(0.0, 48, ignore_eos=True)
    [clean] = subject.engine.rollout(around(EMPTY), PROMPTS, sampling)

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        subject.engine.rollout(around(Move.of([1], [1e30])), PROMPTS, sampling, on_candidate=fail)
    assert subject.engine.rollout(around(EMPTY), PROMPTS, sampling) == [clean]


# Completions


@pytest.mark.slow
def test_a_sample_depends_on_its_seed_and_not_on_its_neighbours(subject: Subject) -> None:
    sampling = Sampling(1.0, 12, ignore_eos=True)
    [many] = subject.engine.rollout(around(EMPTY), PROMPTS, sampling, [[1, 2, 1], [1], [2], [7]])
    [few] = subject.engine.rollout(around(EMPTY), PROMPTS[:1], sampling, [[2]])
    assert many[0][0] == many[0][2] != many[0][1]
    assert few[0][0] == many[0][1]


@pytest.mark.slow
def test_a_completion_ends_at_an_end_token_or_at_the_limit(subject: Subject) -> None:
    seeds = [list(range(16)) for _ in PROMPTS]
    [found] = subject.engine.rollout(around(EMPTY), PROMPTS, Sampling(1.0, 16), seeds)
    samples = [s for own in found for s in own]
    assert {s.finish_reason for s in samples} == {"stop", "length"}
    for sample in samples:
        stopped = sample.finish_reason == "stop"
        assert (sample.token_ids[-1] == 2) == stopped
        assert 2 not in sample.token_ids[:-1]
        assert "<|end|>" not in sample.text
        assert stopped or len(sample.token_ids) == 16


def test_an_end_token_that_is_an_ordinary_one_stays_out_of_the_text(tiny_qwen2: Path) -> None:
    checkpoint = replace(Checkpoint.open(EngineSpec(tiny_qwen2)), stop_ids=frozenset({9}))
    [ended, cut] = checkpoint.completions([[8, 9], [8, 10]], [True, True], Sampling(0.0, 2))
    assert (ended.text, ended.token_ids, ended.finish_reason) == ("c", (8, 9), "stop")
    assert (cut.text, cut.token_ids, cut.finish_reason) == ("ce", (8, 10), "length")


@pytest.mark.slow
def test_a_completion_ends_where_the_context_does_and_a_prompt_must_fit(subject: Subject) -> None:
    [[[last]]] = subject.engine.rollout(around(EMPTY), [[9] * 509], GREEDY)
    assert (len(last.token_ids), last.finish_reason) == (3, "length")
    with pytest.raises(EngineError, match="prompt 1 has 512 tokens"):
        subject.engine.rollout(around(EMPTY), [[9], [9] * 512], GREEDY)


# The center, and what is around it


@pytest.mark.slow
def test_commits_depend_on_their_sequence_only(subject: Subject) -> None:
    expected = Center.load(subject.folder)
    for move in (A, EMPTY, B):
        subject.engine.commit(move)
        expected.commit(move)
        assert subject.engine.checksum() == subject.engine.center_sha256() == expected.weights_sha256()
    subject.engine.load_center(subject.start)
    subject.engine.rollout(around(B, A), PROMPTS, SHORT)
    subject.engine.commit(A)
    subject.engine.nll(around(A, center=B), PROMPTS, TARGETS)
    subject.engine.commit(B)
    assert subject.engine.checksum() == expected.weights_sha256()


@pytest.mark.slow
def test_saved_weights_load_in_transformers_whole_and_with_equal_logits(subject: Subject, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    subject.engine.commit(A)
    subject.engine.save(tmp_path / "out")
    module, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report.values()), report
    expected = module_of(subject.folder, moved(A))
    ids = torch.tensor(PROMPTS[3:])
    assert torch.equal(module(ids).logits, expected(ids).logits)


@pytest.mark.slow
def test_random_states_of_the_caller_are_not_touched(subject: Subject) -> None:
    random.seed(5), np.random.seed(6), torch.manual_seed(7)
    before = random_states()
    subject.engine.rollout(around(A), PROMPTS, Sampling(1.0, 4), [[1]] * 4)
    subject.engine.nll(around(A), PROMPTS, TARGETS)
    subject.engine.commit(A)
    assert random_states() == before


@pytest.mark.slow
def test_tensor_bytes_equal_the_formula(subject: Subject) -> None:
    subject.engine.rollout(around(A, center=B), PROMPTS, SHORT)
    found = dict(subject.engine.tensor_bytes())
    kv = found.pop("kv")
    dim, hidden, vocabulary = subject.engine.dim, 64, 55
    expected = {"weights": 4 * dim, "scratch": 0, "center": 4 * dim, "probe": 4 * dim}
    if subject.kind == "vllm":
        padding, tied = 64 - vocabulary, subject.folder.name.startswith("tiny-qwen2")
        # Both matrices are padded to 64 rows; a tied one is read by lookup and again, packed, by the product.
        expected["weights"] += 4 * hidden * (2 * padding + (vocabulary if tied else 0))
        expected["scratch"] = 4 * hidden * max(2 * 96, 256 if not tied else 128)
        blocks = 512 * 4
        assert kv == blocks * 128 * 4 * 2 * 2 * 2 * (32 if not tied else 16)
    assert found == expected
    assert kv > 0


@pytest.mark.slow
def test_an_interrupted_generation_leaves_no_request_behind(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    if subject.kind != "vllm":
        pytest.skip("only vLLM keeps requests")
    expected = subject.engine.rollout(around(A), PROMPTS, GREEDY)
    before = subject.engine.checksum()
    vllm = subject.engine.ranks.llm.llm_engine  # the place where an interrupt would strike
    step, steps = vllm.step, iter(range(9))

    def interrupted():
        if next(steps) == 3:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(vllm, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        subject.engine.rollout(around(B), PROMPTS, GREEDY)
    monkeypatch.undo()
    assert subject.engine.checksum() == before
    assert subject.engine.rollout(around(A), PROMPTS, GREEDY) == expected
