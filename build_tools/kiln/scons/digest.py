"""Digests of a stage's source code and libraries: when a digest changes, the stage runs again."""

from __future__ import annotations

import functools
import hashlib
import re
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from kiln.config import Target
from kiln.stages import STAGES
from kiln.toolchain import compiler_command

_PACKAGE = Path(__file__).resolve().parents[1]
_IMPORT = re.compile(r"^\s*(?:from|import)\s+kiln\.(\w+)|^\s*from\s+kiln\s+import\s+([\w, ]+)", re.MULTILINE)
_LIBRARIES = (
    "ai-edge-litert", "apache-tvm", "apache-tvm-ffi", "jinja2", "numpy", "onnx", "onnxruntime", "onnxsim",
    "pillow", "safetensors", "tflite", "ziglang",
)  # fmt: skip


@functools.cache
def of_stage(stage: str) -> str:
    """Digest of a stage's declaration, its source, and the versions of its libraries.

    The source is that of all sub-packages that the stage's module imports, directly or indirectly.
    """
    declared = STAGES[stage]
    libraries = " ".join(f"{name}={version}" for name, version in versions().items())
    digest = hashlib.sha256(f"{libraries}\n{declared.described()}\n".encode())
    # `stages` declares all stages: a change to another stage must not change this digest.
    for package in sorted(_closure(declared.spec.module.split(".")[1]) - {"stages"}):
        digest.update(f"{package} {_of_part(package)}\n".encode())
    return digest.hexdigest()[:32]


@functools.cache
def of_folder(folder: Path) -> str:
    """Digest of the names and contents of a folder's C sources and headers, without its tests and fuzzers."""
    files = (path for path in folder.rglob("*.[ch]") if not re.search(r"(_test|_fuzz)\Z", path.stem))
    return _of_files(folder, files)


@functools.cache
def of_compiler(target: str) -> str:
    """The `--version` output of the C compiler of `target`, the text of a target.json.

    Empty for zig, which is in every stage's digest.
    """
    chosen = Target.model_validate_json(target)
    if chosen.c_compiler.kind == "zig" and chosen.c_compiler.command is None:
        return ""
    command = [*compiler_command(chosen)[:1], "--version"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.stdout


def _closure(package: str) -> set[str]:
    """The sub-package or module `package`, and everything of Kiln that it imports, directly or indirectly."""
    reached: set[str] = set()
    waiting = [package, "__main__"]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += _imports(name)
    return reached


@functools.cache
def _imports(package: str) -> frozenset[str]:
    names: set[str] = set()
    for path in _sources(package):
        if path.suffix == ".py":
            for module, several in _IMPORT.findall(path.read_text(encoding="utf-8")):
                names.update(
                    [module] if module else [name.split()[0] for name in several.split(",") if name.strip()]
                )
    return frozenset(name for name in names if name != package and _sources(name))


@functools.cache
def _of_part(package: str) -> str:
    return _of_files(_PACKAGE, _sources(package))


@functools.cache
def _sources(package: str) -> tuple[Path, ...]:
    """The files of a sub-package, or the file of a module. Empty where `package` is neither."""
    module = _PACKAGE / f"{package}.py"
    if module.is_file():
        return (module,)
    files = (_PACKAGE / package).rglob("*")
    return tuple(sorted(path for path in files if path.is_file() and "__pycache__" not in path.parts))


def _of_files(root: Path, files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path.relative_to(root)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


@functools.cache
def versions() -> dict[str, str]:
    """The version of each library that stages use."""
    return {name: metadata.version(name) for name in _LIBRARIES}
