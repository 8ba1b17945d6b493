"""Laws of comparison: rows from files alone, seeds together, an interval on every accuracy, like with like only."""

import csv
import json
import subprocess
import sys
from dataclasses import replace

import pytest
from miniature import RECORD, evaluation, write_base, write_evals, write_run

from esctl import tables
from esctl.compare import compare
from esctl.errors import RunError, UsageError
from esctl.records import Mode, TaskRecord
from esctl.rundir import RunDir
from esctl.stats import mcnemar, over_seeds, wilson

SEVEN = [1] * 7 + [0] * 3
NINE = [1] * 9 + [0]
TIMED = """
import sys, time
from pathlib import Path
from esctl.compare import compare
from esctl.rundir import find_runs
from esctl.tables import terminal
begun = time.process_time()
terminal(compare(find_runs([Path(sys.argv[1])]), "test"))
print(time.process_time() - begun, "torch" in sys.modules)
"""


def test_runs_that_differ_in_seed_only_are_one_row(tmp_path):
    runs = [write_run(tmp_path / f"es{s}", evaluation([1] * (6 + s) + [0] * (4 - s)), seed=s) for s in range(3)]
    runs += [write_run(tmp_path / "essam", evaluation(NINE), method="essam")]
    runs += [write_run(tmp_path / "longer", evaluation(NINE), label="ES longer")]
    found = compare(runs, "test")
    assert [(r.label, r.seeds) for r in found.rows] == [("ES", 3), ("ESSAM", 1), ("ES longer", 1)]
    assert found.rows[0].strict.value == pytest.approx(0.7)
    assert found.rows[0].strict_sd == pytest.approx(0.1)
    assert (found.task, found.problems) == ("arithmetic v1", 10)


def test_a_directory_name_says_nothing(tmp_path):
    found = compare([write_run(tmp_path / "grpo-gsm8k-s7", evaluation(SEVEN))], "test")
    assert found.rows[0].label == "ES"


def test_the_interval_is_over_problems_and_with_three_seeds_the_wider_of_both(tmp_path):
    one = compare([write_run(tmp_path / "a", evaluation(SEVEN))], "test").rows[0]
    assert one.strict == wilson(7, 10)
    many = [1] * 700 + [0] * 300, [1] * 800 + [0] * 200, [1] * 900 + [0] * 100
    runs = [write_run(tmp_path / f"b{s}", evaluation(right), seed=s) for s, right in enumerate(many)]
    wide = compare(runs, "test").rows[0].strict
    assert wide.low == pytest.approx(over_seeds([0.7, 0.8, 0.9]).low)
    assert wide.high == 1.0  # Student's t ends above 1, an accuracy does not


def test_fewer_than_three_seeds_are_said_and_so_is_a_seed_twice(tmp_path):
    runs = [write_run(tmp_path / f"a{i}", evaluation(SEVEN), seed=0) for i in range(2)]
    assert compare(runs, "test").notes == (
        "ES: a seed is there twice, so the interval is too narrow",
        "ES: fewer than 3 seeds, intervals are conditional on these runs",
    )


def test_gain_and_mcnemar_are_against_the_base_that_the_run_started_from(tmp_path):
    base = write_base(tmp_path / "base", evaluation(SEVEN, step=0))
    other = write_base(tmp_path / "other", evaluation([0] * 10, step=0), weights="another")
    write_run(tmp_path / "run", evaluation(NINE))
    rows = compare([RunDir(other.path), RunDir(base.path), RunDir(tmp_path / "run")], "test", force=True).rows
    run = rows[-1]
    assert run.gain == pytest.approx(0.2)
    assert run.p_value == mcnemar(NINE, SEVEN)
    assert [r.gain for r in rows[:-1]] == [None, None]


def test_without_its_base_a_row_claims_no_gain(tmp_path):
    row = compare([write_run(tmp_path / "run", evaluation(NINE))], "test").rows[0]
    assert (row.gain, row.p_value) == (None, None)


