"""YAML as recipes and tables write it: plain trees, read without the surprises of YAML 1.1.

Refused are aliases (a few lines can stand for billions), keys that stand twice, nesting beyond a limit, and spellings
that mean something else than they look like: `010` is 8, `1:30` is 90, `no` is false.
"""

import re
from pathlib import Path

import yaml

from esctl.runs.files import MEBI, read_limited

YAML_LIMIT = MEBI  # bytes of a recipe or a table
DEEPEST = 32
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
        _refuse_aliases_and_depth(text)
        loader = LOADER(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _refuse_surprises(node)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {' '.join(str(error).split())}") from None


def _refuse_aliases_and_depth(text: str) -> None:
    """By events, which take no memory: an alias is refused before anything is built from it."""
    depth = 0
    for event in yaml.parse(text, LOADER):
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"line {line}: an alias (*{event.anchor}); write its value out")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError(f"line {line}: nested more than {DEEPEST} deep; write it flatter")


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
