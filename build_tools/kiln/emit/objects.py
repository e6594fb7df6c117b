"""emit-objects: machine code of the kernels, by LLVM."""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import tvm
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from kiln.config import Target
from kiln.errors import KilnError
from kiln.files import atomic_dir, read_json
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
            compile_object(functions, target, path)
            check_symbols(path, plan)


def compile_object(functions: dict[str, tvm.tirx.PrimFunc], target: Target, path: Path) -> None:
    """Write one relocatable object with the functions, in the order of their names."""
    description = tvm_target(target)
    ordered = {name: functions[name] for name in sorted(functions)}
    build = tvm.get_global_func("target.build.llvm")
    compiled = build(tvm.IRModule(ordered), description)
    compiled.write_to_file(str(path), "o")


def check_symbols(path: Path, plan: dict[str, object]) -> None:
    """Refuse an object that needs more than a freestanding device has, naming the operators."""
    elf = ELFFile(io.BytesIO(path.read_bytes()))
    missing = sorted(
        symbol.name
        for section in elf.iter_sections()
        if isinstance(section, SymbolTableSection)
        for symbol in section.iter_symbols()
        if symbol["st_shndx"] == "SHN_UNDEF" and symbol.name and symbol.name not in ALLOWED
    )
    missing = [name for name in missing if not name.startswith("_GLOBAL_OFFSET_TABLE_")]
    if missing:
        raise KilnError(
            f"{plan['name']}: its kernels need {', '.join(missing)}, which a device without a library does "
            f"not have; allowed: {', '.join(sorted(ALLOWED))}"
        )
