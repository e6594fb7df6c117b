"""Sources of TensorFlow Lite Micro in a folder of the user's, and their library for a target.

The project contains none of these sources. They are compiled by the target's own C compiler with its own
flags, at the optimisation levels of TFLM's Makefile, and as its release build: without texts and assertions.
CMSIS-NN's kernels replace TFLM's reference kernels where the folder has them and the target is an Arm core.
The C and C++ headers are those of zig, and so are the mathematical functions.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kiln.config import Target
from kiln.errors import KilnError
from kiln.toolchain import archiver_command, compiler_command, zig_command
from kiln.toolchain import run as run_tool

from benchmarks.workers import say

PROGRAMS = Path(__file__).resolve().parent / "programs"
_HEADER_OF = {  # a part of the sources, by a file that it contains
    "tflite-micro": "tensorflow/lite/micro/micro_interpreter.h",
    "flatbuffers": "include/flatbuffers/flatbuffers.h",
    "gemmlowp": "fixedpoint/fixedpoint.h",
    "ruy": "ruy/profiler/instrumentation.h",
    "CMSIS-NN": "Include/arm_nnfunctions.h",
}
_OPTIONAL = "CMSIS-NN"
_PLACES = (
    "",
    "*",
    "tensorflow/lite/micro/tools/make/downloads/*",
    "*/tensorflow/lite/micro/tools/make/downloads/*",
)
_CORE = ("", "arena_allocator", "memory_planner", "tflite_bridge")  # folders of lite/micro besides kernels
_TEST_FILE = re.compile(
    r"_test\.cc$|test_helper|testing|mock_|fake_|_test_common\.cc$|kernel_runner|recording_|hexdump"
)
_REGISTERS = re.compile(r"\bRegister_([A-Z0-9_]+)\(")
_UNUSED = ("j0", "j1", "jn", "lgamma", "lgamma_r", "tgamma")  # mathematical functions that TFLM does not call
_LIBC_FOLDER = {"arm_m": "arm-linux-musl", "riscv32": "riscv32-linux-musl"}
_COMMON = (
    "-fno-unwind-tables", "-fno-asynchronous-unwind-tables", "-ffunction-sections", "-fdata-sections",
    "-fomit-frame-pointer", "-funsigned-char", "-fno-sanitize=undefined", "-fno-stack-protector", "-g0", "-w",
    "-fhosted", "-nostdinc", "-DTF_LITE_STATIC_MEMORY", "-DNDEBUG", "-DTF_LITE_STRIP_ERROR_STRINGS",
)  # fmt: skip
_LIBCXX = {  # how zig configures its C++ headers, less what needs an operating system
    "ABI_VERSION": "1", "ABI_NAMESPACE": "__1", "HAS_THREADS": "0", "HAS_MUSL_LIBC": "1",
    "HAS_VENDOR_AVAILABILITY_ANNOTATIONS": "0", "HAS_FILESYSTEM": "0", "HAS_RANDOM_DEVICE": "0",
    "HAS_LOCALIZATION": "1", "HAS_UNICODE": "0", "HAS_WIDE_CHARACTERS": "1", "HAS_MONOTONIC_CLOCK": "0",
    "HAS_TERMINAL": "0", "HAS_TIME_ZONE_DATABASE": "0",
    "HARDENING_MODE": "_LIBCPP_HARDENING_MODE_NONE", "HARDENING_MODE_DEFAULT": "_LIBCPP_HARDENING_MODE_NONE",
    "ASSERTION_SEMANTIC_DEFAULT": "_LIBCPP_ASSERTION_SEMANTIC_IGNORE",
}  # fmt: skip
_CXX = (
    "-D_GNU_SOURCE",  # clang defines it for bare Arm cores alone, and headers of zig's C++ library need it
    "-std=c++17", "-fno-rtti", "-fno-exceptions", "-fno-threadsafe-statics",
    "-D_LIBCPP_DISABLE_VISIBILITY_ANNOTATIONS", "-D_LIBCPP_PSTL_BACKEND_SERIAL",
    *(f"-D_LIBCPP_{key}={value}" for key, value in _LIBCXX.items()),
)  # fmt: skip


@dataclass(frozen=True)
class Unit:
    """A source file and the flags that it alone is compiled with."""

    source: Path
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Sources:
    """Where the parts of TFLM's sources lie: `tflite-micro`, `flatbuffers`, `gemmlowp`, `ruy`, `CMSIS-NN`."""

    parts: dict[str, Path]

    @property
    def root(self) -> Path:
        """The folder that contains TFLM's `tensorflow`."""
        return self.parts["tflite-micro"]

    def description(self, target: Target) -> str:
        """Versions of the parts: git's commit where a part is a work tree, else a hash of its headers."""
        with_kernels = [name for name in self.parts if name != _OPTIONAL or self.has_kernels(target)]
        return ", ".join(f"{name} {_version(self.parts[name], _HEADER_OF[name])}" for name in with_kernels)

    def has_kernels(self, target: Target) -> bool:
        """Whether CMSIS-NN's kernels are used for the target."""
        return _OPTIONAL in self.parts and target.arch == "arm_m"


