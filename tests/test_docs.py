"""The pages stay true: links lead somewhere, numbers are those of committed results, recipes say what they claim."""

import csv
import importlib.util
import re
import sys
from pathlib import Path

import pytest
from documented import FENCE, PAGES, ROOT

from esctl.experiment.loading import recipes

RESULTS = ROOT / "results" / "cpu"
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)]*)?\)")
FILE = re.compile(r"`((?:esctl|tests|recipes|bench|tools|docs|results)/[\w./-]*)`")
INTERVAL = re.compile(r"[+−]?\d+\.\d(?: %)? \([+−]?\d+\.\d(?: to |–)[+−]?\d+\.\d\)")
NUMBERED = [ROOT / "README.md", ROOT / "docs" / "results.md"]
named = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@named
def test_every_link_leads_to_a_file(page):
    targets = [target for target, _ in LINK.findall(page.read_text()) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@named
def test_every_file_that_a_page_names_exists(page):
    assert [name for name in FILE.findall(page.read_text()) if not (ROOT / name).exists()] == []


@named
def test_lines_are_at_most_120_characters_but_in_tables(page):
    prose = FENCE.sub("", page.read_text()).splitlines()
    assert [line for line in prose if len(line) > 120 and not line.startswith("|")] == []


def test_the_index_lists_every_page():
    docs = ROOT / "docs"
    linked = {(docs / target).resolve() for target, _ in LINK.findall((docs / "README.md").read_text())}
    assert [page for page in PAGES if page.parent != ROOT and page.name != "README.md" and page not in linked] == []


def rows_of(text: str) -> list[list[str]]:
    """The cells of every row of a page's tables."""
    return [
        [cell.strip() for cell in line[1:].rstrip().removesuffix("|").split("|")]
        for line in text.splitlines()
        if line[:2] == "| "
    ]


def test_the_table_of_the_readme_is_the_committed_one():
    """Flexible and format rates stand there without their intervals."""
    committed, *found = rows_of((RESULTS / "table.md").read_text())
    values = {row[0]: dict(zip(committed, row, strict=True)) for row in found if len(row) == len(committed)}
    names, *shown = [r for r in rows_of((ROOT / "README.md").read_text()) if len(r) == 7]
    assert [row[0] for row in shown] == ["base", "ES", "ESSAM", "GRPO", "PPO"]
    for row in shown:
        for name, cell in zip(names, row, strict=True):
            whole = values[row[0]][name]
            assert cell == (whole.partition(" (")[0] if name in ("flexible %", "format %") else whole), (row[0], name)


def test_the_sentence_of_the_readme_is_true_of_the_committed_results():
    with (RESULTS / "table.csv").open() as file:
        gains = [100 * float(row["gain"]) for row in csv.DictReader(file) if row["gain"]]
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"every method beats the base by {min(gains):.0f} to {max(gains):.0f} points" in readme
    report = (RESULTS / "report.md").read_text()
    for other in ("ES 2N", "ES 2× generations"):
        assert f"ESSAM is not shown to be higher or lower than {other}" in report


@pytest.mark.parametrize("page", NUMBERED, ids=lambda page: page.name)
def test_every_interval_is_in_the_committed_results(page):
    prose = FENCE.sub("", page.read_text())
    prose = re.sub(r"^\| `esctl .*$", "", prose, flags=re.MULTILINE)  # what a single run prints
    committed = (RESULTS / "report.md").read_text() + (RESULTS / "table.md").read_text()
    assert [found for found in INTERVAL.findall(" ".join(prose.split())) if found not in committed] == []


def test_the_reference_pages_are_those_that_the_code_gives():
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "tools" / "make_reference.py")
    make = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = make
    spec.loader.exec_module(make)
    for name, page in make.PAGES.items():
        assert (make.FOLDER / name).read_text() == page(), "run `make reference`"


def test_every_key_and_every_metric_has_a_meaning():
    pages = "".join((ROOT / "docs" / "reference" / name).read_text() for name in ("recipe.md", "metrics.md"))
    assert [row[0] for row in rows_of(pages) if not row[-1]] == []


# A recipe is a claim

FIELD = re.compile(r"^(\w[\w ]*): ")


def claim(path: Path) -> dict[str, str]:
    """The comment that a recipe opens with: what it is under "", then `Field: text` over any lines."""
    said, field = {"": ""}, ""
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            break
        text = line.removeprefix("#").strip()
        if said[""] and (match := FIELD.match(text)):
            field, text = match[1], text[match.end() :]
        said[field] = f"{said.get(field, '')} {text}".strip()
    return said


RECIPES = [*recipes(), "tables/cpu", "tables/gpu"]


@pytest.mark.parametrize("name", RECIPES)
def test_the_header_of_a_recipe_says_what_it_reproduces_how_and_at_what_cost(name):
    said = claim(ROOT / "recipes" / f"{name}.yaml")
    launch = {"tasks": "esctl eval MODEL --recipe {}", "tables": "make reproduce-table"}
    expected = launch.get(name.split("/")[0], "esctl train --recipe {}").format(name)
    assert said["Launch"].startswith(expected)
    assert all(said[field].endswith(".") for field in ("", "Cost")), said
    assert re.search(rf"{INTERVAL.pattern}|not run yet|results/", said["Expected"]), "a number with its spread, or none"


@pytest.mark.parametrize("name", RECIPES)
def test_the_numbers_that_a_recipe_expects_are_in_the_committed_results(name):
    committed = "".join(path.read_text() for path in (ROOT / "results").rglob("*.md"))
    expected = claim(ROOT / "recipes" / f"{name}.yaml")["Expected"]
    assert [number for number in INTERVAL.findall(expected) if number.replace(" %", "") not in committed] == []
