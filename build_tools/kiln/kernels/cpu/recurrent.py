"""LSTM, GRU and RNN layers over all steps of a sequence: one kernel with a loop over the steps.

Computation  The states after each step, and the last ones; the product of the input comes before, as a
             matmul for all steps. See kernels/operators/recurrent.py.
Packing      Constant weights of the state as [direction][product][column panel][k][columns of a panel], so
             that the inner loop reads them in order. Weights that are known only at run time are read in
             place. Weights that have an encoding with a scale for each column, or of 16-bit floats
             (params/encodings.py), are stored in it and widened in registers; int4 as int8.
Schedule     A step computes sums of a few rows by a panel of columns in registers, for all rows of a task
             while the panel is in the cache, then gates and states as vectors of hidden units. Directions and
             blocks of rows are tasks: steps depend on each other, so that a single sequence in one direction
             runs on one thread.
Applies      Every `recurrent`, with any length and batch, dynamic ones too.
Accuracy     Sums run in order of k from the contribution of the input; those of weights with scales from
             zero, and are then scaled and added to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
from tvm.ir import Expr

from kiln.config.sizes import ceil_div
from kiln.extents import extent
from kiln.frontend.recurrent import Recurrent
from kiln.kernels.operators.recurrent import LayerLoops, names_of, sizes_of
from kiln.kernels.operators.recurrent_products import Blocking, phases
from kiln.opinfo.attach import OpInfo
from kiln.params.encodings import Encoding, levels_of
from kiln.tir.builder import SHARED, Argument, Array, Kernel, Machine, Pack, Packing, argument, define
from kiln.tir.symbols import SymbolRanges

_MOST_ROWS = 4
# Rows of a task: beyond that many, the panels that they share are reread often enough.
_MOST_OF_TASK = 64


def _blocking(machine: Machine, batch: int, panel: int, dtype: str = "float32") -> Blocking:
    """Rows and vectors of a tile, such that its sums, a vector of weights and a state fit the registers."""
    lanes = machine.lanes(dtype)
    rows = max(1, min(batch, 2 if lanes == 1 or machine.registers < 16 else _MOST_ROWS))
    sums = 16 if machine.registers >= 32 else 8 if machine.registers >= 16 else 4
    vectors = min(8, max(1, sums // rows))
    share = ceil_div(batch, machine.cores) if machine.parallel else batch
    block = ceil_div(min(share, _MOST_OF_TASK), rows) * rows
    return Blocking(rows, block, vectors, lanes, panel)


def panel_of(machine: Machine, dtype: str = "float32") -> int:
    """Columns of a panel of weights of `dtype`: as many as a tile of one row has."""
    if machine.packing is not None:
        return machine.packing.columns
    return _blocking(machine, 1, 0, dtype).vectors * machine.lanes(dtype)


def packed(weights: Array, layer: Recurrent, panel: int) -> Array:
    """Weights [D, H, G * H] in the order in which the kernel reads them, flat."""
    panels = []
    for side in weights:
        for first, columns in phases(layer):
            for start in range(first, first + columns, panel):
                panels.append(side[:, start : min(start + panel, first + columns)].reshape(-1))
    return np.concatenate(panels)


def stored_form(encoding: Encoding | None, layer: Recurrent) -> Encoding | None:
    """The encoding in which the kernel reads the weights of the state; None: the layer's own type."""
    if encoding is None or layer.dtype == "float64":
        return None
    if encoding.is_float:
        return encoding
    by_column = encoding.columns == 1 and encoding.rows % layer.hidden == 0
    return encoding if by_column or encoding.rows >= layer.directions * layer.hidden else None


