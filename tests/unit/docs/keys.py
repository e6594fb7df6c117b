"""docs/keys.md: all keys of the YAML files, from their JSON Schemas.

PYTHONPATH=build_tools:tests .venv/bin/python -m unit.docs.keys writes the page.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kiln
from kiln.command_line.schemas import schema_of

PAGE = Path(kiln.__file__).parents[2] / "docs" / "keys.md"
_HEAD = """\
# All keys

Every key of the YAML files, with its values and its default, as `./kiln schema` describes them to editors.
[models.md](models.md), [targets.md](targets.md) and [devices.md](devices.md) explain them.

A section has a table of its own, below that of the file. `[…]` is an element of a list, `<name>` a name of
your own. Sizes in bytes may have a unit, as in `512KiB`. The page is made by
`PYTHONPATH=build_tools:tests .venv/bin/python -m unit.docs.keys`.
"""
# Texts that are a number with a unit, by the end of their pattern: sizes in bytes, and rates in a second.
_UNITS = {"(B|KiB|MiB|GiB|kB|MB)$": "bytes", "(Hz|kHz|MHz|GHz)$": "Hz"}


def page() -> str:
    """The text of docs/keys.md."""
    parts = [_HEAD]
    for kind in ("model", "target", "device"):
        parts += [f"## Files in `{kind}s/`\n", *_Tables(schema_of(kind)).text()]
    return "\n".join(parts)


class _Tables:
    """The tables of one kind of file: one of its own keys, and one for each section inside of it."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._waiting: list[tuple[str, dict[str, Any]]] = [("", schema)]
        self._places: dict[str, str] = {}  # by name of a definition, where its table is

    def text(self) -> Iterator[str]:
        """Headings and tables; a section that several keys have stands where the first has it."""
        while self._waiting:
            place, section = self._waiting.pop(0)
            if place:
                yield f"### `{place}`\n"
            yield "| key | values | default | meaning |\n| --- | --- | --- | --- |"
            for key, value in section["properties"].items():
                within = f"{place.partition(' (')[0]}.{key}".lstrip(".")
                default = "required" if key in section.get("required", ()) else self._default(value)
                cells = (f"`{key}`", self._values(value, within), default, value["description"])
                yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
            yield ""

    def _values(self, value: dict[str, Any], place: str) -> str:
        """What a key may be, in words; sections are put onto the list of those that wait for a table."""
        if "$ref" in value:
            return self._section(value["$ref"].rpartition("/")[2], place)
        if "oneOf" in value:  # sections that their key `kind` distinguishes
            found = [self._values(each, place) for each in value["oneOf"]]
            return ", ".join([found[0], *(text.removeprefix("section ") for text in found[1:])])
        if "anyOf" in value:
            found = [self._values(each, place) for each in value["anyOf"]]
            found = [
                text for text in found if text != "null" and not ("bytes" in found and "integer" in text)
            ]
            return " or ".join(dict.fromkeys(found))
        if "const" in value or "enum" in value:
            return ", ".join(_shown(each) for each in value.get("enum", [value.get("const")]))
        if "properties" in value:
            return self._section(place, place, value)
        if value.get("type") == "array":
            return f"list of {_grouped(self._values(value['items'], f'{place}[…]'))}"
        if value.get("type") == "object":
            inner = value.get("additionalProperties")
            if not isinstance(inner, dict):  # true where a name has any form
                inner = next(iter(value.get("patternProperties", {"": {}}).values()))
            return f"by name, {_grouped(self._values(inner, f'{place}.<name>'))}"
        return _scalar(value)

    def _section(self, name: str, place: str, section: dict[str, Any] | None = None) -> str:
        """A reference to the table of a section."""
        section = section or self._schema["$defs"][name]
        if "const" in section["properties"].get("kind", {}):
            place += f" (kind: {section['properties']['kind']['const']})"
        if name not in self._places:
            self._places[name] = place
            self._waiting.append((place, section))
        return f"section `{self._places[name]}`"

    def _default(self, value: dict[str, Any]) -> str:
        """The default of a key that may be left out; of a section, what its own keys do not have."""
        if "default" not in value:
            return "none"
        given = value["default"]
        if "$ref" not in value:
            return _shown(given)
        keys = self._schema["$defs"][value["$ref"].rpartition("/")[2]]["properties"]
        return ", ".join(
            f"{key} {_shown(each)}" for key, each in given.items() if each != keys[key].get("default", each)
        )


def _grouped(values: str) -> str:
    """`values` in parentheses if there is a choice among them."""
    return f"({values})" if " or " in values else values


def _scalar(value: dict[str, Any]) -> str:
    """A number, a text or a truth value, in words, with its limits."""
    kind: str = {
        "integer": "integer",
        "number": "number",
        "boolean": "`true`, `false`",
        "string": "text",
    }.get(value.get("type", ""), value.get("type", "any value"))
    for end, unit in _UNITS.items():
        if value.get("pattern", "").endswith(end):
            return unit
    limits = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    return (
        f"{kind} {', '.join(f'{sign} {value[key]}' for key, sign in limits.items() if key in value)}".rstrip()
    )


def _shown(value: object) -> str:
    return f"`{value}`" if value and isinstance(value, str) else f"`{json.dumps(value)}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
