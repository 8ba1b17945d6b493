"""What the files of a run say: their schema as frozen dataclasses, one per file or line.

`directory` knows where the files are, `files` how they are read and written.
"""

from dataclasses import asdict, dataclass, field
from typing import Annotated, Self

from annotated_types import Ge

SCHEMA = 1
Count = Annotated[int, Ge(0)]
Amount = Annotated[float, Ge(0)]


@dataclass(frozen=True)
class Cost:
    """What something cost; adds up."""

    rollouts: Count = 0
    prompt_tokens: Count = 0
    generated_tokens: Count = 0
    flops: Amount = 0.0  # 2 per weight and token, an estimate
    seconds: Amount = 0.0

    def __add__(self, other: Self) -> Self:
        return type(self)(*(a + b for a, b in zip(asdict(self).values(), asdict(other).values(), strict=True)))


@dataclass(frozen=True)
class Peak:
    """Bytes at most: of the host process, of the device, and of the KV cache (a budget, so reported apart)."""

    host: Count = 0
    device: Count = 0
    kv: Count = 0


@dataclass(frozen=True)
class Base:
    """The model that a run starts from, by content and not only by name."""

    name: str
    weights_sha256: str
    tokenizer_sha256: str


@dataclass(frozen=True)
class NoiseRecord:
    """The noise that seeds mean; a resumed run refuses another."""

    version: int
    fingerprint: str


@dataclass(frozen=True)
class RunRecord:
    """`run.json`: what this run is, how far it came, and what it cost."""

    label: str
    method: str  # es | essam | essam-f | grpo | ppo | base | external
    seed: int
    base: Base
    prompt_sha256: str
    problems_sha256: dict[str, str]  # by split
    dim: Count
    noise: NoiseRecord
    status: str = "running"  # running | interrupted | failed | finished
    generation: Count = 0  # generations done
    kept_generation: Count | None = None  # the generation that weights/ holds
    # The hashes of that generation: of θ in fp32, and of weights/, which is cast to the serving dtype.
    kept_sha256: list[str] = field(default_factory=list)
    train: Cost = Cost()
    eval: Cost = Cost()
    peak_bytes: Peak = Peak()
    non_finite: Count = 0  # candidates whose logits were not finite
    grader_failures: dict[str, Count] = field(default_factory=dict)  # by cause
    engine: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    git: str = ""
    recipe_sha256: list[str] = field(default_factory=list)  # of every recipe.yaml it had; none in runs of esctl 0.1.0
    argv: list[str] = field(default_factory=list)
    schema: int = SCHEMA


@dataclass(frozen=True)
class ScoreRecord:
    """One line of `scores.jsonl`: one candidate. These lines are the whole history of the training."""

    generation: Count
    round: Count
    member: Count
    score: float | None  # null: its logits were not finite
    parts: dict[str, float]  # shares over its samples: strict, flexible, formatted, truncated; mean length in tokens
    rollouts: Count
    prompt_tokens: Count
    generated_tokens: Count
    seconds: Amount


@dataclass(frozen=True)
class SampleRecord:
    """One rollout to be read."""

    generation: int
    round: int
    member: int
    problem: str
    prompt: str
    completion: str
    gold: str
    answer: str | None
    strict: bool
    flexible: bool
    formatted: bool
    truncated: bool
    reward: float


@dataclass(frozen=True)
class TaskRecord:
    """The task of an evaluation; another version is another benchmark."""

    name: str
    version: int


@dataclass(frozen=True)
class SamplingRecord:
    """The decoding of an evaluation, complete."""

    temperature: Amount
    top_p: float
    max_tokens: Count
    n: Count  # samples per problem
    seed: int
    stop: list[str] = field(default_factory=list)  # texts that ended an answer


@dataclass(frozen=True)
class Mode:
    """Where the spread of samples comes from: tokens, or weights at noise scale sigma."""

    kind: str = "token"
    sigma: float = 0.0


@dataclass(frozen=True)
class ProblemCounts:
    """Per-problem results, aligned arrays: of n samples, how many were strict, flexible, formatted, truncated."""

    id: list[str]
    difficulty: list[str]
    n: list[Count]
    strict: list[Count]
    flexible: list[Count]
    formatted: list[Count]
    truncated: list[Count]
    tokens: list[Count] = field(default_factory=list)  # generated, over all samples
    distinct: list[Count] = field(default_factory=list)  # different final answers among the samples
    entropy: list[Amount] = field(default_factory=list)  # Shannon entropy of the final answers, in nats
    # 1 where the leading answer in the format is strictly right, the first seen of those that tie
    majority: list[Count] = field(default_factory=list)
    # The share of the leading answers that is strictly right: 1/2 where two tie. None in runs of esctl 0.1.0
    majority_share: list[Amount] = field(default_factory=list)


