"""One contract for every task of the table, what data can be wrong, and the real golds of the published sets."""

import csv
import json
import os
from pathlib import Path

import pytest

from esctl.errors import TaskError, UsageError
from esctl.tasks import EMBEDDED, TASKS, TEST, TRAIN, VALIDATION, Problem, TaskSpec, open_task
from esctl.tasks.countdown import CountdownTask
from esctl.tasks.data import as_text, key
from esctl.tasks.grading.latex import decide, equivalent

SHARED = Path(os.environ.get("ESCTL_DATA", Path(__file__).parents[3] / "shared" / "data"))
needs_data = pytest.mark.skipif(
    not (SHARED / "gsm8k_test.jsonl").is_file(), reason="no published data here: set ESCTL_DATA to its folder"
)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def gsm8k_rows(name, n):
    return [{"question": f"{name} {i} plus 1?", "answer": f"<<{i}+1={i + 1}>>\n#### {i + 1:,}"} for i in range(n)]


def math_rows(name, n):
    levels = [f"Level {1 + i % 5}" for i in range(n)]
    solutions = [f"so \\boxed{{x^{i}}}" for i in range(n)]
    return [
        {"problem": f"{name} {i}", "level": level, "solution": s}
        for i, (level, s) in enumerate(zip(levels, solutions, strict=True))
    ]


