"""The schema of a recipe: every key, its type, its default, and which keys fit each other.

The sections that a room reads are frozen dataclasses of that room. Reading and writing YAML is `loading`.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from esctl.engines import EngineSettings
from esctl.errors import UsageError
from esctl.experiment.scoring import ObjectiveSettings
from esctl.methods import BASELINES, METHODS, BaselineConfig, MethodConfig
from esctl.methods.external import External
from esctl.settings import Count
from esctl.tasks import Limits, TaskSettings
from esctl.tasks.grading.reward import Reward
from esctl.tasks.prompts import NEXT_QUESTION, Prompting

EMBEDDED = "embedded"
AnyMethod = MethodConfig | BaselineConfig | External
TRAINED: dict[str, type[AnyMethod]] = {**METHODS, **BASELINES}  # what `esctl train` offers
ALL_METHODS: dict[str, type[AnyMethod]] = {**TRAINED, "external": External}
Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"


class Section(BaseModel):
    """Base of the recipe and of sections that only the recipe knows: immutable, and an unknown key is a mistake.

    The other sections are the frozen dataclasses of the rooms that read them; they take these rules over.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class SamplingSection(Section):
    """How training rollouts are drawn; 0 is greedy."""

    temperature: Annotated[float, Field(ge=0)] = 0.0  # 0 is greedy
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0  # nucleus; 1 is all tokens
    max_tokens: Count = 1024  # new tokens per completion at most
    # Texts that end an answer. Null: the next question for `prompt.style: raw`, none for chat.
    stop: tuple[Annotated[str, Field(min_length=1)], ...] | None = None


class EvalSection(Section):
    """Evaluation while training: every so many generations (0: never), on the first n problems of a split."""

    every: Annotated[int, Field(ge=0)] = 10  # generations between evaluations; 0 is never
    split: str = "validation"  # the problems to evaluate on
    n: Count = 256  # how many of them, from the first
    final: str | None = "test"  # a split to evaluate whole, once, with the kept weights; null is none


def _with_ranks_of_vllm(engine: EngineSettings) -> EngineSettings:
    if engine.kind == "transformers" and engine.tensor_parallel > 1:
        raise ValueError(f"engine.tensor_parallel: {engine.tensor_parallel} needs engine.kind vllm; set it to 1")
    return engine


class Recipe(Section):
    """One row of a table, seed by seed. Its defaults are the published GSM8K setting; see `recipes/` for others."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    label: str = ""  # row name in tables; rows group by recipe minus seed
    model: str = EMBEDDED  # `embedded`, a folder, a hub id, or a run directory
    task: TaskSettings = TaskSettings()
    prompt: Prompting = Prompting()
    method: AnyMethod
    reward: Reward = Reward()
    objective: ObjectiveSettings = ObjectiveSettings()
    generations: Annotated[int, Field(ge=0)] = 500  # for RL: optimizer steps, as the method counts them
    prompts: Count = 200  # problems per generation
    sampling: SamplingSection = SamplingSection()
    engine: Annotated[EngineSettings, AfterValidator(_with_ranks_of_vllm)] = EngineSettings()
    eval: EvalSection = EvalSection()
    grader: Limits = Limits()
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
        if self.objective != ObjectiveSettings():
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
    def stops(self) -> tuple[str, ...]:
        """The texts that end an answer: a model without chat training goes on with a question of its own."""
        if self.sampling.stop is not None:
            return self.sampling.stop
        return (NEXT_QUESTION,) if self.prompt.style == "raw" else ()

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
