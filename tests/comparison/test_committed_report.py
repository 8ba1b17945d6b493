"""The committed report answers the questions of its definition with the numbers of the committed table."""

import csv
from pathlib import Path

import pytest
from miniature import evaluation, write_base

from esctl.comparison.compare import Comparison
from esctl.comparison.groups import grouped
from esctl.comparison.report import Evidence, answer
from esctl.comparison.rows import Pair, Row
from esctl.comparison.selection import Request, load_runs, select
from esctl.reproduce.table import TableSection, read_table
from esctl.stats import Estimate

RESULTS = Path(__file__).parents[2] / "results" / "cpu"
DEFINITION = read_table("cpu")
COLUMNS = ("pass@1", "pass@8", "pass@64")


def number(text: str) -> float | None:
    return float(text) if text else None


def estimate(line: dict[str, str], name: str) -> Estimate | None:
    if not line[name]:
        return None
    return Estimate(*(float(line[key]) for key in (name, f"{name}_low", f"{name}_high")))


def committed() -> Comparison:
    """The table as far as the CSV file holds it: all rows and pairs."""
    rows, pairs = (RESULTS / "table.csv").read_text().split("\n\n")
    return Comparison(
        "arithmetic v1", "test", 2048, "greedy", None, COLUMNS, None,
        tuple(row(line) for line in csv.DictReader(rows.splitlines())),
        tuple(pair(line) for line in csv.DictReader(pairs.splitlines())),
        (), (), (),
    )  # fmt: skip


def row(line: dict[str, str]) -> Row:
    scores = {name: estimate(line, name) for name in ("strict", "flexible", "formatted", "gain", "sharpness")}
    costs = {name: number(line[name]) for name in ("rollouts", "generated_tokens", "flops", "seconds")}
    changes = {name: number(line[name]) for name in ("progressions", "regressions", "p_value")}
    passes = {name: found for name in COLUMNS if (found := estimate(line, name))}
    memory = {name: int(line[name]) for name in ("host_bytes", "device_bytes")}
    numbers = {**scores, **costs, **changes, **memory}
    return Row(
        label=line["label"],
        seeds=int(line["seeds"]),
        strict_sd=float(line["strict_sd"]),
        pass_at=passes,
        **numbers,  # type: ignore[arg-type]
    )


def pair(line: dict[str, str]) -> Pair:
    difference = estimate(line, "difference")
    assert difference is not None
    changes = (number(line[name]) for name in ("won", "lost", "p_value"))
    return Pair(line["row"], line["against"], line["metric"], difference, line["over"], *changes)


def section(ask: str) -> list[str]:
    """The committed answers below a heading."""
    [text] = [part for part in (RESULTS / "report.md").read_text().split("\n## ") if part.startswith(f"{ask}\n")]
    return [line.removeprefix("- ") for line in text.splitlines()[2:]]


@pytest.mark.parametrize("place", range(len(DEFINITION.questions)))
def test_the_committed_report_is_what_its_table_answers(place, tmp_path):
    question = DEFINITION.questions[place]
    if question.kind == "flatness":  # from measurements that no table holds; its heading must be there
        assert section(question.ask)
        return
    base = load_runs([write_base(tmp_path / "base", evaluation([1, 0], step=0))])
    groups = tuple(grouped(select(base, Request()).items))
    evidence = Evidence(committed(), groups, full_rows=full_rows(DEFINITION), full_tasks=True)
    assert answer(evidence, question) == section(question.ask)


def full_rows(table: TableSection) -> frozenset[str]:
    assert table.full is not None
    return frozenset(row.label for row in table.full.rows)
