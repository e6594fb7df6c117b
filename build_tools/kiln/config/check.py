"""Checks a parsed YAML file against a typed section, and reports the first error in one line."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Hashable, Iterable
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from kiln.config.document import Document
from kiln.config.faults import Place, PlacedError
from kiln.errors import KilnError


class Section(BaseModel):
    """Base of everything read from YAML: unknown keys and wrong types are errors, objects are frozen."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


S = TypeVar("S", bound=Section)
H = TypeVar("H", bound=Hashable)


_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a finite number",
    "string": "text",
    "bool": "true or false",
    "list": "a list",
    "dict": "a section of keys",
    "model": "a section of keys",
    "model_attributes": "a section of keys",
}


# Architectures as Debian, Go, Microsoft and Apple name them.
_OTHER_NAMES = {"amd64": "x86_64", "arm64": "aarch64", "armhf": "armv7", "x64": "x86_64"}


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` with the known word nearest to `word`; empty if no known word is similar."""
    words = {candidate.lower(): candidate for candidate in known}
    usual = _OTHER_NAMES.get(word.lower(), word.lower())
    close = difflib.get_close_matches(usual if usual in words else word.lower(), list(words), n=1, cutoff=0.5)
    return f"; did you mean '{words[close[0]]}'?" if close else ""


def first_twice(words: Iterable[H]) -> H | None:
    """The first of `words` that occurs again; None if each occurs once."""
    seen: set[H] = set()
    for word in words:
        if word in seen:
            return word
        seen.add(word)
    return None


def choices(word: str, known: Iterable[str]) -> str:
    """End of an error message, right after `word`: the nearest known word, if any, then all known words."""
    words = list(known)
    return f"{nearest(word, words) or ';'} known: {', '.join(words) or 'none'}"


def validate(section: type[S], document: Document) -> S:
    """Convert a document to the typed `section`. Raises KilnError for the first error in file order."""
    if not isinstance(document.data, dict):
        raise document.error((), f"a section of keys expected, got {describe(document.data)}")
    try:
        return section.model_validate(document.data)
    except ValidationError as error:
        raise _first(section, document, error) from None


def describe(value: Any) -> str:
    """A value as an error message shows it: scalars themselves (long text cut), else the kind."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, str):
        return f"'{value}'" if len(value) <= 60 else f"'{value[:57]}…'"
    return "a list" if isinstance(value, list) else "a section of keys"


def _first(section: type[Section], document: Document, error: ValidationError) -> KilnError:
    """The first of pydantic's errors in file order: misspelt keys before all others, missing ones after."""
    entries: list[tuple[int, int, Place, str]] = []
    for item in error.errors(include_url=False):
        path, keys = _locate(section, document.data, item["loc"])
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, PlacedError):
            path = (*path, *cause.place)
        if item["type"].startswith("union_tag") and isinstance(item.get("input"), dict):
            path = (*path, "kind")
        # A misspelt key is the reason why another one is missing; so is a wrong value, from which a key that
        # was left out would follow.
        misspelt = item["type"] == "extra_forbidden"
        sentence = _sentence(dict(item), path, keys)
        kinds = _kinds_at(section, path[:-1]) if item["type"] == "union_tag_not_found" else []
        if kinds and sentence == "missing":
            sentence = f"missing, allowed: {', '.join(kinds)}"
        inner = _inner(section, str(path[-1])) if misspelt and len(path) == 1 else []
        if inner:
            sentence = "unknown key; did you mean " + " or ".join(f"'{key}'" for key in inner) + "?"
        order = 0 if misspelt else 2 if item["type"] == "missing" else 1
        entries.append((order, document.line(path), path, sentence))
    entries.sort(key=lambda entry: entry[:2])
    _, _, path, sentence = entries[0]
    return document.error(path, sentence)


def _inner(section: type[Section], key: str) -> list[str]:
    """Keys of this very name inside the keys of `section`, as `budget.latency_ms`."""
    if key in section.model_fields:
        return []
    kinds = {name: _choose(hints.annotation, {}) for name, hints in section.model_fields.items()}
    return [f"{name}.{key}" for name, kind in kinds.items() if _is_section(kind) and key in kind.model_fields]


def _sentence(item: dict[str, Any], path: Place, keys: list[str]) -> str:
    """Message for one of pydantic's errors. `keys`: the known keys of the section around `path`."""
    kind: str = item["type"]
    context: dict[str, Any] = item.get("ctx", {})
    got = describe(item.get("input"))
    if kind == "extra_forbidden":
        return "unknown key" + (nearest(str(path[-1]), keys) or f"; known: {', '.join(keys)}")
    if kind == "missing":
        return "missing"
    if kind in ("literal_error", "union_tag_invalid"):
        tag = context.get("tag")
        value = got if tag is None else f"'{tag}'"
        allowed = str(context.get("expected") or context.get("expected_tags")).replace(" or ", ", ")
        words = [word.strip(" '") for word in allowed.split(",")]
        return f"{value} is not allowed, allowed: {', '.join(words)}" + nearest(value.strip("'"), words)
    if kind == "union_tag_not_found":
        return "missing" if isinstance(item.get("input"), dict) else f"a section of keys expected, got {got}"
    if kind == "value_error":
        return str(context.get("error", item["msg"]))
    if kind == "string_pattern_mismatch":
        return f"{got} does not match {context.get('pattern')}"
    if kind in ("greater_than_equal", "greater_than", "less_than_equal", "less_than"):
        limit = next(iter(context.values()))
        word = {"greater_than_equal": "at least", "greater_than": "more than", "less_than_equal": "at most"}
        return f"must be {word.get(kind, 'less than')} {limit}, got {got}"
    if kind in ("too_short", "too_long"):
        least, greatest = context.get("min_length"), context.get("max_length")
        limit_text = f"at least {least}" if least is not None else f"at most {greatest}"
        return f"needs {limit_text} entries, got {context.get('actual_length')}"
    for suffix in ("_type", "_parsing", "_from_float"):
        if kind.removesuffix(suffix) in _EXPECTED:
            return f"{_EXPECTED[kind.removesuffix(suffix)]} expected, got {got}"
    return f"{item['msg']}, got {got}"


def _locate(section: type[Section], data: Any, loc: tuple[str | int, ...]) -> tuple[Place, list[str]]:
    """The place in the file for pydantic's location `loc`, and the known keys of the section around it.

    Pydantic adds the chosen alternative of a tagged union to locations, and [key] where a key is wrong; the
    file has no such levels.
    """
    path: list[str | int] = []
    keys = list(section.model_fields)
    current: Any = section
    for key in loc:
        kind = data.get("kind") if isinstance(data, dict) else None
        # The alternative's name comes first of all, and may be a key of the section too: kind tensors.
        named = _is_tagged(current) and key == kind
        current = _choose(current, data)
        if named or (isinstance(data, dict) and key not in data and (key == kind or key in _kinds(current))):
            continue
        if key == "[key]":  # the key itself is wrong, not its value
            continue
        keys = list(current.model_fields) if _is_section(current) else []
        path.append(key)
        current = _child(current, key)
        try:
            data = data[key]
        except (LookupError, TypeError):
            data = None
    final = _choose(current, data)
    if isinstance(data, dict) and not loc and _is_section(final):
        keys = list(final.model_fields)
    return tuple(path), keys


def _is_tagged(kind: Any) -> bool:
    """Whether `kind` is a union of sections among which the key `kind` of the file chooses."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    sections = [option for option in get_args(kind) if _is_section(option)]
    return get_origin(kind) in (Union, types.UnionType) and len([one for one in sections if _kinds(one)]) > 1


def _is_section(kind: Any) -> bool:
    # In Python 3.10 isinstance(dict[str, int], type) is true, and issubclass of it raises TypeError.
    return get_origin(kind) is None and isinstance(kind, type) and issubclass(kind, BaseModel)


def _choose(kind: Any, data: Any) -> Any:
    """The type `kind` without Annotated and None; of a union of sections, the one that `data` names."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    options = [_choose(option, data) for option in get_args(kind) if option is not type(None)]
    name = data.get("kind") if isinstance(data, dict) else None
    named = [option for option in options if name in _kinds(option)]
    sections = [option for option in options if _is_section(option)]
    return [*named, *(sections if isinstance(data, dict) else []), *options][0]


def _kinds(section: Any) -> tuple[Any, ...]:
    """Allowed values of a section's key `kind`; empty if the section has no such key."""
    field = section.model_fields.get("kind") if _is_section(section) else None
    return get_args(field.annotation) if field is not None else ()


def _kinds_at(section: Any, place: Place) -> list[str]:
    """Allowed values of the key `kind` in the section at `place`; empty where they are not known."""
    current: Any = section
    for key in place:
        current = _child(_choose(current, {}), key)
    while get_origin(current) is Annotated:
        current = get_args(current)[0]
    return [str(kind) for option in get_args(current) for kind in _kinds(option)]


def _child(kind: Any, key: str | int) -> Any:
    """The type of the key or item `key` of the type `kind`; None if unknown."""
    if _is_section(kind):
        hints = kind.model_fields.get(key)
        return hints.annotation if hints is not None else None
    arguments = typing.get_args(kind)
    return arguments[-1] if arguments else None
