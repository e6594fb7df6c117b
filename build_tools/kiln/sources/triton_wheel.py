"""Triton, the compiler of GPU kernels, from its wheel on PyPI: fetched when first needed, then cached.

Nothing is installed: a process of its own imports the package from its folder in the cache
(kiln.byoc.triton.compiler). It needs neither PyTorch nor a GPU nor a driver. Licence: MIT; no bundle contains
any of these files.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from kiln.errors import KilnError
from kiln.files import atomic_dir
from kiln.paths import cache_dir
from kiln.sources.cuda_toolkit import unpack

VERSION = "3.9.0"
# SHA-256 of the wheels, by Python's version (the wheel for 3.12 is for later versions too) and machine.
_SHA256 = {
    ("3.11", "x86_64"): "1622118a038b0c6e16fa4a0305da62c8b3c15904ee1cc4d4e65846a25969e41e",
    ("3.11", "aarch64"): "feaaec13578ca84301d561d034cb08b3ae293d7f0b7ab6b8ddbb2d6796363716",
    ("3.12", "x86_64"): "5e52ab4e2f1d64f0ac494c9aa723697b793f81a91c4cae4c36608ca0bc4267bf",
    ("3.12", "aarch64"): "5542f4328472fd827dbb1ec43873364c2894682cc3f5d1c74a643762900e243e",
}
# Prefixes of the extracted files: the compiler for NVIDIA's GPUs, the interpreter, and programs that read
# machine code. ptxas comes from cuda_toolkit.
_USED_FILES = (
    "__init__.py", "_C/libtriton", "_compile_warmup_state.py", "_filecheck.py", "_instrumentation.py",
    "_utils.py", "errors.py", "knobs.py", "testing.py", "backends/__init__.py", "backends/compiler.py",
    "backends/driver.py", "backends/nvidia/__init__.py", "backends/nvidia/compiler.py",
    "backends/nvidia/driver.py", "backends/nvidia/driver.c", "backends/nvidia/lib/",
    "backends/nvidia/bin/cuobjdump", "backends/nvidia/bin/nvdisasm", "compiler/", "experimental/",
    "language/", "runtime/", "tools/",
)  # fmt: skip


def triton_folder() -> Path:
    """The folder from which `import triton` finds the package; 280 MB are downloaded if the cache lacks it.

    Raises KilnError if the wheel cannot be downloaded, has another SHA-256, or does not exist for this Python
    or machine.
    """
    number, machine = sys.version_info[:2], platform.machine()
    python = "3.11" if number == (3, 11) else "3.12"
    if number < (3, 11) or number > (3, 15) or (python, machine) not in _SHA256:
        raise KilnError(
            f"byoc=triton: Triton {VERSION} has no wheel for Python {number[0]}.{number[1]} on '{machine}', "
            "only for Python 3.11 to 3.15 with Linux on x86_64 and aarch64"
        )
    folder = cache_dir() / "triton" / f"{VERSION}-{python}-{machine}"
    if not folder.is_dir():
        with atomic_dir(folder, shared=True) as new_folder:
            (new_folder / "triton").mkdir()
            try:
                unpack(
                    "triton", VERSION, _SHA256[python, machine], new_folder / "triton", "triton/", _USED_FILES
                )
            except KilnError as error:
                raise KilnError(f"byoc=triton: {error}") from error
    return folder
