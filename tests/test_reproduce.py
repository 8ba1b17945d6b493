"""A table is its definition: every run planned and validated first, and what is done told by what was asked."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from esctl.errors import RecipeError, UsageError
from esctl.experiment.loading import dump_recipe, recipes_root
from esctl.reproduce.row import MARK, RowJob, make_row
from esctl.reproduce.table import finished_lines, plan_table, read_table, write_results
from esctl.runs.directory import RunDir
from esctl.runs.files import adapter, write_atomic

TABLES = sorted(p.stem for p in (recipes_root() / "tables").glob("*.yaml"))


@pytest.mark.parametrize("name", TABLES)
def test_every_run_of_every_table_is_a_valid_recipe_in_a_directory_of_its_own(name, tmp_path):
    table = read_table(name)
    planned = plan_table(table, tmp_path, full=table.full is not None)
    assert len({p.job.run for p in planned}) == len(planned)
    assert {p.recipe.label for p in planned if not p.job.base} >= {"ES", "ESSAM"} or len(table.models) > 1
    assert not any(tmp_path.iterdir())  # planning writes nothing


def test_full_adds_rows_and_seeds_and_changes_none(tmp_path):
    table = read_table("cpu")
    core = {p.name: p.recipe for p in plan_table(table, tmp_path)}
    full = {p.name: p.recipe for p in plan_table(table, tmp_path, full=True)}
    assert core.items() <= full.items()
    assert len(full) > len(core)


def test_a_run_is_done_when_all_that_is_asked_now_was_measured(tmp_path):
    planned = plan_table(read_table("cpu"), tmp_path)[1]
    assert not planned.done
    write_atomic(Path(planned.job.run) / MARK, adapter(RowJob).dump_json(planned.job))
    assert planned.done
    assert not replace(planned, job=replace(planned.job, also=("tiny-countdown",))).done


def test_mistakes_in_a_table_are_named_with_their_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("models: [embedded]\nseeds: 0\npassk: {}\nrows: [{label: ES}]\nrow: 1\n")
    with pytest.raises(RecipeError) as caught:
        read_table(str(path))
    assert all(line.startswith(str(path)) for line in str(caught.value).splitlines())
    assert {"seeds", "sharpness", "rows.0.recipe", "row"} <= {
        line.split(": ")[1] for line in str(caught.value).splitlines()
    }


@pytest.mark.parametrize(
    ("question", "mistake"),
    [
        ("{ask: x, compare: [ES, ESAM]}", "questions.0.compare: no row is called ESAM; choose base, ES, ESSAM"),
        ("{ask: x, compare: [[ES, base], [PPO, ES]]}", "questions.0.compare: no row is called PPO"),
        ("{ask: x, kind: coverage, compare: [ES]}", "kind coverage needs `compare`: a row and the rows"),
        ("{ask: x}", "kind pairs needs `compare`"),
        ("{ask: x, kind: gains, compare: [ES, base]}", "kind gains is about every row; leave `compare` out"),
        ("{ask: '', kind: gains}", "questions.0.ask"),
        ("{ask: x, kind: gain}", "questions.0.kind"),
        ("{ask: x, kind: gains, compares: [ES, base]}", "questions.0.compares"),
    ],
)
def test_a_question_that_no_table_could_answer_is_refused(question, mistake, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(f"{SMALL_TABLE}questions:\n  - {question}\n")
    with pytest.raises(RecipeError, match=re.escape(mistake)):
        read_table(str(path))


@pytest.mark.parametrize("name", TABLES)
def test_shipped_tables_ask_their_own_questions(name):
    assert {q.kind for q in read_table(name).questions} >= {"gains", "pairs", "flatness", "coverage", "format"}


def test_two_rows_with_one_label_are_refused(tmp_path):
    table = read_table("cpu")
    with pytest.raises(UsageError, match="two runs would be called base-arithmetic"):
        plan_table(table.model_copy(update={"rows": (*table.rows, table.rows[0])}), tmp_path)


def test_an_unknown_table_names_those_that_ship():
    with pytest.raises(UsageError, match="cpu"):
        read_table("laptop")


# On a file of sums, since its test split is eight problems and the embedded task's is 2,048.
SMALL = """{
       generations: 2, prompts: 4, sampling.max_tokens: 8, engine.kind: transformers, eval.every: 0, eval.final: null,
       method.population: 4, task.name: file, task.data: SUMS}"""
SMALL_TABLE = f"""
models: {{embedded: 835456}}
seeds: 1
passk: {{ks: [1, 2], samples: 4, problems: 4}}
sharpness: {{problems: 4, seeds: 2}}
rows:
  - {{label: base, recipe: arithmetic/es, base: true, measure: [passk, sharpness], set: {SMALL}}}
  - {{label: ES, recipe: arithmetic/es, measure: [passk, sharpness], set: {SMALL}}}
  - {{label: ESSAM, recipe: arithmetic/essam, set: {SMALL}}}
