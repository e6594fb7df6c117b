"""The example in the header of a joint library: every model, by the example of its own header."""

from __future__ import annotations

import re
from collections.abc import Mapping

_INCLUDE, _MAIN = "#include", "int main(void) {"


def example_lines(header: str) -> list[str]:
    """The example program in the first comment of a generated header, as lines of C."""
    comment = header[: header.index("*/")]
    lines = [line.removeprefix(" *").removeprefix("     ").rstrip() for line in comment.splitlines()]
    first = next(i for i, line in enumerate(lines) if line.startswith(_INCLUDE))
    last = max(i for i, line in enumerate(lines) if line == "}")
    return lines[first : last + 1]


def joint_example(name: str, headers: Mapping[str, str], one_region: bool) -> list[str]:
    """A program that runs every model once, as lines of C.

    `headers`: the text of each model's header. `one_region`: the arena is one memory, of which each model
    gets its part; else each model has arenas of its own in the regions.
    """
    lines = [f'{_INCLUDE} "{name}.h"', ""]
    shared = "my_arena" if "arena" in headers else "arena"
    if one_region:
        arena = f"{name.upper()}_ARENA"
        lines += [f"static _Alignas({arena}_ALIGN) unsigned char {shared}[{arena}_BYTES + 1];", ""]
    for model, header in headers.items():
        part = f"{shared} + {name.upper()}_ARENA_OF_{model.upper()}" if one_region else None
        lines += [*_function(model, example_lines(header), part), ""]
    calls = " || ".join(f"run_{model}() != 0" for model in headers)
    return [*lines, _MAIN, f"    return {calls};", "}"]


def _function(model: str, lines: list[str], arena: str | None) -> list[str]:
    """The example of one model as the function run_<model>, with its variables inside.

    `arena`: the address of its part of the joint arena, in place of an arena of its own.
    """
    main = lines.index(_MAIN)
    variables = [line for line in lines[1:main] if line]
    body = lines[main + 1 : -1]
    if arena is not None:
        variables = [line for line in variables if not re.search(r"\bunsigned char (my_)?arena\[", line)]
        arguments = f".arena = {arena}, .arena_bytes = {model.upper()}_ARENA_BYTES"
        pattern = r"\.arena = (my_)?arena, \.arena_bytes = sizeof (my_)?arena\b"
        body = [re.sub(pattern, arguments, line) for line in body]
    return [f"static int run_{model}(void) {{", *(f"    {line}" for line in variables), *body, "}"]
