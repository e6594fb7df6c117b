"""The parts of the `lower` stage that only GPUs need: legalisation rules, precision, and kernel launches.

Padding stays part of its convolution: dlight computes the padding where an element is read. Each step
contains the name of its kernel and, as `launch`, its grid and block of threads.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import tvm
from tvm import tirx

from kiln.config import sizes
from kiln.config.precisions import is_narrow, stored
from kiln.config.sizes import SizeExpr
from kiln.config.target import Cuda
from kiln.errors import KilnError
from kiln.graph.pipeline import Pass
from kiln.kernels.families import macs_of
from kiln.kernels.gpu import dlight, extremes, serial_loops, tf32
from kiln.kernels.gpu.block_tile import ProductTiles
from kiln.kernels.gpu.half import half_storage
from kiln.kernels.operators import legalize
from kiln.kernels.operators.topk import topk
from kiln.lower.dims import Dims
from kiln.lower.fused_steps import GroupLowering
from kiln.lower.schema import GridAndBlock, KernelArgument, KernelRecord, SizeArgument, Step
from kiln.lower.steps import label_of, operators
from kiln.opinfo import attach
from kiln.opinfo.attach import OpInfo, refusal
from kiln.params import store
from kiln.tir.builder import Machine
from kiln.tir.kernel_name import digest
from kiln.tir.symbols import variables

# GPUs have an instruction for nearbyint. TVM 0.27 prints the bit pattern that round_small reads as
# `&(1262485504)`, which is not valid C.
RULES = {
    **legalize.RULES,
    **serial_loops.RULES,
    **extremes.RULES,
    "relax.quantize": partial(legalize.quantize, rounded=tirx.nearbyint),
    "relax.topk": topk,  # ranks, which many threads compute
}


class GpuGroupLowering(GroupLowering):
    """Adds the kernel launches of fused groups to `steps`."""

    counts_refused = "needs a CPU target: the launches of a GPU are planned with sizes known before"

    def __init__(self, dims: Dims, machine: Machine, cuda: Cuda, tiles: ProductTiles) -> None:
        """`tiles` chooses the tiles of products on tensor cores."""
        super().__init__(dims, machine, dlight.tvm_target(cuda))
        self.multiprocessors, self.tiles = cuda.multiprocessors, tiles
        self._launches: dict[Any, dlight.Launches] = {}

    def add(self, func: tirx.PrimFunc, ops: list[OpInfo], inputs: list[str], outputs: list[str]) -> None:
        """Add the launches of one fused group."""
        values = self.values_of(func, [*inputs, *outputs])
        # Lowering replaces variables by new ones of the same names.
        by_name = {variable.name: value for variable, value in values.items()}

        def size(expr: Any) -> SizeExpr:
            return self.dims.size(expr, {variable: by_name[variable.name] for variable in variables(expr)})

        key = self._plan.number(func), repr(by_name)
        if key not in self._launches:
            params = [param for param in func.params if tirx.is_buffer_var(param)]
            declared = {size for param in params for size in param.shape if isinstance(size, tirx.Var)}
            # Sizes that the code computes with and no shape declares, in an order that runs share.
            params += [size for size in sorted(self.given.get(func, {}), key=str) if size not in declared]
            plain = tirx.PrimFunc(params, func.body, None, attrs=func.attrs).without_attr(attach.ATTRIBUTE)
            try:
                self._launches[key] = dlight.lower(
                    plain, self.target, lambda e: self._most(size(e)), self.multiprocessors, self.tiles
                )
            except Exception as error:  # TVM's passes raise many kinds
                raise KilnError(f"{self.dims.model}: {refusal(ops, error)}") from error
        lowered = self._launches[key]
        names = [*inputs, *outputs]
        for dtype, count in lowered.scratch:
            elements = count * 8 // int(tvm.DataType(dtype).bits)
            names.append(self.steps.new(dtype, [elements]).name)
        macs = macs_of(func, self.ranges_of(values))
        for launch in lowered.launches:
            arguments = [
                names[a.position] if a.value is None else SizeArgument(dim=size(a.value))
                for a in launch.arguments
            ]
            # All multiply-adds of a group are attributed to its first kernel.
            self._launch(launch, ops, arguments, [size(extent) for extent in launch.grid], macs)
            macs = 0

    def _most(self, expr: SizeExpr) -> int:
        return sizes.bounds(expr, self.steps.box)[1]

    def _launch(
        self, launch: dlight.KernelLaunch, ops: list[OpInfo], arguments: list[str | SizeArgument],
        grid: list[SizeExpr], macs: int,
    ) -> None:  # fmt: skip
        stem = ops[0]["name"].split(".")[-1] if ops else "kernel"
        symbol = f"kilnk_{stem}_{digest(launch.func)}"
        if not self.steps.has_kernel(symbol):
            self.steps.functions[symbol] = launch.func.with_attr("global_symbol", symbol)
            types = [
                KernelArgument(dtype=a.dtype, const=not a.written, scalar=a.value is not None)
                for a in launch.arguments
            ]
            self.steps.kernels.append(
                KernelRecord(
                    symbol=symbol, args=types, parallel=False, family="cuda", ops=operators(ops),
                    flops=2 * macs,
                )
            )  # fmt: skip
        self.steps.steps.append(
            Step(
                kernel=symbol,
                args=arguments,
                writes=[str(n) for n, a in zip(arguments, launch.arguments, strict=True) if a.written],
                label=label_of(ops) or "cuda",
                attrs=ops[0]["attrs"] if ops else {},
                macs=macs,
                launch=GridAndBlock(grid=grid, block=list(launch.block)),
            )
        )


def in_precision(precision: str, params: store.Tensors) -> Pass:
    """The pass that converts a module's stored tensors, or its matmul operands, to `precision`.

    `params`: values of main's parameters by name; the pass converts them, too.
    """
    if precision == "tf32":
        return tf32.products
    return half_storage(params, stored(precision)) if is_narrow(precision) else lambda mod: mod
