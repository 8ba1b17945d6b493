"""What every RL run records: metrics, samples, evaluations, checkpoints, kept weights, costs.

The trainer makes the rollouts and steps. `metrics.jsonl` is the history: an RL run has no `scores.jsonl`, because
no number that is short enough to record leads back to its weights. Checkpoints do, and a resumed run continues from
the newest: what was recorded after it is dropped and done again.
"""

import math
import shutil
from collections.abc import Sequence
from dataclasses import replace

from esctl.errors import RunError
from esctl.evaluation.draw import part_path
from esctl.experiment.experiment import Experiment
from esctl.experiment.scoring import each, failures, parts
from esctl.faults import reach
from esctl.runs.directory import RunDir
from esctl.runs.files import append_lines, drop_torn_line, keep_lines
from esctl.runs.metrics import Metrics, reward_metrics
from esctl.runs.notices import notices, rl_advice
from esctl.runs.records import Cost, RunRecord, SampleRecord
from esctl.training.events import GenerationDone, Notice, Report
from esctl.training.logbook import Logbook, sample_record
from esctl.training.rl import Step, Trainer

SHOWN = 16  # rollouts of a step that are stored to be read

# Keys of an RL run's metrics.jsonl beside those of `metrics.KEYS`, whose meaning is the same with a rollout in the
# place of a member. A method writes those that it has.
KEYS = {
    "kl/reference": "k3 estimate of KL(π ‖ π₀) when the rollouts were drawn, in nats per generated token",
    "policy/entropy": "of the distribution of the next token when the rollouts were drawn, in nats per generated token",
    "policy/clip_share": "share of tokens whose ratio lay beyond the clip, so that they had no gradient",
    "policy/loss": "mean over the updates of the step",
    "policy/grad_norm": "before clipping, mean over the updates of the step; 0 where the policy was not touched",
    "policy/lr": "learning rate of the step",
    "signal/groups": "prompts whose samples had different rewards: those that GRPO learns from",
    "value/loss": "mean over the updates of the step",
    "value/grad_norm": "of the critic, before clipping, mean over the updates of the step",
    "value/explained": "1 − var(return − value)/var(return) over the tokens of the step, before the critic's update",
    "drift/norm": "‖θ − θ₀‖, exact",
    "cost/prompt_tokens": "tokens of the prompts of the rollouts so far",
    "cost/flops": "estimated operations so far, forward and backward passes",
    "time/rollout_seconds": "seconds of this step's rollouts and grading",
}


