"""Converters of TFLite operators whose results have a size that is in the data (kiln.frontend.counted)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tflite
from tvm import relax

from kiln.frontend.counted import select, span
from kiln.frontend.counted.suppression import Suppression, rows_and_count
from kiln.frontend.counted.unique import distinct
from kiln.frontend.symbols import Symbols
from kiln.frontend.tflite.files import tensor_name
from kiln.frontend.tflite.index_ops import IndexConverter

# Operators that may read a tensor of counted size: converters of all other operators read sizes in the file.
_READER_NAMES = """
    ABS CAST CEIL COS EXP FLOOR GATHER_ND LOG LOGISTIC NEG RELU RELU6 ROUND RSQRT SIN SQRT SQUARE TANH
"""
_READERS = frozenset(_READER_NAMES.split())


class CountedConverter(IndexConverter):
    """Converters of operators whose results a run counts, with the `symbols` of the import.

    `symbols` is None while the file is imported for several sizes: nothing can be counted then.
    """

    symbols: Symbols | None = None

    def check_counted(self, name: str, op: Any) -> None:
        """Raise ValueError if an operator that reads sizes from the file has an input of counted size."""
        for tensor in self.get_input_tensors(op):
            if tensor.tensor_idx < 0 or not self.has_expr(tensor.tensor_idx):
                continue
            ty = self.get_expr(tensor.tensor_idx).ty
            sizes = getattr(ty, "shape", None) or ()
            if name in _READERS or all(hasattr(size, "value") for size in sizes):
                continue
            if name == "GATHER" and self._gathers_by(tensor, op):
                continue
            if name == "RESHAPE" and self.counted_shape(op) is not None:
                continue
            raise ValueError(
                f"its input '{self._name(tensor)}' has a size that is counted in the run, allowed as an "
                f"output of the model, as an input of: {', '.join(sorted(_READERS))}, as the indices of a "
                "GATHER and as the data of a RESHAPE that keeps the size as its -1; in an ONNX file of the "
                "model, other operators may read it"
            )

    def _gathers_by(self, tensor: Any, op: Any) -> bool:
        """Whether a GATHER has `tensor` as its indices alone, and no batch axes."""
        options = tflite.GatherOptions()
        table = op.BuiltinOptions()
        options.Init(table.Bytes, table.Pos)
        data, indices = self.get_input_tensors(op)
        return int(options.BatchDims()) == 0 and tensor.tensor_idx == indices.tensor_idx != data.tensor_idx

    def counted_shape(self, op: Any) -> list[Any] | None:
        """The shape of a RESHAPE whose -1 is the one counted size of its data; None of any other RESHAPE."""
        source, *shape_tensors = self.get_input_tensors(op)
        known = len(shape_tensors) == 1 and not self.has_expr(shape_tensors[0].tensor_idx)
        if self.symbols is None or not known or not self.has_expr(source.tensor_idx):
            return None
        shape = list(getattr(self.get_expr(source.tensor_idx).ty, "shape", None) or ())
        counted_sizes = [size for size in shape if not hasattr(size, "value")]
        target = [int(size) for size in self.get_tensor_value(shape_tensors[0]).reshape(-1)]
        kept = math.prod(int(size) for size in shape if hasattr(size, "value"))
        if len(counted_sizes) != 1 or target.count(-1) != 1 or -math.prod(target) != kept:
            return None
        return [counted_sizes[0] if size == -1 else size for size in target]

    def convert_where(self, op: Any) -> Any:
        """WHERE of one input: positions of the elements that are not zero, shape (count, rank)."""
        inputs = self.get_input_tensors(op)
        if len(inputs) != 1:
            return self.convert_select(op)
        data = self.get_tensor_expr(inputs[0])
        return select.positions(self.bb, self._symbols(), self._counted(op), data)

    def convert_unique(self, op: Any) -> Any:
        """UNIQUE: the distinct elements, in the order of their first occurrence, and each element's index."""
        (source,), results = self.get_input_tensors(op), self.get_output_tensors(op)
        data = self.get_tensor_expr(source)
        size = data.ty.shape[0]
        rows = self.bb.emit(relax.op.reshape(data, [size, 1]))
        distinct_rows = distinct(self.bb, self._symbols(), self._counted(op), rows, ascending=False)
        values = self.bb.emit(relax.op.take(data, distinct_rows.first, 0, mode="clip"))
        kinds = relax.op.astype(distinct_rows.kinds, self.get_tensor_type_str(results[1].tensor.Type()))
        return relax.Tuple([values, self.bb.emit(kinds)])

    def convert_range(self, op: Any) -> Any:
        """RANGE; with limits that are known only when the model runs, within a bound of the YAML."""
        inputs = self.get_input_tensors(op)
        if not any(self.has_expr(tensor.tensor_idx) for tensor in inputs):
            return super().convert_range(op)
        limits = [self.bb.emit(relax.op.reshape(self.get_tensor_expr(tensor), [1])) for tensor in inputs]
        return span.arange(self.bb, self._symbols(), self._counted(op), *limits)

    def convert_nms_v4(self, op: Any) -> Any:
        """NON_MAX_SUPPRESSION_V4: the indices of the kept boxes, padded with zeros, and their number."""
        indices, _, count = self._suppressed(op)
        return relax.Tuple([indices, count])

    def convert_nms_v5(self, op: Any) -> Any:
        """NON_MAX_SUPPRESSION_V5 without soft suppression: indices, scores and number of the kept boxes.

        Raises ValueError for a sigma that is not 0.
        """
        sigma = self.get_input_tensors(op)[5]
        value = None if self.has_expr(sigma.tensor_idx) else float(self.get_tensor_value(sigma))
        if value != 0:
            raise ValueError(f"its soft_nms_sigma is {'computed' if value is None else value}, allowed: 0")
        return relax.Tuple(self._suppressed(op))

    def _suppressed(self, op: Any) -> list[Any]:
        """Indices and scores of the kept boxes of one class, padded with zeros, and their number."""
        boxes, scores, limit, overlap, threshold = self.get_input_tensors(op)[:5]
        if self.has_expr(limit.tensor_idx):
            raise ValueError("its max_output_size is computed by the graph, allowed: a constant")
        limit_of_boxes, emit = int(self.get_tensor_value(limit)), self.bb.emit
        if limit_of_boxes < 1:
            raise ValueError(f"its max_output_size is {limit_of_boxes}, allowed: 1 and more")
        data, values = self.get_tensor_expr(boxes), self.get_tensor_expr(scores)
        images = emit(relax.op.expand_dims(data, 0))
        classes = emit(relax.op.reshape(values, [1, 1, values.ty.shape[0]]))
        limits = (
            relax.const(np.array([limit_of_boxes], np.int64)),
            self._one_number(overlap),
            self._one_number(threshold),
        )
        suppression = Suppression(images, classes, *limits, inclusive=True)
        rows, count = rows_and_count(self.bb, Symbols(), suppression, limit_of_boxes)
        column = emit(relax.op.strided_slice(rows, [1], [2], [3], assume_inbound=True))
        positions = emit(relax.op.arange(limit_of_boxes, dtype="int64"))
        is_kept = emit(relax.op.less(positions, count))
        zero = relax.const(0, "int64")
        chosen = emit(relax.op.where(is_kept, emit(relax.op.reshape(column, [limit_of_boxes])), zero))
        best = emit(relax.op.take(values, chosen, 0, mode="clip"))
        return [
            emit(relax.op.astype(chosen, "int32")),
            emit(relax.op.where(is_kept, best, relax.const(0, str(values.ty.dtype)))),
            emit(relax.op.reshape(emit(relax.op.astype(count, "int32")), [])),
        ]

    def _one_number(self, tensor: Any) -> Any:
        """A number as a float32 tensor of one axis."""
        return self.bb.emit(relax.op.reshape(self.get_tensor_expr(tensor), [1]))

    def _name(self, tensor: Any) -> str:
        return tensor_name(tensor.tensor)

    def _counted(self, op: Any) -> str:
        """The name of the tensor whose size is counted: the operator's first output."""
        return self._name(self.get_output_tensors(op)[0])

    def _symbols(self) -> Symbols:
        if self.symbols is None:
            raise ValueError(
                "its result has a size that is in the data, which a TFLite file cannot have together with a "
                "dynamic dimension: give each dimension one size"
            )
        return self.symbols
