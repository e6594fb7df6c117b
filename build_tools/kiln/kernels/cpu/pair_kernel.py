"""The common parts of all kernels of 16-bit pairs: machine, register tile, weights, parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm.ir import Expr

from kiln.kernels.cpu.convolution import Convolution
from kiln.kernels.cpu.epilogue import Epilogue, flat_argument, may_overwrite, parameters
from kiln.kernels.cpu.gemm_int8 import IntegerProduct, merged
from kiln.kernels.cpu.gemm_tile import Tile, fitted
from kiln.kernels.cpu.runtime_product import method_of_pairs
from kiln.tir.builder import Argument, Array, Kernel, Machine, Packing, argument, define
from kiln.tir.fused import Fused, Nest
from kiln.tir.symbols import ceil_div

_ROWS = 6

# emit(epilogue, x, packed weights, begin, end): emits the body of a kernel, with x and the weights flat.
Emit = Callable[[Epilogue, Any, Any, Expr, Expr], None]


def multiplies_pairs(machine: Machine, lanes: int) -> bool:
    """Whether pairs of 16 bits are the machine's fastest way for 8-bit integers, and can read their weights.

    It can where the weights are packed in groups, in panels of whole vectors of `lanes` columns.
    """
    if method_of_pairs(machine) is None or machine.dot != "none":
        return False
    packing = machine.packing
    return packing is None or (packing.arrangement == "groups" and packing.columns % lanes == 0)


def pair_tile(machine: Machine, rows: int, columns: int, lanes: int) -> Tile:
    """The register tile for `rows` by `columns` sums, in vectors of `lanes` columns; may span panels."""
    vectors = min(4 if machine.registers >= 32 else 2, ceil_div(columns, lanes))
    tile = Tile(min(_ROWS, rows), vectors, lanes)
    return tile if machine.packing is None else fitted(tile, machine.packing.columns, columns)


def widened_tile(machine: Machine, rows: int, columns: int) -> Tile:
    """The register tile for columns that are widened first, a strip within one panel at a time."""
    return replace(pair_tile(machine, rows, columns, machine.lanes("int32")), adjacent=1)


def product_of(conv: Convolution, tile: Tile, machine: Machine) -> IntegerProduct:
    """The matmul of `conv` by pairs, with weights packed in groups, without a shift of x."""
    head_lanes = 0 if machine.packing is None else machine.packing.head_lanes
    method = method_of_pairs(machine)
    assert method is not None, machine.isa
    return IntegerProduct(method, False, tile, merged(conv.loops()), 0, head_lanes, 0, "groups")


@dataclass(frozen=True)
class PairBody:
    """The body of a kernel: `emit` emits `product`, the matmul of `conv`.

    `tasks`: number of tasks, None if the kernel is not split.
    """

    conv: Convolution
    product: IntegerProduct
    tasks: int | None
    emit: Emit


def pair_kernel(
    family: str, pair_body: PairBody, fused: Fused, anchor: Nest, last: Nest, saving: float = 1.0
) -> tuple[Kernel, list[Any]]:
    """Make the kernel of nests `anchor` to `last`; return it with the buffers of its parameters.

    `family`, `saving`: as in Kernel.
    """
    conv, product, tasks = pair_body.conv, pair_body.product, pair_body.tasks
    weights, tile = fused.params[1], product.tile
    buffers_read = parameters(fused, anchor, last)
    arguments = [argument(param, fused.tables) for param in buffers_read]
    arguments[0] = flat_argument(fused, fused.params[0])
    panels = ceil_div(conv.columns, tile.columns)
    arguments[1] = Argument(weights.name, [panels * product.panel_bytes], str(weights.dtype))

    def body(buffers: list[Any], begin: Expr, end: Expr) -> None:
        epilogue = Epilogue(fused, anchor, last, dict(zip(buffers_read, buffers, strict=True)))
        pair_body.emit(epilogue, buffers[0], buffers[1], begin, end)

    def packed(values: Array) -> Array:
        return product.pack(np.reshape(values, (-1, conv.columns)))

    in_place = may_overwrite(fused, anchor, last, buffers_read)
    func = define(arguments, tasks, body, bool(in_place), fused.ranges)
    packing = Packing(tile.columns, arrangement="groups", head_lanes=product.head_lanes)
    kernel = Kernel(func, tasks, {1: packed}, family, in_place, saving, ranges=fused.ranges, packing=packing)
    return kernel, buffers_read
