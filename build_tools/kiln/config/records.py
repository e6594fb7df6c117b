"""Typed records of the JSON files that stages pass on, and their one-line errors.

A stage reads a file of an earlier stage with `read`, and works with attributes from there on. Keys of a file
that its record does not have, missing keys and values of a wrong type are errors, which name the place in
the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from kiln.config import sizes
from kiln.errors import KilnError
from kiln.files import read_json

INT32_MAX = 2**31 - 1

# A size expression, see kiln.config.sizes.
Size = Annotated[sizes.SizeExpr, AfterValidator(sizes.check)]


class Record(BaseModel):
    """Base of all records: frozen; unknown keys and wrong types are errors.

    OMITTED: keys that a file contains only if their value is neither None, nor False, nor an empty section.
    """

    OMITTED: ClassVar[frozenset[str]] = frozenset()

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_serializer(mode="wrap")
    def _without_omitted(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = serialize(self)
        return {
            key: value
            for key, value in content.items()
            if key not in self.OMITTED or (value is not None and value is not False and value != {})
        }


R = TypeVar("R", bound=Record)


def read(record: type[R], path: Path) -> R:
    """The content of a JSON file. Raises KilnError for a file that cannot be read or is not a `record`."""
    return parse(record, read_json(path), path.name)


def parse(record: type[R], content: object, where: str) -> R:
    """`content`, parsed JSON, as a `record`. Raises a KilnError that begins with `where`, the file."""
    try:
        return record.model_validate(content)
    except ValidationError as error:
        raise KilnError(f"{where}: {_message(error)}") from None
    except RecursionError:
        raise KilnError(f"{where}: values nested too deep") from None


def _message(error: ValidationError) -> str:
    """The text of the first error: place, value and allowed values."""
    first = error.errors(include_url=False)[0]
    location, kind, context = first["loc"], first["type"], first.get("ctx", {})
    if kind == "missing":
        return _prefixed(location[:-1], f"key '{location[-1]}' is missing")
    if kind == "extra_forbidden":
        return _prefixed(location[:-1], f"unknown key '{location[-1]}'")
    if kind == "value_error":
        return _prefixed(location, str(context["error"]))
    if kind in ("too_short", "too_long"):
        bound = "at least" if kind == "too_short" else "at most"
        count = context.get("min_length", context.get("max_length"))
        return _prefixed(location, f"{len(first['input'])} entries, allowed: {bound} {count}")
    if kind == "string_pattern_mismatch":
        return _prefixed(location, f"{first['input']}, allowed: text that matches {context['pattern']}")
    allowed = first["msg"].removeprefix("Input should be ").replace("'", "")
    value = first["input"]
    shown = type(value).__name__ if isinstance(value, (dict, list)) else value
    return _prefixed(location, f"{shown}, allowed: {allowed}")


def _prefixed(place: Sequence[int | str], message: str) -> str:
    """`message` after its place in the file, such as `buckets[0].steps[1]: message`."""
    text = ""
    for index, part in enumerate(place):
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.startswith("@"):  # the tag of a union, which the file does not contain
            continue
        else:
            text += f".{part}" if index else part
    return f"{text}: {message}" if text else message
