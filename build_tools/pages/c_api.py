"""The page of the C API, in Markdown: the comments and declarations of a header, as libclang reads them.

Comments that begin with `/* ----` are titles of sections. A comment directly above a declaration is its text;
declarations that follow each other without one share it, and a heading.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from clang import cindex

# What the header needs of others, so that no system's headers are read.
_STUBS = {
    "stddef.h": "typedef unsigned long size_t;\n#define NULL ((void *)0)\n",
    "stdbool.h": "#define bool _Bool\n",
    "stdint.h": "".join(
        f"typedef {'unsigned ' if sign else ''}{kind} {sign}int{bits}_t;"
        for sign in ("", "u")
        for bits, kind in ((8, "char"), (16, "short"), (32, "int"), (64, "long long"))
    ),
    "dlpack.h": """
        #include <stdint.h>
        typedef struct { int device_type, device_id; } DLDevice;
        typedef struct { uint8_t code, bits; uint16_t lanes; } DLDataType;
        typedef struct {
            void *data; DLDevice device; int32_t ndim; DLDataType dtype;
            int64_t *shape, *strides; uint64_t byte_offset;
        } DLTensor;
    """,
}
_KINDS = {
    cindex.CursorKind.STRUCT_DECL,
    cindex.CursorKind.ENUM_DECL,
    cindex.CursorKind.FUNCTION_DECL,
    cindex.CursorKind.TYPEDEF_DECL,
    cindex.CursorKind.VAR_DECL,
    cindex.CursorKind.MACRO_DEFINITION,
}
_TITLE = re.compile(r"/\* -{4} (.*?)(?: -*)?(?: \*/)?$", re.M)


@dataclass
class Entry:
    """Declarations of lines `first` to `last`, counted from 1, with their names and their comment."""

    first: int
    last: int
    names: list[str] = field(default_factory=list)
    text: str = ""


@dataclass
class Section:
    """A titled part of a header, with the text below the title."""

    title: str
    text: str
    entries: list[Entry]


def page(header: Path, title: str, without: tuple[str, ...] = ()) -> str:
    """The page of a header. `without`: titles of sections that are left out."""
    lines = header.read_text(encoding="utf-8").splitlines()
    introduction, sections = _sections(header, lines)
    parts = [f"# {title}\n", _prose(introduction)]
    for section in sections:
        if section.title in without or not (section.entries or section.text):
            continue
        parts += [f"## {section.title[:1].upper()}{section.title[1:]}\n", _prose(section.text)]
        for entry in section.entries:
            parts.append(f"### {', '.join(f'`{name}`' for name in entry.names)}\n")
            parts.append(_prose(entry.text))
            code = "\n".join(lines[entry.first - 1 : entry.last])
            parts.append(f"```c\n{code}\n```\n")
    return "\n".join(filter(None, parts))


def _sections(header: Path, lines: list[str]) -> tuple[str, list[Section]]:
    unsaved = [(f"/stubs/{name}", text) for name, text in _STUBS.items()]
    unit = cindex.Index.create().parse(
        str(header),
        args=["-x", "c", "-std=c11", "-nostdinc", "-I/stubs"],
        unsaved_files=unsaved,
        options=cindex.TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD,
    )
    problems = [str(one) for one in unit.diagnostics if one.severity >= cindex.Diagnostic.Error]
    if problems:
        raise ValueError(f"{header}: {problems[0]}")
    comments = {
        token.extent.start.line: (token.extent.end.line, token.spelling)
        for token in unit.cursor.get_tokens()
        if token.kind == cindex.TokenKind.COMMENT and lines[token.extent.start.line - 1].startswith("/*")
    }
    ends = dict(comments.values())
    introduction = comments[1][1]
    sections = [Section("constants", "", [])]
    events: list[tuple[int, Entry | str]] = [
        (line, text) for line, (_, text) in comments.items() if _TITLE.match(text)
    ]
    events += [(entry.first, entry) for entry in _entries(unit, header)]
    for _, event in sorted(events, key=lambda pair: pair[0]):
        if isinstance(event, str):
            head, _, rest = event.partition("\n")
            found = _TITLE.match(head)
            assert found is not None
            sections.append(Section(found[1], rest, []))
            continue
        event.text = "" if _TITLE.match(ends.get(event.first - 1, "")) else ends.get(event.first - 1, "")
        known = sections[-1].entries
        if known and not event.text and known[-1].last == event.first - 1:
            known[-1].last = event.last
            known[-1].names += event.names
        else:
            known.append(event)
    return introduction, sections


def _entries(unit: cindex.TranslationUnit, header: Path) -> Iterator[Entry]:
    """The declarations of the header itself, each line range once."""
    seen: dict[int, Entry] = {}
    for cursor in unit.cursor.get_children():
        place = cursor.location.file
        if place is None or Path(place.name) != header or cursor.kind not in _KINDS:
            continue
        name = cursor.spelling
        if cursor.kind == cindex.CursorKind.MACRO_DEFINITION and name == f"{header.stem.upper()}_H":
            continue
        first, last = cursor.extent.start.line, cursor.extent.end.line
        entry = seen.setdefault(first, Entry(first, last))
        entry.last = max(entry.last, last)
        if name not in entry.names:
            entry.names.append(name)
    yield from sorted(seen.values(), key=lambda entry: entry.first)


def _prose(comment: str) -> str:
    """A C comment as Markdown: indented lines are code, the others text with names as code."""
    lines = comment.removeprefix("/*").removesuffix("*/").splitlines()
    text = [re.sub(r"^ \*? ?", "", line).rstrip() for line in lines]
    found = []
    for line in text:
        if not line.startswith("    "):
            line = line.strip().replace("*", r"\*")
            line = re.sub(r"`[^`]*`|<M>\w*|\b(?:kiln_\w+|KILN_\w+)|\bconfig\.\w+", _code, line)
        found.append(line)
    return "\n".join(found).strip("\n") + "\n" if any(found) else ""


def _code(match: re.Match[str]) -> str:
    return match[0] if match[0].startswith("`") else f"`{match[0]}`"
