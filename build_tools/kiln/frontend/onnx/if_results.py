"""The results of an If whose condition only the run knows: a choice, of which one branch runs.

Where the branches give results of different sizes, such as the boxes of a suppression or none, the size
becomes a counted one (kiln.frontend.counted), at most the greater of both: what reads the result is compiled
for the elements that there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, tirx

from kiln.frontend import branches
from kiln.frontend.counted.sizes import counted
from kiln.frontend.onnx.node import as_tensor, extents, prims, shape_expr
from kiln.frontend.onnx.value import from_items
from kiln.frontend.symbols import Extent, int64_of

op = relax.op


class IfResults:
    """The results of one If of the importer `host`; those of the same sizes share counted dimensions.

    `condition`: the tensor, of one element, that chooses the first branch.
    """

    def __init__(self, host: Any, condition: str) -> None:
        self.host = host
        self.flag = host.bb.emit(op.reshape(host._tensor(condition), shape_expr([1])))
        self._places: list[tuple[Extent, Extent, Any]] = []  # sizes in both branches, positions

    def chosen(self, results: Sequence[tuple[str, str, str]]) -> list[Any]:
        """The tensors of `results`: names of an output and of its tensors in both branches.

        Raises ValueError for types or ranks that differ, and for sizes without a bound.
        """
        emit = self.host.bb.emit
        apart = [at for at, (_, yes, no) in enumerate(results) if yes != no]
        pairs = [self._alike(*results[at]) for at in apart]
        found = [self.host._tensor(yes) for _, yes, _ in results]
        if pairs:
            made = emit(branches.choose(self.flag, *(list(side) for side in zip(*pairs, strict=True))))
            for number, at in enumerate(apart):
                found[at] = made if len(pairs) == 1 else emit(relax.TupleGetItem(made, number))
        return found

    def _alike(self, output: str, yes: str, no: str) -> tuple[Any, Any]:
        """The tensors `yes` and `no` with one shape, that of the branch which is chosen."""
        both = [self.host._tensor(name) for name in (yes, no)]
        shapes = [extents(tensor) for tensor in both]
        if str(both[0].ty.dtype) != str(both[1].ty.dtype) or len(shapes[0]) != len(shapes[1]):
            raise ValueError(self._unlike(output, both))
        equal = self.host._symbols.equal
        apart = [axis for axis, pair in enumerate(zip(*shapes, strict=True)) if not equal(*pair)]
        for axis in apart:
            size = self._positions(shapes[0][axis], shapes[1][axis], self._bounded(output, axis, apart))
            both = [self._first(tensor, axis, size) for tensor in both]
        second = both[1]
        if str(second.ty.shape) != str(both[0].ty.shape):  # the same sizes, written differently
            second = self.host.bb.emit(op.reshape(second, both[0].ty.shape))
        return both[0], second

    def _unlike(self, output: str, both: Sequence[Any]) -> str:
        text = self.host._symbols.shown
        shown = [f"{one.ty.dtype}[{', '.join(map(text, extents(one)))}]" for one in both]
        return (
            f"output '{output}' is {' and '.join(shown)}, depending on a value of the run: allowed is one "
            "type and one number of axes; reshape or cast the result of one branch in the model"
        )

    def _bounded(self, output: str, axis: int, apart: Sequence[int]) -> str:
        """What the bound of a size is given for: the output, or one of several axes of it."""
        return output if len(apart) == 1 else f"{output}[{axis}]"

    def _first(self, tensor: Any, axis: int, positions: Any) -> Any:
        """The first elements of `tensor` along `axis`, as many as there are `positions`."""
        shape = extents(tensor)
        if isinstance(shape[axis], int) and shape[axis] == 0:
            shape[axis] = positions.ty.shape[0]
            return self.host.bb.emit(op.zeros(shape_expr(shape), str(tensor.ty.dtype)))
        return self.host.bb.emit(op.take(tensor, positions, axis, mode="clip"))

    def _positions(self, first: Extent, second: Extent, output: str) -> Any:
        """0..size - 1, where the size is `first` or `second`, as the branch which is chosen has it."""
        host, emit = self.host, self.host.bb.emit
        for kept_first, kept_second, places in self._places:
            if host._symbols.equal(kept_first, first) and host._symbols.equal(kept_second, second):
                return places
        larger = tirx.max(int64_of(first), int64_of(second))
        most = host._symbols.most_counted(output, host._symbols.simplify(larger))
        sizes = [as_tensor(from_items([size])) for size in (first, second)]
        number = emit(op.where(self.flag, *map(emit, sizes)))
        numbers = emit(op.arange(*prims([0, most, 1]), "int64"))
        places = counted(host.bb, host._symbols, output, number, [numbers], most)[0]
        self._places.append((first, second, places))
        return places
