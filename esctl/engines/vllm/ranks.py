"""vLLM and its workers behind one face: calls by name to every rank of a tensor-parallel group, one answer of many.

Leaves what a call does to `vllm_worker`, and what is asked for to `vllm`.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import NoneType
from typing import TYPE_CHECKING, TypeVar

from esctl.engines import TokenIds
from esctl.engines.process import Held
from esctl.engines.vllm.processes import RankProcesses
from esctl.errors import GO_ON, EngineError
from esctl.noise.moves import Move

if TYPE_CHECKING:
    from vllm import LLM, RequestOutput, SamplingParams


T = TypeVar("T")


class Ranks:
    """The `Weights` of a round, and the one way to vLLM. One rank lives in this process, several in their own."""

    def __init__(self, llm: "LLM", count: int, processes: RankProcesses) -> None:
        self._llm, self._count, self._processes = llm, count, processes
        self._broken = ""  # why no rank can be asked any more
        self._interrupted = False  # by Ctrl-C, while ranks in other processes were asked

    def each(self, kind: type[T], method: str, *values: str | bool | list[int] | list[float]) -> list[T]:
        """Call a method of the worker extension by name; every rank's result, of type `kind`, in their order."""
        with self._checked():
            results: list[object] = self._llm.collective_rpc(method, args=values)
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
        """Call a method that takes a move and writes live weights; nothing computed with the old ones stays."""
        self.call(NoneType, method, [t.seed for t in move.terms], [t.coefficient for t in move.terms])
        self._forget()

    def stage(self, move: Move) -> None:
        """See `rounds.Weights`."""
        self.send("esctl_stage", move)

    def write(self, move: Move) -> None:
        """See `rounds.Weights`."""
        self.send("esctl_write", move)

    def restore(self) -> None:
        """See `rounds.Weights`."""
        self.call(NoneType, "esctl_restore")
        self._forget()

    def generate(self, rows: Sequence[tuple[TokenIds, "SamplingParams"]]) -> list["RequestOutput"]:
        """One generate call; an interrupted one leaves no request behind that the next would go on with."""
        prompts = [{"prompt_token_ids": list(prompt)} for prompt, _ in rows]
        engine = self._llm.llm_engine
        with self._checked():
            try:
                outputs: list[RequestOutput] = self._llm.generate(prompts, [p for _, p in rows], use_tqdm=False)
            finally:
                if engine.has_unfinished_requests():
                    engine.abort_request(list(engine.output_processor.request_states), internal=True)
        return outputs

    def shutdown(self) -> None:
        """Stop vLLM, and the processes of its ranks."""
        self._llm.llm_engine.model_executor.shutting_down = True  # else it would report ranks that end as dead
        self._processes.end()
        self._llm.llm_engine.engine_core.shutdown()

    def _forget(self) -> None:
        """VLLM's prefix cache knows tokens and not weights."""
        if not self._llm.reset_prefix_cache():
            raise EngineError("vLLM could not reset its prefix cache, so that old weights would leak into new scores")

    @contextmanager
    def _checked(self) -> Iterator[None]:
        """Say in one line what a rank in another process said, and ask none again.

        After a failure or Ctrl-C vLLM leaves ranks' answers unread, so that the next call would get those.
        """
        if self._interrupted:
            raise KeyboardInterrupt  # still: who gives θ back after Ctrl-C must not hide it
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
