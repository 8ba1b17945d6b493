"""What a recipe refers to, found and checked before a model is loaded: model, tokenizer, problems, prompts, reward."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

from esctl.assets import tiny_model_path
from esctl.engines import Completion, EngineSpec, Samples, Sampling, chosen_kind
from esctl.engines.checkpoint import refuse_large_vocabulary, refuse_unknown_ids
from esctl.engines.process import refuse_threads
from esctl.engines.weights.center import Center
from esctl.engines.weights.model import check_model, count_weights
from esctl.engines.weights.sizes import refuse_unserved, sizes_of
from esctl.errors import UsageError
from esctl.experiment.models import MODELS, model_path
from esctl.experiment.recipe import EMBEDDED, Recipe
from esctl.experiment.scoring import Objective, Rewarded
from esctl.methods import MethodConfig
from esctl.methods.external import External
from esctl.tasks import Problem, TaskSpec, open_task
from esctl.tasks.grading.reward import Grader
from esctl.tasks.grading.thoughts import AUTO, is_part_of_tag, opened_by
from esctl.tasks.prompts import (
    PROBES,
    Prompt,
    examples,
    problems_sha256,
    prompt_sha256,
    refuse_long,
    render_all,
    wording,
)
from esctl.tasks.tokenizer import load_tokenizer, own_system_line


@dataclass(frozen=True)
class Split:
    """Problems of one split and their rendered prompts, aligned."""

    name: str
    problems: tuple[Problem, ...]
    prompts: tuple[Prompt, ...]

    @property
    def token_ids(self) -> list[tuple[int, ...]]:
        """The prompts as engines take them."""
        return [p.token_ids for p in self.prompts]

    @property
    def sha256(self) -> str:
        """What these problems are, whatever they are called."""
        return problems_sha256(self.problems)

    def subset(self, places: Sequence[int]) -> Self:
        """The problems at these places, in this order."""
        chosen = tuple(self.problems[i] for i in places), tuple(self.prompts[i] for i in places)
        return replace(self, problems=chosen[0], prompts=chosen[1])

    def first(self, n: int | None) -> Self:
        """The first n problems; None is all of them."""
        return replace(self, problems=self.problems[:n], prompts=self.prompts[:n])


class Experiment:
    """A recipe made concrete; opening one finds every mistake that needs no weights."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        refuse_threads(recipe.engine.threads)
        self.model = find_model(recipe.model)
        _, self._config = check_model(self.model)
        self._sizes = sizes_of(self._config)
        refuse_unserved(self._config, chosen_kind(recipe.engine.kind))
        self.task = open_task(task_spec(recipe))
        self.tokenizer = load_tokenizer(self.model)
        self._rows = refuse_large_vocabulary(self.model, self.tokenizer, self._config)
        self.prompting = recipe.prompt
        self.grader = Grader(self.task, recipe.reward, recipe.grader)
        self.objective = Objective(recipe.reward, recipe.objective)
        self._splits: dict[str, Split] = {}

    def check_training(self) -> None:
        """Refuse what cannot be trained on, before a model is loaded."""
        if isinstance(self.recipe.method, External):
            raise UsageError("method.kind: external is of a model trained elsewhere; `esctl adopt` makes its run")
        split = self.recipe.task.split
        if split not in self.task.trainable:
            allowed = ", ".join(self.task.trainable) or "none"
            raise UsageError(f"task.split: {self.task.name} may not be trained on {split}; trainable: {allowed}")
        self.grader.check()
        available = len(self.split(split).problems)
        if self.recipe.prompts > available:
            has = f"{split} has {available} problem{'s' * (available != 1)}"
            advice = f"set prompts to {available} or fewer"
            raise UsageError(f"prompts: {self.recipe.prompts} per generation, but {has}; {advice}")
        for name in filter(None, (self.recipe.eval.split if self.recipe.eval.every else None, self.recipe.eval.final)):
            self.split(name)

    def split(self, name: str) -> Split:
        """The problems and prompts of a split, rendered once; refuses prompts that do not fit the model."""
        if name not in self._splits:
            problems = self.task.problems(name)
            prompts = render_all(problems, self.task, self.tokenizer, self.prompting, self.shots)
            new = self.recipe.sampling.max_tokens
            refuse_long(name, problems, prompts, self._sizes.context, new, self._sizes.why_short)
            longest = max((len(p.token_ids) for p in prompts), default=0)
            refuse_unserved(self._config, chosen_kind(self.recipe.engine.kind), longest + new)
            refuse_unknown_ids(self.model, [p.token_ids for p in prompts], self._rows)
            self._splits[name] = Split(name, problems, prompts)
        return self._splits[name]

    @property
    def opened(self) -> tuple[str, ...]:
        """The splits rendered so far."""
        return tuple(self._splits)

    @cached_property
    def shots(self) -> tuple[Problem, ...]:
        """Solved examples for the prompt: the first of the split that may be trained on."""
        if not self.prompting.shots:
            return ()
        if not self.task.trainable:
            raise UsageError(f"prompt.shots: {self.task.name} has no split to take solved examples from; set it to 0")
        return examples(self.task.problems(self.task.trainable[0]), self.prompting)

    @cached_property
    def dim(self) -> int:
        """The number of weights, by the model's config."""
        return count_weights(self._config)

    @cached_property
    def prompt_sha256(self) -> str:
        """What the prompt is, apart from the problem."""
        return prompt_sha256(self.task, self.tokenizer, self.prompting, self.shots)

    @cached_property
    def tokenizer_sha256(self) -> str:
        """What the tokenizer is: vocabulary, rules and template."""
        parts = self.tokenizer.backend_tokenizer.to_str(), str(self.tokenizer.chat_template)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    @cached_property
    def own_system_line(self) -> str:
        """The system line that the model's template writes by itself, where the prompt has none; else ""."""
        words = wording(self.task, self.prompting, self.tokenizer)
        if words.system or self.prompting.style != "chat":
            return ""
        return own_system_line(self.tokenizer, self.prompting.template)

    def check_prompt(self) -> None:
        """Refuse a tokenizer or a template that cannot ask a question of this model, without reading data."""
        prompts = render_all(PROBES, self.task, self.tokenizer, replace(self.prompting, shots=0))
        refuse_long("model", PROBES, prompts, self._sizes.context, 1, self._sizes.why_short)
        refuse_unknown_ids(self.model, [p.token_ids for p in prompts], self._rows)

    def texts(self, completions: Sequence[Completion]) -> list[str]:
        """Completions as graders read them, with the tags of a thought.

        Decoding drops tags that are special tokens, and a template may write the opening tag as the prompt's end.
        """
        special = {i: t for i, t in self.tokenizer.added_tokens_decoder.items() if t.special}
        think = self.prompting.think
        tags = {i for i, token in special.items() if is_part_of_tag(token.content, think)}
        texts = []
        for completion in completions:
            text = completion.text
            if tags.intersection(completion.token_ids):
                text = self.tokenizer.decode([i for i in completion.token_ids if i in tags or i not in special])
            texts.append(self._opened_thought + text if think == AUTO else text)
        return texts

    @cached_property
    def _opened_thought(self) -> str:
        """The opening tag that every prompt ends with, or ""."""
        [probe] = render_all(PROBES, self.task, self.tokenizer, self.prompting, self.shots)
        return opened_by(probe.text)

    def reward(self, problems: Sequence[Problem], samples: Samples) -> list[list[Rewarded]]:
        """Grade and reward every sample of every problem, in one batch: [problem][sample], as `samples` has them."""
        repeated = [p for p, own in zip(problems, samples, strict=True) for _ in own]
        rewards = iter(self.grader.rewards(repeated, self.texts([c for own in samples for c in own])))
        return [[Rewarded(c, grade, value) for c, (value, grade) in zip(own, rewards, strict=False)] for own in samples]

    def sampling(self, temperature: float, top_p: float) -> Sampling:
        """How an engine draws answers; limits and stop texts are the recipe's."""
        return Sampling(temperature, self.recipe.sampling.max_tokens, top_p, self.recipe.stops)

    def engine_spec(self) -> EngineSpec:
        """What the recipe's engine section and the longest prompt ask of an engine."""
        longest = max(len(p.token_ids) for split in self._splits.values() for p in split.prompts)
        probes = isinstance(self.recipe.method, MethodConfig) and self.recipe.method.probes
        return self.recipe.engine.of(self.model, longest + self.recipe.sampling.max_tokens, probes)

    def center(self) -> Center:
        """θ₀ on the host, without an engine."""
        return Center.load(self.model)


def task_spec(recipe: Recipe) -> TaskSpec:
    """The recipe's `task:` section as tasks take it."""
    return TaskSpec.of(recipe.task, recipe.grader, recipe.prompt.think)


def find_model(name: str) -> Path | str:
    """Where a model is: embedded, one of `models ls`, a folder, a run directory (its weights), or a hub id.

    Raises UsageError where it is not.
    """
    if name == EMBEDDED:
        return tiny_model_path()
    if name in MODELS and not Path(name).exists():
        if not model_path(name).is_dir():
            raise UsageError(f"model: {name} is not on this machine yet; `esctl models get {name}` fetches it")
        return model_path(name)
    path = Path(name)
    if (path / "run.json").is_file():
        path = path / "weights"
        if not path.is_dir():
            raise UsageError(f"model: {name} is a run without weights yet; finish it, or `esctl export` a generation")
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UsageError(f"model: {path} has no config.json; give a model folder in Hugging Face format")
        return path.resolve()
    if path.is_absolute() or name.startswith(".") or name.count("/") != 1:
        raise UsageError(
            f"model: {name}: no such folder; give one, a hub id such as Qwen/Qwen2.5-0.5B-Instruct, or embedded"
        )
    return name
