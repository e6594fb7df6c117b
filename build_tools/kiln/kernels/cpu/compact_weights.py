"""Weights of matmuls and convolutions in 16, 8 or 4 bits: packed offline, widened in registers.

Panels are those of gemm_tile.py, [panel][k][NR], in the stored type. With 8 bits, four successive k of a
column are one word of 32 bits, which an instruction that adds four products takes; with 4 bits eight k, the
first four in the low halves of its bytes. The reduction is cut into runs, in which such words do not straddle
an end: a run is one block of scales, or one position (i, j) of the convolution's kernel.

Scales are a tensor of their own, [panel][run][NR], or [panel][k] where each k has one scale; so are zero
points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir import Expr

from kiln.config.sizes import ceil_div
from kiln.kernels.cpu.convolution import Convolution
from kiln.kernels.cpu.gemm_tile import Tile
from kiln.params.encodings import Encoding, levels_of
from kiln.tir.builder import (
    Argument,
    Array,
    Machine,
    Pack,
    bind,
    int64,
    load,
    padded,
    registers,
    serial,
    store,
    vector,
)
from kiln.tir.widen import widened

# The integer that stands for level 0 of 4 bits: levels -8 to 7 are stored as 0 to 15.
_MIDDLE = 8


def suits(encoding: Encoding, conv: Convolution, panel: int) -> bool:
    """Whether kernels can read the weights of `conv` in `encoding`, in panels of `panel` columns."""
    depth = conv.kernel_h * conv.kernel_w * conv.depth
    if encoding.is_float or encoding.rows >= depth:
        return encoding.is_float or encoding.columns in (1, conv.out_channels)
    if encoding.rows == 1:
        return encoding.columns >= conv.out_channels or (conv.groups == 1 and encoding.columns % panel == 0)
    return encoding.columns == 1 and (depth == conv.depth or conv.depth % encoding.rows == 0)


@dataclass(frozen=True)
class CompactForm:
    """Storage of the weights of one group of a convolution; the properties describe one panel."""

    encoding: Encoding
    positions: int  # the number of positions (i, j) of the convolution's kernel
    depth: int  # input channels of a group
    columns: int  # output channels of a group
    groups: int
    tile: Tile

    @property
    def by_row(self) -> bool:
        """Whether each k has one scale for all columns of a panel."""
        return self.encoding.rows == 1 and not self.encoding.is_float and self.terms > 1

    @property
    def terms(self) -> int:
        """Number of products in a sum, the rows of the matrix of weights (K)."""
        return self.positions * self.depth

    @property
    def is_blocked(self) -> bool:
        """Whether scales of a column differ along k."""
        return not self.encoding.is_float and 1 < self.encoding.rows < self.terms

    @property
    def run(self) -> int:
        """Length of a run, except of the last one."""
        return self.encoding.rows if self.is_blocked else self.depth

    @property
    def runs(self) -> int:
        """Number of whole runs."""
        return self.positions * (self.depth // self.run)

    @property
    def last_run(self) -> int:
        """Length of the run after the whole runs; 0: there is none."""
        return self.depth % self.run

    @property
    def panels(self) -> int:
        """Number of panels of a group."""
        return ceil_div(self.columns, self.tile.columns)

    def lines(self, length: int) -> int:
        """Stored rows of NR elements for `length` k of a run."""
        return ceil_div(length, self.per_word)

    @property
    def per_word(self) -> int:
        """Number of consecutive k whose levels in one column are stored in one word."""
        return {"int4": 8, "int8": 4}.get(self.encoding.kind, 1)

    @property
    def shifts(self) -> list[int]:
        """First bit of each element in its word; with 4 bits, the first four are the low halves of bytes."""
        return [8 * k if k < 4 else 8 * (k - 4) + 4 for k in range(self.per_word)]

    @property
    def panel_size(self) -> int:
        """Stored elements of a panel."""
        return (self.runs * self.lines(self.run) + self.lines(self.last_run)) * self.tile.columns

    @property
    def scale_runs(self) -> int:
        """Scales of one column of a panel, or of one k where `by_row`."""
        if self.by_row:
            return self.terms
        return self.runs + (self.last_run > 0) if self.is_blocked else 1

    @property
    def shares_scales(self) -> bool:
        """Whether all panels have the same scales, one for each k."""
        return self.by_row and self.encoding.columns >= self.columns * self.groups

    @property
    def scale_size(self) -> int:
        """Distance in elements between the scales of one panel and of the next."""
        return 0 if self.shares_scales else self.scale_runs * (1 if self.by_row else self.tile.columns)

    @property
    def types(self) -> list[str]:
        """The data types of the stored tensors: levels, scales, zero points."""
        encoding = self.encoding
        if encoding.is_float:
            return ["uint16"]
        scales = "uint16" if encoding.half_scales else "float32"
        return ["int32", scales, *(["int16"] * encoding.has_zero)]

    @property
    def labels(self) -> list[str]:
        """A label for each of the stored tensors, for reports."""
        return [self.encoding.kind, "scales", "zeros"][: len(self.types)]

    def arguments(self, name: str) -> list[Argument]:
        """The parameters of a kernel for the stored tensors of weights called `name`."""
        count = self.groups * self.panels
        scales = count * self.scale_size or self.scale_runs
        sizes = [count * self.panel_size, scales, scales]
        return [
            Argument(f"{name}{suffix}", [size], dtype)
            for suffix, size, dtype in zip(("", "_scales", "_zeros"), sizes, self.types, strict=False)
        ]

    def packs(self) -> list[Pack]:
        """The functions that make the stored tensors of `types` from the weights in float32."""
        if self.encoding.is_float:
            return [self._floats]
        functions: list[Pack] = [self._levels, self._scales, self._zeros]
        return functions[: len(self.types)]

    def _by_panel(self, matrix: Array) -> Array:
        """[K, O] as [group and panel][K][NR], with zeros after the columns of a group."""
        groups = matrix.reshape(len(matrix), self.groups, self.columns)
        groups = padded(groups, 2, self.tile.columns)
        panels_of_groups: Array = groups.reshape(len(matrix), -1, self.tile.columns).transpose(1, 0, 2)
        return panels_of_groups

    def _floats(self, value: Array) -> Array:
        import ml_dtypes

        dtype = np.float16 if self.encoding.kind == "float16" else ml_dtypes.bfloat16
        packed: Array = self._by_panel(value.reshape(self.terms, -1)).astype(dtype)
        return packed.reshape(-1)

    def _levels(self, value: Array) -> Array:
        panels = self._by_panel(levels_of(value, self.encoding).levels)
        numbers = (panels + _MIDDLE if self.encoding.kind == "int4" else panels).astype(np.uint8)
        lines, first = [], 0
        whole_runs = self.runs * self.run
        if self.run % self.per_word == 0:  # as one run
            ends = [whole_runs, self.last_run]
        else:
            ends = [*(self.run,) * self.runs, self.last_run]
        for length in ends:
            block = padded(numbers[:, first : first + length], 1, self.per_word)
            grouped = block.reshape(len(block), -1, self.per_word, block.shape[2]).astype(np.uint32)
            shifted = grouped << np.array(self.shifts, np.uint32)[:, None]
            lines.append(np.bitwise_or.reduce(shifted, axis=2).view(np.int32))
            first += length
        return np.concatenate(lines, axis=1).reshape(-1)

    def _blocks(self, blocks: Array) -> Array:
        """`blocks`, one number for each block, in the order in which panels store them."""
        encoding = self.encoding
        if self.shares_scales:
            return blocks[:, 0]
        if self.by_row:
            across = [min(p * self.tile.columns // encoding.columns, blocks.shape[1] - 1)
                      for p in range(self.panels)] * self.groups  # fmt: skip
            return np.ascontiguousarray(blocks[:, across].T).reshape(-1)
        wide = blocks.repeat(encoding.columns, 1)[:, : self.columns * self.groups]
        return self._by_panel(wide).reshape(-1)

    def _scales(self, value: Array) -> Array:
        scales = self._blocks(levels_of(value, self.encoding).scales)
        return scales.astype(self.encoding.scale_type)

    def _zeros(self, value: Array) -> Array:
        return self._blocks(levels_of(value, self.encoding).zeros)


def form_of(encoding: Encoding, conv: Convolution, tile: Tile) -> CompactForm:
    """The form of the weights of `conv` in panels for `tile`."""
    positions = conv.kernel_h * conv.kernel_w
    return CompactForm(encoding, positions, conv.depth, conv.columns, conv.groups, tile)


Values = Callable[[Expr], Expr]  # lane → value


class StoredPanels:
    """Emits loads of stored weights. `buffers`: levels, then scales and zero points where there are any."""

    def __init__(self, form: CompactForm, buffers: list[tirx.Buffer], machine: Machine) -> None:
        self.form, self.buffers, self.machine = form, buffers, machine
        self.lanes = form.tile.lanes

    def numbers(self, offset: Expr, column: int, count: int) -> list[Values]:
        """The stored numbers of the first `count` k in the line at element `offset`, from `column` on."""
        kind, source = self.form.encoding.kind, self.buffers[0]

        def element(lane: Expr) -> Expr:
            return load(source, [offset + int64(column) + lane])

        def level(shift: int) -> Values:
            if kind == "int4":
                return lambda lane: _number((element(lane) >> _i32(shift)) & _i32(15))
            return lambda lane: _number((element(lane) << _i32(24 - shift)) >> _i32(24))

        if self.form.encoding.is_float:
            return [lambda lane: widened(element(lane), kind, self.machine.half)]
        return [level(shift) for shift in self.form.shifts[:count]]

    def scale(self, index: Expr) -> Expr:
        """Scale number `index`."""
        value = load(self.buffers[1], [index])
        return widened(value, "float16", self.machine.half) if self.form.encoding.half_scales else value

    def zero(self, index: Expr) -> Expr:
        """The zero point of the stored numbers that have scale number `index`."""
        middle = _MIDDLE if self.form.encoding.kind == "int4" else 0
        if not self.form.encoding.has_zero:
            return tirx.const(float(middle), "float32")
        return tirx.Cast("float32", load(self.buffers[2], [index])) + tirx.const(float(middle), "float32")

    @property
    def has_zero(self) -> bool:
        """Whether the stored numbers have zero points."""
        return self.form.encoding.kind == "int4" or self.form.encoding.has_zero

    def unpack(self, panel: Expr, target: Any, offset: Expr) -> None:
        """Emit the widening of panel number `panel` to [k][NR] of float32 from target[offset] on."""
        form = self.form
        first = bind(panel * int64(form.panel_size))
        scale = bind(panel * int64(form.scale_size))
        if form.runs:
            with serial(form.runs) as run:
                line = bind(first + run * int64(form.lines(form.run) * form.tile.columns))
                self._unpack_run(run, form.run, line, scale, target, offset)
        if form.last_run:
            line = bind(first + int64(form.runs * form.lines(form.run) * form.tile.columns))
            self._unpack_run(int64(form.runs), form.last_run, line, scale, target, offset)

    def _unpack_run(self, run: Expr, length: int, line: Expr, scale: Expr, target: Any, at: Expr) -> None:
        """Emit the widening of run number `run`, stored from element `line` on, to target from `at` on."""
        form, wide, lanes = self.form, self.form.tile.columns, self.lanes
        vectors = range(0, wide, lanes)
        factors = None
        if not form.encoding.is_float and not form.by_row:
            which = scale + (run * int64(wide) if form.is_blocked else int64(0))
            factors = [(registers([lanes], "float32"), registers([lanes], "float32")) for _ in vectors]
            for column, (scales, zeros) in zip(vectors, factors, strict=True):
                with vector(lanes) as lane:
                    store(scales, [lane], self.scale(which + int64(column) + lane))
                with vector(lanes) as lane:
                    store(zeros, [lane], self.zero(which + int64(column) + lane))
        per_word = form.per_word

        def step(index: Expr, count: int) -> None:
            """Emit the widening of `count` k, which are stored in line `index` of the run."""
            here = bind(line + index * int64(wide))
            k = bind(run * int64(form.run) + index * int64(per_word))
            for number, column in enumerate(vectors):
                for offset, value in enumerate(self.numbers(here, column, count)):
                    with vector(lanes) as lane:
                        weight = value(lane)
                        if factors is not None:
                            scales, zeros = factors[number]
                            weight = weight - load(zeros, [lane]) if self.has_zero else weight
                            weight = weight * load(scales, [lane])
                        elif form.by_row:
                            weight = (
                                weight - self.zero(scale + k + int64(offset)) if self.has_zero else weight
                            )
                            weight = weight * self.scale(scale + k + int64(offset))
                        target_offset = at + (k + int64(offset)) * int64(wide) + int64(column) + lane
                        store(target, [target_offset], weight)

        if length // per_word:
            with serial(length // per_word) as index:
                step(index, per_word)
        if length % per_word:
            step(int64(length // per_word), length % per_word)


def _i32(value: int) -> Expr:
    return tirx.const(value, "int32")


def _number(value: Expr) -> Expr:
    return tirx.Cast("float32", value)
