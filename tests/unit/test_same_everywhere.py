"""Code that tests compile does not depend on the processor of this machine."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from scons_real import ROOT
from syntax import nodes

TESTS = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]


def test_no_compiler_is_asked_for_this_very_processor() -> None:
    native = re.compile(r"-m(arch|cpu|tune)[= ]native|-target native")
    files = [*TESTS, *(ROOT / "tests").rglob("CMakeLists.txt")]
    assert [str(path) for path in files if native.search(path.read_text(encoding="utf-8"))] == []


def without_target(text: str) -> list[int]:
    """Lines with commands of zig's compiler that name no target: it then takes the machine's features."""
    found: list[int] = []
    if "ziglang" not in text:
        return found
    for node in nodes(text):
        if not isinstance(node, ast.List):
            continue
        words = [element.value if isinstance(element, ast.Constant) else None for element in node.elts]
        if "ziglang" not in words or words[-1] == "ziglang":
            continue
        program = words[words.index("ziglang") + 1]
        if program not in ("ar", "version") and '"-target"' not in text:
            found.append(node.lineno)
    return found


def test_zig_is_always_told_a_target() -> None:
    assert without_target('run([sys.executable, "-m", "ziglang", *words])') == [1]
    assert without_target('run([sys.executable, "-m", "ziglang", "cc", "x.c"])') == [1]
    assert without_target('run([sys.executable, "-m", "ziglang", "ar", "t", "x.a"])') == []
    assert without_target('run([sys.executable, "-m", "ziglang", "cc", "-target", "x"])') == []
    assert {path.name: without_target(path.read_text(encoding="utf-8")) for path in TESTS} == {
        path.name: [] for path in TESTS
    }
