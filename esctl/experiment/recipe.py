"""What a recipe may say: YAML plus `--set` becomes a frozen Recipe, or every mistake at once.

Leaves what a method does to `methods` and what a task is to `tasks`; never loads a model or data.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from esctl.errors import UsageError
from esctl.methods import BASELINES, METHODS, BaselineConfig, MethodConfig
from esctl.methods.external import External

EMBEDDED = "embedded"
AnyMethod = MethodConfig | BaselineConfig | External
TRAINED: dict[str, type[AnyMethod]] = {**METHODS, **BASELINES}  # what `esctl train` offers
ALL_METHODS: dict[str, type[AnyMethod]] = {**TRAINED, "external": External}
Count = Annotated[int, Field(ge=1, strict=True)]
Share = Annotated[float, Field(ge=0, le=1)]


Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"


class Section(BaseModel):
    """Base of every section: immutable, and an unknown key is a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TaskSection(Section):
    """Which problems; the column names are for `name: file`."""

    name: str = "gsm8k"  # a task of the table; see docs/tasks.md
    data: str | None = None  # a local file or folder in place of the hub
    split: str = "train"  # the problems to train on
    question: str | None = None  # column of the question; null: `question`
    answer: str | None = None  # column of the gold answer; null: `answer`
    id: str | None = None  # column of an identifier
    difficulty: str | None = None  # column of a group to report accuracy by
    solution: str | None = None  # column of a reference solution
    grader: str | None = None  # form of an answer: number, boxed or text; null: number


class PromptSection(Section):
    """How a problem is asked."""

    style: Literal["chat", "raw"] = "chat"  # chat: the template of the tokenizer; raw: plain text
    name: str | None = None  # a named prompt; null: the task's own
    system: str | None = None  # replaces the system line; "" is none; null: that of the prompt
    shots: Annotated[int, Field(ge=0)] = 0  # solved examples before the question
    template: dict[str, bool | int | str] = Field(default_factory=dict)  # switches for the chat template
    think: Annotated[str, Field(min_length=1)] = "auto"  # the end of a thought: auto (known tags), none, or a string


class RewardSection(Section):
    """reward = answer·[strictly right] + format·[formatted], or a user's function."""

    answer: float = 1.0  # weight of a strictly right answer
    format: float = 0.1  # weight of the asked-for format
    function: str | None = None  # package.module:name of a function that replaces both weights


class ObjectiveSection(Section):
    """What a member's score is: the mean reward of n samples per prompt, or the unbiased pass@k of them."""

    kind: Literal["mean", "pass@k"] = "mean"  # the mean reward of a candidate's samples, or their unbiased pass@k
    n: Count = 1  # samples per prompt
    k: Count = 1  # tries of pass@k

    @model_validator(mode="after")
    def _tries_are_samples(self) -> "ObjectiveSection":
        if self.kind == "mean" and self.k > 1:
            raise ValueError(f"objective.k: {self.k}, but the mean has no tries; set objective.kind to pass@k")
        if self.n < self.k:
            raise ValueError(f"objective.n: {self.n} samples are too few for pass@{self.k}; use {self.k} or more")
        return self


class SamplingSection(Section):
    """How training rollouts are drawn; 0 is greedy."""

    temperature: Annotated[float, Field(ge=0)] = 0.0  # 0 is greedy
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0  # nucleus; 1 is all tokens
    max_tokens: Count = 1024  # new tokens per completion at most


class EngineSection(Section):
    """Where and how the model is served; nothing here changes what a seed means."""

    kind: Literal["auto", "vllm", "transformers"] = "auto"  # auto is vllm where it is installed
    replicas: Count = 1  # engines side by side, which share the candidates of a round; above 1 through Ray
    threads: Count | Literal["auto"] = "auto"  # of each engine
    # of the served weights; auto: float32 on a CPU, bfloat16 on a GPU that has it, else float16
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    # of the KV cache, GiB; auto: up to 2 on a CPU, what is free on a GPU
    kv_memory: Annotated[float, Field(gt=0)] | Literal["auto"] = "auto"
    tensor_parallel: Count = 1  # ranks that cut each matrix among them, one GPU each; vLLM only
    center: Literal["auto", "device", "host"] = "auto"  # where the fp32 center lies if the model is on a GPU

    @model_validator(mode="after")
    def _ranks_are_vllm_s(self) -> "EngineSection":
        if self.kind == "transformers" and self.tensor_parallel > 1:
            raise ValueError(f"engine.tensor_parallel: {self.tensor_parallel} needs engine.kind vllm; set it to 1")
        return self


