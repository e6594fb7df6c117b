"""The results of an If whose condition only the run knows: a choice between branches, of which one runs.

Where the branches give results of different sizes, such as the boxes of a suppression or none, the size is
counted in the run (kiln.frontend.counted), at most the greater of both: operators that read the result
compute the elements that there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, tirx

from kiln.extents import Extent, shape_of
from kiln.frontend import branches
from kiln.frontend.counted.sizes import counted
from kiln.frontend.onnx.node import as_tensor, prims, shape_expr
from kiln.frontend.onnx.value import from_items
from kiln.frontend.symbols import int64_of

op = relax.op


class IfResults:
    """The results of one If of the importer `host`; results of the same sizes share counted dimensions.

    `condition`: the tensor, of one element, that chooses the first branch.
    """

    def __init__(self, host: Any, condition: str) -> None:
        self.host = host
        self.flag = host.bb.emit(op.reshape(host._tensor(condition), shape_expr([1])))
        self._positions_of_sizes: list[tuple[Extent, Extent, Any]] = []  # sizes in both branches, positions

    def chosen(self, results: Sequence[tuple[str, str, str]]) -> list[Any]:
        """The tensors of `results`: names of an output and of its tensors in both branches.

        Raises ValueError for types or ranks that differ, and for sizes without a bound.
        """
        emit = self.host.bb.emit
        differing = [index for index, (_, yes, no) in enumerate(results) if yes != no]
        pairs = [self._in_one_shape(*results[index]) for index in differing]
        tensors = [self.host._tensor(yes) for _, yes, _ in results]
        if pairs:
            choice = emit(branches.choose(self.flag, *(list(side) for side in zip(*pairs, strict=True))))
            for number, index in enumerate(differing):
                tensors[index] = choice if len(pairs) == 1 else emit(relax.TupleGetItem(choice, number))
        return tensors

    def _in_one_shape(self, output: str, yes: str, no: str) -> tuple[Any, Any]:
        """The tensors `yes` and `no` with one shape, that of the branch which is chosen."""
        tensors = [self.host._tensor(name) for name in (yes, no)]
        shapes = [shape_of(tensor) for tensor in tensors]
        if str(tensors[0].ty.dtype) != str(tensors[1].ty.dtype) or len(shapes[0]) != len(shapes[1]):
            raise ValueError(self._refusal_of_types(output, tensors))
        equal = self.host._symbols.equal
        differing = [axis for axis, pair in enumerate(zip(*shapes, strict=True)) if not equal(*pair)]
        for axis in differing:
            size = self._positions(
                shapes[0][axis], shapes[1][axis], self._name_of_bound(output, axis, differing)
            )
            tensors = [self._first_elements(tensor, axis, size) for tensor in tensors]
        second = tensors[1]
        if str(second.ty.shape) != str(tensors[0].ty.shape):  # the same sizes, written differently
            second = self.host.bb.emit(op.reshape(second, tensors[0].ty.shape))
        return tensors[0], second

    def _refusal_of_types(self, output: str, tensors: Sequence[Any]) -> str:
        text = self.host._symbols.shown
        types = [f"{tensor.ty.dtype}[{', '.join(map(text, shape_of(tensor)))}]" for tensor in tensors]
        return (
            f"output '{output}' is {' and '.join(types)}, depending on a value of the run: allowed is one "
            "type and one number of axes; reshape or cast the result of one branch in the model"
        )

    def _name_of_bound(self, output: str, axis: int, differing: Sequence[int]) -> str:
        """The name under which `bounds` limits a size: the output, or, of several sizes, one of its axes."""
        return output if len(differing) == 1 else f"{output}[{axis}]"

    def _first_elements(self, tensor: Any, axis: int, positions: Any) -> Any:
        """The first elements of `tensor` along `axis`, as many as there are `positions`."""
        shape = shape_of(tensor)
        if isinstance(shape[axis], int) and shape[axis] == 0:
            shape[axis] = positions.ty.shape[0]
            return self.host.bb.emit(op.zeros(shape_expr(shape), str(tensor.ty.dtype)))
        return self.host.bb.emit(op.take(tensor, positions, axis, mode="clip"))

    def _positions(self, first: Extent, second: Extent, output: str) -> Any:
        """The indices 0..size - 1; size is `first` or `second`, that of the branch which is chosen."""
        host, emit = self.host, self.host.bb.emit
        for earlier_first, earlier_second, positions in self._positions_of_sizes:
            if host._symbols.equal(earlier_first, first) and host._symbols.equal(earlier_second, second):
                return positions
        larger = tirx.max(int64_of(first), int64_of(second))
        most = host._symbols.most_counted(output, host._symbols.simplify(larger))
        sizes = [as_tensor(from_items([size])) for size in (first, second)]
        number = emit(op.where(self.flag, *map(emit, sizes)))
        numbers = emit(op.arange(*prims([0, most, 1]), "int64"))
        positions = counted(host.bb, host._symbols, output, number, [numbers], most)[0]
        self._positions_of_sizes.append((first, second, positions))
        return positions