class Recorder:
    """One RL run, from its newest checkpoint to its last step; the counterpart of `evolution.Training`."""

    def __init__(self, experiment: Experiment, run: RunDir, trainer: Trainer, report: Report) -> None:
        self.experiment, self.recipe = experiment, experiment.recipe
        self.run, self.trainer, self.engine, self.report = run, trainer, trainer.engine, report
        self.book = Logbook(experiment, run, trainer.engine)
        if drop_torn_line(run.metrics):
            report(Notice(f"{run.metrics}: dropped a last line that was cut short"))
        self.metrics = run.read_metrics()
        self.done = self._restore()

    def begin(self, now: RunRecord) -> None:
        """Record that a session runs, with what."""
        self.book.begin(now)
        self.book.write(replace(self.book.record, generation=self.done, train=total_cost(self.metrics)))

    def finish(self) -> RunRecord:
        """Train what is left, keep the weights that `select` asks for, and evaluate them."""
        self._evaluate_if_due()
        if self.done < self.recipe.generations:
            self.trainer.train(self.done, self._step)
        assert self.done >= self.recipe.generations, f"the trainer stopped after step {self.done}"
        self._keep_weights()
        return self.book.record

    def _restore(self) -> int:
        """Bring the trainer to the newest checkpoint, and drop what lies after it; the step it is at."""
        kept = sorted(int(p.name) for p in self.run.checkpoints.glob("[0-9]*") if p.is_dir())
        done = kept[-1] if kept else 0
        if self.book.record.status == "finished" and done < self.book.record.generation:
            raise RunError(
                f"{self.run.path}: finished, and no checkpoint of its last step was kept to go on from;"
                " start another run with checkpoint_every above 0"
            )
        if kept:
            self.trainer.load_state(self.run.checkpoint_folder(done))
        if len(self.metrics) > done:
            self.report(Notice(f"steps {done + 1} to {len(self.metrics)} lie after the newest checkpoint: done again"))
        self._drop_after(done)
        return done

    def _drop_after(self, done: int) -> None:
        if len(self.metrics) > done:
            self.metrics = self.metrics[:done]
            keep_lines(self.run.metrics, done)
        for path in self.run.samples.glob("*.jsonl"):
            if int(path.stem) >= done:
                path.unlink()
        for path, record in zip(self.run.eval_files(), self.run.read_evals(), strict=True):
            if record.step > done:
                path.with_suffix(".jsonl.gz").unlink(missing_ok=True)
                path.unlink()
            part_path(path).unlink(missing_ok=True)

    def _step(self, step: Step) -> None:
        """Record an optimizer step that the trainer has done."""
        self.book.count_failures(failures(step.samples), len(each(step.samples)))
        self.metrics.append(step_metrics(step, self.done + 1, total_cost(self.metrics)))
        append_lines(self.run.sample_file(self.done), sample_records(step, self.done))
        append_lines(self.run.metrics, self.metrics[-1:], sync=True)
        self.done += 1
        if self.recipe.checkpoint_every and self.done % self.recipe.checkpoint_every == 0:
            self._checkpoint()
        self._report_step()
        self._evaluate_if_due()

    def _checkpoint(self) -> None:
        """Put all that the next step depends on into a folder that appears whole; only the newest stays."""
        folder = self.run.checkpoint_folder(self.done)
        if folder.is_dir():
            return
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        self.trainer.save_state(partial)
        reach("mid-checkpoint")
        partial.rename(folder)
        for old in self.run.checkpoints.glob("[0-9]*"):
            if old != folder:
                shutil.rmtree(old)

    def _report_step(self) -> None:
        spent = total_cost(self.metrics)
        self.book.write(replace(self.book.record, generation=self.done, train=spent))
        pace, left = spent.generated_tokens / max(spent.seconds, 1e-9), self.book.seconds_left(self.done)
        self.report(GenerationDone(self.metrics[-1], self.recipe.generations, pace, left))
        for text in notices(self.metrics, rl_advice(self.recipe.prompts, self.recipe.sampling.max_tokens)):
            self.report(Notice(text))

    def _evaluate_if_due(self) -> None:
        if self.book.is_due(self.done):
            self._evaluate(self.recipe.eval.split, self.recipe.eval.n, self.done)
            self._keep_if_best()

    def _evaluate(self, split: str, n: int | None, step: int) -> None:
        self.book.evaluate(split, n, step, total_cost(self.metrics[:step]).rollouts, self.report)

    def _keep_if_best(self) -> None:
        """Keep these weights where no earlier ones did better on validation; a checkpoint first, to lose neither."""
        if self.recipe.select != "best-validation" or self.book.best_step() != self.done:
            return
        self._checkpoint()
        self._save_weights()

    def _keep_weights(self) -> None:
        if self.recipe.select == "last":
            self._save_weights()
        kept = self.book.record.kept_generation
        assert kept is not None
        if kept != self.done:
            self.engine.load_center(self.run.weights / "model.safetensors")
        if self.recipe.eval.final:
            self._evaluate(self.recipe.eval.final, None, kept)
        self.book.write(replace(self.book.record, status="finished"))

    def _save_weights(self) -> None:
        self.engine.save(self.run.weights)
        self.book.keep(self.done)


def step_metrics(step: Step, number: int, before: Cost) -> Metrics:
    """One line of metrics.jsonl; `before` is what all earlier steps cost."""
    rewards = [s.reward for s in each(step.samples)]
    spent = before + step_cost(step)
    return {
        "generation": number,
        **reward_metrics(rewards, parts(step.samples)),
        **step.own,
        "cost/rollouts": spent.rollouts,
        "cost/prompt_tokens": spent.prompt_tokens,
        "cost/generated_tokens": spent.generated_tokens,
        "cost/flops": spent.flops,
        "time/seconds": step.seconds,
    }


def step_cost(step: Step) -> Cost:
    """What the rollouts and updates of a step cost; a prompt counts once for each of its samples."""
    n = [len(own) for own in step.samples]
    prompt = sum(len(p) * times for p, times in zip(step.chosen.token_ids, n, strict=True))
    generated = sum(len(s.completion.token_ids) for own in step.samples for s in own)
    return Cost(sum(n), prompt, generated, step.flops, step.seconds)


def total_cost(metrics: Sequence[Metrics]) -> Cost:
    """What the recorded steps cost."""
    if not metrics:
        return Cost()
    last = metrics[-1]
    return Cost(
        rollouts=round(last["cost/rollouts"]),
        prompt_tokens=round(last["cost/prompt_tokens"]),
        generated_tokens=round(last["cost/generated_tokens"]),
        flops=last["cost/flops"],
        seconds=math.fsum(m["time/seconds"] for m in metrics),
    )


def sample_records(step: Step, number: int) -> list[SampleRecord]:
    """The first sample of some problems, evenly spread over the batch: reward hacking is seen by reading."""
    count = len(step.samples)
    places = range(0, count, math.ceil(count / SHOWN))
    return [sample_record((number, 0, 0), step.chosen, place, step.samples[place][0]) for place in places]
