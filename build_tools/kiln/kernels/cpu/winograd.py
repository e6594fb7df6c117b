"""Winograd convolution: 3x3 weights, stride 1, with 2.25 (F2) or 4 (F4) times fewer multiplications.

Computation  Output tiles of m x m (m = 2 or 4) from input tiles of (m+2) x (m+2): transform the inputs,
             multiply plane by plane (tiles x channels by channels x outputs, (m+2)^2 matmuls), transform
             back. kernels/cpu/winograd_transforms.py holds the transforms.
Packing      [3,3,C,O] → [plane][panel][C][NR]: 1.8 (F2) or 4 (F4) times as many bytes.
Schedule     Small weights or many tiles: blocks of tiles whose transformed data stay in the cache go through
             all three phases; each task has a share of the tiles and scratch memory of its own.
             Large weights and few tiles: three kernels, each phase for all tiles, so that every weight is
             read once and the matmuls are divided into tasks by planes and panels.
             A plane is one cache line longer than its data, otherwise all lines of a tile would map to one
             set of the cache.
             With dynamic shapes the number of blocks is dynamic, and so is the number of tiles in the last
             block: small images fill a part of one.
             Tiles across the edge read the last row and column again; only real outputs are stored, with
             the epilogue, each exactly once.
Applies      NHWC/HWIO, float32, constant weights, groups 1, no padding left in the op, where `pays`.
Accuracy     On data of unit scale, against a convolution in float64: F2 up to 4e-6, F4 up to 7e-5 (direct:
             1e-6). A model's `winograd: f2` or `off` avoids larger errors.
"""

from __future__ import annotations

import functools

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as builder

from kiln.extents import Extent
from kiln.kernels.cpu.convolution import Convolution
from kiln.kernels.cpu.epilogue import Epilogue, may_overwrite, parameters
from kiln.kernels.cpu.winograd_cost import Form, form_of
from kiln.kernels.cpu.winograd_phases import Phases, TaskMemory
from kiln.kernels.cpu.winograd_transforms import pack_weights
from kiln.opinfo.attach import OpInfo
from kiln.tir.builder import (
    Argument,
    Array,
    Kernel,
    KernelAndBuffers,
    Machine,
    Packing,
    argument,
    bind,
    define,
    int64,
    serial,
    unravel,
)
from kiln.tir.fused import Fused, Nest
from kiln.tir.symbols import is_dynamic
from kiln.tir.tiled_loops import tasks_of, when


def applies(op: OpInfo, fused: Fused, anchor: Nest, constants: set[int]) -> bool:
    """Whether this family can compute the group that begins with `op`."""
    if op["name"] != "nn.conv2d" or len(fused.params) < 3 or 1 not in constants:
        return False
    attrs, x, weights = op["attrs"], fused.params[0], fused.params[1]
    if any(str(item.dtype) != "float32" for item in (x, weights, anchor.buffer)):
        return False
    if any(is_dynamic(size) for size in [*weights.shape, x.shape[-1]]):
        return False
    steps = [*attrs["strides"], *attrs["dilation"], attrs["groups"]]
    square = [int(size) for size in weights.shape[:2]] == [3, 3] and all(int(step) == 1 for step in steps)
    layout = attrs["data_layout"] == "NHWC" and attrs["kernel_layout"] == "HWIO"
    return square and layout and not any(attrs["padding"])


def pays(op: OpInfo, fused: Fused, anchor: Nest, machine: Machine) -> bool:
    """Whether Winograd convolution is allowed and estimated to be faster than kernels/cpu/conv2d.py."""
    return form_of(Convolution(op, fused, anchor), machine) is not None


def make(op: OpInfo, fused: Fused, anchor: Nest, last: Nest, machine: Machine) -> list[KernelAndBuffers]:
    """Make the kernels of nests `anchor` to `last`; return each with the buffers of its parameters."""
    conv = Convolution(op, fused, anchor)
    form = form_of(conv, machine)
    assert form is not None
    phases = Phases(conv, form, machine)
    group = _Group(fused, anchor, last, phases, form)
    return group.staged() if form.staged else [group.blocked()]


