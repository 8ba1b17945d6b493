"""Laws of choosing what is compared: nothing damaged is skipped, nothing unlike stands together, costs are equal."""

import json
from dataclasses import replace

import pytest
from miniature import RECORD, evaluation, sampled, sharpness, write_base, write_evals, write_run, write_scores

from esctl.comparison.compare import CompareOptions, compare
from esctl.comparison.selection import Request
from esctl.comparison.tables import markdown, terminal
from esctl.errors import EsctlError, RunError, UsageError
from esctl.runs.directory import RunDir, find_runs
from esctl.runs.files import write_json
from esctl.runs.records import Cost, Mode, TaskRecord

SEVEN = [1] * 7 + [0] * 3
NINE = [1] * 9 + [0]
GREEDY = evaluation(SEVEN).sampling


def strict(*runs: RunDir, **request: object) -> list[float]:
    return [row.strict.value for row in compare(runs, CompareOptions(Request(**request))).rows]


def refusal(runs, wanted: CompareOptions = CompareOptions()) -> list[str]:
    with pytest.raises(EsctlError) as error:
        compare(runs, wanted)
    return str(error.value).splitlines()


def test_the_evaluation_of_the_kept_weights_stands_for_a_run(tmp_path):
    run = write_run(tmp_path / "run", evaluation(NINE, step=10), evaluation(SEVEN, step=20))
    assert strict(run) == [0.9]
    run.write_record(replace(RECORD, kept_generation=None))
    assert strict(run) == [0.7]  # not finished: the newest so far
    run.write_record(replace(RECORD, kept_generation=15))
    note = f"{run.path}: no such evaluation of generation 15, whose weights it keeps; 20 is used"
    assert note in compare([run], CompareOptions()).notes


def test_at_equal_cost_each_run_gives_its_last_evaluation_within_the_limit(tmp_path):
    evals = [replace(evaluation([1] * n + [0] * (10 - n), step=n), rollouts_spent=64 * n) for n in (0, 3, 5, 9)]
    run = write_run(tmp_path / "run", *evals)
    write_scores(run, 10)
    base = write_base(tmp_path / "base", replace(evaluation(SEVEN, step=0), rollouts_spent=0))
    found = compare([base, run], CompareOptions(Request(at=64 * 6)))
    assert [(r.strict.value, r.rollouts, r.generated_tokens, r.seconds) for r in found.rows] == [
        (0.7, 0, 0, 0), (0.5, 320, 6400, 10.0),
    ]  # fmt: skip
    assert found.rows[1].flops == 2 * 1000 * 5 * (640 + 1280)
    assert "at most 384 training rollouts" in terminal(found)
    untrained = "evaluated within 100 rollouts only before training; the row is its base"
    assert f"{run.path}: {untrained}" in compare([base, run], CompareOptions(Request(at=100))).notes
    late = write_run(tmp_path / "late", evals[-1], method="essam")
    assert refusal([base, run, late], CompareOptions(Request(at=100))) == [
        f"{late.path}: no greedy evaluation on test within 100 rollouts; evaluate an earlier generation with --step"
    ]


def test_costs_that_no_file_tells_are_left_out(tmp_path):
    run = write_run(tmp_path / "run", replace(evaluation(SEVEN, step=5), rollouts_spent=320))
    [row] = compare([run], CompareOptions(Request(at=400))).rows
    assert (row.rollouts, row.generated_tokens, row.flops, row.seconds) == (320, None, None, None)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"task": TaskRecord("arithmetic", 2)}, "task.version is 1"),
        ({"prompt_sha256": "other"}, "the prompts differ: prompt_sha256 is prompt"),
        ({"problems_sha256": "other"}, "problems_sha256 is test-pro"),
        ({"sampling": replace(GREEDY, max_tokens=32)}, "sampling.max_tokens is 64"),
    ],
)
def test_what_differs_in_kind_is_refused_by_field_values_and_runs_or_printed_under_a_banner(change, told, tmp_path):
    runs = [
        write_run(tmp_path / "a", evaluation(SEVEN)),
        write_run(tmp_path / "b", replace(evaluation(NINE), **change), method="essam"),
    ]
    [line] = refusal(runs)
    assert line.startswith(f"not comparable: {told} in {runs[0].path} but ")
    assert f" in {runs[1].path}" in line
    assert line.endswith("; evaluate them alike, or print anyway with --force")
    forced = compare(runs, CompareOptions(force=True))
    assert forced.differences[0].startswith(told)
    assert terminal(forced).startswith("NOT COMPARABLE: ")
    assert markdown(forced).startswith("NOT COMPARABLE: ")


