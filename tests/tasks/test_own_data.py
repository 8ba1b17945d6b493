"""Own data is read as written, or refused in one line: files, their characters, and questions that stand twice."""

import json

import pytest

from esctl.errors import TaskError
from esctl.tasks import TEST, TRAIN, VALIDATION, TaskSpec, open_task
from esctl.tasks.rows import read_rows

TEXT = {"grader": "text"}
# What people write and type guessing changes. Each is one answer, and must come back character by character.
ANSWERS = (
    *("2024-01-02", "2024-01-02T03:04:05Z", "12:30", "02139", "007", "1.10", "1e5", "+5", "0x10", "1_000"),
    *("NA", "null", "nan", "NaN", "None", "N/A", "inf", "-inf", "true", "False", "yes"),
    *("café", "cafe\u0301", "ﬁ", "\u2028x", "🙂", "a\u00a0b", " padded ", '"quoted"', "a,b", "line\nbreak"),
    "9" * 400,
)


def own(path, columns=TEXT, split="all"):
    return open_task(TaskSpec("file", str(path), **columns)).problems(split)


def as_file(ending, rows, path):
    """The rows as people's tools write them."""
    file = path / f"own.{ending}"
    if ending == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif ending == "json":
        file.write_text(json.dumps(rows, indent=2, ensure_ascii=False), encoding="utf-8")
    elif ending == "csv":
        quoted = [[str(cell).replace('"', '""') for cell in row.values()] for row in rows]
        lines = [",".join(rows[0]), *(",".join(f'"{cell}"' for cell in cells) for cells in quoted)]
        file.write_bytes("\r\n".join(lines).encode())
    else:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv", "parquet"])
def test_answers_and_questions_are_read_as_they_are_written(ending, tmp_path):
    rows = [{"question": f"{i}: {answer}", "answer": answer} for i, answer in enumerate(ANSWERS)]
    problems = own(as_file(ending, rows, tmp_path))
    assert [p.answer for p in problems] == list(ANSWERS)
    assert [p.question for p in problems] == [row["question"] for row in rows]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("1.10", "1.10"),
        ("142.0", "142.0"),
        ("1e400", "1e400"),
        ("-0", "-0"),
        ("1" + "0" * 400, "1" + "0" * 400),
        ("9" * 5000, "9" * 5000),  # above Python's own limit for reading whole numbers
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("0.1234567890123456789", "0.1234567890123456789"),
        ("true", "true"),
        ("NaN", "NaN"),
        ('["1", 2.50, false]', "1, 2.50, false"),
        ('"\\ud83d\\ude42"', "🙂"),
    ],
)
def test_values_of_json_keep_their_text(written, text, tmp_path):
    (tmp_path / "own.jsonl").write_text(f'{{"question": "?", "answer": {written}}}\n')
    assert own(tmp_path / "own.jsonl")[0].answer == text