def find_sources(folder: Path) -> Sources:
    """Find the parts in `folder`, its folders, or the `downloads` of TFLM's Makefile.

    Raises KilnError where a part other than CMSIS-NN is missing.
    """
    if not folder.is_dir():
        raise KilnError(f"--peer tflm={folder}: no such folder")
    parts = {}
    for name, header in _HEADER_OF.items():
        found = next(
            (path for parent in _PLACES for path in sorted(folder.glob(f"{parent}/{header}".lstrip("/")))),
            None,
        )
        if found is not None:
            parts[name] = Path(str(found.resolve()).removesuffix(f"/{header}"))
        elif name != _OPTIONAL:
            raise KilnError(
                f"--peer tflm={folder}: it contains no sources of {name} (a folder with {header}); "
                f"needed are {', '.join(part for part in _HEADER_OF if part != _OPTIONAL)}; "
                f"with {_OPTIONAL}, its kernels are used"
            )
    return Sources(parts)


def _version(folder: Path, header: str) -> str:
    head = folder / ".git" / "HEAD"
    if head.is_file():
        text = head.read_text().strip()
        ref = folder / ".git" / text.removeprefix("ref: ")
        commit = ref.read_text().strip() if text.startswith("ref: ") and ref.is_file() else text
        if re.fullmatch("[0-9a-f]{40}", commit):
            return commit[:12]
    digest = hashlib.sha256()
    for path in sorted((folder / header).parent.glob("*.h")):
        digest.update(path.read_bytes())
    return f"(sha256 of headers {digest.hexdigest()[:12]})"


def operator_methods(sources: Sources) -> dict[str, str]:
    """The method of TFLM's resolver that adds an operator, by the operator's name in TFLite's schema."""
    text = (sources.root / "tensorflow/lite/micro/micro_mutable_op_resolver.h").read_text()
    pattern = re.compile(
        r"TfLiteStatus Add(\w+)\([^{]*\{\s*return AddBuiltin\(\s*(?:tflite::)?BuiltinOperator_(\w+),"
    )
    return {operator: method for method, operator in pattern.findall(text)}


def flags(target: Target, sources: Sources) -> list[str]:
    """Flags of every file of TFLM, of CMSIS-NN and of the programs that use them."""
    lib = Path(zig_command()[0]).parent / "lib"
    libc = [lib / "libc/include" / _LIBC_FOLDER[target.arch], lib / "libc/include/generic-musl"]
    chosen = ["-DCMSIS_NN", "-DKERNELS_OPTIMIZED_FOR_SPEED"] if sources.has_kernels(target) else []
    folders = [
        sources.root,
        sources.parts["flatbuffers"] / "include",
        sources.parts["gemmlowp"],
        sources.parts["ruy"],
    ]
    if sources.has_kernels(target):
        folders += [sources.parts[_OPTIONAL], sources.parts[_OPTIONAL] / "Include"]
    return [
        *_COMMON,
        *chosen,
        *(f"-I{folder}" for folder in folders),
        *(word for folder in (lib / "include", *libc) for word in ("-isystem", str(folder))),
    ]


def cxx_flags() -> list[str]:
    """Further flags of every C++ file."""
    lib = Path(zig_command()[0]).parent / "lib"
    return [*_CXX, f"-I{lib / 'libcxx/include'}", f"-I{lib / 'libcxxabi/include'}"]


def _units(target: Target, sources: Sources, wanted: Collection[str] | None) -> Iterator[Unit]:
    micro = sources.root / "tensorflow/lite/micro"
    core = [path for folder in _CORE for path in sorted((micro / folder).glob("*.cc"))]
    shared = [
        path
        for path in sorted((sources.root / "tensorflow").rglob("*.cc"))
        if not path.is_relative_to(micro) and "experimental" not in path.parts and path.name != "array.cc"
    ]
    for path in [*core, *shared]:
        if not _TEST_FILE.search(path.name):
            yield Unit(path, ("-Os", *cxx_flags()))
    for path in kernels(micro / "kernels", wanted):
        optimised = micro / "kernels/cmsis_nn" / path.name
        chosen = optimised if optimised.is_file() and sources.has_kernels(target) else path
        yield Unit(chosen, ("-O2", *cxx_flags()))
    if sources.has_kernels(target):
        for path in sorted((sources.parts[_OPTIONAL] / "Source").rglob("*.c")):
            if not re.search(r"_f(16|32)\.c$|nntables_flt", path.name):
                yield Unit(path, ("-O2", "-std=c17"))
    yield Unit(PROGRAMS / "tflm_libc.c", ("-O2", "-std=c17", "-ffreestanding"))
    yield from _mathematics(target)