@dataclass(frozen=True)
class EvalRecord:
    """`evals/*.json`: one evaluation of one set of weights; paired tests need no other file."""

    task: TaskRecord
    split: str
    step: Count
    rollouts_spent: Count  # training rollouts before these weights
    sampling: SamplingRecord
    mode: Mode
    prompt_sha256: str
    problems_sha256: str
    weights_sha256: str
    problems: ProblemCounts
    cost: Cost
    grader_failures: dict[str, Count] = field(default_factory=dict)
    non_finite: Count = 0  # samples of perturbed weights whose logits were not finite
    schema: int = SCHEMA


@dataclass(frozen=True)
class EvalSample:
    """One line of an evaluation's `.jsonl.gz`."""

    problem: str
    sample: int
    completion: str
    tokens: int
    answer: str | None
    strict: bool
    flexible: bool
    formatted: bool
    truncated: bool
    failure: str | None = None  # a grader that crashed or hung, by cause
    finite: bool = True  # False where a logit that led to it was NaN or infinite


@dataclass(frozen=True)
class EvalPart:
    """One line of an evaluation's `.part.jsonl`: a chunk of samples that an interrupted evaluation need not redo."""

    samples: list[EvalSample]
    seconds: float
    weights_sha256: str = ""  # "" in parts of esctl 0.1.0


@dataclass(frozen=True)
class SharpnessPart:
    """One line of a measurement's `.part.jsonl`: a candidate that an interrupted measurement need not redo."""

    engine: str  # its description: readings of two engines do not mix
    kind: str  # score | nll
    place: int  # in the order in which candidates of this kind are read
    value: float
    cost: Cost
    weights_sha256: str = ""  # "" in parts of esctl 0.1.0


@dataclass(frozen=True)
class AveragePoint:
    """S_avg(sigma) = score(θ) − mean over seeds of score(θ + σε): what isotropic noise costs."""

    sigma: float
    drops: list[float]  # one per seed: score(θ) − score(θ + σε)
    nll_rises: list[float]  # one per seed: NLL per reference token at θ + σε minus that at θ, in nats; or none


@dataclass(frozen=True)
class DirectionPoint:
    """Score lost by a step of norm `scale`·ρ√(d/N): against a fresh ES estimate, and along random directions."""

    scale: float
    norm: float  # of the step in weight space
    against: float  # score(θ) − score(θ − step along the estimate)
    random: list[float]  # one per random direction of equal norm


@dataclass(frozen=True)
class SharpnessRecord:
    """`sharpness/*.json`: how fast the score falls around one set of weights; seeds are common to all models."""

    task: TaskRecord
    split: str
    step: int
    rollouts_spent: int
    sampling: SamplingRecord
    prompt_sha256: str
    problems_sha256: str
    weights_sha256: str
    score: float  # strict accuracy at θ
    nll: float | None  # per reference token at θ, in nats; null where the task has no reference solutions
    average: list[AveragePoint]
    direction: list[DirectionPoint]
    estimate_members: int  # N of the fresh ES estimate
    cost: Cost
    estimate_sigma: float = 0.0  # its noise scale
    rho: float = 0.0  # step of scale 1 has norm ρ√(d/N)
    schema: int = SCHEMA


def strict_share(record: EvalRecord) -> float:
    """Strict accuracy over all samples."""
    return sum(record.problems.strict) / sum(record.problems.n)


BASE = "base"  # a run's method where nothing was trained
EXTERNAL = "external"  # a run's method where the model was trained elsewhere
WEIGHT = "weight"  # a mode's kind: samples differ in their weights


def is_greedy(record: EvalRecord) -> bool:
    """One greedy answer per problem."""
    return record.sampling.temperature == 0 and record.mode.kind == "token"


def decoding_text(temperature: float, top_p: float, mode: Mode) -> str:
    """Where the spread of samples comes from, in words."""
    tokens = "greedy" if temperature == 0 else f"temperature {temperature:g}, top-p {top_p:g}"
    return f"weight noise {mode.sigma:g}, {tokens}" if mode.kind == WEIGHT else tokens
