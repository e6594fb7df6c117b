"""Reads WebAssembly: symbols of an object file, and sizes of sections and functions of a linked module.

Formats: the WebAssembly specification, "Binary Format"; tool-conventions of WebAssembly, "Linking" (symbol
table in the custom section `linking`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = b"\0asm\1\0\0\0"
_CUSTOM, _IMPORT, _CODE, _DATA = 0, 2, 10, 11
_SYMBOL_TABLE, _FUNCTION_NAMES = 8, 1  # subsections of the custom sections `linking` and `name`
_FUNCTION, _DATA_SYMBOL, _SECTION_SYMBOL = 0, 1, 3
_UNDEFINED, _EXPLICIT_NAME = 0x10, 0x40


@dataclass(frozen=True)
class ObjectSymbol:
    """A symbol of an object: its name, whether the object defines it, and whether it is a function."""

    name: str
    defined: bool
    function: bool


class _ByteReader:
    """Reads numbers and names from bytes. Raises ValueError at their end."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0

    @property
    def more(self) -> bool:
        return self.at < len(self.content)

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.content):
            raise ValueError("it ends in the middle of a section")
        self.at += count
        return self.content[self.at - count : self.at]

    def number(self) -> int:
        """An unsigned number in LEB128."""
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def name(self) -> str:
        return self.take(self.number()).decode("utf-8", "replace")


def _sections(content: bytes) -> Iterator[tuple[int, str, bytes]]:
    """(kind, name, content) of each section; only custom sections have a name. Raises ValueError."""
    if content[:8] != MAGIC:
        raise ValueError("it does not begin as WebAssembly")
    reader = _ByteReader(content)
    reader.take(8)
    while reader.more:
        kind = reader.take(1)[0]
        body = _ByteReader(reader.take(reader.number()))
        name = body.name() if kind == _CUSTOM else ""
        yield kind, name, body.content[body.at :]


def _parts(content: bytes) -> Iterator[tuple[int, bytes]]:
    """(kind, content) of the subsections of a custom section."""
    reader = _ByteReader(content)
    while reader.more:
        kind = reader.take(1)[0]
        yield kind, reader.take(reader.number())


def _imported_functions(content: bytes) -> list[str]:
    """Names of the functions that an import section imports, by index."""
    reader, names = _ByteReader(content), []
    for _ in range(reader.number()):
        reader.name()
        name, kind = reader.name(), reader.take(1)[0]
        if kind == 0:  # a function, and its type
            names.append(name)
            reader.number()
        elif kind in (1, 2):  # a table, with its type, or a memory: limits
            if kind == 1:
                reader.take(1)
            flags = reader.number()
            reader.number()
            if flags & 1:
                reader.number()
        else:  # a global: type and mutability; a tag: attribute and type
            reader.take(1)
            reader.number()
    return names


def symbols(content: bytes) -> list[ObjectSymbol]:
    """The symbols of an object file. Raises ValueError for damaged bytes."""
    imported: list[str] = []
    symbols_found = []
    for kind, name, body in _sections(content):
        if kind == _IMPORT:
            imported = _imported_functions(body)
        if kind != _CUSTOM or name != "linking":
            continue
        reader = _ByteReader(body)
        reader.number()  # the version
        for section, table in _parts(reader.content[reader.at :]):
            if section == _SYMBOL_TABLE:
                symbols_found += list(_symbol_table(table, imported))
    return symbols_found


def _symbol_table(content: bytes, imported: list[str]) -> Iterator[ObjectSymbol]:
    reader = _ByteReader(content)
    for _ in range(reader.number()):
        kind, flags = reader.take(1)[0], reader.number()
        defined = not flags & _UNDEFINED
        if kind == _SECTION_SYMBOL:
            reader.number()
        elif kind == _DATA_SYMBOL:
            yield ObjectSymbol(reader.name(), defined, False)
            if defined:
                for _ in range(3):  # segment, offset, size
                    reader.number()
        else:
            index = reader.number()
            if defined or flags & _EXPLICIT_NAME:
                yield ObjectSymbol(reader.name(), defined, kind == _FUNCTION)
            elif kind == _FUNCTION:
                yield ObjectSymbol(imported[index], False, True)


def code_and_data(content: bytes) -> tuple[int, int, dict[str, int]]:
    """Bytes of code and of initial data of a linked module, and its bytes of code by function name.

    Functions without a name, in a module without names, are left out. Raises ValueError for damaged bytes.
    """
    code = data = 0
    imported: list[str] = []
    bodies: list[int] = []
    names: dict[int, str] = {}
    for kind, name, body in _sections(content):
        if kind == _IMPORT:
            imported = _imported_functions(body)
        elif kind == _CODE:
            code, reader = len(body), _ByteReader(body)
            for _ in range(reader.number()):
                bodies.append(reader.number())
                reader.take(bodies[-1])
        elif kind == _DATA:
            data = len(body)
        elif kind == _CUSTOM and name == "name":
            for section, table in _parts(body):
                if section == _FUNCTION_NAMES:
                    reader = _ByteReader(table)
                    names = {reader.number(): reader.name() for _ in range(reader.number())}
    sizes: dict[str, int] = {}
    for index, size in enumerate(bodies, len(imported)):
        if index in names:
            sizes[names[index]] = sizes.get(names[index], 0) + size
    return code, data, sizes