class EvalSection(Section):
    """Evaluation while training: every so many generations (0: never), on the first n problems of a split."""

    every: Annotated[int, Field(ge=0)] = 10  # generations between evaluations; 0 is never
    split: str = "validation"  # the problems to evaluate on
    n: Count = 256  # how many of them, from the first
    final: str | None = "test"  # a split to evaluate whole, once, with the kept weights; null is none


class GraderSection(Section):
    """Limits for graders that run apart from the trainer."""

    timeout_seconds: Annotated[float, Field(gt=0)] = 5.0  # for one answer
    max_failures: Share = 0.01  # share of a round's samples; above it the run stops
    workers: Count = 2  # processes that grade at a time


class Recipe(Section):
    """One row of a table, seed by seed. Its defaults are the published GSM8K setting; see `recipes/` for others."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    label: str = ""  # row name in tables; rows group by recipe minus seed
    model: str = EMBEDDED  # `embedded`, a folder, a hub id, or a run directory
    task: TaskSection = TaskSection()
    prompt: PromptSection = PromptSection()
    method: AnyMethod
    reward: RewardSection = RewardSection()
    objective: ObjectiveSection = ObjectiveSection()
    generations: Annotated[int, Field(ge=0)] = 500  # for RL: optimizer steps, as the method counts them
    prompts: Count = 200  # problems per generation
    sampling: SamplingSection = SamplingSection()
    engine: EngineSection = EngineSection()
    eval: EvalSection = EvalSection()
    grader: GraderSection = GraderSection()
    select: Literal["last", "best-validation"] = "last"  # which weights are kept
    checkpoint_every: Annotated[int, Field(ge=0)] = 0  # cached fp32 centers, or RL's only way back; 0 keeps none
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0  # decides noise, batches and samples

    @model_validator(mode="after")
    def _keys_fit_each_other(self) -> "Recipe":
        misfits = [*self._misfits(), *(self._misfits_of_rl() if self.baseline else ())]
        if misfits:
            raise ValueError("\n".join(misfits))
        return self

    def _misfits(self) -> Iterator[str]:
        if self.select == "best-validation" and self.eval.every == 0:
            yield "select: best-validation needs eval.every above 0"
        if self.objective.n > 1 and self.sampling.temperature == 0:
            yield f"sampling.temperature: 0 makes the {self.objective.n} samples of objective.n equal; set it above 0"

    def _misfits_of_rl(self) -> Iterator[str]:
        if self.objective != ObjectiveSection():
            yield f"objective: {self.kind} has none but the mean reward; set method.samples instead"
        if self.engine.tensor_parallel > 1:
            yield f"engine.tensor_parallel: {self.kind} trains on one device; set it to 1"
        if self.engine.replicas > 1:
            yield f"engine.replicas: {self.kind} trains on one device; set it to 1"
        if self.sampling.temperature == 0:
            yield f"sampling.temperature: 0 gives {self.kind} nothing to choose from; use 1.0"
        if self.sampling.top_p < 1:
            yield f"sampling.top_p: {self.sampling.top_p} is not the policy that {self.kind} trains; use 1"

    @property
    def kind(self) -> str:
        """The method's name in recipes, such as `essam-f`."""
        return next(k for k, cls in ALL_METHODS.items() if type(self.method) is cls)

    @property
    def baseline(self) -> BaselineConfig | None:
        """The method where it is RL, which has gradients and no candidates."""
        return self.method if isinstance(self.method, BaselineConfig) else None

    @property
    def evolution(self) -> MethodConfig:
        """The method where it asks for candidates; UsageError where it is RL."""
        if isinstance(self.method, BaselineConfig | External):
            raise UsageError(f"{self.kind} keeps no history of scores to rebuild weights from; use those in weights/")
        return self.method
