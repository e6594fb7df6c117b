"""A part of a tensor that is replaced at a place of the run, by a scatter of whole rows.

Caches of keys and values are written so. In a value of the state, the rows alone are then written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

op = relax.op


def rows_written(
    emit: Callable[[Any], Any],
    x: Any,
    update: Any,
    places: Mapping[int, Any],
    shapes: Sequence[Sequence[int]],
) -> Any | None:
    """`x` with `update` at the positions `places`; places outside of x are dropped.

    `places`: by axis, an int64 tensor that broadcasts to the sizes of `update` up to the last of these axes;
    on the other axes an element keeps its position. `shapes`: of x and of update, without dynamic sizes. None
    where the positions would take more numbers than the update has.
    """
    shape, update_shape = shapes
    parts = [axis for axis, size in enumerate(shape) if size != update_shape[axis]]
    last = max([*places, *parts], default=-1)
    lead, row = list(update_shape[: last + 1]), int(np.prod(update_shape[last + 1 :]))
    if last < 0 or 0 in update_shape or row < len(lead):
        return None
    columns = []
    for axis, size in enumerate(lead):
        place = places.get(axis)
        if place is None:
            numbers = np.arange(size).reshape([size if other == axis else 1 for other in range(len(lead))])
            place = relax.const(numbers, "int64")
        wide = emit(op.broadcast_to(place, relax.ShapeExpr(lead)))
        columns.append(emit(op.expand_dims(wide, len(lead))))
    tuples = columns[0] if len(columns) == 1 else emit(op.concat(columns, len(lead)))
    return op.scatter_nd(x, tuples, update, "update")