def test_two_runs_that_differ_in_prompt_only_are_refused_naming_what_was_changed_in_it(tmp_path):
    runs = [write_run(tmp_path / "a", evaluation(SEVEN))]
    runs += [write_run(tmp_path / "b", replace(evaluation(NINE), prompt_sha256="other"))]
    runs[1].recipe.write_text(runs[1].recipe.read_text().replace("shots: 0", "shots: 4"))
    [line] = refusal(runs)
    assert line.startswith("not comparable: the prompts differ: ")
    assert "(prompt.shots 0 or 4)" in line


def test_a_missing_evaluation_is_asked_for_with_as_many_problems_as_the_others_have(tmp_path):
    tuned = write_run(tmp_path / "tuned", evaluation(SEVEN, split="validation"))
    base = write_base(tmp_path / "my base", evaluation(NINE, step=0))
    what = f"{base.path}: no greedy evaluation on validation"
    command = f"`esctl eval '{base.path}' --split validation -n 10`"
    assert refusal([base, tuned], CompareOptions(Request("validation"))) == [f"{what}; make one with {command}"]


def test_other_numbers_of_problems_are_refused_with_the_number_that_makes_them_equal(tmp_path):
    whole = replace(evaluation([1] * 12, split="validation"), problems_sha256="1" * 64)
    part = replace(evaluation(SEVEN, split="validation"), problems_sha256="2" * 64)
    runs = [write_run(tmp_path / "a", whole), write_run(tmp_path / "b", part, method="essam")]
    [line] = refusal(runs, CompareOptions(Request("validation")))
    assert "12 problems and 10: give `esctl eval` of the larger `--split validation -n 10`" in line
    assert "1" * 9 not in line  # the first digits of a hash are enough for a person


def test_samplings_that_no_two_runs_share_are_refused(tmp_path):
    runs = [write_run(tmp_path / "a", evaluation([1]), sampled([2], 8))]
    runs += [write_run(tmp_path / "b", evaluation([1]), sampled([2], 8, temperature=1.0), method="essam")]
    assert refusal(runs)[0].startswith("not comparable: pass@k: sampling.temperature is 0.6 in ")


def test_sharpness_on_other_problems_is_refused(tmp_path):
    runs = [write_run(tmp_path / "a", evaluation(SEVEN)), write_run(tmp_path / "b", evaluation(SEVEN), method="essam")]
    write_json(runs[0].sharpness / "s.json", sharpness([0.1, 0.2]))
    write_json(runs[1].sharpness / "s.json", replace(sharpness([0.1, 0.2]), problems_sha256="other"))
    assert refusal(runs)[0].startswith("not comparable: sharpness: problems_sha256 is test-pro in ")


def test_equal_hashes_of_other_problems_are_refused(tmp_path):
    other = evaluation(SEVEN)
    other = replace(other, problems=replace(other.problems, id=[f"q{i}" for i in range(10)]))
    runs = [write_run(tmp_path / "a", evaluation(SEVEN)), write_run(tmp_path / "b", other, method="essam")]
    assert "problems.id differ between" in refusal(runs)[0]
    assert compare(runs, CompareOptions(force=True)).pairs == ()


