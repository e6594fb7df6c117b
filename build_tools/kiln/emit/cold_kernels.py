"""Kernels of microcontrollers that hardly take part in a run's instructions, compiled for size.

LLVM compiles a kernel for speed: it unrolls loops of few iterations, which makes a softmax of ten numbers
three times as large. Of a model for a machine without an operating system, the kernels with the fewest
operations, all together at most a 200th of the model's, are *cold*. TVM's code generator cannot ask LLVM to
save bytes, so its unoptimised LLVM IR, with the attribute `optsize`, is compiled by the clang in zig. The
result is used where it is smaller. The attribute `minsize` would keep LLVM from rotating loops, and hence
from finding a memset or memcpy in them: cold kernels of several models had 7 % to 20 % more bytes with it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection
from tvm import tirx
from tvm.ir import Call, TensorLoad

from kiln.callbacks import structural_walk
from kiln.config import Target
from kiln.emit.compile import c_flags, compile_file
from kiln.emit.object_symbols import symbols
from kiln.files import atomic_write
from kiln.lower.target_check import has_floats
from kiln.plan.schema import Plan
from kiln.toolchain import links_with_zig

# Of all cold kernels together: so much of a model's operations, and always a few, fewer than the checks of a
# run's arguments take. Compiled for size, a kernel takes up to three times as many instructions.
COLD_SHARE, COLD_OPERATIONS = 0.005, 1000
_UNKNOWN_ITERATIONS = 16  # of a loop whose number of iterations is known at run time only
_SOFTWARE_FLOAT = 40  # instructions of an operation on floats, on a core without instructions for them
_ATTRIBUTES = re.compile(r"^(attributes #\d+ = \{)(.*)\}$", re.MULTILINE)
_OF_MEMORY = re.compile(r"(__aeabi_)?mem(cpy|set|move|clr)[48]?")
# Rounding must not depend on the optimiser: TVM's code generator lets LLVM fuse products and sums, too.
# Code is for any address, as TVM's: images of models are loaded where there is room.
_FLAGS = ("-Os", "-fPIC", "-ffp-contract=fast", "-Wno-override-module", "-Wno-unused-command-line-argument")


def compiles_for_size(target: Target) -> bool:
    """Whether cold kernels of `target` are compiled for size: on microcontrollers, if zig is the compiler."""
    alone = target.deployment == "freestanding" and target.arch in ("arm_m", "riscv32")
    return alone and links_with_zig(target)


def cold_kernels(functions: Mapping[str, tirx.PrimFunc], plan: Plan, target: Target) -> frozenset[str]:
    """The names of a plan's cold kernels; `functions`: its kernels by name."""
    calls = _calls(plan)
    plain = {name: operations(function.body) for name, function in functions.items()}
    weighed = plain
    if not has_floats(target):
        weighed = {name: operations(function.body, _SOFTWARE_FLOAT) for name, function in functions.items()}
    work = {name: (calls[name] * weighed[name], plain[name]) for name in functions}
    left = COLD_SHARE * sum(operations_of_model for operations_of_model, _ in work.values())
    few = float(COLD_OPERATIONS)
    cold = set[str]()
    for name in sorted(work, key=lambda name: (work[name], name)):
        left, few = left - work[name][0], few - calls[name] * plain[name]
        if left < 0 and few < 0:
            break
        cold.add(name)
    return frozenset(cold)


def _calls(plan: Plan) -> Counter[str]:
    """How often each kernel is called in all buckets; the iterations of loops are estimates."""
    calls = Counter[str]()
    for bucket in plan.buckets:
        iterations = 1
        for step in bucket.steps:
            if step.loop is not None:
                iterations = (
                    iterations // _UNKNOWN_ITERATIONS if step.loop.ends else iterations * _UNKNOWN_ITERATIONS
                )
            calls[step.kernel] += iterations
    return calls


def operations(statement: tirx.Stmt, float_cost: int = 1) -> float:
    """An estimate of the operations that a statement of TIR executes: expressions' nodes times iterations."""
    if isinstance(statement, tirx.SeqStmt):
        return sum(operations(part, float_cost) for part in statement.seq)
    if isinstance(statement, tirx.For):
        iterations = (
            statement.extent.value if isinstance(statement.extent, tirx.IntImm) else _UNKNOWN_ITERATIONS
        )
        return float(iterations * (1 + operations(statement.body, float_cost)))
    if isinstance(statement, tirx.While):
        return _UNKNOWN_ITERATIONS * (1 + operations(statement.body, float_cost))
    if isinstance(statement, tirx.IfThenElse):
        branches = (statement.then_case, statement.else_case)
        return 1 + sum(operations(branch, float_cost) for branch in branches if branch is not None)
    body = getattr(statement, "body", None)
    if body is not None:
        return operations(body, float_cost)
    return _nodes(statement, float_cost)


def _nodes(statement: tirx.Stmt, float_cost: int) -> float:
    """The operations of a statement without statements in it; a vector's are one."""
    total = 0

    def note(expr: Any) -> None:
        nonlocal total
        is_float = str(getattr(getattr(expr, "ty", None), "dtype", "")).startswith("float")
        total += float_cost if is_float and not isinstance(expr, TensorLoad) else 1

    operators = (
        *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.Min, tirx.Max, tirx.Cast, tirx.Select),
        *(TensorLoad, tirx.BufferStore, Call),
    )
    structural_walk(statement, ((operators, note),))
    return float(total)


def compile_for_size(name: str, ir: str, target: Target, path: Path) -> None:
    """Compile unoptimised LLVM IR of the kernel `name` into the object `path` if that becomes smaller.

    An object that calls other functions, such as a division of 64-bit numbers, is not used: LLVM's passes for
    speed find shorter types, and the function may take more bytes than the kernel saves. Raises KilnError
    with the compiler's first error.
    """
    source, small = path.with_suffix(".ll"), path.with_suffix(".small.o")
    try:
        atomic_write(source, _for_size(ir, target), sync=False)
        compile_file([*c_flags(target), *_FLAGS], source, small)
        if code_bytes(small, name) < code_bytes(path, name) and not _called(small) - _called(path):
            small.replace(path)
    finally:
        source.unlink(missing_ok=True)
        small.unlink(missing_ok=True)


def _for_size(ir: str, target: Target) -> str:
    """`ir` with the attributes of functions that are to be small.

    And with the target's features: zig would compile functions without for the features that it knows of the
    processor, which lack the DSP instructions of the Cortex-M33.
    """

    def attributes(match: re.Match[str]) -> str:
        without_features = re.sub(r' "target-features"(="[^"]*")?', "", match[2])
        return f'{match[1]} optsize{without_features}"target-features"="{",".join(target.features)}" }}'

    return _ATTRIBUTES.sub(attributes, ir)


def _called(path: Path) -> set[str]:
    """The functions that an object calls, without memcpy and its like, which every program has."""
    names = {symbol.name for symbol in symbols(path.read_bytes()) if not symbol.defined}
    return {name for name in names if _OF_MEMORY.fullmatch(name) is None}


def code_bytes(path: Path, name: str) -> int:
    """Bytes of the function `name` in an ELF object, with the constants between its instructions."""
    with path.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".symtab")
        assert isinstance(table, SymbolTableSection)
        return int(sum(symbol["st_size"] for symbol in table.get_symbol_by_name(name) or ()))
