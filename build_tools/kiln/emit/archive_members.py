"""Members of a static library, in the form of GNU's archiver and of BSD's, which Apple's linker takes."""

from __future__ import annotations

from collections.abc import Iterator

_MAGIC = b"!<arch>\n"
_HEADER = 60  # name 16, date 12, owner 6, group 6, mode 8, size 10, end 2
_TABLES = ("/", "/SYM64/", "__.SYMDEF", "__.SYMDEF SORTED", "__.SYMDEF_64")


def members(content: bytes) -> Iterator[tuple[str, int, int]]:
    """Name, place and size of each object. Raises ValueError for other bytes than an archive's.

    In GNU's form the member `//` has long names; in BSD's, a long name is the beginning of its member.
    """
    if content[:8] != _MAGIC:
        raise ValueError("it does not begin as one")
    position, names = 8, b""
    while position + _HEADER <= len(content):
        label, size = (
            content[position : position + 16].rstrip(b" "),
            int(content[position + 48 : position + 58]),
        )
        begin, end = position + _HEADER, position + _HEADER + size
        if label == b"//":
            names = content[begin:end]
        else:
            if label.startswith(b"#1/"):
                length = int(label[3:])
                label = content[begin : begin + length].rstrip(b"\0")
                begin += length
            elif label[:1] == b"/" and label[1:].isdigit():
                label = names[int(label[1:]) :].split(b"/\n", 1)[0]
            name = label.decode("utf-8", "replace")
            if name not in _TABLES:
                yield name.rstrip("/"), begin, end - begin
        position = end + size % 2
