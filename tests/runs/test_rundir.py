"""Laws of the run directory: files are whole, numbers survive, one process at a time, and damage is named."""

import gzip
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esctl.errors import RunError
from esctl.runs.directory import RunDir, find_runs
from esctl.runs.files import (
    adapter,
    append_lines,
    drop_torn_line,
    read_gzip_lines,
    read_json,
    read_lines,
    write_atomic,
    write_gzip_lines,
    write_json,
)
from esctl.runs.records import Base, EvalSample, NoiseRecord, RunRecord, ScoreRecord

RECORD = RunRecord("ES", "es", 0, Base("embedded", "w", "t"), "p", {"train": "s"}, 10, NoiseRecord(1, "f"))
SAMPLES = [EvalSample(f"p{i}", 0, "text\n\u2028é", 3, None, True, True, False, False) for i in range(3)]
HOLDER = "import sys, time; from pathlib import Path; from esctl.runs.directory import RunDir\n"
HOLDER += "with RunDir(Path(sys.argv[1])).lock(): print('held', flush=True); sys.stdin.read()"


def score(member: int, value: float | None = 0.1) -> ScoreRecord:
    return ScoreRecord(0, 0, member, value, {"strict": 0.1}, 8, 80, 96, 0.5)


def test_a_torn_last_line_does_not_count_and_is_cut_before_the_next(tmp_path):
    path = tmp_path / "scores.jsonl"
    append_lines(path, [score(0), score(1)])
    whole = path.read_bytes()
    for torn in (whole[-40:-1], b"{", b"\xff"):
        path.write_bytes(whole + torn)
        assert [r.member for r in read_lines(path, ScoreRecord)] == [0, 1]
        assert drop_torn_line(path) == len(torn)
        assert path.read_bytes() == whole
    assert drop_torn_line(path) == 0
    append_lines(path, [score(2)])
    assert [r.member for r in read_lines(path, ScoreRecord)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"generation":0,', "2: line: Invalid JSON"),
        (b"", "2: line: Invalid JSON"),
        (b'{"generation":"x"}', "2: generation: Input should be a valid integer"),
    ],
)
def test_damage_in_the_middle_is_an_error_by_file_and_line(line, says, tmp_path):
    path = tmp_path / "scores.jsonl"
    lines = [adapter(ScoreRecord).dump_json(score(m)) for m in range(3)]
    path.write_bytes(b"\n".join([lines[0], line, lines[2], b""]))
    with pytest.raises(RunError) as error:
        read_lines(path, ScoreRecord)
    assert str(error.value).startswith(f"{path}:{says}")
    assert str(error.value).endswith("; restore the file from a copy")
    assert len(str(error.value).splitlines()) == 1


@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_floats_survive_the_file_exactly(value):
    kind = adapter(ScoreRecord)
    again = kind.validate_json(kind.dump_json(score(0, value)), strict=True).score
    assert again is not None
    assert again.hex() == value.hex()


def test_a_record_is_read_as_it_was_written(tmp_path):
    run = RunDir(tmp_path / "new" / "run")
    run.write_record(RECORD)
    assert run.read_record() == RECORD
    assert [p.name for p in run.path.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"schema": 2}', "schema 2, but this esctl reads 1; use the esctl that wrote it"),
        ('{"schema": 1}', "label: Field required"),
        ('{"label": ', "not JSON (Expecting value: line 1 column 11 (char 10)); restore it or remove the run"),
        ("[]", ": "),
    ],
)
def test_a_damaged_or_later_record_is_refused(text, says, tmp_path):
    run = RunDir(tmp_path)
    run.record.write_text(text)
    with pytest.raises(RunError) as error:
        run.read_record()
    assert str(error.value).startswith(f"{run.record}: ")
    assert says in str(error.value)


def test_a_missing_run_names_the_next_step(tmp_path):
    with pytest.raises(RunError, match="no run here") as error:
        RunDir(tmp_path).read_record()
    assert "esctl train --run" in str(error.value)
    with pytest.raises(RunError, match="missing"):
        read_json(tmp_path / "x.json", RunRecord)
    with pytest.raises(RunError, match="no run directory here"):
        find_runs([tmp_path])


def test_runs_are_found_at_any_depth_and_once(tmp_path):
    for name in ("a", "b/c"):
        RunDir(tmp_path / name).write_record(RECORD)
    assert [r.path for r in find_runs([tmp_path, tmp_path / "a"])] == [tmp_path / "a", tmp_path / "b/c"]


