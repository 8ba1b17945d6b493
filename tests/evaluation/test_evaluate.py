"""Laws of evaluations: a sample is a function of its seed, what is on disk is not drawn again, files tell no times."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest

import esctl.evaluation.target
from esctl.engines import Engine, EngineSpec, Sampling, open_engine
from esctl.errors import RunError
from esctl.evaluation.draw import EvalProgress, EvalRequest, draw_evaluation, stored_eval
from esctl.evaluation.evaluate import StoredEvaluation, evaluate
from esctl.evaluation.sampling import ROLLOUTS, Decoding, chunks, missing, noise_seed, token_seed
from esctl.evaluation.target import TargetRequest
from esctl.experiment.experiment import Experiment
from esctl.experiment.loading import load_recipe
from esctl.experiment.rebuild import center_at
from esctl.noise.moves import EMPTY, Move, Round
from esctl.runs.directory import RunDir
from esctl.runs.files import read_gzip_lines, read_lines
from esctl.runs.records import EvalPart, EvalSample, Mode

TOKENS = Decoding(temperature=0.8, top_p=0.95, n=4)
NOISE = Decoding(n=3, mode=Mode("weight", 0.02))
SMALL = ["sampling.max_tokens=24", "engine.kind=transformers"]


def grid(n_problems: int, decoding: Decoding) -> list[tuple[int, int]]:
    return [(p, s) for chunk in chunks(n_problems, decoding) for p in chunk.problems for s in chunk.samples]


def test_a_seed_is_a_function_of_evaluation_problem_and_sample():
    # Published: stored samples are found again by these.
    assert token_seed(0, "test-0", 0) == 5518409491652417074
    assert noise_seed(0, 0) == 5290825240526320526
    seeds = {token_seed(e, f"test-{p}", s) for e in (0, 1, -1) for p in range(20) for s in range(20)}
    assert len(seeds) == 3 * 20 * 20
    assert max(seeds) < 2**63
    assert len({noise_seed(e, s) for e in (0, 1) for s in range(50)}) == 100


@pytest.mark.parametrize("n_problems", [1, 3, 200, 512, 1319])
@pytest.mark.parametrize("n", [1, 2, 7, 128])
@pytest.mark.parametrize("mode", [Mode(), Mode("weight", 0.01)])
def test_chunks_are_every_sample_once_whatever_the_settings(n_problems, n, mode):
    decoding = Decoding(0.6, 1.0, n, mode=mode)
    found = grid(n_problems, decoding)
    assert sorted(found) == [(p, s) for p in range(n_problems) for s in range(n)]
    for chunk in chunks(n_problems, decoding):
        assert mode.kind == "weight" or len(chunk.problems) * len(chunk.samples) <= ROLLOUTS
        assert mode.kind == "token" or (len(chunk.problems), len(chunk.samples)) == (n_problems, 1)


@pytest.mark.parametrize("n_problems", [1, 20, 200, 1319])
def test_more_samples_begin_with_the_chunks_of_fewer(n_problems):
    runs = [list(chunks(n_problems, replace(TOKENS, n=n))) for n in (1, 2, 4, 64, 128, 256)]
    for fewer, more in pairwise(runs):
        assert more[: len(fewer)] == fewer


def test_missing_is_what_was_not_drawn():
    [*_, last] = chunks(3, replace(TOKENS, n=4))
    ids, have = ["a", "b", "c"], {(p, s) for p in "abc" for s in range(3)}
    assert last.samples == range(2, 4)
    rest = missing(last, ids, have)
    assert rest is not None
    assert (rest.problems, rest.samples) == ((0, 1, 2), range(3, 4))
    assert missing(last, ids, have | {(p, 3) for p in "abc"}) is None


@dataclass
class Bench:
    """The embedded model through the reference engine, and six problems."""

    experiment: Experiment
    engine: Engine
    reports: list[EvalProgress] = field(default_factory=list)

    def evaluate(self, run: Path, decoding: Decoding) -> bool:
        """Whether it was stored already."""
        self.reports.clear()
        return (
            draw_evaluation(self.experiment, RunDir(run), self.engine, self.request(decoding), self.reports.append)
            is None
        )

    def request(self, decoding: Decoding) -> EvalRequest:
        return EvalRequest(self.experiment.split("test").first(6), 0, 0, decoding)


@pytest.fixture(scope="module")
def bench():
    experiment = Experiment(load_recipe("arithmetic/es", {}, SMALL))
    experiment.split("test")
    engine = open_engine(experiment.engine_spec())
    yield Bench(experiment, engine)
    engine.close()


def files(run: Path) -> dict[str, object]:
    """Every evaluation file, without seconds."""
    found: dict[str, object] = {p.name: p.read_bytes() for p in sorted((run / "evals").glob("*.gz"))}
    for path in sorted((run / "evals").glob("*.json")):
        tree = json.loads(path.read_text())
        del tree["cost"]["seconds"]
        found[path.name] = tree
    assert len(list((run / "evals").iterdir())) == len(found)
    return found


def samples(run: Path) -> list[EvalSample]:
    [path] = (run / "evals").glob("*.gz")
    return read_gzip_lines(path, EvalSample)


@pytest.mark.slow
@pytest.mark.parametrize("decoding", [Decoding(), TOKENS, NOISE, replace(NOISE, temperature=0.8)])
def test_evaluated_twice_the_files_are_equal_but_for_times(bench, tmp_path, decoding):
    for name in "ab":
        bench.evaluate(tmp_path / name, decoding)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    [record] = RunDir(tmp_path / "a").read_evals()
    assert record.problems.n == [decoding.n] * 6
    assert record.cost.rollouts == len(samples(tmp_path / "a")) == 6 * decoding.n
    assert record.cost.generated_tokens == sum(s.tokens for s in samples(tmp_path / "a"))


@pytest.mark.slow
@pytest.mark.parametrize("decoding", [TOKENS, NOISE])
def test_more_samples_draw_only_the_missing_and_end_as_if_asked_at_once(bench, tmp_path, decoding):
    bench.evaluate(tmp_path / "a", replace(decoding, n=1))
    bench.evaluate(tmp_path / "a", decoding)
    assert [bench.reports[0].done, bench.reports[-1].drawn] == [12, 6 * (decoding.n - 1)]
    bench.evaluate(tmp_path / "b", decoding)
    assert files(tmp_path / "a") == files(tmp_path / "b")


@pytest.mark.slow
def test_fewer_samples_are_answered_from_more(bench, tmp_path):
    bench.evaluate(tmp_path, TOKENS)
    before = files(tmp_path)
    assert bench.evaluate(tmp_path, replace(TOKENS, n=2))
    assert bench.reports == []
    assert files(tmp_path) == before
    weights = bench.engine.center_sha256()
    found = stored_eval(bench.experiment, RunDir(tmp_path), bench.request(replace(TOKENS, n=2)), weights)
    assert found is not None
    assert found.sampling.n == 4


@pytest.mark.slow
def test_settings_that_differ_are_other_evaluations(bench, tmp_path):
    others = [TOKENS, replace(TOKENS, temperature=0.6), replace(TOKENS, seed=1), NOISE,
              replace(NOISE, mode=Mode("weight", 0.01))]  # fmt: skip
    for decoding in others:
        bench.evaluate(tmp_path, replace(decoding, n=1))
    assert len(files(tmp_path)) == 2 * len(others)


@pytest.mark.slow
def test_a_sample_depends_on_its_seed_and_on_no_other_sample(bench, tmp_path):
    bench.evaluate(tmp_path, TOKENS)
    problem, drawn = bench.request(TOKENS).split.problems[2], {(s.problem, s.sample): s for s in samples(tmp_path)}
    prompt = bench.request(TOKENS).split.token_ids[2]
    seeds = [[token_seed(0, problem.id, 3)]]
    [[[alone]]] = bench.engine.rollout(Round(0, 0, EMPTY, (EMPTY,)), [prompt], Sampling(0.8, 24, 0.95), seeds)
    assert alone.text == drawn[problem.id, 3].completion
    assert len({drawn[problem.id, s].completion for s in range(4)}) > 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["transformers", "vllm"])
def test_seeded_samples_are_equal_whatever_shares_their_batch_or_came_before(kind):
    if kind == "vllm":
        pytest.importorskip("vllm", reason="vLLM is not installed")
    experiment = Experiment(load_recipe("arithmetic/es", {"engine.kind": kind}, ["sampling.max_tokens=24"]))
    split = experiment.split("test").first(6)
    seeds = [[token_seed(0, p.id, s) for s in range(3)] for p in split.problems]
    hot, here = Sampling(0.8, 24, 0.95), Round(0, 0, EMPTY, (EMPTY,))
    engine = open_engine(experiment.engine_spec())

    def drawn(rows: list[int], sampling: Sampling = hot) -> list[list[tuple[int, ...]]]:
        prompts = [split.token_ids[row] for row in rows]
        [found] = engine.rollout(here, prompts, sampling, [seeds[row] for row in rows])
        return [[tuple(c.token_ids) for c in own] for own in found]

    try:
        first = drawn([0, 1, 2, 3, 4, 5])
        assert len({tokens for own in first for tokens in own}) > 6
        engine.rollout(here, split.token_ids, Sampling(0.0, 24))
        engine.rollout(here, split.token_ids, hot)  # without seeds
        drawn([0, 3], Sampling(1.0, 24))
        assert drawn([0, 1, 2, 3, 4, 5]) == first
        assert drawn([5, 2, 0]) == [first[row] for row in (5, 2, 0)]
        assert drawn([4]) == [first[4]]
    finally:
        engine.close()


@pytest.mark.slow
def test_weight_noise_is_common_to_all_problems_of_a_sample_and_leaves_the_weights(bench, tmp_path):
    before = bench.engine.checksum(), bench.engine.center_sha256()
    bench.evaluate(tmp_path, NOISE)
    assert (bench.engine.checksum(), bench.engine.center_sha256()) == before
    split, drawn = bench.request(NOISE).split, {(s.problem, s.sample): s for s in samples(tmp_path)}
    for index in range(NOISE.n):
        perturbed = Round(0, 0, EMPTY, (Move.of([noise_seed(0, index)], [0.02]),))
        [texts] = bench.engine.rollout(perturbed, split.token_ids, Sampling(0.0, 24))
        assert [c.text for [c] in texts] == [drawn[p.id, index].completion for p in split.problems]
    assert len({drawn[p.id, s].completion for p in split.problems for s in range(NOISE.n)}) > len(split.problems)


def passk(run: Path, fault: str) -> subprocess.CompletedProcess[str]:
    sets = [item for s in SMALL for item in ("--set", s)]
    line = ["passk", "embedded", "--k", "4", "--samples", "4", "--temperature", "0.8", "-n", "6", "--run", str(run)]
    environment = os.environ | {"ESCTL_FAULT": fault}
    return subprocess.run(
        [sys.executable, "-m", "esctl", *line, *sets], capture_output=True, text=True, env=environment, timeout=300
    )


@pytest.mark.slow
def test_killed_and_resumed_redoes_one_chunk_at_most_and_ends_in_the_same_files(bench, tmp_path):
    bench.evaluate(tmp_path / "whole", TOKENS)
    run = tmp_path / "run"
    died = passk(run, "mid-append:2")  # the second of three chunks is on its way to the disk
    assert died.returncode == -signal.SIGKILL, died.stderr
    [part] = (run / "evals").iterdir()
    assert [len(p.samples) for p in read_lines(part, EvalPart)] == [6]
    assert not part.read_bytes().endswith(b"\n")
    died = passk(run, "mid-rename:2")  # samples are whole, the record of them is not there yet
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert not RunDir(run).eval_files()
    assert len(read_lines(part, EvalPart)) == 2
    assert not bench.evaluate(run, TOKENS)
    assert bench.reports == []
    assert files(run) == files(tmp_path / "whole")


def small(target: Path | str, *, run: Path | None = None, step: int | None = None, **flags: str) -> TargetRequest:
    return TargetRequest(str(target), {f"task.{key}": value for key, value in flags.items()}, SMALL, run, step)


def no_engine(spec: EngineSpec) -> Engine:
    raise AssertionError(f"an engine was started for {spec.model}")


@pytest.mark.slow
def test_the_base_is_found_by_its_weights_without_an_engine(bench, tmp_path, monkeypatch):
    asked = small("embedded", run=tmp_path / "base")
    first = evaluate(asked, [], "test", 6, [Decoding(), TOKENS])
    assert {item.record.weights_sha256 for item in first} == {bench.engine.center_sha256()}
    before = files(tmp_path / "base")
    monkeypatch.setattr(esctl.evaluation.target, "open_engine", no_engine)
    assert evaluate(asked, [], "test", 6, [Decoding(), replace(TOKENS, n=2)]) == first
    assert evaluate(small(tmp_path / "base"), [], "test", 6) == first[:1]
    assert files(tmp_path / "base") == before
    run = RunDir(tmp_path / "base")
    record = run.read_record()
    run.write_record(replace(record, base=replace(record.base, weights_sha256="0" * 64)))
    with pytest.raises(RunError, match="holds another model's evaluations"):
        evaluate(asked, [], "test", 6)


@pytest.mark.slow
def test_several_tasks_and_decodings_are_one_engine_and_one_directory(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(esctl.evaluation.target, "open_engine", lambda spec: started.append(spec) or open_engine(spec))
    tasks, decodings = ["arithmetic", "tiny-countdown"], [Decoding(), replace(TOKENS, n=2)]
    found = evaluate(small("embedded", run=tmp_path), tasks, "test", 4, decodings)
    assert [(x.record.task.name, x.record.sampling.n) for x in found] == [(t, d.n) for t in tasks for d in decodings]
    assert len(started) == 1
    assert RunDir(tmp_path).read_record().eval.rollouts == 2 * (4 + 8)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two generations with an evaluation of each; its weights folder is then taken away."""
    run = tmp_path_factory.mktemp("trained") / "run"
    sets = [*SMALL, "method.population=4", "prompts=8", "eval.every=1", "eval.n=8", "eval.final=null"]
    line = ["train", "--recipe", "arithmetic/essam", "--generations", "2", "--run", str(run)]
    command = [sys.executable, "-m", "esctl", *line, *(item for s in sets for item in ("--set", s))]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return run


