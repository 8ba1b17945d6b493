"""The reference engine: transformers' own forward pass on live weights that are written from the center.

Slow beside vLLM but plain: what it computes is what an engine has to compute.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numba
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from esctl.engines import Completion, EngineSpec, Sampling, TokenIds
from esctl.engines.center import Center
from esctl.moves import EMPTY, Move, Round

BATCH = 256  # sequences decoded together
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class TransformersEngine:
    """Live weights on one device, an fp32 center on the host."""

    def __init__(self, spec: EngineSpec) -> None:
        if spec.threads is not None:
            torch.set_num_threads(spec.threads)
            numba.set_num_threads(min(spec.threads, numba.config.NUMBA_NUM_THREADS))
        self._source = spec.model
        self._center = Center.load(spec.model, spec.probes)
        self.dim = self._center.dim
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._dtype = DTYPES["float32" if spec.dtype == "auto" else spec.dtype]
        model = AutoModelForCausalLM.from_pretrained(spec.model, dtype=self._dtype)
        self._model = model.to(self._device).eval().requires_grad_(False)
        self._live = {n: p.detach() for n, p in self._model.named_parameters(remove_duplicate=False)}
        self._scratch = torch.empty(max(self._live[n].numel() for n in self._center.names), dtype=torch.float32)
        self._tokenizer = AutoTokenizer.from_pretrained(spec.model)
        self._stops = stop_ids(self._model.generation_config.eos_token_id, self._tokenizer.eos_token_id)
        self.description = (
            f"transformers {transformers.__version__}, {str(self._dtype).removeprefix('torch.')} on {self._device},"
            f" {torch.get_num_threads()} threads"
        )

    def rollout(
        self,
        round_: Round,
        prompts: Sequence[TokenIds],
        sampling: Sampling,
        seeds: Sequence[Sequence[int]] | None = None,
        on_candidate: Callable[[int, list[list[Completion]]], None] | None = None,
    ) -> list[list[list[Completion]]]:
        """See `Engine.rollout`."""
        results = []
        with self._around(round_.center):
            for index, candidate in enumerate(round_.candidates):
                self._write(candidate)
                results.append(self._sample(prompts, sampling, seeds))
                if on_candidate is not None:
                    on_candidate(index, results[-1])
        return results

    def nll(self, round_: Round, prompts: Sequence[TokenIds], targets: Sequence[TokenIds]) -> list[list[float]]:
        """See `Engine.nll`."""
        results = []
        with self._around(round_.center):
            for candidate in round_.candidates:
                self._write(candidate)
                results.append([self._target_nll(p, t) for p, t in zip(prompts, targets, strict=True)])
        return results

    def commit(self, move: Move) -> None:
        """See `Engine.commit`."""
        self._center.commit(move)
        self._write(EMPTY)

    def save(self, path: Path) -> None:
        """See `Engine.save`."""
        self._center.save(path, str(self._dtype).removeprefix("torch."), self._source)

    def save_center(self, path: Path) -> None:
        """See `Engine.save_center`."""
        self._center.save_center(path)

    def load_center(self, path: Path) -> None:
        """See `Engine.load_center`."""
        self._center.load_center(path)
        self._write(EMPTY)

    def checksum(self) -> str:
        """See `Engine.checksum`."""
        return live_checksum((n, self._live[n]) for n in self._center.names)

    def center_sha256(self) -> str:
        """See `Engine.center_sha256`."""
        return self._center.weights_sha256()

    def tensor_bytes(self) -> Mapping[str, int]:
        """See `Engine.tensor_bytes`; the KV cache grows with each batch and is freed after it."""
        weights = sum(self._live[n].numel() * self._live[n].element_size() for n in self._center.names)
        scratch = self._scratch.numel() * 4
        return {"weights": weights, **self._center.bytes(), "scratch": scratch, "kv": 0}

    def close(self) -> None:
        """See `Engine.close`."""
        self._live = {}

    @contextmanager
    def _around(self, center: Move) -> Iterator[None]:
        """Candidates stand around θ + center; θ is live again afterwards, whatever happened."""
        self._center.stage(center)
        try:
            yield
        finally:
            self._center.unstage()
            self._write(EMPTY)

    def _write(self, candidate: Move) -> None:
        """Write every live tensor from the center: fp32 arithmetic, then one rounding to the serving dtype."""
        for name in self._center.names:
            live = self._live[name]
            scratch = self._scratch[: live.numel()]
            self._center.candidate(name, candidate, scratch.numpy())
            live.copy_(scratch.view(live.shape))

    def _sample(
        self, prompts: Sequence[TokenIds], sampling: Sampling, seeds: Sequence[Sequence[int]] | None
    ) -> list[list[Completion]]:
        """[prompt][sample], decoded in batches of fixed order."""
        requests = [(p, s) for p, own in enumerate(seeds or [[0]] * len(prompts)) for s in own]
        flat: list[Completion] = []
        for start in range(0, len(requests), BATCH):
            part = requests[start : start + BATCH]
            flat += self._decode([prompts[p] for p, _ in part], sampling, [seed for _, seed in part])
        done = iter(flat)
        return [[next(done) for _ in own] for own in seeds or [[0]] * len(prompts)]

    @torch.inference_mode()
    def _decode(self, prompts: Sequence[TokenIds], sampling: Sampling, seeds: Sequence[int]) -> list[Completion]:
        """Decode one batch: left padding, a KV cache, one token generator per sequence."""
        ids, mask = self._padded(prompts)
        rows = range(len(prompts))
        generators = [torch.Generator(self._device).manual_seed(seed) for seed in seeds] if sampling.temperature else []
        written: list[list[int]] = [[] for _ in rows]
        finite, ended, cache = torch.ones(len(prompts), dtype=torch.bool), [False for _ in rows], DynamicCache()
        position = (mask.cumsum(1) - 1).clamp(min=0)
        for _ in range(sampling.max_tokens):
            output = self._model(
                input_ids=ids, attention_mask=mask, position_ids=position, past_key_values=cache, use_cache=True
            )
            logits = output.logits[:, -1].float()
            active = torch.tensor([not e for e in ended])
            finite &= logits.isfinite().all(1).cpu() | ~active
            tokens = pick(logits, sampling, generators)
            for row, token in enumerate(tokens.tolist()):
                if not ended[row]:
                    written[row].append(token)
                    ended[row] = token in self._stops and not sampling.ignore_eos
            if all(ended):
                break
            ids, position = tokens[:, None], position[:, -1:] + 1
            mask = torch.cat([mask, mask.new_ones(len(prompts), 1)], 1)
        return [self._completion(w, e, bool(f)) for w, e, f in zip(written, ended, finite, strict=True)]

    def _completion(self, tokens: list[int], ended: bool, finite: bool) -> Completion:
        text = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return Completion(text, tuple(tokens), "stop" if ended else "length", finite)

    def _padded(self, prompts: Sequence[TokenIds]) -> tuple[torch.Tensor, torch.Tensor]:
        """(ids, mask), both (prompts, longest), padded on the left."""
        longest = max(map(len, prompts))
        ids = torch.zeros(len(prompts), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        return ids.to(self._device), mask.to(self._device)

    @torch.inference_mode()
    def _target_nll(self, prompt: TokenIds, target: TokenIds) -> float:
        ids = torch.tensor([[*prompt, *target]], device=self._device)
        logits = self._model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
        return float(torch.nn.functional.cross_entropy(logits, ids[0, len(prompt) :], reduction="sum"))


def pick(logits: torch.Tensor, sampling: Sampling, generators: Sequence[torch.Generator]) -> torch.Tensor:
    """The next token of each row of (rows, vocabulary): the largest, or one drawn by the row's own generator."""
    if sampling.temperature == 0:
        return logits.argmax(1)
    probabilities = (logits / sampling.temperature).softmax(1)
    if sampling.top_p < 1:
        ordered, places = probabilities.sort(1, descending=True)
        ordered[ordered.cumsum(1) - ordered >= sampling.top_p] = 0
        probabilities = torch.zeros_like(probabilities).scatter_(1, places, ordered)
    drawn = [torch.multinomial(p, 1, generator=g) for p, g in zip(probabilities, generators, strict=True)]
    return torch.cat(drawn)


def stop_ids(configured: int | list[int] | None, eos: int | None) -> frozenset[int]:
    """The tokens that end a completion: the checkpoint's and the tokenizer's."""
    listed = configured if isinstance(configured, list) else [configured]
    return frozenset(token for token in (*listed, eos) if token is not None)


def live_checksum(tensors: Iterator[tuple[str, torch.Tensor]]) -> str:
    """SHA-256 over names and bytes of tensors, in the order given."""
    import hashlib

    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(name.encode())
        digest.update(tensor.contiguous().cpu().view(torch.uint8).numpy().data)
    return digest.hexdigest()
