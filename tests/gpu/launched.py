"""Kernels of single functions, lowered as for a GPU and launched on this processor."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from kiln.config import sizes
from kiln.config.target import Cuda
from kiln.emit.cuda_objects import image_of, source_of
from kiln.frontend.size_of import to_size
from kiln.kernels.gpu import dlight
from kiln.tir.symbols import variables

from . import double

Array = npt.NDArray[Any]
_GUARD = 256  # elements behind an output, which no kernel may write


def evaluate(expr: Any, values: Mapping[str, int]) -> int:
    """A size for given values of its variables, by name."""
    if isinstance(expr, int):
        return expr
    substitution = {variable: values[variable.name] for variable in variables(expr)}
    return sizes.evaluate(to_size(expr, substitution, {}), {})


def run_kernel(function: Any, grid: Sequence[int], block: Sequence[int], words: Sequence[int]) -> None:
    """Call a kernel; `words`: its arguments, each an address or a number."""
    held = [ctypes.c_int64(word) for word in words]
    args = (ctypes.c_void_p * len(held))(*(ctypes.addressof(word) for word in held))
    function((ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block), args)


@dataclass(frozen=True)
class Kernels:
    """The kernels of some cases, which are called <case>_<number>. `folder`: where the library is made."""

    launches: Mapping[str, dlight.Launches]
    target: Cuda
    folder: Path

    @cached_property
    def functions(self) -> dict[str, Any]:
        return {
            f"{name}_{number}": launch.func.with_attr("global_symbol", f"{name}_{number}")
            for name, one in self.launches.items()
            for number, launch in enumerate(one.launches)
        }

    @cached_property
    def source(self) -> str:
        """All of them as CUDA C."""
        return source_of(self.functions, self.target)

    def text(self, kernel: str) -> str:
        """One of them as CUDA C."""
        begin = self.source.rindex(f" {kernel}(")
        return self.source[begin : self.source.index("\n}\n", begin)]

    @cached_property
    def library(self) -> ctypes.CDLL:
        plan = {"kernels": [{"symbol": symbol} for symbol in self.functions]}
        out = self.folder / "kernels.so"
        return ctypes.CDLL(str(double.kernels_on_cpu(self.source, plan, out)))

    def check_machine_code(self, archs: list[str], folder: Path) -> list[Mapping[str, int]]:
        """Fail unless ptxas compiles every kernel for `archs`, within the shared memory of any GPU.

        The first kernel of a case must use shared memory. `folder` receives the image. Returns the resources
        of each kernel on each architecture.
        """
        _, usage_of_kernels = image_of(self.source, Cuda(archs=archs, ptx=False), folder)
        assert set(usage_of_kernels) == set(self.functions)
        for kernel, usage_by_arch in usage_of_kernels.items():
            assert list(usage_by_arch) == archs, kernel
            for usage in usage_by_arch.values():
                assert int(kernel.endswith("_0")) <= usage["shared_bytes"] <= 48 << 10, kernel
                assert usage["registers"] > 0 and usage["bytes"] > 0, kernel
        return [usage for usage_by_arch in usage_of_kernels.values() for usage in usage_by_arch.values()]

    def run(self, name: str, inputs: Sequence[Array], shape: Sequence[int], **values: int) -> Array:
        """The output of a case after all its launches; `values`: the values of its size variables."""
        lowered, next_argument = self.launches[name], len(inputs)
        written = [
            a for one in lowered.launches for a in one.arguments if a.written and a.position == next_argument
        ]
        dtype = np.dtype(written[0].dtype)
        count = prod(shape)
        memory = np.full(count + _GUARD, -7 if dtype.kind in "iu" else np.nan).astype(dtype)
        before, got = memory[count:].tobytes(), memory[:count].reshape(shape)
        arrays = [*inputs, got, *(np.full(size, 0xCD, np.uint8) for _, size in lowered.scratch)]
        for number, launch in enumerate(lowered.launches):
            words = [
                arrays[a.position].ctypes.data if a.value is None else evaluate(a.value, values)
                for a in launch.arguments
            ]
            grid = [evaluate(extent, values) for extent in launch.grid]
            run_kernel(getattr(self.library, f"{name}_{number}_on_cpu"), grid, launch.block, words)
        assert memory[count:].tobytes() == before, f"{name}: elements after the output were written"
        return got