@pytest.mark.slow
def test_a_generation_is_evaluated_from_its_scores(trained, monkeypatch):
    run = RunDir(trained)
    by_step = {e.step: e for e in run.read_evals()}
    (trained / ".center-killed").mkdir()  # as a killed evaluation leaves it
    [made] = evaluate(small(trained, step=1), [], "validation", 5)
    assert not list(trained.glob(".center-*"))
    assert made.record.weights_sha256 == by_step[1].weights_sha256 == center_at(run, 1).weights_sha256()
    assert made.record.rollouts_spent == by_step[1].rollouts_spent == 64
    assert made.record.problems.strict == by_step[1].problems.strict[:5]
    [kept] = evaluate(small(trained), [], "validation", 5)
    assert (kept.record.step, kept.record.weights_sha256) == (2, by_step[2].weights_sha256)
    monkeypatch.setattr(esctl.evaluation.target, "open_engine", no_engine)
    for step in (0, 1, 2):  # training evaluated them
        assert evaluate(small(trained, step=step), [], "validation", 8) == [StoredEvaluation(trained, by_step[step])]


@pytest.mark.slow
def test_another_task_than_the_runs_own_starts_from_its_own_data(trained):
    [found] = evaluate(small(trained, name="tiny-countdown"), [], "test", 3)
    assert (found.record.task.name, found.record.sampling.max_tokens) == ("tiny-countdown", 24)
