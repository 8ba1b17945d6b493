"""vLLM as an `Engine`: start it, ask it for completions and likelihoods, stop it.

The weights are in `worker`, which runs inside vLLM; `ranks` calls it. `candidates` has the order of a round.
"""

import gc
import logging
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Final

import torch
from typing_extensions import override

from esctl.engines import GIB, Engine, EngineSpec, OnCandidate, Samples, Sampling, Seeds, TokenIds
from esctl.engines.candidates import each_candidate
from esctl.engines.checkpoint import Checkpoint, grouped, serving_dtype
from esctl.engines.process import Held, held_here, process_kept, random_states_kept, stdout_kept, use_threads
from esctl.engines.vllm.patches import close_groups_of_one, llvmlite_hidden
from esctl.engines.vllm.processes import RankProcesses
from esctl.engines.vllm.ranks import Ranks
from esctl.engines.weights.dtypes import dtype_name
from esctl.engines.weights.model import check_model, count_weights
from esctl.engines.weights.sizes import sizes_of
from esctl.errors import EngineError, UsageError
from esctl.noise.moves import Move, Round

if TYPE_CHECKING:
    from vllm import LLM, RequestOutput, SamplingParams


GPU_SHARE = 0.9  # of a GPU's memory for weights, activations and KV cache together; vLLM's own number
MAX_SEQUENCES = 1024  # decoded at once; more are queued
# The default KV budget on a CPU: this many sequences of this length, within limits; on a GPU vLLM takes what is free.
KV_SEQUENCES = 512
KV_LENGTH = 1024
KV_MOST = 2 * GIB
KV_BLOCK = 128  # tokens: vLLM's cache on a CPU grows by whole blocks
ENVIRONMENT: Final = {  # read by vLLM when it is imported or started
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine lives in this process
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # stdout is for results
    # Where one rank fails the others wait for it and never notice a polite shutdown: `RankProcesses.end` ends them.
    "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "0",
}


