"""Paths of the runtime's public headers: kiln.h in runtime_c, dlpack.h in the apache-tvm-ffi package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from kiln.errors import KilnError
from kiln.paths import data_dir


def kiln_h() -> Path:
    """Path of kiln.h, the runtime's API."""
    return data_dir("runtime_c") / "include" / "kiln.h"


def kiln_image_h() -> Path:
    """Path of kiln_image.h, the part of the runtime's API for models that a program is not linked with."""
    return data_dir("runtime_c") / "include" / "kiln_image.h"


def kiln_cuda_h() -> Path:
    """Path of kiln_cuda.h, the part of the runtime's API that only models on an NVIDIA GPU need."""
    return data_dir("runtime_c") / "include" / "kiln_cuda.h"


def dlpack_h() -> Path:
    """Path of dlpack.h (DLPack) in the package apache-tvm-ffi. Raises KilnError if it is not there."""
    package = importlib.util.find_spec("tvm_ffi")  # finds, does not import
    header = Path(package.origin).parent / "include/dlpack/dlpack.h" if package and package.origin else None
    if header is None or not header.is_file():
        raise KilnError("dlpack.h: not found in the package apache-tvm-ffi; install Kiln's environment again")
    return header


def cuda_include_flag() -> str:
    """Compiler flag that finds the runtime's headers, for generated code that calls a library of a GPU."""
    return f"-I{data_dir('runtime_c') / 'cuda'}"


def include_flags() -> list[str]:
    """Compiler flags to find kiln.h, kiln_cuda.h and dlpack.h."""
    return [f"-I{kiln_h().parent}", f"-I{dlpack_h().parent}"]
