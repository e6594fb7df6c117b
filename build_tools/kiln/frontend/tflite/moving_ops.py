"""Converters of TFLite operators that move elements, which TVM 0.27 lacks, refuses or converts wrongly.

They compute with stored values, so that quantised tensors stay integers: input and output must be quantised
alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import DataType, relax, te, tirx

from kiln.frontend.rows_written import rows_written
from kiln.frontend.tflite.operands import TfliteOperands, const

op = relax.op


def reshaped(node: TfliteOperands) -> Any:
    """EXPAND_DIMS, with which TVM 0.27 ends in a TypeError, and SQUEEZE, to the shape in the file.

    TVM leaves all axes where a SQUEEZE names none, which stands for all of size 1.
    """
    node.check_same_quantisation(0, 0)
    return op.reshape(node.raw(0), node.result_shape())


def densify(node: TfliteOperands) -> Any:
    """DENSIFY of a constant, which the importer has made dense (sparse.py)."""
    return node.raw(0)


def dequantize(node: TfliteOperands) -> Any:
    """DEQUANTIZE of float16 and quantised constants, which TVM 0.27 does not find; it converts others.

    A single number becomes a constant: converters read it, as the value of a PADV2.
    """
    held = node.array(0)
    if node.dtype(0) == "float16":
        is_number = held is not None and held.size == 1
        return const(held, "float32") if is_number else op.astype(node.raw(0), "float32")
    if held is None or node.inputs[0].qnn_params is None:
        return None
    return node.real(0)


def topk(node: TfliteOperands) -> Any:
    """TOPK_V2 with indices of 16 bits; indices of other types are left to TVM."""
    if node.result_dtype(1) == "int32":
        return None
    count = int(node.constant_array(1).item())
    top = node.bind(op.topk(node.raw(0), count, axis=-1, ret_type="both", dtype="int32"))
    values, positions = (node.bind(relax.TupleGetItem(top, index)) for index in range(2))
    return relax.Tuple([values, node.bind(op.astype(positions, node.result_dtype(1)))])


def fill(node: TfliteOperands) -> Any:
    """FILL by a constant or a computed scalar; TVM 0.27 fills by a computed one only."""
    return op.broadcast_to(node.raw(1), relax.ShapeExpr(node.result_shape()))


def cast(node: TfliteOperands) -> Any:
    """CAST to the type of the output; TVM 0.27 reads the type in the options, which converters may omit."""
    result_dtype, source_dtype = node.result_dtype(), node.dtype(0)
    if node.is_complex(0):  # the real part, as in LiteRT
        last = len(node.shape(0)) - 1
        if result_dtype == "complex64":
            return node.raw(0)
        real = node.emit(op.strided_slice(node.raw(0), [last], [0], [1]))
        return op.astype(node.emit(op.squeeze(real, [last])), result_dtype)
    if result_dtype == "complex64":
        raise ValueError(f"of {source_dtype} to complex numbers: not supported")
    if result_dtype == "bool":
        return op.not_equal(node.raw(0), const(0, source_dtype))
    if "float" in source_dtype and "int" in result_dtype:
        return _nearest_integer(node, source_dtype, result_dtype)
    return op.astype(node.raw(0), result_dtype)


def _nearest_integer(node: TfliteOperands, source_dtype: str, result_dtype: str) -> Any:
    """A float without its fraction; beyond the range of `result_dtype` its least or greatest number."""
    x, limits = node.raw(0), np.iinfo(result_dtype)
    if limits.bits < 32:
        return op.astype(op.clip(x, limits.min, limits.max), result_dtype)
    if source_dtype == "float16":  # none of its numbers is beyond the range
        source_dtype, x = "float32", node.emit(op.astype(x, "float32"))
    beyond = 2.0 ** int(limits.max).bit_length()  # float32 cannot represent the greatest number itself
    is_below = node.emit(op.less(x, const(beyond, source_dtype)))  # not so NaN, as in LiteRT
    within = node.emit(op.maximum(x, const(float(limits.min), source_dtype)))
    return op.where(is_below, op.astype(within, result_dtype), const(limits.max, result_dtype))


def bitcast(node: TfliteOperands) -> Any:
    """BITCAST: the bits of an element as another type, as several narrower elements, or of several.

    TVM 0.27's form reaches no kernel. The first of several elements has the low bits.
    """
    dtype, source_dtype = node.result_dtype(), node.dtype(0)
    result_bits, source_bits = int(DataType(dtype).bits), int(DataType(source_dtype).bits)
    result_uint, source_uint = f"uint{result_bits}", f"uint{source_bits}"
    shape = node.result_shape()

    def compute(data: Any) -> Any:
        def element(*indices: Any) -> Any:
            if result_bits == source_bits:
                return tirx.reinterpret(dtype, data(*indices))
            if result_bits < source_bits:
                bits = tirx.reinterpret(source_uint, data(*indices[:-1]))
                bits_part = bits >> (indices[-1].astype(source_uint) * tirx.const(result_bits, source_uint))
                return tirx.reinterpret(dtype, bits_part.astype(result_uint))
            joined_bits = tirx.const(0, result_uint)
            for k in range(result_bits // source_bits):
                bits_part = tirx.reinterpret(source_uint, data(*indices, k)).astype(result_uint)
                joined_bits = joined_bits | (bits_part << tirx.const(source_bits * k, result_uint))
            return tirx.reinterpret(dtype, joined_bits)

        return te.compute(shape, element, name="bit_cast")

    return node.emit_te(compute, node.raw(0), name="bit_cast")


def mirror_pad(node: TfliteOperands) -> Any:
    """MIRROR_PAD, with or without the edge; TVM 0.27 refuses the mode with it."""
    symmetric = int(node.options("MirrorPadOptions").Mode()) == 1
    padded = node.raw(0)
    for axis, (before, after) in enumerate(node.constant_array(1).tolist()):
        if before or after:
            size = node.shape(0)[axis]
            source_indices = np.pad(np.arange(size), (before, after), "symmetric" if symmetric else "reflect")
            padded = node.emit(op.take(padded, const(source_indices, "int64"), axis))
    return padded


def _blocks(node: TfliteOperands) -> tuple[list[int], list[list[int]]]:
    blocks = [int(n) for n in node.constant_array(1).reshape(-1)]
    return blocks, node.constant_array(2).reshape(-1, 2).tolist()


def space_to_batch(node: TfliteOperands) -> Any:
    """SPACE_TO_BATCH_ND of any rank; TVM 0.27 calls a function of its own runtime."""
    blocks, pads = _blocks(node)
    count, rest = len(blocks), node.shape(0)[1 + len(blocks) :]
    widths = [0, 0, *(n for pair in pads for n in pair), *[0] * (2 * len(rest))]
    data = node.raw(0)
    if any(widths):
        dtype = node.dtype(0)
        wide = op.astype(data, "int8") if dtype == "bool" else data
        zero = node.stored_zero() if dtype.startswith("float") else int(node.stored_zero())
        data = node.emit(op.nn.pad(node.emit(wide), widths, pad_value=zero))
        data = node.emit(op.astype(data, "bool")) if dtype == "bool" else data
    batch, *sizes = [int(n) for n in list(data.ty.shape)[: 1 + count]]
    split = [n for size, block in zip(sizes, blocks, strict=True) for n in (size // block, block)]
    data = node.emit(op.reshape(data, [batch, *split, *rest]))
    order = [2 + 2 * i for i in range(count)] + [0] + [1 + 2 * i for i in range(count)]
    order += [1 + 2 * count + i for i in range(len(rest))]
    return op.reshape(node.emit(op.permute_dims(data, order)), node.result_shape())


def batch_to_space(node: TfliteOperands) -> Any:
    """BATCH_TO_SPACE_ND of any rank; TVM 0.27 calls a function of its own runtime."""
    blocks, crops = _blocks(node)
    count = len(blocks)
    batch_size, *sizes = node.shape(0)[: 1 + count]
    rest, batch = node.shape(0)[1 + count :], batch_size // math.prod(blocks)
    data = node.emit(op.reshape(node.raw(0), [*blocks, batch, *sizes, *rest]))
    order = [count] + [axis for i in range(count) for axis in (count + 1 + i, i)]
    order += [2 * count + 1 + i for i in range(len(rest))]
    result_sizes = [size * block for size, block in zip(sizes, blocks, strict=True)]
    data = node.emit(op.reshape(node.emit(op.permute_dims(data, order)), [batch, *result_sizes, *rest]))
    begin = [before for before, _ in crops]
    end = [size - after for size, (_, after) in zip(result_sizes, crops, strict=True)]
    return op.strided_slice(data, list(range(1, 1 + count)), begin, end)


def _on_diagonal(node: TfliteOperands, diagonal: Any, otherwise: Any, rows: int, columns: int) -> Any:
    """A matrix with `diagonal` (…, min(rows, columns)) on its diagonal, and `otherwise` elsewhere."""
    length = min(rows, columns)
    columns_read = const(np.minimum(np.arange(columns), length - 1), "int64")
    spread = node.emit(op.expand_dims(node.emit(op.take(diagonal, columns_read, -1)), -2))
    return op.where(const(np.eye(rows, columns, dtype=bool), "bool"), spread, otherwise)


def matrix_diag(node: TfliteOperands) -> Any:
    """MATRIX_DIAG; TVM 0.27 calls a function of its own runtime."""
    size = node.shape(0)[-1]
    return _on_diagonal(node, node.raw(0), const(0, node.dtype(0)), size, size)


def matrix_set_diag(node: TfliteOperands) -> Any:
    """MATRIX_SET_DIAG; TVM 0.27 calls a function of its own runtime."""
    node.check_same_quantisation(0, 1)
    rows, columns = node.shape(0)[-2:]
    return _on_diagonal(node, node.raw(1), node.raw(0), rows, columns)


def sparse_to_dense(node: TfliteOperands) -> Any:
    """SPARSE_TO_DENSE: values at indices of rank 0 to 2; TVM 0.27 calls a function of its own runtime."""
    shape, indices_shape = node.result_shape(), node.shape(0)
    count = indices_shape[0] if indices_shape else 1
    depth = indices_shape[1] if len(indices_shape) == 2 else 1
    if depth != len(shape):
        raise ValueError(f"indices of {depth} numbers for a result of {len(shape)} axes")
    otherwise = node.emit(op.broadcast_to(node.raw(3), relax.ShapeExpr(shape)))
    indices = node.emit(op.reshape(node.raw(0), [count, depth]))
    values = node.emit(op.broadcast_to(node.raw(2), relax.ShapeExpr([count])))
    return op.scatter_nd(otherwise, node.emit(op.astype(indices, "int64")), values, "update")


def dynamic_update_slice(node: TfliteOperands) -> Any:
    """DYNAMIC_UPDATE_SLICE: a part of a tensor replaced, at a place of the run, which is moved inside."""
    node.check_same_quantisation(0, 1)
    shape, update_shape = node.shape(0), node.shape(1)
    update, firsts = node.raw(1), []
    for axis, (size, length) in enumerate(zip(shape, update_shape, strict=True)):
        firsts.append(node.inside(node.entry(2, axis), size - length))
    places = {
        axis: node.emit(op.add(const(np.arange(length), "int64"), firsts[axis]))
        for axis, length in enumerate(update_shape)
        if length != shape[axis]
    }
    ranks = {axis: [-1] + [1] * (max(places) - axis) for axis in places}
    places = {axis: node.emit(op.reshape(place, ranks[axis])) for axis, place in places.items()}
    written = rows_written(node.emit, node.raw(0), update, places, (shape, update_shape))
    if written is not None:
        return written
    inside: Any = None
    for axis, (size, length) in enumerate(zip(shape, update_shape, strict=True)):
        offsets = node.emit(op.subtract(const(np.arange(size), "int64"), firsts[axis]))
        within = op.logical_and(
            op.greater_equal(offsets, const(0, "int64")), op.less(offsets, const(length, "int64"))
        )
        within = node.emit(op.reshape(within, [size if other == axis else 1 for other in range(len(shape))]))
        inside = within if inside is None else node.emit(op.logical_and(inside, within))
        update = node.emit(op.take(update, node.inside(offsets, length - 1), axis))
    return op.where(inside, update, node.raw(0))


def cumsum(node: TfliteOperands) -> Any:
    """CUMSUM, exclusive, reverse or both; TVM 0.27 refuses reverse."""
    options = node.options("CumsumOptions")
    axis = int(node.constant_array(1).item())
    data = node.raw(0)
    if options.Reverse():
        data = node.emit(op.flip(data, axis))
    data = node.emit(op.cumsum(data, axis, dtype=node.dtype(0), exclusive=bool(options.Exclusive())))
    return op.flip(data, axis) if options.Reverse() else data


def one_hot(node: TfliteOperands) -> Any:
    """ONE_HOT of quantised values, which LiteRT copies as they are stored, and of computed ones.

    Constants of other types are left to TVM.
    """
    if node.inputs[2].qnn_params is None and not any(node.array(index) is None for index in (2, 3)):
        return None
    rank, depth = len(node.shape(0)) + 1, int(node.constant_array(1).item())
    axis = int(node.options("OneHotOptions").Axis()) % rank
    numbers = const(np.arange(depth), node.dtype(0))
    numbers = node.emit(op.reshape(numbers, [depth if other == axis else 1 for other in range(rank)]))
    chosen = node.emit(op.equal(node.emit(op.expand_dims(node.raw(0), axis)), numbers))
    return op.where(chosen, node.raw(2), node.raw(3))


def select(node: TfliteOperands) -> Any:
    """SELECT and SELECT_V2; a condition of rank 1 of SELECT chooses whole rows."""
    node.check_same_quantisation(1, 2)
    condition, rank = node.raw(0), len(node.shape(1))
    if node.kind == "SELECT" and len(node.shape(0)) == 1 and rank > 1:
        condition = node.emit(op.reshape(condition, [node.shape(0)[0], *[1] * (rank - 1)]))
    return op.where(condition, node.raw(1), node.raw(2))


def scatter_nd(node: TfliteOperands) -> Any:
    """SCATTER_ND of bool, as integers; other types: the sum of the updates at a position."""
    shape = node.result_shape()
    if node.dtype(1) != "bool":
        return None
    updates = node.emit(op.astype(node.raw(1), "int8"))
    scattered = op.scatter_nd(
        const(np.zeros(shape), "int8"), node.emit(op.astype(node.raw(0), "int64")), updates, "update"
    )
    return op.astype(node.emit(scattered), "bool")


def concatenation(node: TfliteOperands) -> Any:
    """Left to TVM, which rescales parts to the result's scale, as LiteRT does for uint8.

    Raises ValueError for int16 of several scales, whose integers LiteRT joins as they are.
    """
    if node.result_dtype() == "int16":
        node.check_same_quantisation(0, len(node.inputs) - 1)


CONVERTERS: dict[str, Callable[[TfliteOperands], Any]] = {
    "BATCH_TO_SPACE_ND": batch_to_space,
    "BITCAST": bitcast,
    "CAST": cast,
    "CONCATENATION": concatenation,
    "ONE_HOT": one_hot,
    "CUMSUM": cumsum,
    "DENSIFY": densify,
    "DEQUANTIZE": dequantize,
    "DYNAMIC_UPDATE_SLICE": dynamic_update_slice,
    "EXPAND_DIMS": reshaped,
    "FILL": fill,
    "MATRIX_DIAG": matrix_diag,
    "MATRIX_SET_DIAG": matrix_set_diag,
    "MIRROR_PAD": mirror_pad,
    "SCATTER_ND": scatter_nd,
    "SELECT": select,
    "SELECT_V2": select,
    "SPACE_TO_BATCH_ND": space_to_batch,
    "SPARSE_TO_DENSE": sparse_to_dense,
    "SQUEEZE": reshaped,
    "TOPK_V2": topk,
}