def kernels(folder: Path, wanted: Collection[str] | None) -> list[Path]:
    """Files of reference kernels: all, or only files of the operators `wanted` and files of no operator."""
    files = [path for path in sorted(folder.glob("*.cc")) if not _TEST_FILE.search(path.name)]
    if wanted is None:
        return files
    registers = {path.stem: set(_REGISTERS.findall(path.read_text())) for path in files}
    without = tuple(f"{stem}_" for stem, names in registers.items() if names and not names & set(wanted))
    # With the underscore: add_n is no part of add.
    prefixes = {f"{stem}_" for stem, names in registers.items() if names & set(wanted)}
    return [path for path in files if f"{path.stem}_" in prefixes or not f"{path.stem}_".startswith(without)]


def _mathematics(target: Target) -> Iterator[Unit]:
    """The mathematical functions of zig's musl that the library of its compiler lacks."""
    musl = Path(zig_command()[0]).parent / "lib/libc/musl"
    arch = _LIBC_FOLDER[target.arch].partition("-")[0]
    include_folders = [
        musl / "arch" / arch,
        musl / "arch/generic",
        musl / "src/include",
        musl / "src/internal",
    ]
    for path in sorted((musl / "src/math").glob("*.c")):
        if path.stem.rstrip("fl") not in _UNUSED:
            yield Unit(path, ("-O2", "-std=c99", *(f"-I{folder}" for folder in include_folders)))


def library(target: Target, sources: Sources, wanted: Collection[str] | None, work: Path) -> Path:
    """The static library of TFLM for the target; objects are made once in `work` for equal sources and flags.

    `wanted`: the operators whose kernels it contains; None: all. Raises KilnError with the compiler's first
    error, or where the target's compiler is not zig.
    """
    if target.c_compiler.kind != "zig" or target.arch not in _LIBC_FOLDER:
        raise KilnError(
            f"target '{target.name}': --peer tflm needs the C compiler zig and one of the architectures "
            f"{', '.join(_LIBC_FOLDER)}"
        )
    command = [*compiler_command(target), *flags(target, sources)]
    folder = work / f"tflm-{target.name}-{_key(command, sources)}"
    folder.mkdir(parents=True, exist_ok=True)
    objects = {folder / _object_name(unit): unit for unit in _units(target, sources, wanted)}
    missing = {made: unit for made, unit in objects.items() if not made.is_file()}
    if missing:
        say(f"compiling {len(missing)} files of TensorFlow Lite Micro for {target.name}")
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(lambda pair: _compile(command, *pair), missing.items()))
    archive = folder / f"libtflm-{hashlib.sha256(' '.join(map(str, objects)).encode()).hexdigest()[:12]}.a"
    if missing or not archive.is_file():
        archive.unlink(missing_ok=True)
        _archive(archive, list(objects))
    return archive


def _object_name(unit: Unit) -> str:
    own = (
        unit.source.read_text() if unit.source.parent == PROGRAMS else ""
    )  # the others are in the folder's key
    text = "\0".join((str(unit.source), *unit.flags)) + own
    return f"{unit.source.stem}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.o"


def _compile(command: Sequence[str], made: Path, unit: Unit) -> None:
    unfinished = made.with_suffix(".part.o")
    run_tool(
        [*command, *unit.flags, "-c", str(unit.source), "-o", str(unfinished)], f"compiling {unit.source}"
    )
    os.replace(unfinished, made)


def _archive(archive: Path, objects: Sequence[Path]) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".rsp") as listed:
        listed.write("\n".join(f'"{path}"' for path in objects))
        listed.flush()
        run_tool([*archiver_command(), "rcsD", str(archive), f"@{listed.name}"], "archiving TFLM")


def _key(command: Sequence[str], sources: Sources) -> str:
    """Hash of the flags, and of path, size and time of every source and header."""
    digest = hashlib.sha256("\0".join(command).encode())
    places = {folder for name, folder in sources.parts.items() if name != "tflite-micro"}
    places.add(sources.root / "tensorflow")
    for path in sorted(path for folder in places for path in folder.rglob("*.[ch]*")):
        about = path.stat()
        digest.update(f"{path}\0{about.st_size}\0{about.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:12]