def test_of_several_evaluations_the_one_that_all_have_with_most_problems_is_compared(tmp_path):
    few = replace(evaluation([1, 1]), problems_sha256="few")
    whole, extra = evaluation(SEVEN), replace(evaluation([1] * 12), problems_sha256="extra")
    a = write_run(tmp_path / "a", whole, few, extra)
    b = write_run(tmp_path / "b", few, evaluation(NINE), method="essam")
    assert strict(a, b) == [0.7, 0.9]
    assert (
        f"{a.path}: 3 evaluations fit; 10 problems, 64 tokens, prompt prompt is compared"
        in compare([a, b], CompareOptions()).notes
    )


def test_only_evaluations_of_the_split_and_task_count_and_greedy_ones_first(tmp_path):
    perturbed = replace(evaluation(NINE), mode=Mode("weight", 0.01))
    elsewhere = evaluation(NINE, split="validation")
    run = write_run(tmp_path / "run", evaluation(SEVEN), sampled([8] * 10, 8), perturbed, elsewhere)
    assert strict(run) == [0.7]
    assert strict(run, split="validation") == [0.9]
    way_out = f"make one with `esctl eval {run.path} --split train`"
    assert refusal([run], CompareOptions(Request("train"))) == [f"{run.path}: no greedy evaluation on train; {way_out}"]
    write_evals(run, evaluation(SEVEN), replace(evaluation(NINE), task=TaskRecord("gsm8k", 1)))
    assert refusal([run]) == ["runs hold evaluations of several tasks (arithmetic, gsm8k); choose one with --task"]
    assert strict(run, task="gsm8k") == [0.9]


def test_where_nothing_is_greedy_the_sampled_mean_is_compared_and_said_so(tmp_path):
    found = compare([write_run(tmp_path / "run", sampled([2, 4], 8))], CompareOptions())
    assert (found.rows[0].strict.value, found.sampling) == (3 / 8, "temperature 0.6, top-p 0.95")


def test_two_directories_of_one_untrained_model_are_one_row(tmp_path):
    one = write_base(tmp_path / "one", evaluation(SEVEN, step=0))
    two = write_base(tmp_path / "two", sampled([8] * 10, 8, step=0))
    [row] = compare([one, two], CompareOptions(ks=(1,))).rows
    assert (row.seeds, row.strict.value, row.pass_at["pass@1"].value) == (1, 0.7, 1.0)


def test_every_damaged_file_is_named_and_none_is_skipped(tmp_path):
    for name in "abcdefg":
        write_run(tmp_path / name, evaluation(SEVEN), evaluation(NINE, step=5))
    tree = json.loads((tmp_path / "c/evals/0.json").read_text())
    (tmp_path / "a/run.json").write_text('{"label": ')
    (tmp_path / "b/evals/1.json").write_text("")
    (tmp_path / "c/evals/0.json").write_text(json.dumps(tree | {"schema": 9}))
    (tmp_path / "d/evals/0.json").write_text(json.dumps({k: v for k, v in tree.items() if k != "step"}))
    (tmp_path / "e/evals/0.json").write_text(json.dumps(tree | {"problems": tree["problems"] | {"strict": [1]}}))
    (tmp_path / "f/recipe.yaml").write_text("a: [")
    (tmp_path / "g/sharpness").mkdir()
    (tmp_path / "g/sharpness/s.json").write_text("[]")
    lines = refusal(find_runs([tmp_path]))
    starts = [line.removeprefix(f"{tmp_path}/").split(": ")[:2] for line in lines]
    assert [start[0] for start in starts] == [
        "a/run.json", "b/evals/1.json", "c/evals/0.json", "d/evals/0.json", "e/evals/0.json", "f/recipe.yaml",
        "g/sharpness/s.json",
    ]  # fmt: skip
    assert [start[1] for start in starts[2:5]] == [
        "schema 9, but this esctl reads 1; use the esctl that wrote it", "step", "problems.strict",
    ]  # fmt: skip