def countdown_rows(n):
    return [{"target": a * 7 + 3, "nums": [3, a, 7]} for a in range(1, n + 1)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Small data in the shape of every published set."""
    path = tmp_path_factory.mktemp("data")
    write(path / "gsm8k_train.jsonl", gsm8k_rows("train", 200))
    write(path / "gsm8k_test.jsonl", gsm8k_rows("test", 20))
    write(path / "math_train.jsonl", math_rows("train", 200))
    write(path / "math500.jsonl", [{"problem": f"test {i}", "answer": f"\\frac{{{i}}}{{7}}"} for i in range(20)])
    write(path / "aime24.jsonl", [{"problem": f"aime {i}", "answer": f"{i:03}"} for i in range(10)])
    write(path / "amc23.jsonl", [{"question": f"amc {i}", "answer": float(i)} for i in range(10)])
    write(path / "countdown.jsonl", countdown_rows(300))
    (path / "own").mkdir()
    for split in (TRAIN, TEST):
        write(path / "own" / f"{split}.jsonl", gsm8k_rows(f"own {split}", 100))
    return path


def opened(name, folder):
    data = folder / "own" if name == "file" else folder
    return open_task(TaskSpec(name, None if name in EMBEDDED else str(data)))


def solve(problem):
    """An expression for a Countdown row of this file."""
    numbers = [int(n) for n in dict(problem.data)["numbers"].split()]
    other = list(numbers)
    other.remove(3)
    return f"{other[0]}*{other[1]}+3"


def right_answer(task, problem):
    """The gold in the task's own format."""
    if task.name == "countdown":
        return f"<answer>{solve(problem)}</answer>"
    boxed = "\\boxed" in task.system
    return f"so \\boxed{{{problem.answer}}}" if boxed else f"so\n#### {problem.answer}"


@pytest.mark.parametrize("name", TASKS)
def test_a_task_has_a_name_a_version_splits_and_says_what_may_be_trained_on(name, folder):
    task = opened(name, folder)
    assert task.name == name
    assert task.version >= 1
    assert TEST in task.splits
    assert TEST not in task.trainable
    assert set(task.trainable) <= set(task.splits)
    assert len(set(task.splits)) == len(task.splits)


@pytest.mark.parametrize("name", TASKS)
def test_ids_are_unique_and_problems_are_the_same_each_time(name, folder):
    task, again = opened(name, folder), opened(name, folder)
    for split in task.splits:
        problems = task.problems(split)
        assert problems
        assert len({p.id for p in problems}) == len(problems)
        assert all(p.question.strip() and p.answer.strip() for p in problems)
        assert problems == again.problems(split)


@pytest.mark.parametrize("name", TASKS)
def test_splits_share_no_problem(name, folder):
    task = opened(name, folder)
    seen = set()
    for split in task.splits:
        keys = {key(p) for p in task.problems(split)}
        assert not keys & seen
        seen |= keys


@pytest.mark.parametrize("name", TASKS)
def test_golds_are_right_and_other_golds_are_wrong(name, folder):
    task = opened(name, folder)
    for split in task.splits:
        problems = task.problems(split)[:50]
        told = [right_answer(task, p) for p in problems]
        assert all(g.strict and g.flexible and g.formatted for g in task.grade(problems, told))
        others = told[1:] + told[:1]
        pairs = zip(task.grade(problems, others), told, others, strict=True)
        assert not any(g.strict or g.flexible for g, own, other in pairs if own != other)


@pytest.mark.parametrize("name", TASKS)
def test_nothing_written_is_nothing_right(name, folder):
    task = opened(name, folder)
    [grade] = task.grade(task.problems(TEST)[:1], [""])
    assert (grade.strict, grade.flexible, grade.formatted, grade.answer) == (False, False, False, None)


@pytest.mark.parametrize("name", TASKS)
def test_a_reference_solution_is_right(name, folder):
    task = opened(name, folder)
    solved = [p for p in task.problems(TEST) if p.solution][:50]
    assert all(g.strict for g in task.grade(solved, [p.solution for p in solved]))


@pytest.mark.parametrize("name", TASKS)
def test_an_unknown_split_is_one_line(name, folder):
    with pytest.raises(TaskError, match=r"task.split: .* has no split 'tset'; choose .*test") as error:
        opened(name, folder).problems("tset")
    assert "\n" not in str(error.value)


# What may be wrong with data, each one line that names the place and the way out.


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (TaskSpec("gsm9k"), "task.name: no task gsm9k, did you mean gsm8k.; choose arithmetic"),
        (TaskSpec("gsm8k", "no/such"), "task.data: no/such: no such file or folder"),
        (TaskSpec("file", "no/such/folder"), "task.data: no/such/folder: no such file or folder"),
        (TaskSpec("file"), "task.data: the task file needs a file, a folder or a hub id; give --data PATH"),
        (TaskSpec("arithmetic", "."), "task.data: arithmetic makes its own problems; leave --data out"),
        (TaskSpec("gsm8k", question="q"), "task.question: only the task file has it; gsm8k knows"),
        (TaskSpec("file", ".", grader="regex"), "task.grader: no grader regex; choose number, boxed, text"),
    ],
)
def test_a_task_that_cannot_be_opened_says_why(spec, message):
    with pytest.raises(UsageError, match=message) as error:
        open_task(spec)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "files", "message"),
    [
        ("gsm8k", {}, "no file gsm8k_train.jsonl"),
        ("gsm8k", {"train.jsonl": ""}, "train.jsonl: no rows"),
        ("gsm8k", {"train.jsonl": '{"question": "?"}\n'}, "no column answer for the answer; it has question"),
        ("gsm8k", {"train.jsonl": '{"question": "?", "answer": "3"}\n'}, "train-0: no '#### number' in its answer '3'"),
        ("gsm8k", {"train.jsonl": '{"question": "?", "answer"\n'}, "train.jsonl: line 1: not JSON"),
        ("gsm8k", {"train.jsonl": '{"question": "", "answer": "#### 1"}\n'}, "row 1 has no question"),
        (
            "math",
            {"train.jsonl": '{"problem": "?", "level": "Level 1", "answer": "1"}\n'},
            "none of 1 rows is a problem",
        ),
        ("countdown", {"countdown.jsonl": '{"target": 10, "nums": [3, 7]}\n'}, "too few rows for a"),
        ("countdown", {}, "no file countdown.jsonl"),
        ("file", {"train.jsonl": '{"question": "?", "answer": "yes"}\n'}, "answer 'yes' is no number; set task.grader"),
        ("file", {"train.jsonl": '{"question": "?", "answer": null}\n'}, "row 1 has no answer"),
        ("file", {"train.csv": "question,answer\n?,1\n", "test.csv": "question,answer\n ?,1\n"}, "share 1 problems"),
        ("file", {"other.txt": "?"}, "no file called train, validation or test"),
    ],
)
def test_data_that_is_wrong_is_one_line(name, files, message, tmp_path):
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    with pytest.raises(TaskError, match=message) as error:
        read_all(TaskSpec(name, str(tmp_path)))
    assert "\n" not in str(error.value)


