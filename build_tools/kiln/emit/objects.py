"""emit-objects: machine code of the kernels, by LLVM."""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import Any

import tvm
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from kiln.config import Target
from kiln.errors import KilnError
from kiln.files import atomic_dir, read_json
from kiln.kernels.opinfo import refusal
from kiln.kernels.pipeline import tvm_target

# What a freestanding device must have anyway; compilers emit calls of these on their own.
ALLOWED = {"memcpy", "memset", "memmove"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--in", dest="source", type=Path, required=True, help="folder of the lower stage")
    parser.add_argument("--plan", type=Path, required=True, help="folder of the plan stage")
    parser.add_argument("--target", type=Path, required=True, help="target.json")
    parser.add_argument("--out", type=Path, required=True)


def run(args: argparse.Namespace) -> None:
    target = Target.model_validate(read_json(args.target))
    plan = read_json(args.plan / "plan.json")
    module = tvm.ir.load_json((args.source / "module.json").read_text(encoding="utf-8"))
    used = {step["kernel"] for bucket in plan["buckets"] for step in bucket["steps"]}
    functions = {name.name_hint: func for name, func in module.functions_items() if name.name_hint in used}
    with atomic_dir(args.out) as folder:
        path = folder / f"{plan['name']}_kernels.o"
        if functions:
            compile_all(functions, target, path, plan)


def compile_all(
    functions: dict[str, tvm.tirx.PrimFunc], target: Target, path: Path, plan: dict[str, Any]
) -> None:
    """Write one object with the functions of a plan.

    Raises KilnError, naming the operators, where LLVM refuses one or needs more for it than a freestanding
    device has.
    """
    try:
        compile_object(functions, target, path)
        if not missing_symbols(path):
            return
    except Exception as error:  # TVM's code generator raises many kinds
        failed: Exception | None = error
    else:
        failed = None
    # Find the kernels at fault: one by one, which only the unlucky pay for.
    for name in sorted(functions):
        ops = next(kernel["ops"] for kernel in plan["kernels"] if kernel["symbol"] == name)
        try:
            compile_object({name: functions[name]}, target, path)
        except Exception as error:
            raise KilnError(f"{plan['name']}: {refusal(ops, error)}") from error
        missing = missing_symbols(path)
        if missing:
            needs = f"it needs {', '.join(missing)}, which a device without a library does not have"
            raise KilnError(f"{plan['name']}: {refusal(ops, ValueError(needs))}")
    raise KilnError(f"{plan['name']}: the kernels cannot be compiled together: {failed}") from failed


def compile_object(functions: dict[str, tvm.tirx.PrimFunc], target: Target, path: Path) -> None:
    """Write one relocatable object with the functions, in the order of their names."""
    description = tvm_target(target)
    ordered = {name: functions[name] for name in sorted(functions)}
    build = tvm.get_global_func("target.build.llvm")
    compiled = build(tvm.IRModule(ordered), description)
    compiled.write_to_file(str(path), "o")


def missing_symbols(path: Path) -> list[str]:
    """What an object needs that a freestanding device does not have."""
    elf = ELFFile(io.BytesIO(path.read_bytes()))
    return sorted(
        symbol.name
        for section in elf.iter_sections()
        if isinstance(section, SymbolTableSection)
        for symbol in section.iter_symbols()
        if symbol["st_shndx"] == "SHN_UNDEF"
        and symbol.name
        and symbol.name not in ALLOWED
        and not symbol.name.startswith("_GLOBAL_OFFSET_TABLE_")
    )
