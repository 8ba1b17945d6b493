"""Laws of the report: no sentence is stronger than its interval, and what a table lacks is named."""

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import pytest
from miniature import evaluation, sampled, sharpness, write_base, write_run

from esctl.comparison.compare import CompareOptions, compare_loaded
from esctl.comparison.groups import grouped
from esctl.comparison.questions import COMPARING, Kind, Question
from esctl.comparison.report import (
    Evidence,
    answer,
    flatness_and_accuracy,
    report,
    sharpness_differences,
    verdict,
)
from esctl.comparison.selection import Request, load_runs, select
from esctl.runs.directory import RunDir
from esctl.runs.files import write_json
from esctl.stats import Estimate

QUESTIONS = (
    Question("Does each method beat the base?", "gains"),
    Question("Does ESSAM beat ES?", "pairs", ("ESSAM", "ES 2N", "ES")),
    Question("Is it flatter?", "flatness", ("ESSAM", "ES")),
    Question("Does it cover more?", "coverage", (("ESSAM", "base"), ("ESSAM", "ES"))),
    Question("How much is format?", "format"),
    Question("And elsewhere?", "benchmarks"),
)
FORMAT = Question("How much is format?", "format")
HALF = [1] * 100 + [0] * 100
MOST = [1] * 160 + [0] * 40


def evidence(runs: Sequence[RunDir]) -> Evidence:
    loaded = load_runs(runs)
    return Evidence(compare_loaded(loaded, CompareOptions()), tuple(grouped(select(loaded, Request()).items)))


def measured(run: RunDir, drops: Sequence[float]) -> RunDir:
    write_json(run.sharpness / "s.json", sharpness(drops))
    return run


def rows(tmp_path, essam: Sequence[float], es: Sequence[float], seeds: int = 3) -> list[RunDir]:
    found = [write_base(tmp_path / "base", evaluation(HALF, step=0, weights="base"))]
    for method, drops in (("essam", essam), ("es", es)):
        for seed in range(seeds):
            run = write_run(tmp_path / f"{method}{seed}", evaluation(MOST), method=method, seed=seed)
            found.append(measured(run, [d + 0.001 * seed for d in drops]))
    return found


@pytest.mark.parametrize("interval", [(-0.01, 0.09), (0.0, 0.1), (-0.1, 0.0)])
def test_a_difference_whose_interval_holds_zero_is_not_shown(interval):
    assert verdict(Estimate(sum(interval) / 2, *interval), "ES").startswith(
        "is not shown to be higher or lower than ES: "
    )


def test_a_difference_says_its_way_and_its_interval():
    assert verdict(Estimate(0.123, 0.1, 0.146), "ES") == "is higher than ES: +12.3 (+10.0 to +14.6)"
    assert verdict(Estimate(-0.02, -0.03, -0.01), "ES") == "is lower than ES: −2.0 (−3.0 to −1.0)"


def test_every_question_is_answered_or_says_what_the_table_lacks(tmp_path):
    found = evidence(rows(tmp_path, [0.01, 0.02], [0.05, 0.06]))
    text = report(found, QUESTIONS)
    assert "ES (3 seeds) is higher than the base: +30.0 (" in text
    assert "not in this table: ESSAM against ES 2N" in text
    assert "ESSAM is not shown to be higher or lower than ES: 0.0 (" in text
    assert text.count("\n## ") == len(QUESTIONS)


def test_flatness_is_paired_over_the_directions_that_all_have(tmp_path):
    essam, es = evidence(rows(tmp_path, [0.01, 0.02, 0.9], [0.05, 0.06])).groups[1:]
    [(_, small), _] = sharpness_differences(essam, es)
    assert small.value == pytest.approx(-0.04)
    assert small.low < small.value < small.high < 0


def test_one_direction_of_noise_shows_nothing(tmp_path):
    essam, es = evidence(rows(tmp_path, [0.01], [0.5])).groups[1:]
    assert all("is not shown" in verdict(e, "ES") for _, e in sharpness_differences(essam, es))


def test_few_runs_say_nothing_of_flatness_and_accuracy_and_many_say_what_weakens_it(tmp_path):
    groups = evidence(rows(tmp_path, [0.01, 0.02], [0.05, 0.06])).groups
    assert "no relation shown" in flatness_and_accuracy(groups)  # one accuracy in all six
    assert "interval is too narrow" in flatness_and_accuracy(groups)
    assert flatness_and_accuracy(groups[:2]) == (
        "flatness and accuracy: 3 trained runs with sharpness at one σ, too few to tell"
    )


