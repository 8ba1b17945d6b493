"""No character that a terminal obeys passes, whatever its kind; text of every language does."""

import json
import unicodedata

import pytest

from esctl.plain import one_line, plain

HOSTILE = {
    "clear the screen": "\x1b[2J",
    "write the clipboard": "\x1b]52;c;ZXZpbA==\x07",
    "rename the window": "\x1b]0;root@host\x07",
    "an eight-bit CSI": "\x9b31m",
    "an eight-bit OSC": "\x9d0;title\x9c",
    "go back to the start of the line": "50 %\r99 %",
    "rub out": "50 %\b\b\b\b99 %",
    "a form feed": "a\x0cb",
    "a null": "a\x00b",
    "right to left": "\u202e% 05",
    "an isolate": "\u2067abc\u2069",
    "a line separator": "a\u2028b",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_a_terminal_obeys_is_written_out(text):
    shown = plain(text)
    assert shown != text
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Zl", "Zp")]
    assert not [c for c in shown if unicodedata.bidirectional(c) in ("RLO", "LRO", "RLE", "LRE", "RLI", "LRI", "FSI")]


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_json_stays_json(text):
    written = json.dumps({"label": text}, ensure_ascii=False)
    assert json.loads(plain(written)) == {"label": text}


@pytest.mark.parametrize("text", ["θ ← θ + αε", "שלום", "数学", "a\tb\nc", "👩‍🔬", "x̂", "│ ─ ✓"])
def test_text_of_every_language_stays(text):
    assert plain(text) == text


def test_a_label_is_one_line():
    assert one_line("ES\nFAKE ROW\t99.9\r\n") == "ES FAKE ROW 99.9 "
