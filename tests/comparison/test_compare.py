"""Laws of comparison: rows from files alone, seeds together, an interval on every estimate, pairs on equal problems."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest
from miniature import RECORD, evaluation, sampled, sharpness, write_base, write_evals, write_run

from esctl.comparison.compare import CompareOptions, Comparison
from esctl.comparison.compare import compare as compare_runs
from esctl.comparison.selection import Request
from esctl.errors import UsageError
from esctl.evaluation.coverage import passk_report
from esctl.runs.directory import RunDir
from esctl.runs.files import write_json
from esctl.runs.records import Cost, Peak
from esctl.stats import mcnemar, pass_at_k, wilson

SEVEN = [1] * 7 + [0] * 3
NINE = [1] * 9 + [0]
TIMED = """
import sys, time
from pathlib import Path
begun = time.process_time()
from esctl.comparison.compare import CompareOptions, compare
from esctl.runs.directory import find_runs
from esctl.comparison.tables import terminal
terminal(compare(find_runs([Path(sys.argv[1])]), CompareOptions()))
heavy = [name for name in ("torch", "vllm", "scipy", "matplotlib") if name in sys.modules]
print(time.process_time() - begun, *heavy)
"""


def compare(runs: Sequence[RunDir], *ks: int, force: bool = False) -> Comparison:
    return compare_runs(runs, CompareOptions(Request("test"), ks, force=force))


def three_seeds(tmp_path, method: str, right: Sequence[Sequence[int]]) -> list[RunDir]:
    return [write_run(tmp_path / f"{method}{s}", evaluation(r), seed=s, method=method) for s, r in enumerate(right)]


def test_runs_that_differ_in_seed_only_are_one_row(tmp_path):
    runs = three_seeds(tmp_path, "es", [[1] * (6 + s) + [0] * (4 - s) for s in range(3)])
    runs += [write_run(tmp_path / "essam", evaluation(NINE), method="essam")]
    runs += [write_run(tmp_path / "longer", evaluation(NINE), label="ES longer")]
    found = compare(runs)
    assert [(r.label, r.seeds) for r in found.rows] == [("ES", 3), ("ESSAM", 1), ("ES longer", 1)]
    assert found.rows[0].strict.value == pytest.approx(0.7)
    assert found.rows[0].strict_sd == pytest.approx(0.1)
    assert (found.task, found.problems, found.sampling) == ("arithmetic v1", 10, "greedy")


def test_a_directory_name_says_nothing(tmp_path):
    assert compare([write_run(tmp_path / "grpo-gsm8k-s7", evaluation(SEVEN))]).rows[0].label == "ES"


def test_rows_of_one_label_are_told_apart_by_what_differs(tmp_path):
    runs = [write_run(tmp_path / "a", evaluation(SEVEN)), write_run(tmp_path / "b", evaluation(NINE))]
    runs[1].recipe.write_text(runs[1].recipe.read_text().replace("sigma: 0.015", "sigma: 0.02"))
    labels = [row.label for row in compare(runs).rows]
    assert labels == ["ES [method.sigma=0.015]", "ES [method.sigma=0.02]"]


def test_one_run_has_wilsons_interval_and_three_seeds_widen_theirs_by_how_they_differ(tmp_path):
    assert compare([write_run(tmp_path / "one", evaluation(SEVEN))]).rows[0].strict == wilson(7, 10)
    alike = compare(three_seeds(tmp_path, "es", [[1] * 800 + [0] * 200] * 3)).rows[0].strict
    assert (alike.low, alike.high) == pytest.approx((wilson(800, 1000).low, wilson(800, 1000).high))
    apart = (
        compare(three_seeds(tmp_path, "essam", [[1] * n + [0] * (1000 - n) for n in (700, 800, 900)])).rows[0].strict
    )
    half_over_seeds = 4.303 * 0.1 / 3**0.5
    assert apart.value - apart.low > half_over_seeds
    assert apart.high == 1.0  # Student's t ends above 1, an accuracy does not


def test_few_seeds_and_a_seed_twice_are_said(tmp_path):
    runs = [write_base(tmp_path / "base", evaluation(SEVEN, step=0))]
    runs += [write_run(tmp_path / f"a{i}", evaluation(SEVEN), seed=0) for i in range(2)]
    assert compare(runs).notes == (
        "ES: two runs have the same seed, so the interval is too narrow",
        "ES: fewer than 3 seeds, intervals are conditional on these runs",
    )


def test_gain_is_against_the_base_that_the_run_started_from(tmp_path):
    other = write_base(tmp_path / "other", evaluation([0] * 10, step=0), weights="another")
    base = write_base(tmp_path / "base", evaluation(SEVEN, step=0))
    rows = compare([other, base, write_run(tmp_path / "run", evaluation(NINE))]).rows
    assert [row.label for row in rows] == ["base [base another]", "base [base base-wei]", "ES"]
    assert [row.gain for row in rows[:2]] == [None, None]
    assert rows[2].gain.value == pytest.approx(0.2)
    assert (rows[2].progressions, rows[2].regressions) == (2, 0)
    assert rows[2].p_value == mcnemar(NINE, SEVEN)


def test_a_gain_does_not_depend_on_the_order_of_rows(tmp_path):
    base = write_base(tmp_path / "base", evaluation([1] * 8 + [0] * 12, step=0))
    run = write_run(tmp_path / "run", evaluation([0, 0] + [1] * 14 + [0] * 4))
    after, before = compare([base, run]).rows[1], compare([run, base]).rows[0]
    assert (after.progressions, after.regressions) == (before.progressions, before.regressions) == (8, 2)
    one, other = after.gain, before.gain
    assert other.low < other.value < other.high
    assert (one.value, one.low, one.high) == pytest.approx((other.value, other.low, other.high), abs=0.05)


def test_without_its_base_a_row_claims_no_gain_and_says_so(tmp_path):
    run = write_run(tmp_path / "run", evaluation(NINE))
    found = compare([run])
    assert (found.rows[0].gain, found.rows[0].p_value) == (None, None)
    command = f"`esctl eval embedded --split test --recipe {run.recipe} -n 10`"
    assert found.notes[0] == f"ES: no row for its base, so no gain; {command} makes one"
    run.recipe.unlink()
    assert "`esctl eval embedded --split test --task arithmetic -n 10` makes one" in compare([run]).notes[0]


def test_gains_can_be_held_against_another_run_of_the_same_base(tmp_path):
    essam = write_run(tmp_path / "essam", evaluation(SEVEN), method="essam")
    run = write_run(tmp_path / "es", evaluation(NINE))
    found = compare_runs([run], CompareOptions(base=essam))
    assert [(r.label, r.gain and round(r.gain.value, 3)) for r in found.rows] == [("ESSAM", None), ("ES", 0.2)]
    alien = write_base(tmp_path / "alien", evaluation(SEVEN, step=0), weights="another")
    with pytest.raises(UsageError, match="starts from weights another, as no run here does; leave it out"):
        compare_runs([run], CompareOptions(base=alien))


def test_every_pair_is_tested_on_its_problems_the_later_minus_the_earlier(tmp_path):
    right = [[1] * 8 + [0] * 2] * 3
    runs = [write_base(tmp_path / "base", evaluation(SEVEN, step=0)), *three_seeds(tmp_path, "es", right)]
    runs += [write_run(tmp_path / "essam", evaluation([0, *NINE[1:]]), method="essam")]
    pairs = {(p.row, p.against): p for p in compare(runs).pairs}
    assert [*pairs] == [("ES", "base"), ("ESSAM", "base"), ("ESSAM", "ES")]
    assert [p.over for p in pairs.values()] == ["problems and seeds", "problems", "problems"]
    assert [p.p_value is None for p in pairs.values()] == [True, False, True]
    last = pairs["ESSAM", "ES"]
    assert (last.difference.value, last.won, last.lost) == (pytest.approx(0.0), 1, 1)
    assert last.difference.low < 0 < last.difference.high


def test_progressions_are_the_mean_over_pairs_of_runs(tmp_path):
    runs = [write_base(tmp_path / "base", evaluation([1, 0, 0, 0], step=0))]
    runs += three_seeds(tmp_path, "es", [[1, 1, 0, 0], [0, 1, 1, 0], [1, 1, 1, 0]])
    row = compare(runs).rows[1]
    assert (row.progressions, row.regressions) == (pytest.approx(5 / 3), pytest.approx(1 / 3))


def test_pass_at_k_is_the_unbiased_mean_in_a_column_per_k(tmp_path):
    base = write_base(tmp_path / "base", evaluation([0, 1], step=0), sampled([0, 4], 8, step=0))
    run = write_run(tmp_path / "run", evaluation([1, 1]), sampled([2, 16], 16))
    found = compare([base, run], 1, 4)
    assert found.columns == ("pass@1", "pass@4")
    assert found.rows[1].pass_at["pass@4"].value == pytest.approx((pass_at_k(16, 2, 4) + 1) / 2)
    gap = (pass_at_k(16, 2, 4) + 1 - pass_at_k(8, 4, 4)) / 2
    [pair] = [p for p in found.pairs if p.metric == "pass@4"]
    assert pair.difference.value == pytest.approx(gap)
    assert "pass@k: temperature 0.6, top-p 0.95, 2 problems, 8 to 16 samples of each" in found.notes
    with pytest.raises(UsageError, match=r"--k 9: .*base has 8 samples per problem; give 1 to 8"):
        compare([base, run], 9)
    assert compare([base, run]).columns == ("pass@1", "pass@8")
    assert "pass@8 of 8 samples is right or wrong for each problem; draw more than k" in compare([base, run]).notes


def test_samplings_that_all_runs_share_have_columns_of_their_own(tmp_path):
    cold, hot = sampled([2, 3], 8), sampled([1, 4], 8, temperature=1.0)
    runs = [write_run(tmp_path / "a", evaluation([1, 1]), cold, hot)]
    runs += [write_run(tmp_path / "b", evaluation([1, 1]), hot, method="essam")]
    assert compare(runs, 1).columns == ("pass@1",)
    assert compare(runs, 1).rows[0].pass_at["pass@1"].value == pytest.approx(5 / 16)
    assert compare(runs[:1], 1).columns == ("pass@1 (T = 0.6)", "pass@1 (T = 1)")


def test_pass_at_k_has_the_interval_that_the_passk_command_prints(tmp_path):
    many = sampled([1, 2] * 50, 8)  # nearly independent answers: what they are worth is bounded by draws of k
    run = write_run(tmp_path / "r", evaluation([1] * 100), many)
    for k in (1, 4, 8):
        [point] = passk_report("r", many, [k]).passk
        assert compare([run], k).rows[0].pass_at[f"pass@{k}"] == point.strict


def test_sharpness_of_fewer_directions_is_compared_on_those_that_all_have(tmp_path):
    runs = [write_run(tmp_path / f"r{seed}", evaluation(SEVEN), seed=seed) for seed in range(2)]
    for run, drops in zip(runs, ([0.1, 0.3], [0.1, 0.3, 0.8]), strict=True):
        write_json(run.sharpness / "s.json", sharpness(drops, (0.01,)))
    [row] = compare(runs).rows
    assert row.sharpness.value == pytest.approx(0.2)


def test_a_cost_that_nobody_counted_is_not_shown_as_nothing(tmp_path):
    run = write_run(tmp_path / "r", evaluation(SEVEN))
    run.write_record(replace(RECORD, train=Cost(rollouts=640, generated_tokens=9000)))
    [row] = compare([run]).rows
    assert (row.rollouts, row.generated_tokens, row.flops, row.seconds) == (640, 9000, None, None)


def test_sharpness_is_at_the_middle_sigma_of_the_grid_that_all_share(tmp_path):
    runs = [write_run(tmp_path / "a", evaluation(SEVEN)), write_run(tmp_path / "b", evaluation(SEVEN), method="essam")]
    for run, sigmas in zip(runs, ((0.01, 0.02, 0.04), (0.02, 0.03, 0.04)), strict=True):
        write_json(run.sharpness / "s.json", sharpness([0.02, 0.03, 0.04], sigmas))
    found = compare(runs)
    assert found.sigma == 0.04  # of 0.02 and 0.04
    assert [row.sharpness.value for row in found.rows] == [pytest.approx(0.12), pytest.approx(0.12)]
    assert found.rows[0].sharpness.low < 0.12 < found.rows[0].sharpness.high
    assert "sharpness: S_avg at sigma 0.04, accuracy lost under noise, mean of 3 directions" in found.notes


def test_memory_is_without_the_kv_cache_wherever_that_lies(tmp_path):
    run = write_run(tmp_path / "run", evaluation(SEVEN))
    for peak, bytes_ in ((Peak(100, 80, 30), (100, 50)), (Peak(100, 0, 30), (70, 0))):
        run.write_record(replace(RECORD, peak_bytes=peak))
        row = compare([run]).rows[0]
        assert (row.host_bytes, row.device_bytes) == bytes_


def test_a_model_trained_elsewhere_joins_with_two_files(tmp_path):
    run = RunDir(tmp_path / "grpo")
    run.write_record(replace(RECORD, label="GRPO", method="external"))
    write_evals(run, evaluation(NINE))
    assert [r.label for r in compare([run, write_run(tmp_path / "es", evaluation(SEVEN))]).rows] == ["GRPO", "ES"]


def test_published_rows_are_of_the_task_or_refused(tmp_path):
    run = write_run(tmp_path / "run", evaluation(NINE))
    with pytest.raises(UsageError, match="published rows: essam-gsm8k is about gsm8k, these runs about arithmetic"):
        compare_runs([run], CompareOptions(published="essam-gsm8k"))
    with pytest.raises(UsageError, match="--references all: none is about arithmetic; choose essam-gsm8k"):
        compare_runs([run], CompareOptions(published="all"))
    forced = compare_runs([run], CompareOptions(published="essam-gsm8k", force=True))
    assert {r.citation for r in forced.references} == {"arXiv 2602.01003"}
    assert forced.differences


def test_sixty_runs_take_under_a_second_and_nothing_heavy(tmp_path):
    for kind in ("es", "essam", "essam-f"):
        for seed in range(20):
            write_run(tmp_path / f"{kind}{seed}", evaluation([1, 0] * 650), seed=seed, method=kind)
    command = [sys.executable, "-c", TIMED, str(tmp_path)]
    told = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(3)]
    assert min(float(seconds) for seconds, *_ in told) < 1  # of processor time, imports included
    assert [heavy for _, *heavy in told] == [[], [], []]


def test_rows_with_seeds_are_tested_all_at_once(tmp_path):
    runs = [
        write_run(
            tmp_path / f"{method}{seed}", evaluation([1] * (n + seed) + [0] * (20 - n - seed)), method=method, seed=seed
        )
        for method, n in (("es", 5), ("essam", 15))
        for seed in range(3)
    ]
    [note] = [n for n in compare_runs(runs, CompareOptions()).notes if "F(" in n]
    assert note.startswith(
        "do the 2 trained rows with 3 seeds or more differ at all in strict accuracy? F(1, 4) = 150.0"
    )
    assert not any("F(" in n for n in compare_runs(runs[1:], CompareOptions()).notes)
