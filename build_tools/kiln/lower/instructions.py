"""Operations that a target's cores compute by instructions, and not by functions of a compiler's library.

The answer is read from the code that LLVM makes of each operation, since names of features do not give it: a
core without its FPU keeps the feature of float16's conversions, and RISC-V has floats in registers of
integers. A file in the cache of all builds keeps it, as it takes as long as compiling a kernel.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import tvm
from tvm import tirx

from kiln.config import Target
from kiln.files import atomic_write, json_text
from kiln.lower.llvm_target import tvm_target
from kiln.paths import cache_dir


class Operation(NamedTuple):
    """A function of one number: types of its operand and its result, and the expression."""

    operand: str
    result: str
    value: Callable[[Any], Any]


def _cast(operand: str, result: str) -> Operation:
    return Operation(operand, result, lambda number: tirx.Cast(result, number))


def _root(dtype: str) -> Operation:
    return Operation(dtype, dtype, lambda number: tirx.call_llvm_pure_intrin(dtype, "llvm.sqrt", number))


PRODUCT, FROM_HALF, TO_HALF = "product", "from_half", "to_half"
FROM_INTEGER, FROM_LONG = "from_integer", "from_long"
ROOTS = {"float32": "root", "float64": "root_of_double"}
_OPERATIONS = {
    PRODUCT: Operation("float32", "float32", lambda number: number * number),
    FROM_HALF: _cast("float16", "float32"),
    TO_HALF: _cast("float32", "float16"),
    FROM_INTEGER: _cast("int32", "float32"),
    FROM_LONG: _cast("int64", "float32"),
    **{name: _root(dtype) for dtype, name in ROOTS.items()},
}
_PREFIX = "kiln_operation_"
# Names of functions in assembly: of a compiler's library, such as __aeabi_fmul, and of the C library.
_LIBRARY = re.compile(r"(?<![\w.])_*(__\w+|sqrtf?\b)")
# Labels of functions, TVM's among them, and directives but those that store an address.
_LABEL = re.compile(r"_?(kiln_operation_\w+|__\w+):")
_DIRECTIVE = re.compile(r"\s*\.(?!long|word|quad|xword)")


def instructions(target: Target) -> frozenset[str]:
    """The names of the operations that code for `target`, without its variants, computes by instructions.

    LLVM ends the process where the target's CPU and features contradict each other (see target_trial).
    """
    return _instructions(record(target), tvm_target(target))


@functools.cache
def _instructions(file: Path, target: tvm.target.Target) -> frozenset[str]:
    """The operations that `file` records for `target`, else those of its code."""
    try:
        return frozenset(_OPERATIONS).intersection(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        names = _with_instructions(_assembly(target))
        atomic_write(file, json_text(sorted(names)))
        return names


def record(target: Target) -> Path:
    """The file that keeps the operations of `target`."""
    facts = "\0".join([str(tvm_target(target)), _tvm_version(), *_OPERATIONS])
    return cache_dir() / "targets" / f"{hashlib.sha256(facts.encode()).hexdigest()[:32]}.json"


@functools.cache
def _tvm_version() -> str:
    """TVM's version; `metadata.version` parses a file at each call, and each kernel asks several times."""
    return metadata.version("apache-tvm")


def _assembly(target: tvm.target.Target) -> str:
    """The assembly of a function for each operation, named after it."""
    functions = {name: _function(name, operation) for name, operation in _OPERATIONS.items()}
    build = tvm.get_global_func("target.build.llvm")
    return str(build(tvm.IRModule(functions), target).inspect_source("asm"))


def _function(name: str, operation: Operation) -> tirx.PrimFunc:
    """A function of two pointers that stores the operation's result for the number at the first."""
    operand = tirx.decl_buffer([1], operation.operand, "operand")
    result = tirx.decl_buffer([1], operation.result, "result")
    pointers = [tirx.Var(buffer.name, tirx.buffer_data_pointer_type(buffer)) for buffer in (operand, result)]
    declared = [
        tirx.DeclBuffer(buffer, data=pointer)
        for buffer, pointer in zip((operand, result), pointers, strict=True)
    ]
    store = tirx.BufferStore(result, operation.value(tirx.BufferLoad(operand, [0])), [0])
    function = tirx.PrimFunc(pointers, tirx.SeqStmt([*declared, store]))
    return function.with_attr("global_symbol", f"{_PREFIX}{name}")


def _with_instructions(assembly: str) -> frozenset[str]:
    """The operations whose functions name no function of a library."""
    called, function = set[str](), ""
    for line in assembly.splitlines():
        if label := _LABEL.match(line):
            function = label[1]
        elif not _DIRECTIVE.match(line) and _LIBRARY.search(line):
            called.add(function)
    return frozenset(name for name in _OPERATIONS if f"{_PREFIX}{name}" not in called)
