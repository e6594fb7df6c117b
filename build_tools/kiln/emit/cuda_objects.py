"""emit-objects for a GPU: CUDA C by TVM, its machine code by nvcc, and one object that embeds that code.

All kernels of a model are one translation unit. nvcc needs a host C++ compiler as its preprocessor: zig.
"""

from __future__ import annotations

import hashlib
import platform
import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import tvm

from kiln.byoc.registry import load
from kiln.config import Target
from kiln.config.target import Cuda
from kiln.emit.compile import compile_file
from kiln.emit.cuda_conversions import with_conversion
from kiln.emit.cuda_modules import modules_of
from kiln.emit.cuda_ptx import OLDEST, for_old_drivers
from kiln.emit.cuda_usage import usage
from kiln.emit.plan_view import cuda_image
from kiln.errors import KilnError
from kiln.files import atomic_write, read_json, write_json
from kiln.kernels.gpu import early_launch, global_loads
from kiln.kernels.gpu.device_code import with_device_code
from kiln.kernels.gpu.dlight import tvm_target
from kiln.lower.schema import ExternalCode
from kiln.plan.schema import Plan
from kiln.sources.cuda_toolkit import VERSION, cuda_toolkit
from kiln.toolchain import compiler_command, zig_command
from kiln.toolchain import run as run_tool

# zig's own headers of the C library, on every machine. nvcc's headers declare functions as this version does.
_HOST_HEADERS = "linux-gnu.2.42"
# An image as a symbol of the object, aligned for the driver.
_IMAGE = """\
    .section .rodata.{symbol}, "a", %progbits
    .globl {symbol}
    .hidden {symbol}
    .type {symbol}, %object
    .balign 64
{symbol}:
    .incbin "{file}"
    .size {symbol}, . - {symbol}
"""
_END = '    .section .note.GNU-stack, "", %progbits\n'  # the stack need not be executable


def device_object(
    functions: Mapping[str, tvm.tirx.PrimFunc],
    target: Target,
    plan: Plan,
    cache: Path,
    folder: Path,
) -> None:
    """Write the object that embeds the model's GPU image into `folder`, and the CUDA C of the kernels.

    The CUDA C of kernels that backends wrote is a separate file, and each of their kernels in PTX is a module
    of its own. Raises KilnError if nvcc rejects the kernels or is not available.
    """
    assert target.cuda is not None
    source = with_conversion(source_of(functions, target.cuda), [port.dtype for port in plan.inputs])
    external, include = external_kernels(plan)
    # Kernels of backends come first: TVM's text defines macros that other headers do not expect.
    image, resources = image_of(external + source, target.cuda, cache, include)
    name = plan.name
    atomic_write(folder / f"{name}.cu", source)
    if external:
        atomic_write(folder / f"{name}_external.cu", external)
    images = {cuda_image(name): image}
    for symbol, (module, used) in modules_of(_launched(plan), target.cuda, cache).items():
        images[cuda_image(name, symbol)] = module
        resources |= used
    for symbol, content in images.items():
        atomic_write(folder / f"{symbol}.fatbin", content)
    image_bytes = sum(map(len, images.values()))
    write_json(folder / "usage.json", {"image_bytes": image_bytes, "kernels": resources})
    text = "".join(_IMAGE.format(symbol=symbol, file=f"{symbol}.fatbin") for symbol in images) + _END
    atomic_write(folder / f"{name}_cuda.S", text)
    flags = [*compiler_command(target), f"-I{folder}"]
    compile_file(flags, folder / f"{name}_cuda.S", folder / f"{name}_cuda.o")
    (folder / f"{name}_cuda.S").unlink()


def external_kernels(plan: Plan) -> tuple[str, list[Path]]:
    """CUDA C of the launched kernels that backends wrote, and the include folders that it needs."""
    codes = {symbol: code for symbol, code in _launched(plan).items() if not code.ptx}
    backends = dict.fromkeys(code.backend for code in codes.values())
    text = "".join(codes[symbol].source for symbol in sorted(codes))
    return text, [folder for name in backends for folder in load(name).include_folders()]


def _launched(plan: Plan) -> dict[str, ExternalCode]:
    """The launched kernels that backends wrote, by symbol."""
    launched = {step.kernel for bucket in plan.buckets for step in bucket.steps if step.launch is not None}
    return {
        kernel.symbol: kernel.external
        for kernel in plan.kernels
        if kernel.external is not None and kernel.symbol in launched
    }


def source_of(functions: Mapping[str, tvm.tirx.PrimFunc], cuda: Cuda) -> str:
    """CUDA C of the kernels, sorted by name; empty if there are none."""
    if not functions:
        return ""
    module = tvm.IRModule({name: functions[name] for name in sorted(functions)})
    built = tvm.get_global_func("target.build.cuda")(module, tvm_target(cuda))
    text = re.sub(r"^ *#include <cuda\.h>\n", "", str(built.inspect_source()), flags=re.MULTILINE)
    # See kiln.kernels.gpu.wmma.with_tf32_fragments.
    text = re.sub(r"(wmma::matrix_[ab], 16, 16, 8, )half\b", r"\1nvcuda::wmma::precision::tf32", text)
    text = early_launch.in_cuda(with_device_code(global_loads.with_helpers(text)))
    return text if "<mma.h>" in text or "wmma::" not in text else f"#include <mma.h>\n{text}"