def read_all(spec):
    task = open_task(spec)
    return [task.problems(split) for split in (TRAIN, VALIDATION, TEST)]


def test_train_and_test_that_share_problems_are_refused_in_any_case_and_spacing(tmp_path):
    write(tmp_path / "train.jsonl", [{"question": "How  Many?", "answer": "#### 1"}])
    write(tmp_path / "test.jsonl", [{"question": "how many? ", "answer": "#### 1"}])
    with pytest.raises(TaskError, match="train and test share 1 problems, such as train-0 and test-0; drop them"):
        open_task(TaskSpec("gsm8k", str(tmp_path))).problems(TRAIN)


def test_offline_and_not_cached_names_the_cache_and_the_local_way_out():
    from datasets import config

    with pytest.raises(TaskError, match=r"task.data: openai/gsm8k is not in the cache .*; .*--data PATH") as error:
        open_task(TaskSpec("gsm8k")).problems(TEST)
    assert str(config.HF_DATASETS_CACHE) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_test_file_alone_is_enough_to_evaluate(tmp_path):
    write(tmp_path / "gsm8k_test.jsonl", gsm8k_rows("test", 3))
    for data in (tmp_path, tmp_path / "gsm8k_test.jsonl"):
        assert len(open_task(TaskSpec("gsm8k", str(data))).problems(TEST)) == 3


def test_validation_of_a_subset_is_the_subset_of_validation(folder, tmp_path):
    rows = gsm8k_rows("train", 200)[::-3]
    write(tmp_path / "train.jsonl", rows)
    held = {p.question for p in open_task(TaskSpec("gsm8k", str(folder))).problems(VALIDATION)}
    some = {p.question for p in open_task(TaskSpec("gsm8k", str(tmp_path))).problems(VALIDATION)}
    assert some == held & {row["question"] for row in rows}


def test_a_solution_shows_no_calculator(folder):
    problem = open_task(TaskSpec("gsm8k", str(folder))).problems(TRAIN)[0]
    assert problem.solution == f"\n#### {problem.answer}"


def test_only_the_harder_half_of_math_is_trained_on(folder):
    task = open_task(TaskSpec("math", str(folder)))
    assert {p.difficulty for s in (TRAIN, VALIDATION) for p in task.problems(s)} == {"level 3", "level 4", "level 5"}


def test_countdown_splits_are_read_from_files_of_their_own_where_there_are_any(tmp_path):
    write(tmp_path / "countdown_test.jsonl", countdown_rows(5))
    assert len(open_task(TaskSpec("countdown", str(tmp_path))).problems(TEST)) == 5


def test_the_same_countdown_in_another_order_is_one_problem(tmp_path):
    write(tmp_path / "countdown_test.jsonl", [{"target": 10, "nums": [3, 7]}, {"target": 10, "nums": [7, 3]}])
    [problem] = CountdownTask(tmp_path).problems(TEST)
    assert problem.question == "Numbers: 3, 7. Target: 10."


# Data of one's own

COLUMNS = {"question": "q", "answer": "a", "id": "name", "difficulty": "level", "solution": "work"}
ROWS = [{"q": f"question {i}?", "a": str(i), "name": f"n{i}", "level": "easy", "work": f"#### {i}"} for i in range(200)]


