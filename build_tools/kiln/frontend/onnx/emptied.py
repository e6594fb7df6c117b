"""The result of an If of which one branch has no elements, as torchvision's suppression of no boxes.

The size of such a result depends on the condition: all slices along an axis, or none. It becomes a counted
size (kiln.frontend.counted), so what reads it is compiled for the number of slices that there are.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from kiln.frontend.counted import select
from kiln.frontend.onnx.node import extents, shape_expr

op = relax.op


class Emptied:
    """The results of one If; those of the same size share one counted dimension."""

    def __init__(self, host: Any, condition: str) -> None:
        """`host`: the importer; `condition`: the tensor that chooses the first branch."""
        self.host, self.condition = host, condition
        self._places: list[tuple[bool, Any, Any]] = []  # whether the first branch has them, size, positions

    def chosen(self, yes: str, no: str, output: str) -> Any:
        """The tensor `yes` where the condition is true, else `no`; None unless one of them has no elements.

        All sizes but that of one axis must agree, and that axis must have no elements on one side. `output`:
        the result's name, for its bound.
        """
        tensors = [self.host._tensor(name) for name in (yes, no)]
        shapes = [extents(tensor) for tensor in tensors]
        if str(tensors[0].ty.dtype) != str(tensors[1].ty.dtype) or len(shapes[0]) != len(shapes[1]):
            return None
        equal = self.host._symbols.equal
        apart = [axis for axis, pair in enumerate(zip(*shapes, strict=True)) if not equal(*pair)]
        if len(apart) != 1:
            return None
        axis = apart[0]
        empty = [isinstance(shape[axis], int) and shape[axis] == 0 for shape in shapes]
        if not any(empty):
            return None
        first = empty[1]  # the first branch has the elements
        places = self._positions(first, shapes[0 if first else 1][axis], output)
        return op.take(tensors[0 if first else 1], places, axis, mode="clip")

    def _positions(self, first: bool, size: Any, output: str) -> Any:
        """0..size - 1 in the runs that take the branch with elements, else no numbers."""
        host, emit = self.host, self.host.bb.emit
        for kept_first, kept_size, places in self._places:
            if kept_first == first and host._symbols.equal(kept_size, size):
                return places
        flag = emit(op.reshape(host._tensor(self.condition), shape_expr([1])))
        flag = flag if first else emit(op.logical_not(flag))
        mask = emit(op.broadcast_to(flag, shape_expr([size])))
        rows = select.positions(host.bb, host._symbols, output, mask)
        places = emit(op.reshape(rows, shape_expr([rows.ty.shape[0]])))
        self._places.append((first, size, places))
        return places
