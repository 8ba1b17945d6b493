"""Laws of the pictures: what the data has is drawn, what it lacks is said, equal data give equal files."""

import sys
from dataclasses import replace
from itertools import combinations

import pytest
from miniature import evaluation, sampled, sharpness, write_base, write_run

from esctl.comparison import curves, plots
from esctl.comparison.groups import Group, grouped
from esctl.comparison.plots import Drawn, draw, drawn_text
from esctl.comparison.selection import Request, load_runs, select
from esctl.runs.directory import RunDir
from esctl.runs.files import append_lines, write_json
from esctl.stats import pass_at_k

pytest.importorskip("matplotlib", reason="pictures need matplotlib: pip install 'esctl-lm[plots]'")
SEVEN = [1] * 7 + [0] * 3
SAMPLES = [0, 0, 1, 2, 4, 5, 6, 7, 8, 8]


def groups_of(*runs: RunDir) -> list[Group]:
    return grouped(select(load_runs(runs), Request()).items)


def write_metrics(run: RunDir, accuracies: list[float]) -> None:
    rows = [
        {"generation": g, "accuracy/strict": a, "cost/rollouts": 64 * g, "time/seconds": 2.0}
        for g, a in enumerate(accuracies, 1)
    ]
    append_lines(run.metrics, rows)


@pytest.fixture(scope="module")
def full(tmp_path_factory) -> list[Group]:
    """A base and two seeds of ES with everything that can be drawn."""
    tmp_path = tmp_path_factory.mktemp("runs")
    base = write_base(tmp_path / "base", evaluation(SEVEN, step=0), sampled(SAMPLES, 8, step=0))
    write_json(base.sharpness / "s.json", sharpness([0.01, 0.03], step=0))
    runs = [base]
    for seed in range(2):
        validation = [replace(evaluation(SEVEN, step=s, split="validation")) for s in (0, 2)]
        runs.append(write_run(tmp_path / f"es{seed}", evaluation(SEVEN), sampled(SAMPLES, 8), *validation, seed=seed))
        write_metrics(runs[-1], [0.2, 0.4 + 0.2 * seed])
        write_json(runs[-1].sharpness / "s.json", sharpness([0.01, 0.03]))
    return groups_of(*runs)


@pytest.fixture(scope="module")
def drawn(full, tmp_path_factory) -> Drawn:
    return draw(full, tmp_path_factory.mktemp("drawn"))


def test_everything_is_drawn_twice_with_one_legend_and_no_date(drawn):
    names = ["learning", "pass-at-k", "coverage", "sharpness"]
    assert [p.name for p in drawn.files] == [f"{n}.{kind}" for n in names for kind in ("png", "svg")]
    assert drawn.notes == ()
    for path in drawn.files:
        assert path.stat().st_size > 5000
        if path.suffix == ".svg":
            assert path.read_text().count('id="legend_') == 1
            assert "<dc:date>" not in path.read_text()


def test_equal_data_give_equal_files(full, drawn, tmp_path):
    again = draw(full, tmp_path)
    assert [p.read_bytes() for p in drawn.files] == [p.read_bytes() for p in again.files]


def test_what_the_data_lacks_is_said(tmp_path):
    drawn = draw(groups_of(write_run(tmp_path / "run", evaluation(SEVEN))), tmp_path / "out")
    assert drawn.files == ()
    assert drawn.notes == (
        "learning: ES not drawn, it has no metrics.jsonl",
        "learning: not drawn, no run here holds a metrics.jsonl",
        "pass-at-k, coverage: not drawn, no run has several samples per problem; see `esctl passk`",
        "sharpness: not drawn, no run was measured; see `esctl sharpness`",
    )


def test_rows_differ_without_colour():
    looks = [plots.look(place) for place in range(22)]
    assert len({(own.line, own.marker) for own in looks}) == 22
    assert len({(own.colour, own.hatch) for own in looks}) == 22
    for a, b in combinations(looks[:10], 2):  # the rows of the shipped table
        assert a.marker != b.marker
        assert a.colour != b.colour or (a.line != b.line and a.hatch != b.hatch)


def test_missing_matplotlib_is_one_line_with_the_way_out(full, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(plots.UsageError, match=r"^--plot needs matplotlib; pip install 'esctl-lm\[plots\]'$"):
        draw(full, tmp_path)


def test_learning_is_the_mean_over_seeds_with_their_range_over_each_cost(full):
    [_, es] = full
    found = curves.learning(es, "training rollouts")
    assert found.members.x == (64, 128)
    assert found.members.y == pytest.approx((0.2, 0.5))
    assert (found.members.low, found.members.high) == ((0.2, 0.4), (0.2, pytest.approx(0.6)))
    assert found.evaluations.x == (0, 128)
    assert curves.learning(es, "training time (s)").members.x == (2, 4)


def test_pass_curve_is_the_estimator_at_powers_of_two(full):
    [kind] = curves.samplings(full)
    curve = curves.pass_curve(full[0], kind)
    assert curve.x == (1, 2, 4, 8)
    assert curve.y == pytest.approx([sum(pass_at_k(8, c, k) for c in SAMPLES) / 10 for k in (1, 2, 4, 8)])
    assert all(low < y < high for low, y, high in zip(curve.low, curve.y, curve.high, strict=True))


def test_coverage_has_an_unsolvable_bin_and_sums_to_one(full):
    [setting] = curves.samplings(full)
    # Of 8 samples, 12.5 % each: 0 | | 1 | 2 | | 4 | | 5 | 6 | 7 | 8; a bin holds its upper edge.
    shares = (0.2, 0, 0.1, 0.1, 0, 0.1, 0, 0.1, 0.1, 0.1, 0.2)
    assert curves.coverage(full[0], setting).shares == pytest.approx(shares)


def test_directions_are_compared_with_random_ones_of_equal_norm(full):
    against, random = curves.direction_curves(full[1])
    assert against.x == random.x == (0.3, 0.6)
    assert (against.y, random.y) == (pytest.approx((0.02, 0.04)), pytest.approx((0.0125, 0.025)))


@pytest.mark.parametrize("label", ["_hidden", "__", r"$\bad{", "a\nb", "\x1b[2J", "100 % & #", "\u202e9"])
def test_every_label_stands_in_the_legend_as_text(label, tmp_path):
    run = write_run(tmp_path / "run", evaluation(SEVEN), sampled(SAMPLES, 8), label=label)
    groups = groups_of(run)
    files = draw(groups, tmp_path / "plots").files
    assert {p.name for p in files} == {"pass-at-k.png", "pass-at-k.svg", "coverage.png", "coverage.svg"}
    [legend] = figure_of(groups).legends
    [text] = [entry.get_text() for entry in legend.get_texts()]
    assert text.strip() == drawn_text(groups[0].label).strip()
    assert not set(text) & set("\x1b\n\u202e")


def figure_of(groups: list[Group]):
    return plots.figure(plots.pass_panels(groups, []), "title")