"""
TIMES = ("seconds", "bytes")  # columns that no two runs share


def small_table(folder: Path) -> Path:
    """The table's definition and the problems that it is about."""
    sums, table = folder / "sums.jsonl", folder / "small.yaml"
    rows = [{"question": f"Tom has {i} pens. 4 come. How many pens now?", "answer": str(i + 4)} for i in range(3, 83)]
    sums.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table.write_text(SMALL_TABLE.replace("SUMS", str(sums)))
    return table


def reproduce(table: Path, root: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "esctl", "reproduce", str(table), "--root", str(root), "--jobs", "2"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)


def rows_of(root: Path) -> list[dict[str, str]]:
    rows = csv.DictReader((root / "table.csv").read_text().splitlines())
    return [{k: v for k, v in row.items() if k and not any(t in k for t in TIMES)} for row in rows]


def undisturbed(table: Path, root: Path) -> None:
    """All rows one after the other in this process, and the results."""
    definition = read_table(str(table))
    planned = plan_table(definition, root)
    for p in planned:
        write_atomic(Path(p.job.recipe), dump_recipe(p.recipe).encode())
        make_row(p.job, lambda label: nullcontext(lambda event: None))
    write_results(definition, planned, root)


@pytest.mark.slow
def test_a_table_killed_in_the_middle_ends_as_one_that_was_not(tmp_path):
    """Run again, it does only what is missing; every file that a reader is promised is there."""
    table = small_table(tmp_path)
    undisturbed(table, tmp_path / "whole")

    killed = reproduce(table, tmp_path / "killed")
    deadline = time.monotonic() + 120
    while not list((tmp_path / "killed").rglob("scores.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.05)
    kill_all_below(killed)
    again = reproduce(table, tmp_path / "killed")
    printed, _ = again.communicate(timeout=300)
    assert again.returncode == 0
    files = [Path(line).name for line in printed.decode().splitlines()]
    assert {"report.md", "table.md", "table.csv", "table.tex", "learning.png", "sharpness.svg"} <= set(files)
    assert rows_of(tmp_path / "killed") == rows_of(tmp_path / "whole")
    planned = plan_table(read_table(str(table)), tmp_path / "killed")
    assert all(p.done for p in planned)  # so that a third time has nothing to do
    assert {RunDir(Path(p.job.run)).read_record().engine.split()[0] for p in planned} == {"transformers"}

    small = SMALL.replace("SUMS", str(tmp_path / "sums.jsonl"))
    table.write_text(table.read_text() + f"  - {{label: ES 2, recipe: arithmetic/es, set: {small}}}\n")
    definition, root = read_table(str(table)), tmp_path / "killed"
    longer = plan_table(definition, root)
    (root / "table.csv").unlink()
    assert finished_lines(definition, longer, root) == [f"{root} has the tables of 3 finished runs, of 4"]
    assert rows_of(root) == rows_of(tmp_path / "whole")
    assert finished_lines(definition, longer[2:], root) == []  # one run is no comparison


def kill_all_below(parent: subprocess.Popen[bytes]) -> None:
    """SIGKILL the driver and its jobs, as a power cut would."""
    import psutil

    for process in [*psutil.Process(parent.pid).children(recursive=True), psutil.Process(parent.pid)]:
        os.kill(process.pid, signal.SIGKILL)
    parent.communicate()
