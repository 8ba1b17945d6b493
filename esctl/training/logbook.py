"""What a run records while it is trained, whatever the method: its run.json, evaluations and failed gradings.

`evolution` (ES) and `rl.recorder` (RL) record the steps.
"""

from collections import Counter
from dataclasses import replace

from esctl.engines import Engine
from esctl.engines.weights.center import Center
from esctl.errors import RunError
from esctl.evaluation.draw import EvalRequest, draw_evaluation
from esctl.experiment.experiment import Experiment, Split
from esctl.experiment.loading import dump_recipe
from esctl.experiment.provenance import peak_bytes
from esctl.experiment.scoring import Rewarded, refuse_failures
from esctl.runs.directory import RunDir
from esctl.runs.files import write_atomic
from esctl.runs.records import Cost, EvalRecord, RunRecord, SampleRecord, strict_share
from esctl.training.events import Evaluated, Notice, Report


class Logbook:
    """`run.json` of one run, as it is now in `record`, and the evaluations beside it."""

    def __init__(self, experiment: Experiment, run: RunDir, engine: Engine) -> None:
        self._experiment, self._run, self._engine = experiment, run, engine
        self.record = run.read_record()

    def begin(self, now: RunRecord) -> None:
        """Record that a session runs, with what, and write its recipe, which may have more generations than before.

        The record knows the recipe's hash before the file changes, so a kill between the two is not taken for an edit.
        """
        text = dump_recipe(self._experiment.recipe)
        known = self._run.known_recipes(self.record, text)
        running = replace(self.record, status="running", engine=now.engine, versions=now.versions, argv=now.argv)
        self.write(replace(running, recipe_sha256=known))
        write_atomic(self._run.recipe, text.encode())

    def write(self, record: RunRecord) -> None:
        """Make this the record, with the memory held until now."""
        self.record = replace(record, peak_bytes=peak_bytes(self._engine, record.peak_bytes))
        self._run.write_record(self.record)

    def keep(self, generation: int) -> None:
        """Record which generation weights/ holds, and by which hashes it is known.

        The engine holds θ in fp32; weights/ holds what is served, which below fp32 is another hash.
        """
        center = self._engine.center_sha256()
        cast = "float32" not in self._engine.description
        stored = Center.load(self._run.weights).weights_sha256() if cast else center
        self.write(replace(self.record, kept_generation=generation, kept_sha256=[center, stored]))

    def count_failures(self, failed: Counter[str], samples: int) -> None:
        """Record gradings that failed, by cause; raises GradingError where they are too many of so many samples."""
        if failed:
            known = Counter(self.record.grader_failures) + failed
            self.write(replace(self.record, grader_failures=dict(known)))
            refuse_failures(failed, samples, self._experiment.recipe.grader.max_failures)

    def is_due(self, step: int) -> bool:
        """Whether the recipe evaluates after so many steps."""
        recipe = self._experiment.recipe
        return bool(recipe.eval.every) and (step % recipe.eval.every == 0 or step == recipe.generations)

    def seconds_left(self, step: int) -> float:
        """What comes after so many steps, 1 or more, will take: training and evaluations, each at its pace so far."""
        section, generations = self._experiment.recipe.eval, self._experiment.recipe.generations
        training = (generations - step) * self.record.train.seconds / step
        due = sum(self.is_due(s) for s in range(step, generations + 1))
        problems = due * self._problems(section.split, section.n) if due else 0
        problems += self._problems(section.final, None) if section.final else 0
        return training + problems * self.record.eval.seconds / max(self.record.eval.rollouts, 1)

    def _problems(self, split: str, n: int | None) -> int:
        return len(self._experiment.split(split).first(n).problems)

    def evaluate(self, split: str, n: int | None, step: int, spent: int, report: Report) -> None:
        """Evaluate the engine's θ, trained by `spent` rollouts, record the cost and report it; nothing if stored."""
        chosen = self._experiment.split(split).first(n)
        found = draw_evaluation(self._experiment, self._run, self._engine, EvalRequest(chosen, step, spent))
        if found is None:
            return
        self.write(replace(self.record, eval=sum((e.cost for e in self._run.read_evals()), Cost())))
        report(Evaluated(found))
        for text in doubts(found):
            report(Notice(text))

    def best_step(self) -> int:
        """The first step with the best strict accuracy on the recipe's validation problems."""
        section = self._experiment.recipe.eval
        chosen = self._experiment.split(section.split).first(section.n)
        evals = [e for e in self._run.read_evals() if e.problems_sha256 == chosen.sha256]
        if not evals:
            raise RunError(f"{self._run.evals}: select: best-validation needs an evaluation on {chosen.name}")
        return min(evals, key=lambda e: (-strict_share(e), e.step)).step


def doubts(record: EvalRecord) -> list[str]:
    """What a person should know of the base's evaluation before training goes on: that it solved nothing, and why."""
    counts = record.problems
    if record.step or sum(counts.strict):
        return []
    samples, right = sum(counts.n), sum(counts.flexible)
    by_content = f", {right} of {samples} samples by content" if right else ""
    cut = 100 * sum(counts.truncated) / samples
    if cut >= 50:
        why = f"{cut:.0f} % of completions were cut at {record.sampling.max_tokens} tokens; raise sampling.max_tokens"
    elif not sum(counts.formatted):
        why = "no answer is in that format; read its first prompt with --dry-run, or change prompt.*"
    else:
        why = "its answers are in that format; read its first prompt with --dry-run, or ease the task"
    return [
        f"the base solves none of {len(counts.n)} {record.split} problems in the asked-for format{by_content}: {why}"
    ]


def sample_record(place: tuple[int, int, int], chosen: Split, problem: int, sample: Rewarded) -> SampleRecord:
    """One rollout of the problem at a place in `chosen`, to be read; `place` is its generation, round and member."""
    generation, round_, member = place
    asked, grade = chosen.problems[problem], sample.grade
    return SampleRecord(
        generation=generation,
        round=round_,
        member=member,
        problem=asked.id,
        prompt=chosen.prompts[problem].text,
        completion=sample.completion.text,
        gold=asked.answer,
        answer=grade.answer,
        strict=grade.strict,
        flexible=grade.flexible,
        formatted=grade.formatted,
        truncated=sample.truncated,
        reward=sample.reward,
    )
