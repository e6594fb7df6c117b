"""YAML reader that records the line of every value, for error messages.

A YAML file is untrusted input. The bytes of the file, the depth of nesting, the number of values (each alias
counted as the values it stands for) and the digits of a number have limits; depth is checked on the parser's
events, before recursive code reads the file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from kiln.config.faults import Place
from kiln.errors import KilnError

MOST_BYTES = 1 << 20  # of one file
MOST_DEPTH = 32  # levels of nested lists and sections
MOST_VALUES = 20_000  # lists, sections and scalars, each alias counted as the values it stands for
LEAST_INTEGER, GREATEST_INTEGER = -(1 << 63), (1 << 63) - 1
_MOST_DIGITS = 20  # enough for every integer above; Python converts longer text in quadratic time

_MOST_SHOWN = 200  # characters of a key or of a value in a message

_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BASE):  # type: ignore[misc]
    """Loader with the plain scalars of YAML 1.2: `1e-4` is a number, `no` and `0o17x` are text."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|false", "tf"),
    ("null", r"null|~|", ["n", "~", ""]),
    ("int", r"[-+]?[0-9]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), list(_first))


@dataclass
class Document:
    """One parsed file: plain dicts, lists and scalars, and the line of each key and list item."""

    path: str
    data: Any
    lines: dict[Place, int] = field(default_factory=dict)
    values: int = 0  # number of values converted so far

    def line(self, place: Place) -> int:
        """The 1-based line of the value at `place`, or of the nearest value around it."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)

    def error(self, place: Place, what: str) -> KilnError:
        """One-line error for the value at `place`, such as `file.yaml:LINE: key 'a.b': what`."""
        key = _cut(".".join(str(key_part) for key_part in place))
        what = re.sub(r"'([^'\n]*)'", lambda match: f"'{_cut(match[1])}'", what)
        return KilnError(f"{self.path}:{self.line(place)}: " + (f"key '{key}': {what}" if key else what))


def _cut(text: str) -> str:
    """`text`, cut after so many characters that a message stays readable."""
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def read(path: Path) -> Document:
    """Parse a YAML file. Raises KilnError, with the line if possible, if it is missing or invalid."""
    shown = shorten(path)
    text = _text(path, shown)
    try:
        _check_depth(text, shown)
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        reason = str(error.problem or error.context)
        at = [*text.split("\n"), ""][line - 1]
        if at.lstrip(" ").startswith("\t"):
            reason = "a tab; YAML indents lines with spaces"
        raise KilnError(f"{shown}:{line}: not valid YAML: {reason}") from error
    except yaml.YAMLError as error:
        raise KilnError(f"{shown}: not valid YAML: {error}") from error
    document = Document(shown, None)
    document.data = _convert(node, (), document, []) if node is not None else {}
    return document


def _text(path: Path, shown: str) -> str:
    """Content of a file. Raises KilnError if it cannot be read, is too long, or is not UTF-8."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise KilnError(f"{shown}: cannot read: {error.strerror}") from error
    if len(content) > MOST_BYTES:
        raise KilnError(f"{shown}: more than {MOST_BYTES} bytes, which is the most that a YAML file may have")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise KilnError(f"{shown}: not a text file in UTF-8") from error


def _check_depth(text: str, shown: str) -> None:
    """Raise KilnError if lists and sections are nested too deep.

    This works on the flat sequence of the parser's events; `yaml.compose` recurses once for each level, in C,
    and would overflow the stack.
    """
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MOST_DEPTH:
            line = event.start_mark.line + 1 if event.start_mark else 1
            raise KilnError(f"{shown}:{line}: lists and sections nested deeper than {MOST_DEPTH} levels")


def shorten(path: Path) -> str:
    """`path` relative to the working folder if it is below that folder, else unchanged."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _convert(node: yaml.Node, place: Place, document: Document, open_nodes: list[yaml.Node]) -> Any:
    """The plain value of a node; records its line. `open_nodes`: the nodes around it, to detect cycles."""
    document.lines.setdefault(place, node.start_mark.line + 1)
    document.values += 1
    if document.values > MOST_VALUES:
        raise document.error(place, f"more than {MOST_VALUES} values in the file, its aliases written out")
    if any(node is other for other in open_nodes):
        raise document.error(place, "an alias that contains itself")
    if isinstance(node, yaml.MappingNode):
        return _convert_mapping(node, place, document, [*open_nodes, node])
    if isinstance(node, yaml.SequenceNode):
        inner = [*open_nodes, node]
        return [_convert(item, (*place, index), document, inner) for index, item in enumerate(node.value)]
    kind = node.tag.rpartition(":")[2]
    if kind == "null":
        return None
    if kind == "bool":
        return bool(node.value == "true")
    if kind == "int":
        return _integer(node.value, place, document)
    if kind == "float":
        return float(node.value)
    if kind == "str":
        return str(node.value)
    raise document.error(place, f"the tag '{node.tag}' is not supported")


def _integer(text: str, place: Place, document: Document) -> int:
    value = int(text, 16 if text.startswith("0x") else 10) if len(text) <= _MOST_DIGITS else None
    if value is None or not LEAST_INTEGER <= value <= GREATEST_INTEGER:
        shown = text if len(text) <= _MOST_DIGITS else f"{text[:8]}… of {len(text)} characters"
        raise document.error(
            place, f"the whole number {shown} is outside {LEAST_INTEGER}..{GREATEST_INTEGER}"
        )
    return value


def _convert_mapping(
    node: yaml.MappingNode, place: Place, document: Document, open_nodes: list[yaml.Node]
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise KilnError(f"{document.path}:{line}: a key must be plain text")
        key = str(key_node.value)
        if key in result:
            raise KilnError(f"{document.path}:{line}: key '{key}': given twice")
        inner: Place = (*place, key)
        document.lines[inner] = line
        result[key] = _convert(value_node, inner, document, open_nodes)
    return result
