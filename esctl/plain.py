"""Text from strangers, made safe to show: labels, completions, file names and messages of libraries.

A terminal obeys control characters (it clears the screen, renames the window, writes the clipboard), and bidirectional
overrides show a line in another order than its bytes. Each is replaced by its JSON escape, so that JSON stays JSON.
"""

import re

# C0 but tab and newline, DEL and C1; marks, embeddings, overrides and isolates of direction; two more line separators.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_BREAKS = re.compile(r"\s*[\n\t]\s*")


def plain(text: str) -> str:
    r"""The text with what a terminal would obey written out, such as `\u001b`; tabs and newlines stay."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def one_line(text: str) -> str:
    """As `plain`, on one line: for labels, cells of a table and messages."""
    return plain(_BREAKS.sub(" ", text))