def test_the_share_of_a_gain_is_given_only_where_the_gain_is_shown(tmp_path):
    base, better = write_base(tmp_path / "b", evaluation(HALF)), write_run(tmp_path / "r", evaluation(MOST))
    [line] = answer(evidence([base, better]), FORMAT)
    assert line == (
        "ES: strict +30.0, flexible +30.0, format 0.0; by these estimates 0 % of the strict gain goes beyond the"
        " flexible one"
    )
    same = write_run(tmp_path / "s", evaluation(HALF))
    assert answer(evidence([base, same]), FORMAT) == ["ES: strict 0.0, flexible 0.0, format 0.0"]


def test_a_limit_that_rounding_cannot_tell_from_zero_is_no_verdict_and_a_small_one_shows_its_digits():
    assert verdict(Estimate(0.02, 1e-17, 0.04), "ES").startswith("is not shown to be")
    assert verdict(Estimate(-0.018, -0.036, -0.0002), "ES") == "is lower than ES: −1.8 (−3.6 to −0.02)"


@pytest.mark.parametrize(("flexible", "text"), [(80, "flexible fell by 10.0"), (170, "flexible rose by more")])
def test_a_share_outside_of_0_to_100_percent_is_said_as_what_happened(flexible, text, tmp_path):
    base, better = evaluation(HALF), evaluation(MOST)
    right = [1] * flexible + [0] * (200 - flexible)
    better = replace(better, problems=replace(better.problems, flexible=right))
    runs = [write_base(tmp_path / "b", base), write_run(tmp_path / "r", better)]
    [line] = answer(evidence(runs), FORMAT)
    assert text in line
    assert "%" not in line


def test_a_strangers_table_has_a_report_in_its_own_labels(tmp_path):
    runs = [
        write_base(tmp_path / "b", evaluation(HALF, step=0), sampled([8] * 200, 16, step=0)),
        write_run(tmp_path / "x", evaluation(MOST), sampled([12] * 200, 16), label="mine | [new]"),
        write_run(tmp_path / "y", evaluation(HALF), sampled([8] * 200, 16), method="essam", label="theirs"),
    ]
    questions = (
        Question("Is mine better?", compare=("mine | [new]", "theirs", "base")),
        Question("Wider?", "coverage", ("mine | [new]", "theirs")),
    )
    lines = [line for line in report(evidence(runs), questions).splitlines() if line.startswith("- ")]
    assert lines[0].startswith(r"- mine \| \[new\] is higher than theirs: +30.0 (")
    assert lines[0].endswith("over problems; theirs spends 1 × its rollouts")
    assert lines[1].startswith(r"- mine \| \[new\] is higher than base: +30.0 (")
    assert [line.split(":")[0] for line in lines[2:]] == ["- pass@1", "- pass@8"]


def test_a_table_without_questions_is_asked_those_that_every_table_has(tmp_path):
    runs = [write_base(tmp_path / "b", evaluation(HALF, step=0)), write_run(tmp_path / "r", evaluation(MOST))]
    text = report(evidence(runs))
    assert "ES (1 seed) is higher than the base: +30.0" in text
    assert "ES: strict +30.0, flexible +30.0, format 0.0" in text


def test_what_the_full_table_would_add_is_said(tmp_path):
    found = evidence([write_base(tmp_path / "b", evaluation(HALF)), write_run(tmp_path / "r", evaluation(MOST))])
    larger = replace(found, full_rows=frozenset({"ES mirrored"}), full_tasks=True)
    mirrored, second = Question("?", compare=("ES mirrored", "ES")), Question("?", "benchmarks")
    assert answer(larger, mirrored) == ["not in this table: ES mirrored against ES (FULL=1 adds it)"]
    assert answer(found, mirrored) == ["not in this table: ES mirrored against ES"]
    assert answer(larger, second) == ["not in this table: a second benchmark (FULL=1 adds it)"]
    assert answer(found, second) == ["not in this table: a second benchmark"]


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_kind_of_question_answers_a_table_that_has_nothing(kind, tmp_path):
    alone = evidence([write_run(tmp_path / "r", evaluation(MOST))])
    compared = ("ES", "ESSAM") if kind in COMPARING else ()
    assert answer(alone, Question("?", kind, compared))


@pytest.mark.parametrize("label", ["<img src=x>", "[a](http://x)", "``` `", "a\n## b", "\x1b[2J", "\u202e9", "$x$ | y"])
def test_no_label_reaches_the_report_as_anything_but_text(label, tmp_path):
    runs = [
        write_base(tmp_path / "b", evaluation(HALF, step=0)),
        write_run(tmp_path / "r", evaluation(MOST), label=label),
    ]
    found = evidence(runs)
    questions = (Question("gain?", "gains"), Question(label, compare=(found.groups[1].label, "base")))
    text = report(found, questions)
    assert text.count("\n## ") == 2
    assert not any(markup in text for markup in ("<img", "[a](", "\x1b", "\u202e", " $x$"))
