"""The way to vLLM's ranks: call a method of the worker extension on all of them by name, and combine their results.

`worker` holds the methods that are called; `engine` decides what is called when.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import NoneType
from typing import TYPE_CHECKING, TypeVar

from esctl.engines import TokenIds
from esctl.engines.process import Held
from esctl.engines.vllm.patches import abort_all, expect_shutdown
from esctl.engines.vllm.processes import RankProcesses
from esctl.errors import GO_ON, EngineError
from esctl.noise.moves import Move

if TYPE_CHECKING:
    from vllm import LLM, RequestOutput, SamplingParams


T = TypeVar("T")


class Ranks:
    """The `Weights` of a round. A single rank lives in this process; several live in processes of their own.

    `llm` is vLLM itself, for measurements.
    """

    def __init__(self, llm: "LLM", count: int, processes: RankProcesses) -> None:
        self.llm = llm
        self._count = count
        self._processes = processes
        self._broken = ""  # why no rank can be called any more
        self._unfinished = False  # a generate call was, so that nobody knows what it left in the KV caches
        self._interrupted = False  # by Ctrl-C, during a call to ranks in other processes

    def each(self, kind: type[T], method: str, *values: str | bool | list[int] | list[float]) -> list[T]:
        """Call a method of the worker extension by name; every rank's result, of type `kind`, in their order."""
        with self._checked():
            results: list[object] = self.llm.collective_rpc(method, args=values)
        found = [result for result in results if isinstance(result, kind)]
        assert len(found) == self._count, (method, results)
        return found

    def call(self, kind: type[T], method: str, *values: str | bool | list[int] | list[float]) -> T:
        """The result that all ranks agree on; raises EngineError where they do not."""
        first, *others = self.each(kind, method, *values)
        if any(other != first for other in others):
            raise EngineError("the ranks of vLLM hold different centers: a device or a process is broken, start again")
        return first

    def finite(self) -> bool:
        """Whether every logit of this candidate was finite, wherever logits were computed."""
        return all(self.each(bool, "esctl_finite"))

    def checksum(self) -> str:
        """SHA-256 of the live weights; of several ranks, over the digest of each one's own."""
        digests = self.each(str, "esctl_checksum")
        return digests[0] if self._count == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()

    def bytes(self) -> Mapping[str, int]:
        """Bytes held by purpose, summed over ranks."""
        held: list[dict[str, int]] = self.each(dict, "esctl_bytes")
        return {purpose: sum(own[purpose] for own in held) for purpose in held[0]}

    def held(self) -> Held:
        """The most bytes that ranks in processes of their own have held, summed."""
        return sum(self.each(Held, "esctl_held"), Held(0, 0)) if self._count > 1 else Held(0, 0)

    def send(self, method: str, move: Move) -> None:
        """Call a method that takes a move and writes live weights, then drop what was computed with the old ones."""
        self._clean()
        self.call(NoneType, method, [t.seed for t in move.terms], [t.coefficient for t in move.terms])
        self._forget()

    def stage(self, move: Move) -> None:
        """See `candidates.Weights`."""
        self.send("esctl_stage", move)

    def write(self, move: Move) -> None:
        """See `candidates.Weights`."""
        self.send("esctl_write", move)

    def restore(self) -> None:
        """See `candidates.Weights`."""
        self._clean()
        self.call(NoneType, "esctl_restore")
        self._forget()

    def load_center(self, path: str) -> None:
        """Read θ from a file, and make it live."""
        self._clean()
        self.call(NoneType, "esctl_load_center", path)
        self._forget()

    def generate(self, rows: Sequence[tuple[TokenIds, "SamplingParams"]]) -> list["RequestOutput"]:
        """One generate call. If it is interrupted, its requests are aborted: the next call would go on with them."""
        prompts = [{"prompt_token_ids": list(prompt)} for prompt, _ in rows]
        with self._checked():
            self._unfinished = True
            try:
                outputs: list[RequestOutput] = self.llm.generate(prompts, [p for _, p in rows], use_tqdm=False)
            finally:
                abort_all(self.llm)
            self._unfinished = False
        return outputs

    def shutdown(self) -> None:
        """Stop vLLM, and the processes of its ranks."""
        expect_shutdown(self.llm)
        self._processes.end()
        self.llm.llm_engine.engine_core.shutdown()

    def _clean(self) -> None:
        """Zero the KV caches on every rank if the weights that are about to go left numbers that are not finite.

        vLLM frees blocks of its cache without clearing them. On a CPU, and in some GPU kernels, attention multiplies
        the rest of a block by 0, and 0·NaN is NaN: one such candidate would spoil every later one.
        """
        if self._unfinished or not all(self.each(bool, "esctl_caches_finite")):
            self.call(NoneType, "esctl_clear_caches")
            self._unfinished = False

    def _forget(self) -> None:
        """Reset vLLM's prefix cache: its keys are tokens, not weights."""
        if not self.llm.reset_prefix_cache():
            raise EngineError("vLLM could not reset its prefix cache, so that old weights would leak into new scores")

    @contextmanager
    def _checked(self) -> Iterator[None]:
        """Turn a failure of a rank in another process into one line, and refuse every later call.

        After a failure or Ctrl-C vLLM leaves the ranks' answers unread, and the next call would get them as its own.
        """
        if self._interrupted:
            raise KeyboardInterrupt  # again: restoring θ after Ctrl-C must not hide it
        if self._broken:
            raise EngineError(self._broken)
        try:
            yield
        except KeyboardInterrupt:
            self._interrupted = self._count > 1
            raise
        except RuntimeError as error:
            if self._count == 1:
                raise
            if self._processes.died:
                self._broken = f"a process of vLLM's ranks died (killed, or out of memory); {GO_ON}"
                raise EngineError(self._broken) from error
            reason, _, _ = str(error).removeprefix("Worker failed with error ").partition(", please check the stack")
            self._broken = "a rank of vLLM failed: " + reason.strip("'")
            raise EngineError(self._broken) from error
