"""Two ranks of vLLM on a CPU are one engine: the same center, the canonical tensor cut, the same text; and it ends."""

import hashlib
import importlib.util
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from oracle import around

from esctl import engines
from esctl.assets import tiny_model_path
from esctl.engines import Engine, EngineSpec, Sampling, open_engine
from esctl.engines.process import Held, held_here
from esctl.engines.vllm import patches
from esctl.engines.vllm.processes import RankProcesses
from esctl.engines.vllm.ranks import Ranks
from esctl.engines.weights.center import Center
from esctl.engines.weights.shards import Partition, Piece, Share, piece
from esctl.errors import EngineError, RecipeError, UsageError
from esctl.experiment.loading import load_recipe
from esctl.noise.moves import EMPTY, Move

RANKS = 2
STEP, CANDIDATE, PROBE = Move.of([5, 6], [0.01, 0.02]), Move.of([1], [0.015]), Move.of([2, 3], [0.01, -0.01])
HEADS = {"q_proj": 4, "k_proj": 2, "v_proj": 2}
GREEDY = Sampling(0.0, 16)  # ranks wait for each other at every token, and slowly where cores are busy


@pytest.fixture(scope="module")
def open_pairs() -> Iterator[list[Engine]]:
    """The pair that tests share, once one has opened it."""
    if not engines.vllm_installed():
        pytest.skip("vLLM is not installed")
    pairs: list[Engine] = []
    yield pairs
    for engine in pairs:
        engine.close()
    assert not multiprocessing.active_children()


@pytest.fixture
def pair(open_pairs: list[Engine]) -> Engine:
    """Two ranks at θ; opened anew where a test has broken the last pair."""
    try:
        open_pairs[-1].checksum()
    except (IndexError, EngineError):
        for broken in open_pairs:
            broken.close()
        spec = EngineSpec(tiny_model_path(), kind="vllm", tensor_parallel=RANKS, max_model_len=256)
        open_pairs[:] = [open_engine(spec)]
    return open_pairs[-1]


def prompts(n: int) -> list[list[int]]:
    from transformers import AutoTokenizer

    from esctl.tasks.embedded import world_problems

    tokenizer = AutoTokenizer.from_pretrained(tiny_model_path())
    chats = [[{"role": "user", "content": p.question}] for p in world_problems("arithmetic", "test")[:n]]
    texts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
    return tokenizer(texts, add_special_tokens=False)["input_ids"]


def part(name: str, shape: tuple[int, ...], share: Share) -> Piece:
    layer, kind = name.split(".")[-2:]
    if layer == "embed_tokens":
        return piece(name, shape, Partition.VOCABULARY, share, 64)
    if layer in HEADS:
        return piece(name, shape, Partition.ROWS, share, HEADS[layer])
    if layer in ("gate_proj", "up_proj"):
        return piece(name, shape, Partition.ROWS, share)
    columns = layer in ("o_proj", "down_proj") and kind == "weight"
    return piece(name, shape, Partition.COLUMNS if columns else Partition.WHOLE, share)


def checksum(center: Center, *moves: Move) -> str:
    """What the ranks must say together of fl(… fl(θ + move)): a hash of the hash of each one's pieces."""
    moved = Center(center.shapes)
    for name in center.names:
        moved.tensor(name)[...] = center.tensor(name)
    for move in moves:
        moved.commit(move)
    digests = []
    for rank in range(RANKS):
        digest = hashlib.sha256()
        for name, shape in moved.shapes.items():
            p = part(name, shape, Share(rank, RANKS))
            held = moved.tensor(name).reshape(-1, p.width)[p.rows.start : p.rows.stop, p.columns.start : p.columns.stop]
            digest.update(f"{name}\0{list(held.shape if len(shape) > 1 else held.shape[:1])}\0".encode())
            digest.update((held + 0.0).tobytes())
        digests.append(digest.hexdigest())
    return hashlib.sha256("".join(digests).encode()).hexdigest()


@pytest.mark.slow
def test_two_ranks_hold_the_whole_candidate_cut_and_say_what_one_says(pair: Engine, tmp_path: Path) -> None:
    center = Center.load(tiny_model_path())
    start = tmp_path / "start.safetensors"
    pair.save_center(start)
    asked = prompts(3)
    assert pair.dim == center.dim
    assert pair.checksum() == checksum(center)
    seen: list[str] = []
    texts = []
    reference = open_engine(EngineSpec(tiny_model_path(), kind="transformers"))
    for engine in (pair, reference):
        engine.commit(STEP)
        found = engine.rollout(
            around(EMPTY, CANDIDATE, center=PROBE), asked, GREEDY, on_candidate=lambda *_: seen.append(pair.checksum())
        )
        texts.append([[samples[0].text for samples in candidate] for candidate in found])
    center.commit(STEP)
    assert seen[:2] == [checksum(center, PROBE), checksum(center, PROBE, CANDIDATE)]
    assert texts[0] == texts[1]
    assert texts[0][0] != texts[0][1]
    assert pair.checksum() == checksum(center)
    assert pair.center_sha256() == center.weights_sha256()
    pair.save(tmp_path / "saved")
    assert Center.load(tmp_path / "saved").weights_sha256() == center.weights_sha256()
    pair.load_center(start)


