"""Data sets and their splits: the columns of a task found in rows, published sets, and what may not be in two splits.

Train and test are read as they are published; validation is carved from train by a hash of the question.
"""

import hashlib
import logging
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import cast

from esctl.errors import TaskError
from esctl.tasks import TEST, TRAIN, VALIDATION, Problem
from esctl.tasks.grading.answers import same_number
from esctl.tasks.rows import ENDINGS, as_text, read_rows

Row = dict[str, str]
WHOLE_FLOAT = re.compile(r"([-+]?[0-9]+)\.0+")


@dataclass(frozen=True)
class Source:
    """Where the rows of one split are: on the hub, or under one of these names in a local folder."""

    hub: str
    split: str  # as the hub calls it; may be a slice such as train[:1000]
    names: tuple[str, ...]  # file names without ending, in order of preference
    config: str | None = None


@dataclass(frozen=True)
class Fields:
    """What is read from a row, each from the first of its possible columns that the data has."""

    needed: Mapping[str, tuple[str, ...]]
    optional: Mapping[str, tuple[str, ...]]


def load_rows(source: Source, data: Path | None, fields: Fields) -> list[Row]:
    """All rows of a published split, keyed by field; raises TaskError, one line, for what is missing or empty.

    Whole numbers lose a ".0": the sets hold 142 as a float, and it is one number in every file format.
    """
    if data is None:
        rows = pick(from_hub(source.hub, source.config, source.split), fields, f"{source.hub} {source.split}")
    else:
        path = find_file(data, source.names)
        if path is None:
            folder = data if data.is_dir() else data.parent
            raise TaskError(
                f"task.data: {data}: no file {source.names[0]}.jsonl (or {', '.join(ENDINGS)}) in {folder};"
                " add it, or leave --data out to read from the hub"
            )
        rows = pick(read_rows(path), fields, str(path))
    return [{field: _whole(text) for field, text in row.items()} for row in rows]


def _whole(text: str) -> str:
    found = WHOLE_FLOAT.fullmatch(text)
    return found[1] if found else text


def find_file(data: Path, names: Sequence[str]) -> Path | None:
    """The file of one of these names: `data` itself, or in the folder `data`, or in the folder of the file `data`.

    Earlier names come first. Raises TaskError where one name has two endings: either could be out of date.
    """
    if data.is_file() and data.stem in names:
        return data
    folder = data if data.is_dir() else data.parent
    for name in names:
        found = [path for ending in ENDINGS if (path := folder / f"{name}{ending}").is_file()]
        if len(found) > 1:
            raise TaskError(f"task.data: {folder}: both {found[0].name} and {found[1].name}; keep one of them")
        if found:
            return found[0]
    return None


def pick(rows: Sequence[Mapping[str, object]], fields: Fields, where: str) -> list[Row]:
    """The fields of every row as text; raises TaskError for no rows, a missing column, or an empty value."""
    if not rows:
        raise TaskError(f"task.data: {where}: no rows; give data that has problems")
    columns = list(dict.fromkeys(column for row in rows for column in row))  # a column may begin in a later row
    found = {field: _first(names, columns) for field, names in {**fields.needed, **fields.optional}.items()}
    for field, names in fields.needed.items():
        if found[field] is None:
            have = ", ".join(map(str, columns))
            raise TaskError(f"task.data: {where}: no column {' or '.join(names)} for the {field}; it has {have}")
    return [_row(row, number, found, fields, where) for number, row in enumerate(rows, 1)]


def _row(row: Mapping[str, object], number: int, found: Mapping[str, str | None], fields: Fields, where: str) -> Row:
    picked: Row = {}
    for field, column in found.items():
        try:
            picked[field] = "" if column is None else as_text(row.get(column))
            picked[field].encode()
        except TypeError as error:
            raise TaskError(f"task.data: {where}: row {number}: {column} is {error}; write it as text") from None
        except UnicodeEncodeError:
            raise TaskError(
                f"task.data: {where}: row {number}: {column} holds half of a surrogate pair; mend that character"
            ) from None
        if field in fields.needed and not picked[field].strip():
            raise TaskError(f"task.data: {where}: row {number} has no {field}; fill it or drop the row")
    return picked


def _first(names: Sequence[str], columns: Sequence[str]) -> str | None:
    return next((name for name in names if name in columns), None)


def quiet_datasets() -> ModuleType:
    """The library without progress bars and log lines: the error that is raised says what is wrong."""
    import datasets

    datasets.disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    return cast("ModuleType", datasets)


def from_hub(name: str, config: str | None, split: str) -> list[dict[str, object]]:
    """Rows of a split from the hub or its cache; raises TaskError naming the cache and the local way out."""
    datasets = quiet_datasets()
    try:
        return list(datasets.load_dataset(name, config, split=split))
    except (OSError, ValueError) as error:
        raise _not_there(name, error) from None


def hub_splits(name: str) -> tuple[str, ...]:
    """The splits that a hub data set has; raises TaskError as `from_hub` does."""
    datasets = quiet_datasets()
    try:
        return tuple(datasets.get_dataset_split_names(name))
    except (OSError, ValueError) as error:
        raise _not_there(name, error) from None