@pytest.mark.parametrize("cell", ["NA", "null", "nan", "02139", "2139.0", "1,000", "true", "2024-01-02"])
def test_cells_of_csv_keep_their_text(cell, tmp_path):
    (tmp_path / "own.csv").write_text(f'question,answer\n?,"{cell}"\n??,3\n')
    assert own(tmp_path / "own.csv")[0].answer == cell


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("own.jsonl", b'\xef\xbb\xbf{"question": "a", "answer": "1"}\r\n\r\n{"question": "b", "answer": "2"}'),
        ("own.jsonl", b'{"question": "a", "answer": "1"}\r{"question": "b", "answer": "2"}\r'),
        ("own.jsonl", b' [{"question": "a", "answer": "1"}, {"question": "b", "answer": "2"}]'),
        ("own.json", b'{"question": "a", "answer": "1"}\n{"question": "b", "answer": "2"}\n'),
        ("own.json", b'[\n{"question": "a", "answer": "1"},\n{"question": "b", "answer": 2, "late": {"x": [1]}}\n]\n'),
        ("own.csv", b"\xef\xbb\xbfquestion,answer\r\na,1\r\n\r\nb,2\r\n"),
        ("own.csv", b'question,answer\n"a",1\n"b","2"'),
        ("OWN.CSV", b"answer,other,question\n1,,a\n2,,b\n"),
    ],
)
def test_rows_survive_how_the_file_is_saved(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    assert [(p.question, p.answer) for p in own(tmp_path / name)] == [("a", "1"), ("b", "2")]


def test_a_column_may_begin_in_a_later_row(tmp_path):
    (tmp_path / "own.jsonl").write_text(
        '{"question": "a", "answer": "1"}\n{"question": "b", "answer": "2", "level": "hard"}\n'
    )
    problems = own(tmp_path / "own.jsonl", TEXT)
    assert len(problems) == 2
    with pytest.raises(TaskError, match="row 1 has no difficulty"):
        own(tmp_path / "own.jsonl", {"grader": "text", "difficulty": "level"})


def test_a_long_cell_is_read_whole(tmp_path):
    long = "why " * 100_000
    (tmp_path / "own.csv").write_text(f"question,answer\n{long},1\n")
    assert own(tmp_path / "own.csv")[0].question == long


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("own.csv", "question,answer\nCafé?,1\n".encode("cp1252"), "line 2: byte 0xe9 is not UTF-8; save the file as"),
        (
            "own.jsonl",
            '{"question": "é"}\n'.encode("latin-1"),
            "line 1: byte 0xe9 is not UTF-8; save the file as UTF-8",
        ),
        (
            "own.csv",
            "question,answer\n?,1\n".encode("utf-16"),
            "line 1: byte 0xff is not UTF-8; save the file as UTF-8",
        ),
        ("own.jsonl", '{"question": 1}\n'.encode("utf-16-le"), "line 1: zero bytes, as UTF-16 has them; save the file"),
        ("own.jsonl", b'{"question": "\xed\xa0\x80"}\n', "line 1: byte 0xed is not UTF-8"),
        ("own.jsonl", b'{"question": "?", "answer": "\\ud800"}\n', "row 1: answer holds half of a surrogate pair"),
        ("own.jsonl", b'{"question": "a", "answer": 1}\n{"question": "b"', "line 2: not JSON"),
        ("own.jsonl", b'{"question": "a", "answer": 1}\n[1, 2]\n', "line 2: a list where a row is expected"),
        ("own.jsonl", b'{"question": "a", "answer": 1}\n7\n', "line 2: a single value where a row is expected"),
        (
            "own.jsonl",
            b'{"question": "a", "answer": 1, "answer": 2}\n',
            "line 1: the key 'answer' stands twice; keep one",
        ),
        (
            "own.json",
            b'[{"question": "a"}, {"question": "a", "question": "b"}]',
            "row 2: the key 'question' stands twice",
        ),
        ("own.json", b'[{"question": "a", "answer": 1},\n {"question": "b" "answer": 2}]', "line 2: not JSON"),
        ("own.json", b'["a"]', "row 1: a single value where a row is expected"),
        ("own.jsonl", b"[" * 200_000, "line 1: nested too deep"),
        ("own.jsonl", b"", "no rows; give data that has problems"),
        ("own.jsonl", b"\n \r\n", "no rows; give data that has problems"),
        ("own.csv", b"question,answer\n", "no rows; give data that has problems"),
        ("own.csv", b"question,answer\na,1\nb\n", "line 3: 1 cells under 2 columns; quote cells with commas"),
        ("own.csv", b"question,answer\na,1,000\n", "line 2: 3 cells under 2 columns; quote cells with commas"),
        ("own.csv", b'question,answer\n"a,1\nb,2\n', r"line \d: not CSV .*; check its quotes"),
        ("own.csv", b"question,answer,answer\na,1,2\n", "line 1: two columns are called 'answer'; rename one"),
        ("own.csv", b"question;answer\na;1\n", "no column question for the question; it has question;answer"),
        ("own.jsonl", b'{"question": {"text": "a"}, "answer": 1}\n', "row 1: question is an object; write it as text"),
        ("own.jsonl", b'{"question": [{"role": "user"}], "answer": 1}\n', "row 1: question is an object; write it"),
        ("own.jsonl", b'{"question": "a", "answer": null}\n', "row 1 has no answer"),
        ("own.parquet", b"PAR1", "not Parquet"),
        ("own.txt", b"?", "unknown ending '.txt'; give .jsonl, .json, .csv, .parquet"),
    ],
)
def test_a_file_that_holds_no_rows_is_one_line_that_says_where(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TaskError, match=message) as error:
        own(tmp_path / name)
    assert "\n" not in str(error.value)
    assert str(tmp_path / name) in str(error.value)


