"""Kernels of a GPU, from their CUDA C, compiled for this processor and launched on memory of this process."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
from gpu import double
from kiln.config import Target
from kiln.emit.cuda_objects import source_of


def compile_launched(functions: Mapping[str, tvm.tirx.PrimFunc], target: Target, path: Path) -> None:
    """Compile the kernels into the library `path`."""
    assert target.cuda is not None
    plan = {"kernels": [{"symbol": symbol} for symbol in functions]}
    double.kernels_on_cpu(source_of(functions, target.cuda), plan, path)


class LaunchedKernels:
    """The kernels in a library that `compile_launched` has written."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))

    def launch(
        self, kernel: str, extents: tuple[Sequence[int], Sequence[int]], arguments: Sequence[Any]
    ) -> None:
        """Run all threads of a kernel. `extents`: its blocks and the threads of a block along x, y and z."""
        words = [ctypes.c_int64(argument.value or 0) for argument in arguments]
        places = (ctypes.c_void_p * len(words))(*map(ctypes.addressof, words))
        grid, block = ((ctypes.c_uint * 3)(*extent) for extent in extents)
        getattr(self._library, f"{kernel}_on_cpu")(grid, block, places)
