"""emit-objects: machine code of the kernels by LLVM, with a cache so that no kernel is compiled twice.

The cache is a folder of objects, each named after its inputs: the kernel's symbol, which holds a digest of
its content, and a digest of the target and of TVM's version. Objects are written completely or not at all, so
that concurrent builds can share the cache; an object is checked before it is used (emit/object_cache.py).

vectors.json in the output folder records for each kernel how many of its loops are vectorised
(emit/simd_check.py).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import tvm

from kiln import forks
from kiln.byoc.libraries.folder import LibraryFolder
from kiln.byoc.registry import load
from kiln.config import Target, canonical_json, read_target, target_config
from kiln.emit import object_cache
from kiln.emit.bounded_division import divide_by_multiplying
from kiln.emit.cold_kernels import cold_kernels, compile_for_size, compiles_for_size
from kiln.emit.compile import c_flags, compile_file
from kiln.emit.fixed_point_conversions import hide_powers_of_two
from kiln.emit.gathers import gather
from kiln.emit.half_conversions import convert_halves
from kiln.emit.headers import cuda_include_flag, include_flags
from kiln.emit.helium_comparisons import compare_in_order
from kiln.emit.helium_conversions import convert_in_words
from kiln.emit.long_conversions import convert_longs
from kiln.emit.long_products import multiply_by_halves
from kiln.emit.own_functions import compile_own
from kiln.emit.run_time_library import missing_symbols
from kiln.emit.scaling_in_words import scale_in_words
from kiln.emit.selected_truths import select_floats, select_truths
from kiln.emit.sign_bits import flip_sign_bits
from kiln.emit.simd_check import read_loops
from kiln.emit.square_roots import root_in_software
from kiln.emit.total_division import divide_totally
from kiln.emit.unordered_comparisons import hold_for_nan
from kiln.errors import KilnError
from kiln.files import atomic_dir, atomic_write, write_json
from kiln.lower.llvm_target import tvm_target
from kiln.lower.schema import ExternalCode, KernelRecord
from kiln.lower.target_check import (
    converts_half,
    divides_in_software,
    lacks_conversions_of_longs,
    without_root,
)
from kiln.opinfo.attach import refusal
from kiln.params.store import from_text, load_functions
from kiln.plan.schema import Plan, read_plan
from kiln.plan.variants import symbols_of
from kiln.stages.target import ObjectsStage
from kiln.tir.bfloat16 import stored_as_bits


def run(args: ObjectsStage) -> None:
    """Write the objects of all kernels that the plan uses, and vectors.json, to `args.out`."""
    target = read_target(args.target)
    plan = read_plan(args.plan / "plan.json")
    used = symbols_of(plan.buckets)
    texts: dict[str, str] = {}  # kernels as JSON
    for source in args.sources:
        for name, text in load_functions(source).items():
            if name in used:
                texts.setdefault(name, text)
    with atomic_dir(args.out) as folder:
        if target.cuda is not None:
            from kiln.emit.cuda_objects import device_object

            functions = {name: from_text(text) for name, text in texts.items()}
            device_object(functions, target, plan, args.cache, folder)
        vectors = _compile(texts, target, plan, args.cache, folder) if target.cuda is None else {}
        write_json(folder / "vectors.json", vectors)
        libraries = [LibraryFolder.read(path) for path in args.libraries]
        called = {
            kernel.symbol: code
            for kernel in plan.kernels
            if (code := kernel.external) is not None and kernel.symbol in used and not code.block
        }
        variants = {kernel.symbol: kernel.variant or target.base for kernel in plan.kernels}
        for symbol, code in called.items():
            if code.own is not None:
                compile_own(symbol, code, target.for_variant(variants[symbol]), folder)
            else:
                compile_call(symbol, code, target, libraries, folder)
        for name in sorted({code.backend for code in called.values() if code.own is None}):
            for source in load(name).runtime():
                flags = [*c_flags(target), *include_flags()]
                compile_file(flags, source, folder / f"kiln_{source.stem}.o")


def _compile(
    texts: Mapping[str, str], target: Target, plan: Plan, cache: Path, folder: Path
) -> dict[str, Any]:
    """Write the objects of kernels into `folder`: from the cache, or compiled on several cores.

    `texts`: kernels as JSON, by name. Returns, by name, how the loops of each kernel are vectorised.
    """
    targets = {name: target.for_variant(name) for name in target.variant_names}
    cold = frozenset[str]()
    if compiles_for_size(target):
        cold = cold_kernels({name: from_text(text) for name, text in texts.items()}, plan, target)
    folders = {name: cache / _digest(variant_target) for name, variant_target in targets.items()}
    variants = {kernel.symbol: kernel.variant or target.base for kernel in plan.kernels}
    cached = {
        name: folders[variants[name]]
        / f"{name}.{hashlib.sha256(text.encode()).hexdigest()[:16]}{'.small' if name in cold else ''}.o"
        for name, text in sorted(texts.items())
    }
    loops = {name: object_cache.load(path, folder / f"{name}.o") for name, path in cached.items()}
    absent = [name for name, cached_loops in loops.items() if cached_loops is None]

    def compile_one(name: str) -> None:
        variant_target, compiled = targets[variants[name]], folder / f"{name}.o"
        function = {name: from_text(texts[name])}
        ir = compile_all(function, variant_target, compiled, plan.name, plan.kernels)
        if name in cold:
            compile_for_size(name, llvm_ir(function, variant_target), variant_target, compiled)
        object_cache.store(cached[name], compiled.read_bytes(), read_loops(ir, name).describe())

    # The longest first, so that no process ends long after the others.
    forks.each(compile_one, sorted(absent, key=lambda name: -len(texts[name])))
    return {**loops, **{name: object_cache.loops_of(cached[name]) for name in absent}}


def compile_call(
    symbol: str, code: ExternalCode, target: Target, libraries: Sequence[LibraryFolder], folder: Path
) -> None:
    """Compile the generated C that calls a library; its object and source are named after the symbol."""
    matching = [library for library in libraries if library.description["backend"] == code.backend]
    if not matching:
        raise KilnError(f"{symbol}: no --library for backend '{code.backend}'")
    source = folder / f"{symbol}.c"
    atomic_write(source, code.source)
    flags = [*c_flags(target), "-O3", *matching[0].compile_flags]
    if target.cuda is not None:
        flags += [*include_flags(), cuda_include_flag()]
    compile_file(flags, source, folder / f"{symbol}.o")


def _digest(target: Target) -> str:
    """Digest of everything but the kernel that an object depends on; the name of its folder in the cache."""
    facts = [canonical_json(target_config(target)), metadata.version("apache-tvm"), _source_digest()]
    facts.append(str(tvm_target(target)))
    if compiles_for_size(target):
        facts.append(metadata.version("ziglang"))
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]


@functools.cache
def _source_digest() -> str:
    """Digest of the source of `emit` and `tir`, whose passes change kernels before LLVM compiles them."""
    package = Path(__file__).resolve().parents[1]
    files = sorted(path for name in ("emit", "tir") for path in (package / name).glob("*.py"))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


def compile_all(
    functions: dict[str, tvm.tirx.PrimFunc], target: Target, path: Path, model: str,
    kernels: Sequence[KernelRecord],
) -> str:  # fmt: skip
    """Compile functions of a model into one object file; return its optimised LLVM IR. `kernels`: records.

    Raises KilnError, naming the operators, if LLVM rejects a function or if its code calls a function that a
    freestanding device does not have.
    """
    try:
        ir = compile_object(functions, target, path)
        if not missing_symbols(path, target):
            return ir
    except Exception as error:  # TVM's code generator raises many kinds
        failed: Exception | None = error
    else:
        failed = None
    # Compile the kernels one by one to find the one at fault: a cost of the error path only.
    for name in sorted(functions):
        ops = [op.model_dump() for kernel in kernels if kernel.symbol == name for op in kernel.ops]
        try:
            compile_object({name: functions[name]}, target, path)
        except Exception as error:
            raise KilnError(f"{model}: {refusal(ops, error)}") from error
        missing = missing_symbols(path, target)
        if missing:
            needs = f"it needs {', '.join(missing)}, which a device without a library does not have"
            if "float64" in str(functions[name]):
                needs += "; cast its operands to float32"
            raise KilnError(f"{model}: {refusal(ops, ValueError(needs))}")
    raise KilnError(f"{model}: the kernels cannot be compiled together: {failed}") from failed


def compile_object(functions: dict[str, tvm.tirx.PrimFunc], target: Target, path: Path) -> str:
    """Compile functions, sorted by name, into one relocatable object; return its optimised LLVM IR."""
    compiled = _built(functions, target, tvm_target(target))
    compiled.write_to_file(str(path), "o")
    return str(compiled.inspect_source("ll"))


def llvm_ir(functions: dict[str, tvm.tirx.PrimFunc], target: Target) -> str:
    """The LLVM IR of functions as TVM makes it, before LLVM's passes."""
    return str(_built(functions, target, tvm_target(target, optimise=False)).inspect_source("ll"))