def test_a_folder_without_its_run_json_is_named(tmp_path):
    write_run(tmp_path / "whole", evaluation(SEVEN))
    write_run(tmp_path / "half", evaluation(SEVEN)).record.unlink()
    with pytest.raises(RunError) as error:
        find_runs([tmp_path, tmp_path / "none"])
    assert str(error.value).splitlines() == [
        f"{tmp_path}/half: run.json is missing; restore it, or move the folder away",
        f"{tmp_path}/none: no run directory here (nothing below it holds a run.json)",
    ]


def test_an_interrupted_evaluation_is_said(tmp_path):
    run = write_run(tmp_path / "run", evaluation(SEVEN))
    (run.evals / "x.part.jsonl").write_text("{}\n")
    assert any(
        "an evaluation that was interrupted is left out" in note for note in compare([run], CompareOptions()).notes
    )


def test_an_untrained_model_has_spent_nothing(tmp_path):
    base = write_base(tmp_path / "base", replace(evaluation(SEVEN, step=0), rollouts_spent=0))
    assert base.read_record().train == Cost()
    assert strict(base, at=0) == [0.7]
    assert UsageError.exit_code == 2


@pytest.mark.parametrize(
    "links", [{"runs/es": "scratch/es"}, {"runs/more": "scratch"}, {"runs/a": "b", "b": "scratch"}]
)
def test_runs_behind_links_are_compared(links, tmp_path):
    write_base(tmp_path / "runs/base", evaluation(SEVEN, step=0))
    write_run(tmp_path / "scratch/es", evaluation(NINE))
    for name, target in links.items():
        (tmp_path / name).symlink_to(tmp_path / target)
    assert sorted(strict(*find_runs([tmp_path / "runs"]))) == [0.7, 0.9]


def test_a_run_that_is_reached_twice_is_one_run_and_loops_end(tmp_path):
    write_run(tmp_path / "runs/es", evaluation(NINE))
    (tmp_path / "runs/again").symlink_to("es")
    (tmp_path / "runs/above").symlink_to(tmp_path)
    (tmp_path / "runs/es/loop").symlink_to(tmp_path / "runs")
    assert len(find_runs([tmp_path / "runs", tmp_path, tmp_path / "runs/again"])) == 1


def test_a_dead_link_among_runs_is_named_and_one_within_a_run_is_its_own_affair(tmp_path):
    run = write_run(tmp_path / "runs/es", evaluation(NINE))
    run.weights.symlink_to(tmp_path / "gone")
    assert len(find_runs([tmp_path / "runs"])) == 1
    (tmp_path / "runs/essam").symlink_to(tmp_path / "unmounted")
    with pytest.raises(RunError, match=r"essam: a link to nothing .*unmounted.; mount it, or remove the link"):
        find_runs([tmp_path / "runs"])


def test_a_link_to_half_a_run_is_named(tmp_path):
    write_run(tmp_path / "scratch/half", evaluation(SEVEN)).record.unlink()
    write_run(tmp_path / "runs/es", evaluation(SEVEN))
    (tmp_path / "runs/half").symlink_to(tmp_path / "scratch/half")
    with pytest.raises(RunError, match=r"runs/half: run\.json is missing"):
        find_runs([tmp_path / "runs"])


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "-1", "1" + "0" * 400], ids=["nan", "infinite", "negative", "huge"]
)
@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("run.json", "train.seconds"),
        ("run.json", "train.rollouts"),
        ("run.json", "peak_bytes.host"),
        ("evals/0.json", "cost.flops"),
    ],
)
def test_a_number_that_no_run_can_have_is_named_with_its_file_and_key(file, key, value, tmp_path):
    path = write_run(tmp_path / "run", evaluation(SEVEN)).path / file
    tree = json.loads(path.read_text())
    section, name = key.split(".")
    tree[section][name] = "HERE"
    path.write_text(json.dumps(tree).replace('"HERE"', value))
    [line] = refusal([RunDir(tmp_path / "run")])
    assert line.startswith(f"{path}: {key}: ")