def _stored(encoding: Encoding | None, layer: Recurrent, panel: int) -> dict[str, tuple[str, Pack]]:
    """Name, data type and packing function of each tensor in which the weights are stored."""
    if encoding is None:
        return {"weights": (layer.dtype, lambda value: packed(value, layer, panel))}
    sides, columns = layer.directions, layer.gates * layer.hidden
    form = encoding

    def by_column(blocks: Array) -> Array:
        """A number for each direction and column, from one for each block."""
        wide = blocks.repeat(form.columns, 1)[:, :columns]
        rows = [min(side * layer.hidden // form.rows, len(wide) - 1) for side in range(sides)]
        return np.ascontiguousarray(wide[rows], np.float32).reshape(-1)

    def levels(value: Array) -> Array:
        return packed(levels_of(value, form).levels.reshape(value.shape), layer, panel)

    if form.is_float:
        kind = np.float16 if form.kind == "float16" else ml_dtypes.bfloat16
        return {"weights": ("uint16", lambda value: packed(value, layer, panel).astype(kind))}
    tensors: dict[str, tuple[str, Pack]] = {
        "weights": ("int8", levels),
        "scales": ("float32", lambda value: by_column(levels_of(value, form).scales)),
    }
    if form.has_zero:
        tensors["zeros"] = ("float32", lambda value: by_column(levels_of(value, form).zeros))
    return tensors


def make(
    func: Any, op: OpInfo, constants: set[int], machine: Machine, ranges: SymbolRanges,
    encodings: Mapping[int, Encoding],
) -> tuple[Kernel, list[Any], int]:  # fmt: skip
    """The kernel of a layer's function, its buffers, and its multiply-adds at the greatest sizes.

    `encodings`: the forms in which constants may be stored, by position.
    """
    keys = Recurrent.__dataclass_fields__
    layer = Recurrent(**{key: value for key, value in op["attrs"].items() if key in keys})
    params, names = list(func.params), names_of(layer)
    input_buffer = params[names.index("given")]
    length, batch = (extent(size) for size in sizes_of(layer, input_buffer.shape))
    weights_index = names.index("weights")
    panel = panel_of(machine, layer.dtype) if weights_index in constants else 0
    most_rows, columns = ranges.greatest(batch), layer.gates * layer.hidden
    blocking = _blocking(machine, most_rows, panel, layer.dtype)
    arguments = [argument(param) for param in params]
    packs, labels, form = {}, {}, None
    if panel:
        form = stored_form(encodings.get(weights_index), layer)
        stored = _stored(form, layer, panel)
        sizes = [layer.directions * layer.hidden * columns, *[layer.directions * columns] * (len(stored) - 1)]
        types = [dtype for dtype, _ in stored.values()]
        arguments[weights_index : weights_index + 1] = [
            Argument(name, [size], dtype) for name, size, dtype in zip(stored, sizes, types, strict=True)
        ]
        names[weights_index : weights_index + 1] = list(stored)
        params[weights_index : weights_index + 1] = [params[weights_index]] * len(stored)
        packs = {weights_index + number: pack for number, (_, pack) in enumerate(stored.values())}
        if form is not None:
            labels = {
                weights_index + number: name for number, name in enumerate([form.kind, *list(stored)[1:]])
            }
            blocking = replace(blocking, kind=form.kind if form.is_float else "", half=machine.half)
    macs = ranges.greatest(length) * most_rows * layer.directions * layer.hidden * columns
    loops = LayerLoops(layer, {}, length, batch, blocking)
    split = machine.parallel and _tasks(loops, ranges) > 1 and macs // blocking.lanes >= SHARED

    def body(buffers: list[Any], begin: Expr, end: Expr) -> None:
        held = dict(zip(names, buffers, strict=True))
        LayerLoops(layer, held, length, batch, blocking).write(begin, end, split)

    tasks = ranges.simplify(loops.tasks) if split else None
    func_made = define(arguments, tasks, body, False, ranges)
    packing = Packing(panel, arrangement="" if form is None else repr(form)) if panel else None
    kernel = Kernel(func_made, tasks, packs, "recurrent", ranges=ranges, packing=packing, labels=labels)
    return kernel, params, macs


def _tasks(loops: LayerLoops, ranges: SymbolRanges) -> int:
    return ranges.greatest(loops.tasks)