def image_of(
    source: str, cuda: Cuda, cache: Path, include: Sequence[Path] = ()
) -> tuple[bytes, dict[str, dict[str, dict[str, int]]]]:
    """Compile CUDA C for every architecture of `cuda`, with the include folders `include`.

    Returns the fat binary that the driver loads, and the resource usage (kiln.emit.cuda_usage) by kernel and
    architecture. The result is cached in the folder `cache`. Raises KilnError if nvcc fails."""
    architectures = [f"arch=compute_{a[3:]},code={a}" for a in cuda.archs]
    forward = cuda.newest if cuda.ptx else None
    # The name of a folder of fetched headers contains their digest; Kiln's own headers are read here.
    include_texts = [path.read_text() for folder in include for path in sorted(folder.glob("*.cuh"))]
    facts = [VERSION, *architectures, f"{forward} {OLDEST}", *map(str, include), *include_texts, source]
    digest = hashlib.sha256("\0".join(facts).encode()).hexdigest()
    cached = cache / "cuda" / f"{digest[:32]}.fatbin"
    cached_usage = cached.with_suffix(".json")
    if not (cached.is_file() and cached_usage.is_file()):
        image, kernel_usage = _compile(source, architectures, forward, cached.parent, include)
        atomic_write(cached, image)
        write_json(cached_usage, kernel_usage)
    return cached.read_bytes(), read_json(cached_usage)


def _compile(
    source: str, architectures: list[str], forward: str | None, folder: Path, include: Sequence[Path]
) -> tuple[bytes, dict[str, dict[str, dict[str, int]]]]:
    """Run nvcc for the architectures `architectures`; return the fat binary and the resource usage.

    `forward`: the architecture whose PTX is added for newer GPUs; None: none.
    """
    nvcc = cuda_toolkit() / "bin" / "nvcc"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".nvcc-", dir=folder) as name:
        work = Path(name)
        (work / "kernels.cu").write_text(source, encoding="utf-8")
        compiler = work / "c++"
        host = shlex.join([*zig_command(), "c++", "-target", f"{platform.machine()}-{_HOST_HEADERS}"])
        compiler.write_text(f'#!/bin/sh\nexec {host} "$@"\n', encoding="utf-8")
        compiler.chmod(0o755)
        command = [str(nvcc), "-fatbin", "-O3", "-w", "-std=c++17", "-ccbin", str(compiler)]
        command += [word for code in architectures for word in ("-gencode", code)]
        command += [f"-I{path}" for path in include]
        command += ["-keep", "-keep-dir", str(work)]  # the machine code of each architecture
        command += ["--threads=2", "-o", str(work / "kernels.fatbin"), str(work / "kernels.cu")]
        run_tool(command, "compiling kernels for the GPU")
        if forward is not None:
            _add_ptx(work, forward)
        try:
            image = (work / "kernels.fatbin").read_bytes()
        except OSError as error:
            raise KilnError(f"nvcc has written no {error.filename}") from error
        resources: dict[str, dict[str, dict[str, int]]] = {}
        for path in sorted(work.glob("*.cubin")):
            arch = _arch_of(path) or architectures[0].rpartition("=")[2]
            for kernel, numbers in usage(path.read_bytes()).items():
                resources.setdefault(kernel, {})[arch] = numbers
        return image, resources


def _arch_of(path: Path) -> str | None:
    """The architecture in the name of a file that nvcc keeps: kernels.compute_75.cubin; None: one alone."""
    number = re.search(r"_(\d+\w?)\.\w+\Z", path.name)
    return f"sm_{number[1]}" if number else None


def _add_ptx(work: Path, forward: str) -> None:
    """Make kernels.fatbin again, of the machine code that nvcc kept in `work` and the PTX of `forward`."""
    ptx_file = next((p for p in work.glob("*.ptx") if _arch_of(p) in (None, forward)), None)
    if ptx_file is None:
        raise KilnError(f"nvcc has kept no PTX for {forward}")
    ptx = work / "forward" / "kernels.ptx"
    ptx.parent.mkdir()
    ptx.write_text(for_old_drivers(ptx_file.read_text(encoding="utf-8"), forward), encoding="utf-8")
    codes = sorted(work.glob("*.cubin"), key=lambda path: int(re.sub(r"\D", "", _arch_of(path) or "0")))
    images = [f"--image3=kind=elf,sm={(_arch_of(path) or forward)[3:]},file={path}" for path in codes]
    images.append(f"--image3=kind=ptx,sm={forward[3:]},file={ptx}")
    command = [str(cuda_toolkit() / "bin" / "fatbinary"), "--64", f"--create={work / 'kernels.fatbin'}"]
    run_tool([*command, *images], "packing kernels for the GPU")