def own_file(kind, path):
    file = path / f"mine.{kind}"
    if kind == "jsonl":
        write(file, ROWS)
    elif kind == "json":
        file.write_text(json.dumps(ROWS))
    elif kind == "csv":
        with file.open("w", newline="") as handle:
            writer = csv.DictWriter(handle, list(ROWS[0]))
            writer.writeheader()
            writer.writerows(ROWS)
    else:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(ROWS), file)
    return file


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet"])
def test_a_file_of_any_kind_is_divided_by_hash_and_whole_as_all(kind, tmp_path):
    task = open_task(TaskSpec("file", str(own_file(kind, tmp_path)), **COLUMNS))
    assert task.splits == ("all", TRAIN, VALIDATION, TEST)
    parts = [task.problems(split) for split in (TRAIN, VALIDATION, TEST)]
    assert sorted(p.id for part in parts for p in part) == sorted(row["name"] for row in ROWS)
    assert len(task.problems("all")) == 200
    assert len(parts[0]) > 150
    assert task.problems("all")[3] == Problem("n3", "question 3?", "3", "easy", "#### 3")


def test_a_column_that_is_named_must_be_there(tmp_path):
    write(tmp_path / "train.jsonl", [{"question": "?", "answer": "1"}])
    with pytest.raises(TaskError, match="no column level for the difficulty; it has question, answer"):
        open_task(TaskSpec("file", str(tmp_path), difficulty="level")).problems(TRAIN)


def test_ids_that_stand_twice_are_refused(tmp_path):
    write(tmp_path / "test.jsonl", [{"question": q, "answer": "1", "id": "x"} for q in "ab"])
    with pytest.raises(TaskError, match="1 ids are used twice, such as 'x'"):
        open_task(TaskSpec("file", str(tmp_path), id="id")).problems(TEST)


@pytest.mark.parametrize(
    ("grader", "gold", "right", "wrong"),
    [
        ("number", "1,000 dollars", "#### $1000", "#### 100"),
        ("number", "worked\n#### 7", "#### 7", "#### 8"),
        ("boxed", "\\frac{1}{2}", "\\boxed{0.5}", "\\boxed{2}"),
        ("text", "New York", "#### new york", "#### York"),
    ],
)
def test_a_file_is_graded_as_its_recipe_says(grader, gold, right, wrong, tmp_path):
    write(tmp_path / "test.jsonl", [{"question": "?", "answer": gold}])
    task = open_task(TaskSpec("file", str(tmp_path), grader=grader))
    problems = task.problems(TEST)
    assert task.grade(problems, [right])[0].strict
    assert not task.grade(problems, [wrong])[0].flexible


def test_cells_become_text():
    assert [as_text(v) for v in (142.0, 0.5, None, ["1", 2.0], True, "x")] == ["142", "0.5", "", "1, 2", "True", "x"]


# The real golds


@needs_data
@pytest.mark.parametrize(
    ("name", "split", "n"),
    [
        ("gsm8k", TEST, 1319),
        ("gsm8k", TRAIN, 6954),
        ("gsm8k", VALIDATION, 519),
        ("math", TEST, 500),
        ("aime24", TEST, 30),
        ("amc23", TEST, 83),
    ],
)
def test_every_published_gold_is_right_for_itself_and_wrong_for_the_next_other_one(name, split, n):
    task = open_task(TaskSpec(name, str(SHARED)))
    problems = task.problems(split)
    assert len(problems) == n
    told = [p.solution or right_answer(task, p) for p in problems]
    assert all(g.strict and g.flexible for g in task.grade(problems, told))
    others = [next_other(problems, place) for place in range(n)]
    graded = task.grade(problems, [right_answer(task, p) for p in others])
    assert not any(g.strict or g.flexible or g.failure for g in graded)


def next_other(problems, place):
    """The next problem whose gold has another value, by an independent check where the text alone cannot tell."""
    gold = problems[place].answer
    rest = (*problems[place + 1 :], *problems[:place])
    return next(p for p in rest if p.answer != gold and decide(gold, p.answer) is not True)


@needs_data
@pytest.mark.slow
def test_every_math500_gold_is_equal_to_itself_for_math_verify():
    golds = [p.answer for p in open_task(TaskSpec("math", str(SHARED))).problems(TEST)]
    assert [g for g in golds if not equivalent(g, g) and decide(g, g) is not True] == []
