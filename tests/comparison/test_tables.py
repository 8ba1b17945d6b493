"""Laws of the tables: every format holds the same rows and pairs, for people in percent, for programs in full."""

import csv
import json

import pytest
from miniature import evaluation, sampled, sharpness, write_base, write_run

from esctl.comparison import tables
from esctl.comparison.compare import CompareOptions, Comparison, compare
from esctl.runs.files import write_json
from esctl.stats import wilson

SEVEN = [1] * 7 + [0] * 3
NINE = [1] * 9 + [0]


@pytest.fixture
def found(tmp_path) -> Comparison:
    base = write_base(tmp_path / "base", evaluation(SEVEN, step=0), sampled([4] * 10, 8, step=0))
    run = write_run(tmp_path / "run", evaluation(NINE), sampled([6] * 10, 8), label="ES_50% & more")
    write_json(run.sharpness / "s.json", sharpness([0.02, 0.03, 0.04], (0.01,)))
    return compare([base, run], CompareOptions(ks=(1,), published="essam-gsm8k", force=True))


def blocks(text: str) -> list[list[str]]:
    return [block.splitlines() for block in text.split("\n\n")]


def test_the_terminal_shows_cost_beside_score_and_every_line_of_a_block_is_as_wide(found):
    banner, title, scores, samples, costs, pairs, notes = blocks(tables.terminal(found))
    assert banner == ["NOT COMPARABLE: published rows: essam-gsm8k is about gsm8k, these runs about arithmetic"]
    assert title == ["arithmetic v1, test split, 10 problems, greedy"]
    for block in (scores, samples, costs, pairs):
        assert len({len(line) for line in block}) == 1
    assert "90.0 (59.6–98.2)" in scores[3]
    assert "+2/−0" in scores[3]
    assert "+3.0 (+0.5 to +5.5)" in samples[3]
    assert costs[3].split()[-6:] == ["90.0", "640", "12,800", "1.0e+09", "20", "1.00/0.50"]
    assert pairs[2].startswith("ES_50% & more − base  strict")
    assert notes[-1] == "published, arXiv 2602.01003: test split, greedy, mean over four model sizes"


def test_published_rows_are_marked_in_every_format(found):
    assert "GRPO, Qwen2.5-Instruct, mean of 0.5B, 1.5B, 3B, 7B (published, arXiv 2602.01003)" in tables.terminal(found)
    assert "(published, arXiv 2602.01003) |" in tables.markdown(found)
    assert r"(published, arXiv 2602.01003) &" in tables.latex(found)
    assert json.loads(tables.json_text(found))["references"][4]["percent"] == {"accuracy": 78.34}
    assert ",arXiv 2602.01003\n" in tables.csv_text(found)


def test_markdown_rows_have_as_many_cells_as_their_header(found):
    for block in blocks(tables.markdown(found)):
        assert len({line.count("|") for line in block if line.startswith("|")}) <= 1
    assert "| ES_50% & more | 1 | 90.0 (59.6–98.2) |" in tables.markdown(found)


def test_latex_is_booktabs_and_escaped(found):
    text = tables.latex(found)
    assert text.count(r"\toprule") == text.count(r"\midrule") == text.count(r"\bottomrule") == 2
    assert r"ES\_50\% \& more & 1 & 90.0 (59.6--98.2)" in text
    assert "% NOT COMPARABLE" in text
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.replace(r"\&", "").count("&") for line in body[:7]} == {body[0].count("&")}
    assert tables.escaped(r"\_{}^~$#") == r"\textbackslash{}\_\{\}\textasciicircum{}\textasciitilde{}\$\#"


def test_latex_is_ascii(found):
    assert tables.latex(found).partition("tabular")[2].isascii()


def test_csv_holds_rows_and_after_an_empty_line_pairs_in_full(found):
    comment, *lines = tables.csv_text(found).splitlines()
    assert comment.startswith("# NOT COMPARABLE: ")
    cut = lines.index("")
    rows, pairs = list(csv.DictReader(lines[:cut])), list(csv.DictReader(lines[cut + 1 :]))
    assert [r["label"] for r in rows[:2]] == ["base", "ES_50% & more"]
    assert float(rows[1]["strict_low"]) == found.rows[1].strict.low
    assert (rows[0]["gain"], rows[1]["rollouts"], rows[1]["pass@1"]) == ("", "640.0", "0.75")
    assert float(rows[2]["strict"]) == pytest.approx(0.7597)
    assert [(p["row"], p["metric"]) for p in pairs] == [("ES_50% & more", "strict"), ("ES_50% & more", "pass@1")]
    assert float(pairs[0]["difference"]) == pytest.approx(0.2)


