"""Converters of TFLite operators that gather and scatter by indices, which TVM 0.27 converts wrongly.

TVM transposes the indices of GATHER_ND and SCATTER_ND, confuses ids and table of EMBEDDING_LOOKUP, ignores
batch_dims of GATHER, narrows 64-bit indices to 32 bits, and keeps the last of two updates of SCATTER_ND at
the same position where TFLite adds them. A constant index outside of its axis is refused; for indices known
only at run time see kernels/operators/indices.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tflite
from tvm import relax

from kiln.frontend.tflite.own_nodes import OwnConverter


class IndexConverter(OwnConverter):
    """Converters of index operators; each returns the Relax expression of the operator's output."""

    def convert_gather(self, op: Any) -> Any:
        """GATHER: slices along an axis, selected separately for each batch if batch_dims is not 0."""
        options = tflite.GatherOptions()
        table = op.BuiltinOptions()
        options.Init(table.Bytes, table.Pos)
        data, indices = self.get_input_tensors(op)
        shape = self.get_tensor_shape(data)
        rank, index_rank = len(shape), len(self.get_tensor_shape(indices))
        axis, batch = int(options.Axis()) % rank, int(options.BatchDims())
        batch += index_rank if batch < 0 else 0
        if not 0 <= batch <= min(axis, index_rank):
            raise ValueError(
                f"batch_dims {batch} and axis {axis}, allowed: 0 to {min(axis, index_rank)} batch axes, "
                "which come before the axis and are axes of the indices"
            )
        clamped = self._indices(indices, [shape[axis]])
        if batch == 0:
            return relax.op.take(self.get_tensor_expr(data), clamped, axis)
        source = self.get_tensor_expr(data)
        if axis > batch:  # to the place right after the batch axes, and its result back
            order = [*range(batch), axis, *(dim for dim in range(batch, rank) if dim != axis)]
            source = self.bb.emit(relax.op.permute_dims(source, order))
        clamped = relax.op.expand_dims(relax.op.astype(clamped, "int64"), -1)
        gathered = self.bb.emit(relax.op.gather_nd(source, clamped, batch))
        if axis == batch:
            return gathered
        end_of_kept = index_rank + axis - batch
        order = [
            *range(batch),
            *range(index_rank, end_of_kept),
            *range(batch, index_rank),
            *range(end_of_kept, index_rank + rank - batch - 1),
        ]
        return relax.op.permute_dims(gathered, order)

    def convert_embedding_lookup(self, op: Any) -> Any:
        """EMBEDDING_LOOKUP: rows of a table; the first input holds the indices, the second one the table."""
        ids, data = self.get_input_tensors(op)
        clamped = self._indices(ids, [self.get_tensor_shape(data)[0]])
        return relax.op.take(self.get_tensor_expr(data), clamped, 0)

    def convert_gather_nd(self, op: Any) -> Any:
        """GATHER_ND: slices at positions along several axes."""
        data, indices = self.get_input_tensors(op)
        clamped = self._indices(indices, self._indexed_sizes(indices, self.get_tensor_shape(data)))
        return relax.op.gather_nd(self.get_tensor_expr(data), relax.op.astype(clamped, "int64"))

    def convert_scatter_nd(self, op: Any) -> Any:
        """SCATTER_ND: slices added to a tensor of zeros. Raises ValueError for a computed shape."""
        indices, updates, shape = self.get_input_tensors(op)
        if self.has_expr(shape.tensor_idx):
            raise ValueError(
                "its shape is computed by the graph, allowed: a constant; export it with fixed sizes"
            )
        sizes = [int(size) for size in self.get_tensor_value(shape)]
        clamped = self._indices(indices, self._indexed_sizes(indices, sizes))
        new = self.get_tensor_expr(updates)
        zeros = relax.op.zeros(sizes, self.get_tensor_type_str(updates.tensor.Type()))
        return relax.op.scatter_nd(zeros, relax.op.astype(clamped, "int64"), new, "add")

    def _indexed_sizes(self, indices: Any, shape: Sequence[Any]) -> Sequence[Any]:
        """The sizes of the axes that one index tuple addresses."""
        return shape[: int(self.get_tensor_shape(indices)[-1])]

    def _indices(self, tensor: Any, sizes: Sequence[Any]) -> Any:
        """The indices as an expression. Raises ValueError for a constant index outside of its axis.

        `sizes`: one size, or one per element of the last axis of the indices.
        """
        if not self.has_expr(tensor.tensor_idx):
            values = self.get_tensor_value(tensor)
            for column, size in zip(values.reshape(-1, len(sizes)).T, sizes, strict=True):
                outside = column[(column < 0) | (column >= int(size))]
                if outside.size:
                    raise ValueError(f"index {outside[0]}, allowed 0..{int(size) - 1}")
        return self.get_tensor_expr(tensor)
