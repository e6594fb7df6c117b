"""Files and functions are short enough to be read at once."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from syntax import nodes

ROOT = Path(__file__).resolve().parents[2]
MOST_FILE, MOST_FUNCTION = 350, 60
FOLDERS = ("build_tools", "benchmarks", "models", "runtime_c", "zoo")
SUFFIXES = (".py", ".c", ".h", ".cuh", ".sh")
LONGER = {
    "runtime_c/include/kiln.h": "the interface of the runtime, which is one header with its documentation",
    "runtime_c/cuda/gpu_cuda.c": "all calls of the CUDA driver, which a build compiles or leaves out",
    "build_tools/kiln/trust/device/monocypher.c": "Monocypher, unchanged",
    "build_tools/kiln/trust/device/monocypher-ed25519.c": "Monocypher, unchanged",
    "tests/gpu/fake_cuda.c": "a stand-in for the driver, which is one library",
    "tests/gpu/cuda_on_cpu.h": "one header that is compiled in front of kernels",
}


def files(folders: Sequence[str] = FOLDERS) -> Iterator[tuple[str, str]]:
    """Path and text of every source file in `folders`."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def test_files_are_short() -> None:
    lengths = {name: text.count("\n") for name, text in files((*FOLDERS, "tests"))}
    assert len(lengths) > 500
    long = {name for name, lines in lengths.items() if lines > MOST_FILE}
    assert long == LONGER.keys()


def test_functions_are_short() -> None:
    """Lines from the first decorator to the last statement, in tests too."""
    long = []
    for name, text in files((*FOLDERS, "tests")):
        if not name.endswith(".py"):
            continue
        for node in nodes(text):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                lines = (node.end_lineno or first) - first + 1
                if lines > MOST_FUNCTION:
                    long.append(f"{name}:{node.lineno} {node.name}: {lines} lines")
    assert long == []


def test_no_file_in_the_root_is_named_like_an_option() -> None:
    """A command whose option for its output lost its value writes a file named as the next option."""
    assert not [path.name for path in ROOT.iterdir() if path.name.startswith("-")]