def _not_there(name: str, error: Exception) -> TaskError:
    from datasets import config

    return TaskError(
        f"task.data: {name} is not in the cache {config.HF_DATASETS_CACHE} and cannot be fetched"
        f" ({type(error).__name__}); go online once, or give local files with --data PATH"
    )


VALIDATION_PERCENT = 7  # of train: 512 of GSM8K's 7,473, or so


@dataclass(frozen=True)
class Published:
    """One data set; without `train` there is a test split alone, and nothing may be trained on."""

    name: str
    fields: Fields
    problem: Callable[[str, Row], Problem | None]  # from an id and a row; None leaves the row out
    test: Source
    train: Source | None = None

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return (TRAIN, VALIDATION, TEST) if self.train else (TEST,)

    @property
    def trainable(self) -> tuple[str, ...]:
        """The splits that may be trained on."""
        return (TRAIN,) if self.train else ()

    def problems(self, split: str, data: Path | None) -> tuple[Problem, ...]:
        """All problems of a split, ids in file order; raises TaskError where data is missing, empty, or leaks."""
        refuse_unknown(self.name, split, self.splits)
        if split == TEST or self.train is None:
            return self._read(TEST, self.test, data)
        published = self._read(TRAIN, self.train, data)
        if data is None or find_file(data, self.test.names) is not None:
            refuse_shared(published, self._read(TEST, self.test, data))
        return tuple(p for p in published if is_held_out(p) == (split == VALIDATION))

    def _read(self, split: str, source: Source, data: Path | None) -> tuple[Problem, ...]:
        rows = load_rows(source, data, self.fields)
        made = [self.problem(f"{split}-{i}", row) for i, row in enumerate(rows)]
        kept = tuple(p for p in made if p is not None)
        if not kept:
            raise TaskError(f"task.data: {self.name} {split}: none of {len(rows)} rows is a problem of this task")
        if data is not None:
            refuse_two_golds(made, f"{self.name} {split}")
        return kept


def refuse_unknown(task: str, split: str, splits: Sequence[str]) -> None:
    """Raise TaskError for a split that the task does not have."""
    if split not in splits:
        raise TaskError(f"task.split: {task} has no split {split!r}; choose {', '.join(splits)}")


def refuse_shared(train: Sequence[Problem], test: Sequence[Problem], names: tuple[str, str] = (TRAIN, TEST)) -> None:
    """Raise TaskError where a question is in both."""
    known = {_sameness(p): p for p in train}
    shared = [(known[_sameness(p)], p) for p in test if _sameness(p) in known]
    if shared:
        a, b = shared[0]
        raise TaskError(
            f"task.data: {names[0]} and {names[1]} share {len(shared)} problems, such as {a.id} and {b.id};"
            " drop them from one"
        )


def refuse_two_golds(rows: Sequence[Problem | None], where: str) -> None:
    """Raise TaskError where one question has two answers: one of them is wrong, and every model fails it."""
    for a, b in _doubled(rows):
        first, second = rows[a], rows[b]
        if first and second and not _same_answer(first.answer, second.answer):
            raise TaskError(
                f"task.data: {where}: rows {a + 1} and {b + 1} ask the same question and have two answers,"
                f" {first.answer[-40:]!r} and {second.answer[-40:]!r}; keep the right one"
            )


def refuse_copies(rows: Sequence[Problem], where: str) -> None:
    """Raise TaskError where a question stands twice: a copy would count as one more independent problem."""
    copies = _doubled(rows)
    if copies:
        a, b = copies[0]
        raise TaskError(
            f"task.data: {where}: {len(copies)} rows repeat a question, such as rows {a + 1} and {b + 1}; drop the"
            " copies, which would count as independent problems and make intervals too narrow"
        )


def _doubled(rows: Sequence[Problem | None]) -> list[tuple[int, int]]:
    """Places of problems that ask the same question: the first one and a later one."""
    first: dict[str, int] = {}
    found = []
    for place, problem in enumerate(rows):
        if problem is not None:
            earlier = first.setdefault(_sameness(problem), place)
            if earlier != place:
                found.append((earlier, place))
    return found


def _same_answer(a: str, b: str) -> bool:
    return a.strip() == b.strip() or same_number(a, b)


def key(problem: Problem) -> str:
    """A question without case and spacing; decides its split."""
    return " ".join(problem.question.casefold().split())


def _sameness(problem: Problem) -> str:
    """What makes two questions the same: their characters, whatever case, spacing and Unicode form they have."""
    return unicodedata.normalize("NFC", key(problem))


def is_held_out(problem: Problem) -> bool:
    """Whether a problem of train is held out for validation; the same in any subset and order of the data."""
    return percentile(problem) < VALIDATION_PERCENT


def percentile(problem: Problem) -> int:
    """0 to 99, evenly, from a hash of the question."""
    digest = hashlib.blake2b(key(problem).encode(), digest_size=8, person=b"esctl-valid").digest()
    return int.from_bytes(digest, "little") % 100
