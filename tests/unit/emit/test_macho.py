"""Sizes of functions in Mach-O, which has none."""

from __future__ import annotations

import struct

from kiln.emit import macho


def _program(symbols: list[tuple[str, int, int, int]]) -> bytes:
    """A program with __text at 0x1000 to 0x1100; symbols: name, kind, section, address."""
    sections = [
        struct.pack("<16s16sQQ32x", name, b"__TEXT", begin, size)
        for name, begin, size in ((b"__text", 0x1000, 0x100), (b"__const", 0x1100, 0x40))
    ]
    segment = struct.pack("<II16s32x8xII", 0x19, 72 + 160, b"__TEXT", 2, 0) + b"".join(sections)
    first = 32 + len(segment) + 24
    texts = b"\0" + b"".join(name.encode() + b"\0" for name, *_ in symbols)
    table, at = b"", 1
    for name, kind, section, address in symbols:
        table += struct.pack("<IBBHQ", at, kind, section, 0, address)
        at += len(name) + 1
    listed = struct.pack("<IIIIII", 2, 24, first, len(symbols), first + len(table), len(texts))
    header = macho.MAGIC + struct.pack("<12xI12x", 2)
    return header + segment + listed + table + texts


def test_a_function_ends_where_the_next_one_or_its_section_begins() -> None:
    outer, local, debugging = 0x0F, 0x0E, 0x24
    content = _program([
        ("_last", outer, 1, 0x10C0), ("_first", outer, 1, 0x1000), ("_inner", local, 1, 0x1030),
        ("_first", debugging, 1, 0x1010), ("_table", outer, 2, 0x1100), ("_absent", 0x01, 0, 0),
        ("__mh_execute_header", outer, 1, 0x400),
    ])  # fmt: skip
    assert macho.functions(content) == {"first": 0x30, "inner": 0x90, "last": 0x40}