@pytest.mark.slow
def test_a_candidate_that_is_no_number_leaves_nothing_behind_on_any_rank(pair: Engine) -> None:
    long = Sampling(0.0, 40)
    [clean] = pair.rollout(around(EMPTY), prompts(8), long)
    assert all(c.finite for samples in clean for c in samples)
    found = pair.rollout(around(Move.of([1], [1e30]), EMPTY), prompts(8), long)
    assert not any(c.finite for samples in found[0] for c in samples)
    assert found[1] == clean


@pytest.mark.slow
def test_ctrl_c_reaches_no_rank_and_a_failure_in_one_ends_all_in_one_line(pair: Engine, tmp_path: Path) -> None:
    ranks = multiprocessing.active_children()
    assert len(ranks) == RANKS
    for process in ranks:
        assert process.pid
        os.kill(process.pid, signal.SIGINT)
    [[[completion]]] = pair.rollout(around(EMPTY), [[9]], Sampling(0.0, 2))
    assert completion.finite
    damaged = tmp_path / "center.safetensors"
    damaged.write_bytes(b"no center")
    for _ in range(2):
        with pytest.raises(EngineError, match=r"^a rank of vLLM failed: .*cannot be read as a center") as caught:
            pair.load_center(damaged)
        assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_rank_that_dies_in_a_rollout_ends_it_in_one_line(pair: Engine) -> None:
    held = pair.held()
    assert held.host > held_here().host + sum(v for k, v in pair.tensor_bytes().items() if k != "kv")
    victim = multiprocessing.active_children()[0]
    shared = shared_memory(psutil.Process(victim.pid))
    assert len(shared) == RANKS
    assert all(path.exists() for path in shared)
    threading.Timer(0.5, victim.kill).start()
    with pytest.raises(EngineError, match=r"^a process of vLLM's ranks died .*--resume goes on$"):
        pair.rollout(around(EMPTY, *[CANDIDATE] * 99), prompts(3), GREEDY)
    with pytest.raises(EngineError, match="died"):
        pair.checksum()
    pair.close()
    assert not any(path.exists() for path in shared)


@pytest.mark.slow
def test_ctrl_c_while_ranks_start_ends_all_within_seconds_and_leaves_nothing(tmp_path: Path) -> None:
    if not engines.vllm_installed():
        pytest.skip("vLLM is not installed")
    errors = tmp_path / "errors"
    line = [sys.executable, "-m", "esctl", "train", "--recipe", "arithmetic/es", "--run", str(tmp_path / "run")]
    line += ["--set", "engine.kind=vllm", "--set", f"engine.tensor_parallel={RANKS}"]
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            line,
            stderr=stderr,
            stdout=stderr,
            start_new_session=True,
            # A shell's background job ignores SIGINT, and so would its children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
        )
        while len(family := psutil.Process(process.pid).children()) < 1 + RANKS:  # one is Python's own
            assert process.poll() is None, errors.read_text()
            time.sleep(0.05)
        time.sleep(1)
        started = [child for child in family if "--multiprocessing-fork" in child.cmdline()]
        [folder] = {Path(rank.environ()["VLLM_RPC_BASE_PATH"]) for rank in started}
        assert folder.is_dir()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        process.wait(20)
    said = errors.read_text()
    assert said.splitlines()[0] == "esctl: interrupted; nothing was recorded yet: the same command starts again"
    assert "Traceback" not in said
    assert not psutil.wait_procs(family, timeout=20)[1]
    assert not folder.exists()


def shared_memory(process: psutil.Process) -> set[Path]:
    """What a rank shares with the others."""
    return {Path(m.path) for m in process.memory_maps() if m.path.startswith("/dev/shm/vllm_dist_")}


class Answers:
    """What a vLLM of several ranks would answer."""

    def __init__(self, answers: list[object]) -> None:
        self.answers = answers

    def collective_rpc(self, method: str, args: tuple[object, ...]) -> list[object]:
        return self.answers


def ranks(*answers: object) -> Ranks:
    return Ranks(Answers(list(answers)), len(answers), RankProcesses())


