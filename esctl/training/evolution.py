"""The training loop of ES: ask, roll out, grade, record, tell, commit; nothing here depends on the method.

An engine changes the weights, a method decides the steps, and `logbook` keeps the record.
"""

import time
from collections import Counter
from dataclasses import replace
from itertools import takewhile

from esctl.engines import Engine, Samples
from esctl.errors import RunError
from esctl.experiment.batches import batch
from esctl.experiment.experiment import Experiment, Split
from esctl.experiment.scoring import RewardedSamples, each, failures, parts
from esctl.faults import reach
from esctl.noise.moves import Round, sample_seed
from esctl.runs.directory import RunDir
from esctl.runs.files import append_lines, drop_torn_line
from esctl.runs.metrics import Metrics, Totals, all_metrics, next_metrics
from esctl.runs.notices import es_advice, notices
from esctl.runs.records import RunRecord, ScoreRecord
from esctl.runs.replay import advance, replay, usable_scores
from esctl.training.events import GenerationDone, Notice, Report
from esctl.training.logbook import Logbook, sample_record


class Training:
    """One run, from its recorded scores to its last generation.

    Everything that decides a weight is a function of the recipe and the recorded scores, so a killed process loses at
    most the candidate it was evaluating.
    """

    def __init__(self, experiment: Experiment, run: RunDir, engine: Engine, report: Report) -> None:
        self.experiment, self.recipe = experiment, experiment.recipe
        self.run, self.engine, self.report = run, engine, report
        self._sampling = experiment.sampling(self.recipe.sampling.temperature, self.recipe.sampling.top_p)
        self.method = experiment.recipe.evolution
        self.objective = experiment.objective
        self.book = Logbook(experiment, run, engine)
        self.train_split = experiment.split(experiment.recipe.task.split)
        for torn in (run.scores, run.metrics):
            if drop_torn_line(torn):
                report(Notice(f"{torn}: dropped a last line that was cut short"))
        self.scores = run.read_scores()
        history = replay(self.method, self.recipe.seed, engine.dim, self.scores, run.scores)
        self.state, self.moves, self.pending = history.state, list(history.moves), list(history.pending)
        self.totals, self.metrics = Totals(), list[Metrics]()
        recorded = self.book.record.generation
        if self.state.generation < recorded:
            raise RunError(
                f"{run.scores}: has {self.state.generation} generations, but run.json says {recorded}; restore the file"
                " from a copy, or start another run with --run"
            )
        advance(engine, run, history.moves, len(history.moves))  # from θ₀ to where the recorded scores lead

    def begin(self, now: RunRecord) -> None:
        """Record that a session runs, with what."""
        self.book.begin(now)

    def finish(self) -> RunRecord:
        """Train what is left, keep the weights that `select` asks for, and evaluate them."""
        self._rewrite_metrics()
        while self.state.generation < self.recipe.generations:
            self._evaluate_if_due()
            self._generation()
        self._evaluate_if_due()
        self._keep_weights()
        return self.book.record

    def _generation(self) -> None:
        generation = self.state.generation
        problems = batch(self.recipe.seed, generation, self.recipe.prompts, range(len(self.train_split.problems)))
        chosen = self.train_split.subset(problems)
        while self.state.generation == generation:
            records = self._round(self.method.ask(self.state), chosen)
            self.state, move = self.method.tell(self.state, usable_scores(records))
        self.engine.commit(move)
        self.moves.append(move)
        self._checkpoint_if_due()
        self._report_generation()

    def _round(self, round_: Round, chosen: Split) -> list[ScoreRecord]:
        """Evaluate the candidates that no record holds yet; each is recorded before the next begins."""
        records, self.pending = self.pending, []
        first, begun, failed = len(records), time.perf_counter(), Counter[str]()

        def on_candidate(index: int, completions: Samples) -> None:
            nonlocal begun
            member = first + index
            reach("mid-candidate")
            samples = self.experiment.reward(chosen.problems, completions)
            failed.update(failures(samples))
            now = time.perf_counter()
            score = self.objective.score(samples)
            record = _score_record(round_, member, score, samples, chosen, now - begun)
            begun = now
            self._write_sample(round_, member, samples, chosen)
            append_lines(self.run.scores, [record], sync=member + 1 == len(round_.candidates))
            records.append(record)

        rest = replace(round_, candidates=round_.candidates[first:])
        if rest.candidates:
            self.engine.rollout(rest, chosen.token_ids, self._sampling, self._seeds(chosen), on_candidate)
        self.book.count_failures(failed, len(rest.candidates) * len(chosen.problems) * self.objective.settings.n)
        self.scores += records[first:]
        return records

    def _seeds(self, chosen: Split) -> list[list[int]] | None:
        """Token-sampling seeds, n per prompt and equal for all members; none when greedy."""
        if self.recipe.sampling.temperature == 0:
            return None
        run, generation, samples = self.recipe.seed, self.state.generation, range(self.objective.settings.n)
        return [[sample_seed(run, generation, p, s) for s in samples] for p in range(len(chosen.problems))]

    def _write_sample(self, round_: Round, member: int, samples: RewardedSamples, chosen: Split) -> None:
        """One rollout per candidate, the first of a prompt, walking through them: reward hacking is seen by reading."""
        place = member % len(chosen.problems)
        sample = sample_record((round_.generation, round_.index, member), chosen, place, samples[place][0])
        append_lines(self.run.sample_file(round_.generation), [sample])

    def _checkpoint_if_due(self) -> None:
        generation, every = self.state.generation, self.recipe.checkpoint_every
        if every == 0 or generation % every:
            return
        newest = self.run.checkpoint_file(generation)
        newest.parent.mkdir(exist_ok=True)
        self.engine.save_center(newest)
        reach("mid-checkpoint")
        for old in self.run.checkpoints.glob("*.safetensors"):
            if old != newest:
                old.unlink()

    def _report_generation(self) -> None:
        done = len(self.moves) - 1
        own = list(takewhile(lambda r: r.generation == done, reversed(self.scores)))[::-1]
        self.totals, metrics = next_metrics(self.totals, own, self.moves[-1], self.engine.dim)
        self.metrics.append(metrics)
        append_lines(self.run.metrics, [metrics])
        spent = self.totals.spent
        self._record_progress()
        seconds, tokens = spent.seconds, spent.generated_tokens
        left = self.book.seconds_left(self.state.generation)
        self.report(GenerationDone(metrics, self.recipe.generations, tokens / max(seconds, 1e-9), left))
        members = sum(r.round == own[-1].round for r in own)
        for text in notices(self.metrics, es_advice(members, self.recipe.sampling.max_tokens)):
            self.report(Notice(text))

    def _record_progress(self) -> None:
        record = replace(self.book.record, generation=self.state.generation, train=self.totals.spent)
        self.book.write(replace(record, non_finite=sum(r.score is None for r in self.scores)))

    def _rewrite_metrics(self) -> None:
        """A kill can leave scores without their metrics, and uncounted in the record; both follow from the scores."""
        self.totals, self.metrics = all_metrics(self.scores, self.moves, self.engine.dim)
        self.run.metrics.unlink(missing_ok=True)
        append_lines(self.run.metrics, self.metrics)
        self._record_progress()

    def _evaluate_if_due(self) -> None:
        step = self.state.generation
        if self.book.is_due(step):
            self._evaluate(self.recipe.eval.split, self.recipe.eval.n, step)

    def _evaluate(self, split: str, n: int | None, step: int) -> None:
        spent = sum(r.rollouts for r in self.scores if r.generation < step)
        self.book.evaluate(split, n, step, spent, self.report)

    def _keep_weights(self) -> None:
        kept = self.state.generation if self.recipe.select == "last" else self.book.best_step()
        if self.book.record.kept_generation != kept or not self.run.weights.is_dir():
            self._move_engine_to(kept)
            self.engine.save(self.run.weights)
            self.book.keep(kept)
        if self.recipe.eval.final:
            self._evaluate(self.recipe.eval.final, None, kept)
        self.book.write(replace(self.book.record, status="finished", kept_generation=kept))

    def _move_engine_to(self, generation: int) -> None:
        if generation == self.state.generation:
            return
        center = self.experiment.center()
        advance(center, self.run, self.moves, generation)
        kept = self.run.checkpoint_file(generation)
        kept.parent.mkdir(exist_ok=True)
        center.save_center(kept)
        self.engine.load_center(kept)


def _score_record(
    round_: Round, member: int, score: float, samples: RewardedSamples, chosen: Split, seconds: float
) -> ScoreRecord:
    every = each(samples)
    finite = all(s.completion.finite for s in every)
    return ScoreRecord(
        generation=round_.generation,
        round=round_.index,
        member=member,
        score=score if finite else None,
        parts=parts(samples),
        rollouts=len(every),
        prompt_tokens=sum(len(ids) * len(own) for ids, own in zip(chosen.token_ids, samples, strict=True)),
        generated_tokens=sum(len(s.completion.token_ids) for s in every),
        seconds=seconds,
    )
