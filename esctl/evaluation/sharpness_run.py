"""`esctl sharpness`: measure candidates around one set of weights with one engine, each stored as soon as it is read.

`sharpness` chooses the candidates and computes the numbers, `target` finds the weights. The likelihood is measured on
reference solutions, tokenized here.
"""

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from esctl.engines import Completion, Engine
from esctl.errors import EngineError, UsageError
from esctl.evaluation.draw import EvalProgress
from esctl.evaluation.sharpness import Settings, default_settings, measure
from esctl.evaluation.target import Target, TargetRequest, find_target
from esctl.experiment.experiment import Experiment, Split
from esctl.experiment.scoring import refuse_failures
from esctl.noise.moves import EMPTY, Move, Round
from esctl.runs.files import append_lines, drop_torn_line, read_json, read_lines, write_json
from esctl.runs.records import Cost, SamplingRecord, SharpnessPart, SharpnessRecord, TaskRecord
from esctl.tasks import Problem, Task

# How tasks ask for answers. A gold answer stands in for a solution in the form that its task's grader calls right.
FORMS = ("#### {answer}", "\\boxed{{{answer}}}", "<answer>{answer}</answer>")


@dataclass(frozen=True)
class Solutions:
    """Prompts and reference solutions, aligned; problems without one are left out."""

    prompts: tuple[tuple[int, ...], ...]
    targets: tuple[tuple[int, ...], ...]

    @property
    def tokens(self) -> int:
        """Tokens over all solutions."""
        return sum(map(len, self.targets))


def solutions(experiment: Experiment, split: Split) -> Solutions:
    """The reference of every problem that has one, cut to the room that an engine has after the longest prompt.

    After a raw prompt, which ends in "Answer:", a solution begins with a space, as solved examples do there. The token
    that ends a turn is not part of it.
    """
    lead = " " if experiment.prompting.style == "raw" else ""
    longest = experiment.recipe.sampling.max_tokens - 1  # an engine generates one token after what it is given
    encoded = [
        tuple(experiment.tokenizer.encode(lead + text, add_special_tokens=False)[:longest]) if text else ()
        for text in reference_texts(experiment.task, split.problems)
    ]
    pairs = [(prompt.token_ids, target) for prompt, target in zip(split.prompts, encoded, strict=True) if target]
    return Solutions(tuple(prompt for prompt, _ in pairs), tuple(target for _, target in pairs))


def reference_texts(task: Task, problems: Sequence[Problem]) -> list[str]:
    """Each problem's solution, else its gold in the asked-for format; "" where neither can be had."""
    texts = [p.solution for p in problems]
    for form in FORMS:
        bare = [i for i, text in enumerate(texts) if not text]
        golds = [form.format(answer=problems[i].answer) for i in bare]
        grades = task.grade([problems[i] for i in bare], golds) if bare else []
        for i, text, grade in zip(bare, golds, grades, strict=True):
            texts[i] = text if grade.strict else ""
    return texts


NOT_FINITE = "a candidate's logits are not finite, so it has no score; lower --sigmas, --sigma or --scales"
Report = Callable[[str, EvalProgress], None]  # what is measured, in words, and how many candidates are read


@dataclass(frozen=True)
class SharpnessOptions:
    """What a command line says of a measurement; None is the default for models of this size."""

    split: str = "test"
    n: int = 256
    sigmas: tuple[float, ...] | None = None
    seeds: int | None = None
    members: int | None = None
    sigma: float | None = None
    rho: float | None = None
    scales: tuple[float, ...] | None = None
    directions: int | None = None

    def settings(self, dim: int) -> Settings:
        """The settings for a model of so many weights."""
        given = {key: value for key, value in asdict(self).items() if key not in ("split", "n") and value is not None}
        return replace(default_settings(dim), **given)

    def check(self) -> None:
        """Raise UsageError for what has no meaning."""
        counts = {"-n": (self.n, 1), "--seeds": (self.seeds, 1), "--directions": (self.directions, 1)}
        for flag, (count, least) in {**counts, "--members": (self.members, 2)}.items():
            if count is not None and count < least:
                raise UsageError(f"{flag} {count}: give {least} or more")
        sizes = {"--sigmas": self.sigmas, "--scales": self.scales}
        single = {"--sigma": self.sigma, "--rho": self.rho}
        for flag, values in {**sizes, **{f: None if v is None else (v,) for f, v in single.items()}}.items():
            if values is not None and not all(v > 0 and math.isfinite(v) for v in values):
                raise UsageError(f"{flag} {','.join(f'{v:g}' for v in values)}: give numbers above 0")