class VLLMEngine(Engine):
    """An `Engine` through vLLM, on a GPU or a CPU."""

    def __init__(self, spec: EngineSpec) -> None:
        self._checkpoint = Checkpoint.open(spec)
        self._dtype = serving_dtype(spec)
        threads = use_threads(spec.threads)
        processes = RankProcesses()
        self._ranks: Ranks | None = None
        try:
            with random_states_kept(), stdout_kept():
                llm = _start(spec, self._checkpoint, self._dtype, threads, processes)
                logging.getLogger("vllm").setLevel(logging.CRITICAL)  # failures in this process are raised from now on
                self._ranks = Ranks(llm, spec.tensor_parallel, processes)
                if spec.tensor_parallel == 1 and not torch.cuda.is_available():
                    close_groups_of_one()
                self.dim = self._attach(spec)
        except BaseException:  # also Ctrl-C
            self.close()
            processes.end()
            gc.unfreeze()  # `_import_vllm` freezes all objects, and so does vLLM while it starts
            raise
        # The collector would walk vLLM's million objects again and again: a quarter of a small model's time.
        gc.freeze()
        ranks = f", {spec.tensor_parallel} ranks" if spec.tensor_parallel > 1 else ""
        self.description = f"vllm {_version()}, {dtype_name(self._dtype)}, {_device()}{ranks}, {threads} threads"

    @property
    def ranks(self) -> Ranks:
        """The way to vLLM and its weights; also for tests and measurements."""
        assert self._ranks is not None, "the engine is closed"
        return self._ranks

    @override
    def rollout(
        self,
        round_: Round,
        prompts: Sequence[TokenIds],
        sampling: Sampling,
        seeds: Seeds | None = None,
        on_candidate: OnCandidate | None = None,
        *,
        stay: bool = False,
    ) -> list[Samples]:
        """`finite` is known per candidate, and holds for all its completions."""
        seeds_of: Sequence[Sequence[int | None]] = [[None]] * len(prompts) if seeds is None else seeds
        room = self._checkpoint.room(prompts, sampling.max_tokens)
        rows = [
            (prompt, self._params(sampling, limit, seed))
            for prompt, limit, own in zip(prompts, room, seeds_of, strict=True)
            for seed in own
        ]

        def evaluate() -> Samples:
            tokens = [output.outputs[0].token_ids for output in self.ranks.generate(rows)]
            finite = [self.ranks.finite()] * len(tokens)
            return grouped(self._checkpoint.completions(tokens, finite, sampling), [len(own) for own in seeds_of])

        with random_states_kept():
            return each_candidate(self.ranks, round_, evaluate, on_candidate, stay)

    @override
    def restore(self) -> None:
        self.ranks.restore()

    @override
    def nll(self, round_: Round, prompts: Sequence[TokenIds], targets: Sequence[TokenIds]) -> list[list[float]]:
        """The log-probabilities are those that vLLM gives for the tokens of a prompt."""
        from vllm import SamplingParams

        texts = [[*p, *t] for p, t in zip(prompts, targets, strict=True)]
        self._checkpoint.room(prompts, 1)
        self._checkpoint.room(texts, 1)
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)

        def evaluate() -> list[float]:
            outputs = self.ranks.generate([(text, params) for text in texts])
            return [_nll(output, len(prompt)) for output, prompt in zip(outputs, prompts, strict=True)]

        with random_states_kept():
            return each_candidate(self.ranks, round_, evaluate)

    @override
    def commit(self, move: Move) -> None:
        self.ranks.send("esctl_commit", move)

    @override
    def save(self, path: Path) -> None:
        self.ranks.call(NoneType, "esctl_save", str(path), dtype_name(self._dtype), str(self._checkpoint.folder))

    @override
    def save_center(self, path: Path) -> None:
        self.ranks.call(NoneType, "esctl_save_center", str(path))

    @override
    def load_center(self, path: Path) -> None:
        self.ranks.load_center(str(path))

    @override
    def checksum(self) -> str:
        """With several ranks, a hash over the hash of each rank's pieces."""
        return self.ranks.checksum()

    @override
    def center_sha256(self) -> str:
        return self.ranks.call(str, "esctl_center_sha256")

    @override
    def tensor_bytes(self) -> Mapping[str, int]:
        """`kv` is the whole cache that vLLM allocated, summed over ranks."""
        return self.ranks.bytes()

    @override
    def held(self) -> Held:
        return held_here() + self.ranks.held()

    @override
    def close(self) -> None:
        if self._ranks is not None:
            self._ranks.shutdown()
            self._ranks = None
            gc.unfreeze()
            gc.collect()

    def _attach(self, spec: EngineSpec) -> int:
        """Make θ live and generate one token, so that what vLLM refuses only at run time fails at once; dim."""
        try:
            folder = str(self._checkpoint.folder)
            dim = self.ranks.call(int, "esctl_attach", folder, spec.probes, spec.center)
            self.ranks.generate([([0], self._params(Sampling(0.0, 1), 1, None))])
        except (ValueError, RuntimeError, NotImplementedError) as error:  # such as a head size without a kernel
            raise _refused(self._checkpoint, error) from error
        return dim

    def _params(self, sampling: Sampling, limit: int, seed: int | None) -> "SamplingParams":
        """Every sampling parameter is given, so that no default of vLLM or of the checkpoint applies."""
        from vllm import SamplingParams

        return SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=0,
            min_p=0.0,
            repetition_penalty=1.0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            min_tokens=0,
            max_tokens=limit,
            seed=seed,
            stop_token_ids=[] if sampling.ignore_eos else sorted(self._checkpoint.stop_ids),
            ignore_eos=sampling.ignore_eos,
            detokenize=False,  # `Checkpoint.completions` decodes, for every engine alike
            skip_clone=True,  # each request has an object of its own: no deep copy is needed
        )


def _start(
    spec: EngineSpec, checkpoint: Checkpoint, dtype: torch.dtype, threads: int, processes: RankProcesses
) -> "LLM":
    """Start vLLM with random weights, which `esctl_attach` replaces before anything reads them."""
    _check_ranks(spec)
    os.environ.update(ENVIRONMENT)
    logging.getLogger("vllm").setLevel(logging.ERROR)  # for messages before vLLM has read its level
    on_gpu = torch.cuda.is_available()
    with process_kept(), llvmlite_hidden(), ExitStack() as started, warnings.catch_warnings():
        for category in (FutureWarning, DeprecationWarning):  # in vLLM's and torch's own code
            warnings.simplefilter("ignore", category)
        _import_vllm()
        from vllm import LLM

        os.environ.update(_environment_of_ranks(spec.tensor_parallel, threads))
        if spec.tensor_parallel > 1:
            started.enter_context(processes.starting())
        try:
            return LLM(
                model=str(checkpoint.folder),
                config_format="hf",  # and not params.json, where a folder has both
                trust_remote_code=False,
                load_format="dummy",
                skip_tokenizer_init=True,
                generation_config="vllm",
                dtype=dtype_name(dtype),
                enforce_eager=not on_gpu,
                # On a CPU vLLM cannot stop in the middle of a seeded request's prompt: its generator has no offset.
                enable_chunked_prefill=on_gpu,
                max_model_len=checkpoint.context,
                max_num_seqs=MAX_SEQUENCES,
                tensor_parallel_size=spec.tensor_parallel,
                distributed_executor_backend="mp" if spec.tensor_parallel > 1 else None,  # also inside of Ray
                kv_cache_memory_bytes=_kv_bytes(spec, checkpoint, dtype),
                gpu_memory_utilization=_gpu_share(spec) if on_gpu else GPU_SHARE,
                worker_extension_cls="esctl.engines.vllm.worker.WorkerExtension",
                seed=0,
            )
        except (ValueError, RuntimeError, OSError, NotImplementedError) as error:
            raise _refused(checkpoint, error) from error


