"""YAML as recipes and tables write it: plain trees, read without the surprises of YAML 1.1.

Refused are aliases that stand for very much (a few lines can stand for billions), keys that stand twice, nesting beyond
a limit, and spellings that mean something else than they look like: `010` is 8, `1:30` is 90, `no` is false.
"""

import re
from pathlib import Path

import yaml

from esctl.runs.files import MEBI, read_limited

YAML_LIMIT = MEBI  # bytes of a recipe or a table
DEEPEST = 32
LARGEST = 10_000  # values and sections of a file, each alias written out
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one reads a folder of runs ten times as fast
INTEGER, BOOLEAN = "tag:yaml.org,2002:int", "tag:yaml.org,2002:bool"
ODD_INTEGER = re.compile(r"[-+]?0\d|.*:")  # octal, sexagesimal


def read_yaml(path: Path) -> object:
    """The tree of a file; RunError where it cannot be read, ValueError of one line where it is no plain YAML."""
    data = read_limited(path, YAML_LIMIT)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}; save it as UTF-8") from None
    return parse_yaml(text)


def parse_yaml(text: str) -> object:
    """The tree of a text; ValueError of one line that names the line and what is wrong."""
    try:
        _refuse_depth(text)
        loader = LOADER(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _refuse_explosion(node)
            _refuse_surprises(node)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {' '.join(str(error).split())}") from None


def _refuse_depth(text: str) -> None:
    """By events, which take no memory."""
    depth = 0
    for event in yaml.parse(text, LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            line = event.start_mark.line + 1 if event.start_mark else 0
            raise ValueError(f"line {line}: nested more than {DEEPEST} deep; write it flatter")


def _refuse_explosion(root: yaml.Node) -> None:
    """An alias is the node that it names, so the written-out size of each node is counted once, from the leaves up."""
    sizes: dict[int, int] = {}
    inside: set[int] = set()

    def size(node: yaml.Node) -> int:
        line = node.start_mark.line + 1
        if id(node) in inside:
            raise ValueError(f"line {line}: an alias stands inside of what it names; write the value out")
        if id(node) not in sizes:
            inside.add(id(node))
            children = [child for pair in node.value for child in pair] if isinstance(node, yaml.MappingNode) else []
            if isinstance(node, yaml.SequenceNode):
                children = node.value
            sizes[id(node)] = 1 + sum(size(child) for child in children)
            inside.remove(id(node))
            if sizes[id(node)] > LARGEST:
                raise ValueError(f"line {line}: more than {LARGEST:,} values, each alias written out; write fewer")
        return sizes[id(node)]

    size(root)


def _refuse_surprises(node: yaml.Node) -> None:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            where = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise ValueError(f"line {where}: a key that is no word; write `key: value`")
            if key.value in seen:
                raise ValueError(f"line {where}: {key.value} stands twice; give each key once")
            seen.add(key.value)
            _refuse_surprises(key)
            _refuse_surprises(value)
    elif isinstance(node, yaml.SequenceNode):
        for child in node.value:
            _refuse_surprises(child)
    elif node.tag == INTEGER and ODD_INTEGER.match(node.value):
        meant = yaml.safe_load(node.value)
        raise ValueError(f"line {line}: {node.value} means {meant} in YAML; write {meant}, or quote it")
    elif node.tag == BOOLEAN and node.value.lower() not in ("true", "false"):
        meant = str(yaml.safe_load(node.value)).lower()
        raise ValueError(f"line {line}: {node.value} means {meant} in YAML; write {meant}, or quote it")