def test_json_has_the_names_of_the_code(found):
    tree = json.loads(tables.json_text(found))
    low, high = wilson(9, 10).low, wilson(9, 10).high
    assert tree["rows"][1]["strict"] == pytest.approx({"value": 0.9, "low": low, "high": high})
    assert tree["pairs"][0]["p_value"] == 0.5


HOSTILE = {
    "clipboard": "\x1b[2J\x1b]52;c;ZXZpbA==\x07",
    "forged row": "ES\nFAKE ROW 99.9",
    "carriage return": "ES\rFAKE",
    "html": "<script>alert(1)</script>",
    "bidi": "ES \u202e9.99",
    "eight-bit": "\x9b2J",
    "link": "[ES](http://x)",
    "code": "``` `<img>",
    "macro": r"\input{/etc/passwd}",
    "argument of a line end": "[1cm]",
    "mathematics": r"$\bad{",
}
FORMATS = (tables.terminal, tables.markdown, tables.latex, tables.csv_text, tables.json_text)


@pytest.mark.parametrize("label", HOSTILE.values(), ids=HOSTILE)
def test_no_label_reaches_a_table_as_anything_but_text(label, tmp_path):
    runs = [write_run(tmp_path / str(i), evaluation(SEVEN), label=text) for i, text in enumerate(("ES", label))]
    found = compare(runs, CompareOptions())
    plain = compare([runs[0]], CompareOptions())
    for write in FORMATS:
        text = write(found)
        assert not set(text) & set("\x1b\x07\x9b\r\u202e")
        assert "\nFAKE" not in text
    assert len(blocks(tables.terminal(found))[1]) == len(blocks(tables.terminal(plain))[1]) + 1
    markdown = tables.markdown(found)
    assert "<script" not in markdown
    assert "<img" not in markdown
    assert "[ES](" not in markdown
    body = tables.latex(found).partition("tabular")[2]
    assert r"\input" not in body
    assert not any(line.startswith(("[", "*")) for line in body.splitlines())


@pytest.mark.parametrize("label", ["a;=1", "a; @SUM(A1);-2", "a;\t＝1", ";+1"])
def test_no_part_of_a_cell_is_a_formula_where_semicolons_part_cells(label, tmp_path):
    found = compare([write_run(tmp_path / "a", evaluation(SEVEN), label=label)], CompareOptions())
    [row] = csv.DictReader(tables.csv_text(found).splitlines())
    assert all(part[:1] == "'" for part in row["label"].split(";")[1:])


def test_every_format_has_the_scores_of_each_seed(tmp_path):
    runs = [write_run(tmp_path / str(seed), evaluation(right), seed=seed) for seed, right in enumerate((SEVEN, NINE))]
    found = compare(runs, CompareOptions())
    for write, seven, nine in (
        (tables.terminal, "0     70.00", "1     90.00"),
        (tables.markdown, "| ES | 0 | 70.00 |", "| ES | 1 | 90.00 |"),
        (tables.latex, "ES & 0 & 70.00 &", "ES & 1 & 90.00 &"),
        (tables.csv_text, "0 1,0.7 0.9,", "0.7 0.9"),
    ):
        assert seven in write(found)
        assert nine in write(found)
    [row] = json.loads(tables.json_text(found))["rows"]
    assert [(s["seed"], s["strict"]) for s in row["by_seed"]] == [(0, 0.7), (1, 0.9)]


@pytest.mark.parametrize("label", ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", " =1", "\t=1", "＝1"])
def test_no_cell_of_a_spreadsheet_is_a_formula(label, tmp_path):
    found = compare([write_run(tmp_path / "a", evaluation(SEVEN), label=label)], CompareOptions())
    [row] = csv.DictReader(tables.csv_text(found).splitlines())
    assert row["label"].startswith("'")
    assert float(row["strict"]) == 0.7


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0.0"), (-1e-18, "0.0"), (0.0003, "+0.03"), (-0.00004, "−0.004"), (-0.02, "−2.0"), (0.00049, "+0.05")],
)
def test_what_is_not_zero_never_reads_zero(share, text):
    assert tables.signed(share) == text
