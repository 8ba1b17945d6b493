"""Commands, links, code blocks and tables as README.md, CONTRIBUTING.md and docs/ give them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COPIED = re.compile(
    r"^```(?P<language>\w*)\n(?P<block>.*?)^```$|^\| `(?P<row>esctl [^`]*)` \|", re.DOTALL | re.MULTILINE
)
PLACEHOLDER = re.compile(r"\b[A-Z]{3,}\b")
SHELL = ("", "bash", "sh", "console")  # languages of blocks whose lines are typed into a shell
INLINE = re.compile(r"`((?:esctl|make|python bench/|bench/)[ \w][^`]*)`")
USAGE = re.compile(r"^    (esctl .*)$", re.MULTILINE)


@dataclass(frozen=True)
class Command:
    """One command of a page, and the output that the page shows below it."""

    page: str
    text: str  # without prompt and comment
    output: str = ""

    @property
    def words(self) -> list[str]:
        """As a shell would hand them over; brackets of what may be left out are none."""
        return shlex.split(self.text.translate(str.maketrans("", "", "[]")))


def typed() -> list[Command]:
    """What a reader copies, in order: every line of every shell block, and commands that begin a row of a table."""
    return [command for page in PAGES for command in _typed(page)]


def _typed(page: Path) -> list[Command]:
    blocks, found = list[Command](), list[Command]()
    for match in COPIED.finditer(page.read_text()):
        row = match["row"]
        if row is None and match["language"] in SHELL:
            blocks += (lines := list(_lines(page.name, match["block"])))
            found += lines
        elif row is not None and not PLACEHOLDER.search(row):
            found.append(Command(page.name, row))
    shown = {command.text for command in blocks}  # a row that a block shows too is typed once
    return [c for c in found if c in blocks or c.text not in shown]


def mentioned() -> list[Command]:
    """Commands in running text, in tables and as usage: with placeholders, and arguments left out."""
    found = []
    for page in PAGES:
        prose = FENCE.sub("", page.read_text())
        found += [Command(page.name, " ".join(text.split())) for text in INLINE.findall(prose) + USAGE.findall(prose)]
    return found


def _lines(page: str, block: str) -> Iterator[Command]:
    """In a block with prompts, what has none is output; in one without, every line is a command."""
    block = block.replace("\\\n", " ")
    if "$ " not in block[:2]:
        yield from (Command(page, _bare(line)) for line in block.splitlines() if _bare(line))
        return
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        first, _, output = part.partition("\n")
        yield Command(page, _bare(first), output)


def _bare(line: str) -> str:
    """A line without its comment and without what it sets in the environment; quotes stay."""
    return re.sub(r"^([A-Z_]+=\S+ )+", "", re.sub(r"(^|\s+)#.*$", "", line).strip())
