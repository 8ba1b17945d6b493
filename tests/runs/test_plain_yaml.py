"""Recipes are read as they look: what YAML would take for something else, or blow up, is refused with its line."""

import pytest

from esctl.runs.plain_yaml import YAML_LIMIT, parse_yaml, read_yaml

PAIRS = zip("abcdefg", "bcdefgh", strict=True)
BOMB = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in PAIRS)
SURPRISES = [
    ("seed: 1\nsigma: 2\nseed: 3", "line 3: seed stands twice; give each key once"),
    ("method:\n  sigma: 1\n  sigma: 1", "line 3: sigma stands twice; give each key once"),
    ("seed: 010", "line 1: 010 means 8 in YAML; write 8, or quote it"),
    ("seed: -017", "line 1: -017 means -15 in YAML; write -15, or quote it"),
    ("seeds: [1, 07]", "line 1: 07 means 7 in YAML; write 7, or quote it"),
    ("time: 1:30", "line 1: 1:30 means 90 in YAML; write 90, or quote it"),
    ("label: no", "line 1: no means false in YAML; write false, or quote it"),
    ("label: On", "line 1: On means true in YAML; write true, or quote it"),
    ("label: y\nname: Yes", "line 2: Yes means true in YAML; write true, or quote it"),
    ("on: true", "line 1: on means true in YAML; write true, or quote it"),
    ("a: &x {b: *x}", "line 1: an alias stands inside of what it names; write the value out"),
    (BOMB, "line 5: more than 10,000 values, each alias written out; write fewer"),
    (f"a: {[0] * 20_000}", "line 1: more than 10,000 values, each alias written out; write fewer"),
    ("- " * 5000 + "1", "line 1: nested more than 32 deep; write it flatter"),
    ("? [1, 2]\n: 3", "line 1: a key that is no word; write `key: value`"),
]


@pytest.mark.parametrize(("text", "message"), SURPRISES)
def test_what_does_not_mean_what_it_looks_like_is_refused(text, message):
    with pytest.raises(ValueError, match=r".") as refused:
        parse_yaml(text)
    assert str(refused.value) == message


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: b", "a: !!python/object/apply:os.system [true]", "a: \0"])
def test_what_is_no_yaml_is_one_line(text):
    with pytest.raises(ValueError, match=r"^not YAML: .*$") as refused:
        parse_yaml(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("seed: 0", {"seed": 0}),
        ("sigma: 1.5e-3", {"sigma": 0.0015}),
        ("n: 1_000", {"n": 1000}),
        ("label: 'no'", {"label": "no"}),
        ("id: '007'", {"id": "007"}),
        ("a: &x {n: 1}\nb: *x", {"a": {"n": 1}, "b": {"n": 1}}),
        ("", None),
    ],
)
def test_what_means_what_it_looks_like_is_read(text, tree):
    assert parse_yaml(text) == tree


def test_a_file_that_is_not_utf8_names_its_first_wrong_byte(tmp_path):
    (tmp_path / "r.yaml").write_bytes("label: Größe".encode("latin-1"))
    with pytest.raises(ValueError, match="not UTF-8 at byte 9; save it as UTF-8"):
        read_yaml(tmp_path / "r.yaml")


def test_a_file_of_more_than_a_megabyte_is_not_read(tmp_path):
    from esctl.errors import RunError

    (tmp_path / "r.yaml").write_text("a: " + "x" * YAML_LIMIT)
    with pytest.raises(RunError, match=r"r\.yaml: has 1 MiB, more than the 1 MiB"):
        read_yaml(tmp_path / "r.yaml")
