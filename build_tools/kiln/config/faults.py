"""Faults that pydantic finds, as text of one line: place, value and allowed values."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

Place = tuple[str | int, ...]  # path of a value in a file: keys, and indices of lists


class PlacedError(ValueError):
    """A wrong value deeper than the section whose validator found it.

    `place`: the value's path relative to that section.
    """

    def __init__(self, place: Place, what: str) -> None:
        super().__init__(what)
        self.place = place


def first_fault(error: ValidationError) -> str:
    """The text of the first fault, such as `buckets[0].steps[1]: -1, allowed: greater than 0`."""
    first = error.errors(include_url=False)[0]
    location, kind, context = first["loc"], first["type"], first.get("ctx", {})
    if kind == "missing":
        return _prefixed(location[:-1], f"key '{location[-1]}' is missing")
    if kind == "extra_forbidden":
        return _prefixed(location[:-1], f"unknown key '{location[-1]}'")
    if kind == "value_error":
        cause = context["error"]
        inside = cause.place if isinstance(cause, PlacedError) else ()
        return _prefixed((*location, *inside), str(cause))
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