def test_a_kill_before_the_rename_leaves_the_old_file(tmp_path):
    path = tmp_path / "run.json"
    write_json(path, RECORD)
    code = (
        "from pathlib import Path; from esctl.runs.files import write_atomic;"
        f" write_atomic(Path({str(path)!r}), b'new')"
    )
    died = subprocess.run([sys.executable, "-c", code], env={"ESCTL_FAULT": "mid-rename:1"})
    assert died.returncode == -9
    assert read_json(path, RunRecord) == RECORD
    write_atomic(path, b"newer")  # the file that the kill left does no harm
    assert path.read_bytes() == b"newer"
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_the_lock_excludes_a_second_process_and_dies_with_the_first(tmp_path):
    run = RunDir(tmp_path / "run")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(run.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunError) as error, run.lock():
            pass
        assert str(error.value) == f"{run.path}: another process is using this run; wait for it or stop it"
        holder.kill()
    with run.lock():
        run.refuse_used()  # an abandoned lock is no use


def test_a_used_directory_and_a_file_are_refused(tmp_path):
    run = RunDir(tmp_path)
    run.refuse_used()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(RunError, match="is in use; continue it with --resume, or choose another with --run"):
        run.refuse_used()
    with pytest.raises(RunError, match="is a file; choose a directory with --run"):
        RunDir(tmp_path / "notes.txt").refuse_used()


def test_equal_samples_are_equal_bytes(tmp_path):
    first, second = tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl.gz"
    write_gzip_lines(first, SAMPLES)
    write_gzip_lines(second, SAMPLES)
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes()[4:8] == bytes(4)  # no time in it
    assert read_gzip_lines(first, EvalSample) == SAMPLES


def test_damaged_samples_are_named(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    write_gzip_lines(path, SAMPLES)
    whole = path.read_bytes()
    for damaged in (whole[:-9], b"no gzip", whole[:20] + b"\0\1\2" + whole[23:], gzip.compress(b'{"problem": 1}\n')):
        path.write_bytes(damaged)
        with pytest.raises(RunError, match=r"a\.jsonl\.gz: damaged \(.*\); remove it and evaluate again"):
            read_gzip_lines(path, EvalSample)


def test_a_record_without_new_fields_is_still_read(tmp_path):
    run = RunDir(tmp_path)
    run.record.write_text(
        '{"label": "GRPO", "method": "external", "seed": 0, "base": {"name": "m", "weights_sha256": "w",'
        ' "tokenizer_sha256": "t"}, "prompt_sha256": "p", "problems_sha256": {}, "dim": 1,'
        ' "noise": {"version": 1, "fingerprint": ""}}'
    )
    assert replace(run.read_record(), label="") == replace(
        RECORD, label="", method="external", base=Base("m", "w", "t"), problems_sha256={}, dim=1,
        noise=NoiseRecord(1, ""),
    )  # fmt: skip


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk without room")
def test_a_full_disk_is_named_and_leaves_the_old_file(tmp_path):
    (tmp_path / "a.json").write_text("old")
    (tmp_path / ".a.json.new").symlink_to("/dev/full")
    (tmp_path / "b.jsonl").symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"a\.json: cannot be written \(No space left on device\); make room"):
        write_atomic(tmp_path / "a.json", b"new")
    with pytest.raises(RunError, match=r"b\.jsonl: cannot be written \(No space left on device\); make room"):
        append_lines(tmp_path / "b.jsonl", SAMPLES)
    assert {p.name: p.is_symlink() for p in tmp_path.iterdir()} == {"a.json": False, "b.jsonl": True}
    assert (tmp_path / "a.json").read_text() == "old"


def test_what_a_kill_leaves_before_a_run_is_begun_does_not_stand_in_its_way(tmp_path):
    for name in (".lock", ".recipe.yaml.new"):
        (tmp_path / name).touch()
    RunDir(tmp_path).refuse_used()


def test_what_is_raised_while_a_run_is_locked_is_not_taken_for_its_lock(tmp_path):
    with pytest.raises(FileExistsError, match="theirs"), RunDir(tmp_path).lock():
        raise FileExistsError("theirs")
    with RunDir(tmp_path).lock():
        pass


def test_a_place_that_cannot_hold_a_run_is_named():
    with pytest.raises(RunError, match=r"/proc/.*: cannot be written \(.*\); give write access"):
        RunDir(Path("/proc/none")).lock().__enter__()