def test_the_evaluation_of_the_kept_weights_stands_for_a_run(tmp_path):
    run = write_run(tmp_path / "run", evaluation(NINE, step=10), evaluation(SEVEN, step=20))
    assert compare([run], "test").rows[0].strict.value == 0.9
    run.write_record(replace(RECORD, kept_generation=None))
    assert compare([run], "test").rows[0].strict.value == 0.7  # not finished: the newest so far


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"task": TaskRecord("arithmetic", 2)}, "task"),
        ({"prompt_sha256": "other"}, "prompt_sha256"),
        ({"problems_sha256": "other"}, "problems_sha256"),
        ({"sampling": replace(evaluation(SEVEN).sampling, max_tokens=32)}, "sampling"),
    ],
)
def test_what_differs_in_kind_is_refused_by_its_field_or_printed_under_a_banner(change, field, tmp_path):
    runs = [
        write_run(tmp_path / "a", evaluation(SEVEN)),
        write_run(tmp_path / "b", replace(evaluation(NINE), **change), method="essam"),
    ]
    with pytest.raises(UsageError) as error:
        compare(runs, "test")
    assert str(error.value).startswith(f"not comparable: {field} is ")
    assert str(error.value).endswith("; evaluate them alike, or print anyway with --force")
    forced = compare(runs, "test", force=True)
    assert forced.notes[0].startswith(f"NOT COMPARABLE: {field} is ")
    assert "NOT COMPARABLE" in tables.terminal(forced)
    assert "NOT COMPARABLE" in tables.markdown(forced)


def test_only_greedy_evaluations_of_the_split_count(tmp_path):
    greedy = evaluation(SEVEN)
    sampled = replace(evaluation(NINE), sampling=replace(greedy.sampling, temperature=1.0))
    perturbed = replace(evaluation(NINE), mode=Mode("weight", 0.01))
    elsewhere = evaluation(NINE, split="validation")
    run = write_run(tmp_path / "run", greedy, sampled, perturbed, elsewhere)
    assert compare([run], "test").rows[0].strict.value == 0.7
    with pytest.raises(RunError) as error:
        compare([run], "train")
    way_out = f"make one with `esctl eval {run.path} --split train`"
    assert str(error.value) == f"{run.path}: no greedy evaluation on train; {way_out}"


def test_a_model_trained_elsewhere_joins_with_two_files(tmp_path):
    run = RunDir(tmp_path / "grpo")
    run.write_record(replace(RECORD, label="GRPO", method="external"))
    write_evals(run, evaluation(NINE))
    assert [r.label for r in compare([run, write_run(tmp_path / "es", evaluation(SEVEN))], "test").rows] == [
        "GRPO",
        "ES",
    ]


def test_a_damaged_recipe_is_named(tmp_path):
    run = write_run(tmp_path / "run", evaluation(SEVEN))
    for text in ("", "a: ["):
        run.recipe.write_text(text)
        with pytest.raises(RunError, match=r"recipe\.yaml: not a recipe; restore it"):
            compare([run], "test")


def test_every_format_holds_the_same_rows(tmp_path):
    runs = [write_base(tmp_path / "base", evaluation(SEVEN, step=0)), write_run(tmp_path / "run", evaluation(NINE))]
    found = compare(runs, "test")
    rows = list(csv.DictReader(tables.csv_text(found).splitlines()))
    assert [r["label"] for r in rows] == ["base", "ES"]
    assert float(rows[1]["strict"]) == 0.9
    assert float(rows[1]["strict_low"]) == wilson(9, 10).low
    assert (rows[0]["gain"], rows[1]["rollouts"]) == ("", "640.0")
    tree = json.loads(tables.json_text(found))
    assert tree["rows"][1]["strict"] == {"value": 0.9, "low": wilson(9, 10).low, "high": wilson(9, 10).high}
    lines = tables.markdown(found).splitlines()
    assert lines[0] == "arithmetic v1, test split, 10 problems, greedy"
    assert {line.count("|") for line in lines if line.startswith("|")} == {len(tables.HEADERS) + 1}
    assert lines[5].startswith("| ES | 1 | 90.0 (59.6–98.2) | 90.0 | 100.0 | +20.0 | 0.5 | 640 | 12,800 | 20 | 1.50 |")
    table = tables.terminal(found).splitlines()
    assert len({len(line) for line in table[1:7]}) == 1


def test_sixty_runs_take_under_a_second_and_no_torch(tmp_path):
    for kind in ("es", "essam", "essam-f"):
        for seed in range(20):
            write_run(tmp_path / f"{kind}{seed}", evaluation([1, 0] * 650), seed=seed, method=kind)
    done = subprocess.run([sys.executable, "-c", TIMED, str(tmp_path)], capture_output=True, text=True, check=True)
    seconds, torch = done.stdout.split()
    assert float(seconds) < 1
    assert torch == "False"
