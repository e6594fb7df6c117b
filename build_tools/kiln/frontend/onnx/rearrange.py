"""Converters of ONNX operators that move elements: blocks of space and depth, sequences, sorted elements.

Converters have the interface of kiln.frontend.onnx.ops. Sizes are ints or TIR expressions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from kiln.extents import Extent
from kiln.frontend.onnx import counted_ops
from kiln.frontend.onnx.node import Node, prims, reshaped, shape_expr

op = relax.op


def _mode(node: Node, default: str) -> str:
    value = node.attributes.get("mode", default)
    return value.decode() if isinstance(value, bytes) else str(value)


def _divided(size: Extent, block: int, noun: str, node: Node) -> Extent:
    """size / block. Raises ValueError, which names the size by `noun`, unless the quotient is an integer."""
    remainder = node.symbols.simplify(size % block)
    if not isinstance(remainder, int) or remainder:
        raise ValueError(f"its blocksize is {block}, which does not divide its {noun} of size {size}")
    return node.symbols.simplify(size // block)


def space_to_depth(node: Node) -> Any:
    """SpaceToDepth; TVM 0.27 ignores `mode`, the order of blocks and channels in the result."""
    block, (batch, channels, height, width) = int(node.attributes["blocksize"]), node.shape(0)
    rows, columns = (_divided(size, block, "image", node) for size in (height, width))
    blocks = reshaped(node.tensor(0), [batch, channels, rows, block, columns, block])
    axes = [0, 3, 5, 1, 2, 4] if _mode(node, "DCR") == "DCR" else [0, 1, 3, 5, 2, 4]
    return reshaped(
        node.builder.emit(op.permute_dims(blocks, axes)), [batch, channels * block * block, rows, columns]
    )


def depth_to_space(node: Node) -> Any:
    """DepthToSpace, the inverse of SpaceToDepth."""
    block, (batch, depth, height, width) = int(node.attributes["blocksize"]), node.shape(0)
    channels = _divided(depth, block * block, "channels", node)
    if _mode(node, "DCR") == "DCR":
        shape, axes = [batch, block, block, channels, height, width], [0, 3, 4, 1, 5, 2]
    else:
        shape, axes = [batch, channels, block, block, height, width], [0, 1, 4, 2, 5, 3]
    blocks = node.builder.emit(op.permute_dims(reshaped(node.tensor(0), shape), axes))
    return reshaped(blocks, [batch, channels, height * block, width * block])


def reverse_sequence(node: Node) -> Any:
    """ReverseSequence: the first `sequence_lens` steps of each row in reverse order."""
    attributes = node.attributes
    time, batch = int(attributes.get("time_axis", 0)), int(attributes.get("batch_axis", 1))
    x, emit, shape = node.tensor(0), node.builder.emit, node.shape(0)
    steps, rows = shape[time], shape[batch]
    broadcast_shape = [1] * len(shape)
    steps_in_order = emit(op.arange(*prims([0, steps, 1]), "int64"))
    steps_in_order = emit(
        reshaped(steps_in_order, [*broadcast_shape[:time], steps, *broadcast_shape[time + 1 :]])
    )
    lengths = emit(op.astype(node.tensor(1), "int64"))
    lengths = emit(reshaped(lengths, [*broadcast_shape[:batch], rows, *broadcast_shape[batch + 1 :]]))
    unit = relax.const(1, "int64")
    turned = emit(op.subtract(op.subtract(lengths, steps_in_order), unit))
    chosen = emit(op.where(op.less(steps_in_order, lengths), turned, steps_in_order))
    return op.gather_elements(x, emit(op.broadcast_to(chosen, shape_expr(shape))), time)


def top_k(node: Node) -> Any:
    """TopK of early operator sets, or with a `k` that is computed from shapes, as for a sort of a whole axis.

    The result is always sorted, which `sorted = 0` (any order) permits. TVM 0.27 converts the other nodes:
    those of operator set 11 and later with a constant `k` of at least 1; it takes 0 for the whole axis.
    """
    is_sorted = bool(node.attributes.get("sorted", 1))
    given = node.constant(1) if node.opset >= 11 else None
    if is_sorted and given is not None and given.item() > 0:
        return None
    if node.has(1) and node.elements(1) is None:
        return counted_ops.top_k(node)
    shape = node.shape(0)
    count = node.known_elements(1)[0] if node.has(1) else int(node.attributes["k"])
    axis, largest = int(node.attributes.get("axis", -1)) % len(shape), bool(node.attributes.get("largest", 1))
    sorted_pair = node.builder.emit(relax.op.topk(node.tensor(0), -1, axis, "both", largest, "int64"))
    values_and_indices = [node.builder.emit(relax.TupleGetItem(sorted_pair, index)) for index in (0, 1)]
    if not node.symbols.equal(count, shape[axis]):
        sizes = node.symbols.exceeding(count, shape[axis])
        if sizes is not None:
            where = "".join(f" with {name} = {size}" for name, size in sizes.items())
            raise ValueError(f"its k exceeds the number of elements{where}; bound the dimension in `dims`")
        ends = [axis], prims([0]), prims([count])
        values_and_indices = [
            relax.op.strided_slice(tensor, *ends, assume_inbound=True) for tensor in values_and_indices
        ]
    return relax.Tuple(values_and_indices)


CONVERTERS: dict[str, Callable[[Node], Any]] = {
    "DepthToSpace": depth_to_space,
    "ReverseSequence": reverse_sequence,
    "SpaceToDepth": space_to_depth,
    "TopK": top_k,
}