def test_processes_that_start_from_several_threads_each_get_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """VLLM 0.33 spawns its ranks from a pool of threads."""

    class Launched:
        def __init__(self, process: SpawnProcess) -> None:
            self.pid = int(process.name)
            self.sentinel = 0

        def poll(self) -> int:
            return 0  # has ended

    both_started = threading.Barrier(2)

    def sigmask(how: int, signals: set[signal.Signals]) -> set[signal.Signals]:
        if how == signal.SIG_SETMASK:
            both_started.wait(10)  # both are on record before either start returns
        return signals

    monkeypatch.setattr(SpawnProcess, "_Popen", staticmethod(Launched))
    monkeypatch.setattr(patches.signal, "pthread_sigmask", sigmask)
    processes = [SpawnProcess(name=name) for name in ("1", "2")]
    ranks_of_one_engine = RankProcesses()
    with ranks_of_one_engine.starting():
        threads = [threading.Thread(target=process.start) for process in processes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [process.pid for process in processes] == [1, 2]
    assert ranks_of_one_engine.died


def test_a_python_or_vllm_without_a_patched_name_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Renamed:
        """A vLLM whose names have moved."""

    monkeypatch.delattr(SpawnProcess, "_Popen")
    calls = [
        lambda: patches.spawned_processes(lambda *_: None, "/tmp").__enter__(),
        lambda: patches.replace_logits(Renamed(), lambda _: None),
        lambda: patches.expect_shutdown(SimpleNamespace(llm_engine=Renamed())),
        lambda: patches.abort_all(SimpleNamespace(llm_engine=Renamed())),
    ]
    for call in calls:
        with pytest.raises(EngineError, match=r"^vLLM on this Python has no \w+\.\w+, which the engine needs: install"):
            call()


def test_answers_of_ranks_become_one() -> None:
    assert ranks(True, True).finite()
    assert not ranks(True, False).finite()
    assert ranks({"center": 3, "kv": 1}, {"center": 3, "kv": 2}).bytes() == {"center": 6, "kv": 3}
    assert ranks(Held(3, 1), Held(4, 2)).held() == Held(7, 3)
    assert ranks("a").checksum() == "a"
    assert ranks("a", "b").checksum() != ranks("b", "a").checksum()
    with pytest.raises(EngineError, match="hold different centers"):
        ranks("a", "b").call(str, "esctl_center_sha256")


class Interrupted(Answers):
    """A vLLM whose first call Ctrl-C interrupts; its answers are still to be read by the next."""

    def __init__(self, answers: list[object]) -> None:
        super().__init__(answers)
        self.calls = 0

    def collective_rpc(self, method: str, args: tuple[object, ...]) -> list[object]:
        self.calls += 1
        if self.calls == 1:
            raise KeyboardInterrupt
        return super().collective_rpc(method, args)


@pytest.mark.parametrize(("count", "calls"), [(1, 2), (2, 1)])
def test_ranks_in_other_processes_are_not_asked_after_ctrl_c_and_it_stays_ctrl_c(count: int, calls: int) -> None:
    llm = Interrupted([True] * count)
    asked = Ranks(llm, count, RankProcesses())
    with pytest.raises(KeyboardInterrupt):
        asked.finite()
    with pytest.raises(KeyboardInterrupt) if count > 1 else nullcontext():
        asked.finite()
    assert llm.calls == calls


def test_what_ranks_inherit_is_named_as_vllm_reads_it() -> None:
    if not engines.vllm_installed():
        pytest.skip("vLLM is not installed")
    from esctl.engines.vllm.engine import ENVIRONMENT, _environment_of_ranks

    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    known = Path(spec.origin).with_name("envs.py").read_text()
    ours = {*ENVIRONMENT, *_environment_of_ranks(RANKS, RANKS)}
    assert [name for name in ours if name.startswith("VLLM_") and f'    "{name}": ' not in known] == []


def test_ranks_that_cannot_be_are_refused(tiny_qwen2: Path) -> None:
    with pytest.raises(UsageError, match=r"set engine\.kind to vllm, or tensor_parallel to 1"):
        open_engine(EngineSpec(tiny_qwen2, kind="transformers", tensor_parallel=2))
    if engines.vllm_installed():
        with pytest.raises(UsageError, match="3 does not divide the model's 2 heads; use 1, 2"):
            open_engine(EngineSpec(tiny_qwen2, kind="vllm", tensor_parallel=3))
    with pytest.raises(RecipeError, match=r"engine\.tensor_parallel: grpo trains on one device; set it to 1"):
        load_recipe("arithmetic/grpo", {"engine.kind": "vllm"}, ["engine.tensor_parallel=2"])
    with pytest.raises(RecipeError, match=r"engine\.tensor_parallel: 2 needs engine\.kind vllm; set it to 1"):
        load_recipe("arithmetic/es", {"engine.kind": "transformers"}, ["engine.tensor_parallel=2"])