class _Group:
    """The kernels of one fused group that Winograd convolution computes."""

    def __init__(self, fused: Fused, anchor: Nest, last: Nest, phases: Phases, form: Form) -> None:
        self.fused, self.anchor, self.last, self.phases, self.form = fused, anchor, last, phases, form
        self.saving = {2: 2.25, 4: 4.0}[form.m]
        self.x, self.weights = fused.params[:2]
        self.read = parameters(fused, anchor, last)
        self.overwritten = may_overwrite(fused, anchor, last, self.read)
        conv = phases.conv
        self.ranges = fused.ranges
        size = self.ranges.greatest(self.ranges.product(list(self.x.shape)))
        self.x_argument = Argument(self.x.name, [size], "float32")
        count = phases.planes * phases.panels * conv.channels * phases.tile.columns
        self.weights_argument = Argument(self.weights.name, [count], "float32")

    def _pack(self, weights: Array) -> Array:
        return pack_weights(weights, self.phases.m, self.phases.tile)

    def _packing(self) -> Packing:
        return Packing(self.phases.tile.columns, self.form.m, self.form.staged)

    def _epilogue(self, buffers: list[tirx.Buffer]) -> Epilogue:
        """The epilogue of the group. `buffers`: the kernel's buffers after data and weights."""
        return Epilogue(self.fused, self.anchor, self.last, dict(zip(self.read[2:], buffers, strict=True)))

    def blocked(self) -> KernelAndBuffers:
        """Make one kernel; each task computes all phases of `form.blocks_per_task` blocks of tiles."""
        phases, form = self.phases, self.form

        def body(buffers: list[tirx.Buffer], begin: Expr, end: Expr) -> None:
            slots = form.tasks
            data = builder.alloc_buffer([slots * phases.data_size], "float32")
            products = builder.alloc_buffer([slots * phases.product_size], "float32")
            element = self._epilogue(buffers[2:])
            exact = not is_dynamic(phases.tiles) and slots * form.blocks_per_task * form.block == phases.tiles

            def block(
                first: Expr, data: TaskMemory, products: TaskMemory, again: tuple[Expr, int] | None
            ) -> None:
                """Emit all phases of the block of tiles that begins at tile `first`."""
                tiles_here: Extent = form.block
                if is_dynamic(phases.tiles):  # small images fill a part of a block
                    tiles_here = bind(tirx.min(int64(form.block), int64(phases.tiles) - first))
                with serial(tiles_here) as slot:
                    tile = bind(tirx.min(first + slot, int64(phases.tiles - 1)))
                    phases.transform_inputs(buffers[0], data, tile, slot)
                with serial(phases.planes) as plane, serial(phases.strips) as strip:
                    phases.multiply(data, buffers[1], products, plane, strip, again, tiles_here)
                with serial(tiles_here) as slot:
                    tile = bind(first + slot)
                    conditions = [] if exact or is_dynamic(tiles_here) else [tile < int64(phases.tiles)]
                    when(conditions, lambda: phases.transform_outputs(products, tile, slot, element))

            with tasks_of(slots, slots > 1, begin, end) as task, serial(form.blocks_per_task) as turn:
                task_data = TaskMemory(data, bind(task * int64(phases.data_size)))
                task_products = TaskMemory(products, bind(task * int64(phases.product_size)))
                first = bind((task * int64(form.blocks_per_task) + turn) * int64(form.block))
                # At small sizes some tasks have no tile.
                some = [first < int64(phases.tiles)] if is_dynamic(phases.tiles) else []
                again = None
                if not is_dynamic(form.blocks_per_task):
                    again = (bind(task * int64(form.blocks_per_task) + turn), slots * form.blocks_per_task)
                when(some, functools.partial(block, first, task_data, task_products, again))

        arguments = [
            self.x_argument,
            self.weights_argument,
            *(argument(p, self.fused.tables) for p in self.read[2:]),
        ]
        tasks = form.tasks if form.tasks > 1 else None
        func = define(arguments, tasks, body, bool(self.overwritten), self.ranges)
        prefetches = phases.fetch > 0 and not is_dynamic(form.blocks_per_task)
        kernel = Kernel(
            func,
            tasks,
            {1: self._pack},
            "winograd",
            self.overwritten,
            self.saving,
            prefetches,
            self.ranges,
            self._packing(),
        )
        return kernel, self.read

    def staged(self) -> list[KernelAndBuffers]:
        """Make three kernels, one for each phase; transformed data are in the arena between them."""
        phases = self.phases
        data = tirx.decl_buffer([phases.data_size], "float32", "data")
        products = tirx.decl_buffer([phases.product_size], "float32", "products")

        def inputs(buffers: list[tirx.Buffer], begin: Expr, end: Expr) -> None:
            with tasks_of(phases.tiles, True, begin, end) as tile:
                phases.transform_inputs(buffers[0], TaskMemory(buffers[1], int64(0)), tile, tile)

        def multiply(buffers: list[tirx.Buffer], begin: Expr, end: Expr) -> None:
            with tasks_of(phases.planes * phases.strips, True, begin, end) as task:
                plane, strip = (bind(index) for index in unravel(task, [phases.planes, phases.strips]))
                data, products = (TaskMemory(buffer, int64(0)) for buffer in (buffers[0], buffers[2]))
                phases.multiply(data, buffers[1], products, plane, strip)

        def outputs(buffers: list[tirx.Buffer], begin: Expr, end: Expr) -> None:
            element = self._epilogue(buffers[1:])
            with tasks_of(phases.tiles, True, begin, end) as tile:
                phases.transform_outputs(TaskMemory(buffers[0], int64(0)), tile, tile, element)

        products_of = phases.planes * phases.strips
        other_arguments = [argument(param, self.fused.tables) for param in self.read[2:]]
        first = define([self.x_argument, argument(data)], phases.tiles, inputs, False, self.ranges)
        second_arguments = [argument(data), self.weights_argument, argument(products)]
        second = define(second_arguments, products_of, multiply, False, self.ranges)
        third = define(
            [argument(products), *other_arguments], phases.tiles, outputs, bool(self.overwritten), self.ranges
        )
        in_place = tuple(position - 1 for position in self.overwritten)
        kernel = functools.partial(Kernel, family="winograd", ranges=self.ranges)
        return [
            (kernel(first, phases.tiles), [self.x, data]),
            (
                kernel(second, products_of, {1: self._pack}, packing=self._packing()),
                [data, self.weights, products],
            ),
            (kernel(third, phases.tiles, in_place=in_place), [products, *self.read[2:]]),
        ]
