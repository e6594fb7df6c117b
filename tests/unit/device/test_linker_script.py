"""The linker script of test programs: memory that is given out begins after what the linker has placed."""

from __future__ import annotations

import re

import pytest
from kiln.config import load_target
from kiln.config.memory import Region
from kiln.device.bare import linker_script


def region(name: str, origin: int, *holds: str) -> Region:
    return Region.model_validate({"name": name, "origin": origin, "bytes": 1 << 20, "holds": list(holds)})


@pytest.mark.parametrize(
    ("flash", "psram", "heap", "arena"),
    [
        (("code",), ("parameters", "heap"), ["ORIGIN(psram)", ".parameters_psram"], None),
        (("code", "heap"), ("parameters",), ["ORIGIN(flash)", ".rodata", ".data"], None),
        (("code", "parameters"), ("heap",), ["ORIGIN(psram)"], None),
        (
            ("code", "parameters", "arena"),
            ("heap",),
            ["ORIGIN(psram)"],
            ["ORIGIN(flash)", ".rodata", ".data"],
        ),
        (("code",), ("parameters", "arena"), None, ["ORIGIN(psram)", ".parameters_psram"]),
    ],
)
def test_heap_and_arena_begin_after_contents_of_their_region(
    flash: tuple[str, ...], psram: tuple[str, ...], heap: list[str] | None, arena: list[str] | None
) -> None:
    """Of a region that holds code or parameters, too, and not the variables."""
    memory = [region("flash", 0, *flash), region("ram", 1 << 24, "data"), region("psram", 2 << 24, *psram)]
    text = linker_script(load_target("cortex_m7").model_copy(update={"memory": memory}))
    for pattern, after in ((r"kiln_heap_start = (.*);", heap), (r"kiln_arena_\w+_begin = (.*);", arena)):
        found = re.search(pattern, text)
        if after is not None:
            assert found is not None and all(part in found[1] for part in after), text
    if heap == ["ORIGIN(psram)"]:
        assert "kiln_heap_start = ORIGIN(psram);" in text