def numbers(flag: str, text: str | None) -> tuple[float, ...] | None:
    """`0.01,0.02`, in order and once each; None when nothing was said."""
    if text is None:
        return None
    example = {"--scales": "0.5,1,2"}.get(flag, "0.01,0.02")
    try:
        values = {float(part) for part in text.split(",")}
    except ValueError:
        raise UsageError(f"{flag} {text}: write numbers between commas, such as {flag} {example}") from None
    if not all(value > 0 and math.isfinite(value) for value in values):
        raise UsageError(f"{flag} {text}: give numbers above 0, such as {flag} {example}")
    return tuple(sorted(values))


@dataclass(frozen=True)
class _Bench:
    """The setting that all candidates of one measurement share."""

    target: Target
    experiment: Experiment
    split: Split
    settings: Settings
    solutions: Solutions

    @property
    def sampling(self) -> SamplingRecord:
        recipe = self.experiment.recipe
        return SamplingRecord(0.0, 1.0, recipe.sampling.max_tokens, n=1, seed=0, stop=list(recipe.stops))

    @property
    def path(self) -> Path:
        """sharpness/<task>-<split>-<hash8 of the settings>.json: equal measurements are one file."""
        said = {
            "settings": asdict(self.settings),
            "sampling": asdict(self.sampling),
            "task": [self.experiment.task.name, self.experiment.task.version],
            "step": self.target.step,
            "problems": self.split.sha256,
            "prompt": self.experiment.prompt_sha256,
            "targets": self.solutions.targets,
        }
        digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:8]
        return self.target.folder.sharpness / f"{self.experiment.task.name}-{self.split.name}-{digest}.json"

    @property
    def n_readings(self) -> int:
        """Candidates to read, those read twice (for score and likelihood) counted twice."""
        s = self.settings
        around = 1 + len(s.sigmas) * s.seeds
        return around * (2 if self.solutions.targets else 1) + s.members + len(s.scales) * (1 + s.directions)


@dataclass(frozen=True)
class StoredSharpness:
    """One measurement and the run directory that holds it."""

    folder: Path
    record: SharpnessRecord
    dim: int  # number of weights


def measure_sharpness(
    request: TargetRequest, options: SharpnessOptions, report: Report = lambda what, progress: None
) -> StoredSharpness:
    """Measure, store, and return where and what; an equal measurement that is stored already is read instead."""
    options.check()
    target = find_target(request)
    experiment = target.experiment()
    split = experiment.split(options.split).first(options.n)
    settings = options.settings(experiment.dim)
    bench = _Bench(target, experiment, split, settings, solutions(experiment, split))
    with target.folder.lock():
        if bench.path.is_file():
            weights = target.weights_sha256(experiment)
            target.refuse_other_model(weights)
            record = read_json(bench.path, SharpnessRecord)
            target.folder.refuse_other_weights(bench.path, record.weights_sha256, weights)
        else:
            record = _measured(bench, report)
    return StoredSharpness(target.folder.path, record, target.folder.read_record().dim)


def _measured(bench: _Bench, report: Report) -> SharpnessRecord:
    part = bench.path.with_suffix(".part.jsonl")
    with bench.target.engine([bench.experiment]) as engine:
        bench.target.begin(bench.experiment, engine)
        drop_torn_line(part)
        reader = _Reader(bench, engine, part, report)
        shape = measure(bench.settings, engine.dim, reader)
        record = SharpnessRecord(
            task=TaskRecord(bench.experiment.task.name, bench.experiment.task.version),
            split=bench.split.name,
            step=bench.target.step,
            rollouts_spent=bench.target.rollouts_spent,
            sampling=bench.sampling,
            prompt_sha256=bench.experiment.prompt_sha256,
            problems_sha256=bench.split.sha256,
            weights_sha256=engine.center_sha256(),
            score=shape.score,
            nll=shape.nll,
            average=shape.average,
            direction=shape.direction,
            estimate_members=bench.settings.members,
            cost=reader.cost,
            estimate_sigma=bench.settings.sigma,
            rho=bench.settings.rho,
        )
    write_json(bench.path, record)
    part.unlink()
    return record