def test_a_file_that_was_edited_is_read_anew_whatever_its_time(tmp_path):
    import os

    file = tmp_path / "own.jsonl"
    for answer in ("1", "3"):
        file.write_text(f'{{"question": "a", "answer": "{answer}"}}\n')
        os.utime(file, (1, 1))  # as rsync and tar keep it
        assert own(file)[0].answer == answer


def test_local_files_need_no_hub_cache(tmp_path):
    import subprocess
    import sys

    (tmp_path / "own.jsonl").write_text('{"question": "a", "answer": "1"}\n')
    code = (
        "from esctl.tasks import *\nprint(open_task(TaskSpec('file', 'own.jsonl')).problems('all'))\n"
        "import sys; assert not {'datasets', 'pyarrow'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"HF_HOME": "/proc/hf", "HOME": "/proc"}, capture_output=True
    )
    assert done.returncode == 0, done.stderr


# Questions that stand twice


@pytest.mark.parametrize("again", ["What is 25 + 1?", " what  is 25 + 1? ", "What is\n25 + 1?"])
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("27", "rows 1 and 3 ask the same question and have two answers, '26' and '27'"),
        ("26", "rows 1 and 3; drop the"),
    ],
)
@pytest.mark.parametrize("grader", ["number", "text", "boxed"])
def test_a_question_that_stands_twice_is_refused_naming_both_rows(again, answer, message, grader, tmp_path):
    rows = [("What is 25 + 1?", "26"), ("What is 1 + 1?", "2"), (again, answer)]
    lines = [json.dumps({"question": q, "answer": a}) + "\n" for q, a in rows]
    (tmp_path / "test.jsonl").write_text("".join(lines))
    with pytest.raises(TaskError, match=message) as error:
        own(tmp_path, {"grader": grader}, TEST)
    assert "\n" not in str(error.value)


def test_one_question_in_two_unicode_forms_is_one_question(tmp_path):
    rows = [("Café?", "1"), ("Cafe\u0301?", "1")]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in rows))
    with pytest.raises(TaskError, match="1 rows repeat a question"):
        own(tmp_path, TEXT, TEST)


@pytest.mark.parametrize(("a", "b"), [(TRAIN, TEST), (TRAIN, VALIDATION), (VALIDATION, TEST)])
def test_no_two_splits_of_a_folder_share_a_question(a, b, tmp_path):
    for split in (a, b):
        (tmp_path / f"{split}.csv").write_text("question,answer\n?,1\n")
    with pytest.raises(TaskError, match=f"{a} and {b} share 1 problems"):
        own(tmp_path, TEXT, a)


def test_a_published_set_with_two_golds_for_a_question_is_refused(tmp_path):
    rows = [{"question": "1 + 1?", "answer": f"#### {n}"} for n in (2, 3)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(TaskError, match="rows 1 and 2 ask the same question and have two answers, '2' and '3'"):
        open_task(TaskSpec("gsm8k", str(tmp_path))).problems(TEST)


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv", "parquet"])
def test_whole_floats_of_a_published_set_are_whole_numbers_in_every_format(ending, tmp_path):
    rows = [{"problem": "a", "answer": 142.0}, {"problem": "b", "answer": 7.0}]
    file = as_file(ending, rows, tmp_path).rename(tmp_path / f"amc23.{ending}")
    assert [p.answer for p in open_task(TaskSpec("amc23", str(file))).problems(TEST)] == ["142", "7"]


def test_two_files_of_one_split_are_refused(tmp_path):
    for name in ("test.jsonl", "test.csv"):
        (tmp_path / name).write_text("question,answer\n?,1\n")
    with pytest.raises(TaskError, match=r"both test.jsonl and test.csv; keep one of them"):
        own(tmp_path, TEXT, TEST)


def test_rows_of_every_format_are_mappings(tmp_path):
    for ending in ("jsonl", "json", "csv", "parquet"):
        assert read_rows(as_file(ending, [{"question": "a", "answer": "1"}], tmp_path)) == [
            {"question": "a", "answer": "1"}
        ]
