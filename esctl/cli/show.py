"""`esctl show`: what a run did, as text, with stored rollouts to read; of a folder, its runs in one line each."""

from collections.abc import Sequence

from esctl.cli.progress import duration, eval_line
from esctl.comparison.tables import aligned
from esctl.errors import RunError, UsageError
from esctl.plain import one_line
from esctl.runs.directory import RunDir
from esctl.runs.files import read_lines
from esctl.runs.records import BASE, RunRecord, SampleRecord, is_greedy, strict_share

MEBI = 2**20


def run_list(runs: Sequence[RunDir]) -> str:
    """One line per run; a damaged one is named with what is wrong, and hides no other."""
    rows = [["run", "label", "method", "status", "generation", "strict %"]]
    problems = list[str]()
    for run in runs:
        try:
            record = run.read_record()
            cells = [record.label, record.method, record.status, f"{record.generation}", _last_score(run)]
        except RunError as error:
            problems.append(str(error))
            cells = ["", "", "unreadable", "", ""]
        rows.append([one_line(cell) for cell in (str(run.path), *cells)])
    return "\n".join([*(line.rstrip() for line in aligned(rows, left=4)), *problems])


def _last_score(run: RunDir) -> str:
    """Strict accuracy of the newest greedy evaluation; of equal ones the one with most problems."""
    greedy = [e for e in run.read_evals() if is_greedy(e)]
    if not greedy:
        return "not evaluated"
    last = max(greedy, key=lambda e: (e.step, len(e.problems.id)))
    return f"{last.task.name} {last.split} {100 * strict_share(last):.1f}"


def story(run: RunDir, generation: int | None, wrong: bool, n: int) -> str:
    """State and cost, evaluations in order, then n rollouts of a generation."""
    record = run.read_record()
    evals = sorted(run.read_evals(), key=lambda e: (e.task.name, e.split, e.step))
    parts = [summary(run, record), *(f"  {eval_line(e)}" for e in evals)]
    if n > 0 and run.samples.is_dir():
        parts += ["", *(sample_text(s) for s in chosen_samples(run, generation, wrong)[:n])]
    return "\n".join(parts)


def summary(run: RunDir, record: RunRecord) -> str:
    """Who, what, how far and at what cost."""
    cost, peak = record.train, record.peak_bytes
    lines = [
        f"{run.path}: {record.label} ({record.method}) on {record.base.name}, seed {record.seed}, {record.status}",
        f"  {record.generation} generations, {cost.rollouts:,} rollouts, {cost.generated_tokens:,} tokens,"
        f" {duration(cost.seconds)}, {cost.flops:.1e} FLOPs",
        f"  peak MiB: {peak.host / MEBI:,.0f} host, {peak.device / MEBI:,.0f} device, {peak.kv / MEBI:,.0f} KV cache",
        f"  {record.engine}",
    ]
    if record.method != BASE and run.weights.exists():
        lines.append(f"  weights/ holds generation {record.kept_generation}")
    if record.grader_failures:
        lines.append(f"  grader failures: {', '.join(f'{n} {cause}' for cause, n in record.grader_failures.items())}")
    return "\n".join(lines)


def chosen_samples(run: RunDir, generation: int | None, wrong: bool) -> list[SampleRecord]:
    """The stored rollouts of a generation, the last by default."""
    files = {int(p.stem): p for p in run.samples.glob("*.jsonl") if p.stem.isdecimal()}
    if not files:
        raise RunError(f"{run.path}: no rollouts are stored yet; train on with `esctl train --resume --run {run.path}`")
    place = max(files) if generation is None else generation
    if place not in files:
        raise UsageError(f"--generation {place}: {run.path} has rollouts of {min(files)} to {max(files)}")
    return [s for s in read_lines(files[place], SampleRecord) if not (wrong and s.strict)]


def sample_text(sample: SampleRecord) -> str:
    """One rollout with its verdict."""
    verdict = "right" if sample.strict else "right by the last number only" if sample.flexible else "wrong"
    marks = [verdict, *(["cut off"] if sample.truncated else []), *([] if sample.formatted else ["not in the format"])]
    place = f"generation {sample.generation}, round {sample.round}, member {sample.member}, {sample.problem}"
    head = f"── {place}: {', '.join(marks)}, reward {sample.reward:g}, gold {sample.gold}"
    return f"{head}\n{sample.prompt}{sample.completion}\n"