class _Reader:
    """Reads candidates around θ in the order they are asked for; what an earlier session read is known."""

    def __init__(self, bench: _Bench, engine: Engine, part: Path, report: Report) -> None:
        self.bench, self.engine, self.part, self.report = bench, engine, part, report
        self.weights = engine.center_sha256()
        own = [
            p
            for p in read_lines(part, SharpnessPart)
            if p.engine == engine.description and p.weights_sha256 == self.weights
        ]
        self.known = {(p.kind, p.place): p for p in own}
        self.asked, self.old = Counter[str](), len(self.known)

    @property
    def cost(self) -> Cost:
        """What all readings cost, those of earlier sessions too."""
        return sum((self.known[key].cost for key in sorted(self.known)), Cost())

    def scores(self, candidates: Sequence[Move]) -> list[float]:
        """Strict greedy accuracy at each, one after the other under one rollout."""
        keys = self._keys("score", len(candidates))
        left = [(key, move) for key, move in zip(keys, candidates, strict=True) if key not in self.known]
        begun = time.perf_counter()

        def on_candidate(index: int, completions: list[list[Completion]]) -> None:
            nonlocal begun
            answers = [samples[0] for samples in completions]
            value, now = self._strict(answers), time.perf_counter()
            tokens = sum(len(answer.token_ids) for answer in answers)
            self._keep(left[index][0], value, len(answers), self._prompt_tokens, tokens, now - begun)
            begun = now

        if left:
            round_ = Round(self.bench.target.step, 0, EMPTY, tuple(move for _, move in left))
            sampling = self.bench.experiment.sampling(0.0, 1.0)
            self.engine.rollout(round_, self.bench.split.token_ids, sampling, on_candidate=on_candidate)
        return [self.known[key].value for key in keys]

    def nlls(self, candidates: Sequence[Move]) -> list[float]:
        """Nats per token of the reference solutions at each, one call each, so that a kill costs one candidate."""
        references = self.bench.solutions
        if not references.targets:
            return []
        keys = self._keys("nll", len(candidates))
        spans = sum(map(len, references.prompts)) + references.tokens
        for key, move in zip(keys, candidates, strict=True):
            if key not in self.known:
                begun = time.perf_counter()
                round_ = Round(self.bench.target.step, 0, EMPTY, (move,))
                [sums] = self.engine.nll(round_, references.prompts, references.targets)
                if not all(map(math.isfinite, sums)):
                    raise EngineError(NOT_FINITE)
                self._keep(key, math.fsum(sums) / references.tokens, 0, spans, 0, time.perf_counter() - begun)
        return [self.known[key].value for key in keys]

    @property
    def _prompt_tokens(self) -> int:
        return sum(map(len, self.bench.split.token_ids))

    def _keys(self, kind: str, n: int) -> list[tuple[str, int]]:
        first = self.asked[kind]
        self.asked[kind] += n
        return [(kind, place) for place in range(first, first + n)]

    def _strict(self, answers: Sequence[Completion]) -> float:
        if not all(answer.finite for answer in answers):
            raise EngineError(NOT_FINITE)
        grades = self.bench.experiment.task.grade(self.bench.split.problems, self.bench.experiment.texts(answers))
        failed = Counter(grade.failure for grade in grades if grade.failure is not None)
        refuse_failures(failed, len(grades), self.bench.experiment.recipe.grader.max_failures)
        return sum(grade.strict for grade in grades) / len(grades)

    def _keep(
        self, key: tuple[str, int], value: float, rollouts: int, prompt: int, generated: int, seconds: float
    ) -> None:
        """On disk before the next candidate begins."""
        cost = Cost(rollouts, prompt, generated, 2.0 * self.engine.dim * (prompt + generated), seconds)
        self.known[key] = SharpnessPart(self.engine.description, *key, value, cost, self.weights)
        append_lines(self.part, [self.known[key]], sync=True)
        new = list(self.known.values())[self.old :]
        spent, tokens = sum(p.cost.seconds for p in new), sum(p.cost.generated_tokens for p in new)
        progress = EvalProgress(len(self.known), self.bench.n_readings, len(new), tokens, spent)
        self.report(f"sharpness, {self.bench.experiment.task.name} {self.bench.split.name}", progress)