def _built(
    functions: dict[str, tvm.tirx.PrimFunc], target: Target, description: tvm.target.Target
) -> tvm.runtime.Module:
    """The module that TVM makes of functions, sorted by name, for a description of the target."""
    ordered = {name: hold_for_nan(functions[name]) for name in sorted(functions)}
    ordered = {name: divide_totally(select_truths(function)) for name, function in ordered.items()}
    ordered = {name: flip_sign_bits(function) for name, function in ordered.items()}
    by_instruction = converts_half(target)
    halves = {name: convert_halves(function, by_instruction) for name, function in ordered.items()}
    ordered = {name: stored_as_bits(function) for name, function in halves.items()}
    roots = without_root(target)
    if roots:
        ordered = {name: root_in_software(function, roots) for name, function in ordered.items()}
    if lacks_conversions_of_longs(target):
        ordered = {name: convert_longs(function) for name, function in ordered.items()}
    if divides_in_software(target):
        ordered = {name: multiply_by_halves(divide_by_multiplying(f)) for name, f in ordered.items()}
    if target.vector.isa == "sve":
        ordered = {name: select_floats(function) for name, function in ordered.items()}
    if target.vector.isa == "mve":
        ordered = {name: scale_in_words(hide_powers_of_two(f)) for name, f in ordered.items()}
        ordered = {name: gather(function) for name, function in ordered.items()}
        ordered = {name: compare_in_order(convert_in_words(f)) for name, f in ordered.items()}
    build = tvm.get_global_func("target.build.llvm")
    return build(tvm.IRModule(ordered), description)