def _import_vllm() -> None:
    """Import vLLM without garbage collection, and keep later collections away from the imported objects."""
    gc.disable()
    try:
        import vllm  # noqa: F401
    finally:
        gc.enable()
    gc.freeze()


def _check_ranks(spec: EngineSpec) -> None:
    """Refuse a number of ranks that does not divide the model's heads, or exceeds this machine's GPUs."""
    ranks = spec.tensor_parallel
    heads = sizes_of(check_model(spec.model)[1]).heads
    if heads % ranks:
        divisors = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        raise UsageError(f"engine.tensor_parallel: {ranks} does not divide the model's {heads} heads; use {divisors}")
    gpus = torch.cuda.device_count()
    if gpus and ranks > gpus:
        raise UsageError(f"engine.tensor_parallel: {ranks}, but this machine has {gpus} GPUs; use {gpus} or fewer")


def _environment_of_ranks(ranks: int, threads: int) -> dict[str, str]:
    """Variables for the processes of several ranks: each gets an equal share of the threads.

    They are spawned, because forking a process with running threads does not work. On a CPU vLLM would bind each rank
    to a memory node of its own, and few machines have several.
    """
    if ranks == 1:
        return {}
    share = str(max(1, threads // ranks))
    binding = os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    return {
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_CPU_OMP_THREADS_BIND": binding,
        "OMP_NUM_THREADS": share,
        "NUMBA_NUM_THREADS": share,
        "PYTHONWARNINGS": "ignore",  # in vLLM's and torch's own code
    }


def _gpu_share(spec: EngineSpec) -> float:
    """The share of a GPU that vLLM may fill: reduced by the fp32 center, unless too little would be left.

    If the center does not fit then, it stays on the host.
    """
    if spec.center == "host":
        return GPU_SHARE
    dim = count_weights(check_model(spec.model)[1]) / spec.tensor_parallel
    beside = 4 * dim * (2 if spec.probes else 1) / torch.cuda.get_device_properties(0).total_memory
    enough = spec.center == "device" or GPU_SHARE - beside > GPU_SHARE / 2
    return max(GPU_SHARE - beside, 0.0) if enough else GPU_SHARE


def _refused(checkpoint: Checkpoint, error: Exception) -> EngineError:
    reason = str(error).strip().split("\n")[0]
    return EngineError(f"vLLM cannot serve the model {checkpoint.folder} ({reason}): try engine.kind: transformers")


def _kv_bytes(spec: EngineSpec, checkpoint: Checkpoint, dtype: torch.dtype) -> int | None:
    """One rank's bytes of KV cache: its share of `engine.kv_memory`, else of the default budget of a CPU.

    None on a GPU: all that is free. The default always holds one longest sequence, also where ranks share a head.
    """
    ranks = spec.tensor_parallel
    if spec.kv_memory != "auto":
        return int(spec.kv_memory * GIB) // ranks
    if torch.cuda.is_available():
        return None
    per_block = KV_BLOCK * checkpoint.kv_elements * dtype.itemsize
    blocks = KV_SEQUENCES * math.ceil(min(checkpoint.context, KV_LENGTH) / KV_BLOCK)
    longest = math.ceil(checkpoint.context / KV_BLOCK) + 1
    return max(min(blocks * per_block, KV_MOST) // ranks, longest * per_block)


def _nll(output: "RequestOutput", first: int) -> float:
    """−Σ log p over the tokens from number `first` on; each position holds its own token's log-probability only."""
    ids = output.prompt_token_ids
    places = output.prompt_logprobs
    assert ids is not None, output
    assert places is not None, output
    return -math.fsum(place[token].logprob for token, place in zip(ids[first:], places[first:], strict=True))


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _version() -> str:
    import vllm

    return str(vllm.__version__)
