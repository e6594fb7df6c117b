"""LSTM, GRU and RNN layers over all steps of a sequence: one kernel, whose loop over the steps is inside.

Computation  The states after each step, and the last ones; the product of the input comes before, as a
             matmul for all steps. See kernels/operators/recurrent.py.
Packing      Constant weights of the state as [direction][product][column panel][k][columns of a panel], so
             that the inner loop reads them in order. Weights that are known only at run time are read in
             place.
Schedule     A step computes sums of a few rows by a panel of columns in registers, for all rows of a task
             while the panel is in the cache, then gates and states as vectors of hidden units. Directions and
             blocks of rows are tasks: steps depend on each other, so that a single sequence in one direction
             runs on one thread.
Applies      Every `recurrent`, with any length and batch, dynamic ones too.
Accuracy     Sums run in order of k from the contribution of the input.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kiln.config.sizes import ceil_div
from kiln.frontend.recurrent import Recurrent
from kiln.kernels.operators.recurrent import LayerLoops, names_of, sizes_of
from kiln.kernels.operators.recurrent_products import Blocking, phases
from kiln.opinfo.attach import OpInfo
from kiln.tir.builder import SHARED, Argument, Array, Expr, Kernel, Machine, Packing, argument, define
from kiln.tir.symbols import SymbolRanges, extent

_MOST_ROWS = 4
# Rows of a task: beyond that many, the panels that they share are reread often enough.
_MOST_OF_TASK = 64


def _blocking(machine: Machine, batch: int, panel: int) -> Blocking:
    """Rows and vectors of a tile, such that its sums, a vector of weights and a state fit the registers."""
    lanes = machine.lanes("float32")
    rows = max(1, min(batch, 2 if lanes == 1 or machine.registers < 16 else _MOST_ROWS))
    sums = 16 if machine.registers >= 32 else 8 if machine.registers >= 16 else 4
    vectors = min(8, max(1, sums // rows))
    share = ceil_div(batch, machine.cores) if machine.parallel else batch
    block = ceil_div(min(share, _MOST_OF_TASK), rows) * rows
    return Blocking(rows, block, vectors, lanes, panel)


def panel_of(machine: Machine) -> int:
    """Columns of a panel: those of a tile of one row."""
    if machine.packing is not None:
        return machine.packing.columns
    return _blocking(machine, 1, 0).vectors * machine.lanes("float32")


def packed(weights: Array, about: Recurrent, panel: int) -> Array:
    """Weights [D, H, G * H] in the order in which the kernel reads them, flat."""
    parts = []
    for side in weights:
        for first, columns in phases(about):
            for start in range(first, first + columns, panel):
                parts.append(side[:, start : min(start + panel, first + columns)].reshape(-1))
    return np.concatenate(parts)


def make(
    func: Any, op: OpInfo, constants: set[int], machine: Machine, ranges: SymbolRanges
) -> tuple[Kernel, list[Any], int]:
    """The kernel of a layer's function, its buffers, and its multiply-adds at the greatest sizes."""
    keys = Recurrent.__dataclass_fields__
    about = Recurrent(**{key: value for key, value in op["attrs"].items() if key in keys})
    params, names = list(func.params), names_of(about)
    given = params[names.index("given")]
    length, batch = (extent(size) for size in sizes_of(about, given.shape))
    at = names.index("weights")
    panel = panel_of(machine) if at in constants else 0
    most_rows, columns = ranges.greatest(batch), about.gates * about.hidden
    blocking = _blocking(machine, most_rows, panel)
    arguments = [argument(param) for param in params]
    packs = {}
    if panel:
        size = about.directions * about.hidden * columns
        arguments[at] = Argument("weights", [size], "float32")
        packs[at] = lambda value: packed(value, about, panel)
    macs = ranges.greatest(length) * most_rows * about.directions * about.hidden * columns
    loops = LayerLoops(about, {}, length, batch, blocking)
    split = machine.parallel and _tasks(loops, ranges) > 1 and macs // blocking.lanes >= SHARED

    def body(buffers: list[Any], begin: Expr, end: Expr) -> None:
        held = dict(zip(names, buffers, strict=True))
        LayerLoops(about, held, length, batch, blocking).write(begin, end, split)

    tasks = ranges.simplify(loops.tasks) if split else None
    made = define(arguments, tasks, body, False, ranges)
    kernel = Kernel(
        made, tasks, packs, "recurrent", ranges=ranges, packing=Packing(panel) if panel else None
    )  # fmt: skip
    return kernel, params, macs


def _tasks(loops: LayerLoops, ranges: SymbolRanges) -> int:
    return ranges.greatest(loops.tasks)
