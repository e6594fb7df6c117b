"""IntegerWeights: products of 8-bit tensors by constant weights in the form that a GPU's tensor cores load.

Tensor cores multiply 8-bit integers of one type, and a fragment needs the elements that are summed next to
each other in memory. So this pass

- stores the weights of a convolution as OHWI, and those of a matmul as (columns, depth);
- where the activations are uint8 and the weights int8, moves the activations by 128 into int8 and adds the
  constant 128 · sum(w) to each output channel. The kernel that computes the activations does so.

    sum x w = sum (x - 128) w + 128 · sum w         in int32, exact

Needs: integer products with 32-bit sums (kiln.graph.integer). Guarantees: products with fewer than LEAST
output channels, grouped convolutions, and those without constant weights are left as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from kiln.arrays import Array
from kiln.graph.bindings import CallRewriter, const, constant, integers, rewrite_calls
from kiln.kernels.gpu.block_tile import LEAST
from kiln.opinfo import attach

_BYTES = ("int8", "uint8")


def integer_weights(mod: tvm.IRModule) -> tvm.IRModule:
    """Store constant weights of 8-bit products as tensor cores read them, and their activations as int8."""
    mod = rewrite_calls(mod, {"relax.nn.conv2d": _conv2d, "relax.matmul": _matmul})
    return relax.transform.DeadCodeElimination()(mod)


def _operands(rewriter: CallRewriter, call: relax.Call) -> tuple[Any, Array] | None:
    """Activations and weights of a product of 8-bit numbers with 32-bit sums; None for other calls."""
    weights = constant(rewriter.definition(call.args[1]))
    if weights is None or str(call.ty.dtype) != "int32" or str(weights.dtype) not in _BYTES:
        return None
    kind = str(call.args[0].ty.dtype)
    return (
        (call.args[0], weights)
        if kind in _BYTES and (kind, str(weights.dtype)) != ("int8", "uint8")
        else None
    )


def _signed(rewriter: CallRewriter, data: Any) -> Any:
    """uint8 `data` less 128, as int8."""
    wide = rewriter.emit(relax.op.astype(data, "int16"))
    moved = rewriter.emit(relax.op.subtract(wide, const(128, "int16")))
    return rewriter.emit(relax.op.astype(moved, "int8"))


def _with_sums(rewriter: CallRewriter, product: Any, weights: Array, axes: tuple[int, ...], rank: int) -> Any:
    """total + 128 · sum of the weights over `axes`; the output channels are the last of `rank` axes."""
    sums = 128 * weights.astype(np.int64).sum(axis=axes)
    shape = [1] * (rank - 1) + [sums.size]
    return relax.op.add(rewriter.emit(product), const(sums.reshape(shape), "int32"))


def _conv2d(rewriter: CallRewriter, call: relax.Call) -> Any:
    attrs, operands = call.attrs, _operands(rewriter, call)
    layouts = str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)
    if operands is None or layouts != ("NHWC", "HWIO", "NHWC") or int(attrs.groups) != 1:
        return None
    data, weights = operands
    if weights.shape[3] < LEAST:
        return None
    top, left, bottom, right = integers(attrs.padding)
    moved = str(data.ty.dtype) != str(weights.dtype)
    if moved:
        if any((top, left, bottom, right)):  # the padding is 0 before it is moved
            widths = [0, 0, top, bottom, left, right, 0, 0]
            data = rewriter.emit(relax.op.nn.pad(data, widths, "constant", 0.0))
            top = left = bottom = right = 0
        data = _signed(rewriter, data)
    product = relax.op.nn.conv2d(
        data, const(np.ascontiguousarray(weights.transpose(3, 0, 1, 2)), str(weights.dtype)),
        strides=integers(attrs.strides), padding=[top, left, bottom, right],
        dilation=integers(attrs.dilation), data_layout="NHWC", kernel_layout="OHWI", out_dtype="int32",
    )  # fmt: skip
    return _with_sums(rewriter, product, weights, (0, 1, 2), 4) if moved else product


def _matmul(rewriter: CallRewriter, call: relax.Call) -> Any:
    operands, rank = _operands(rewriter, call), len(call.args[0].ty.shape)
    if operands is None or operands[1].ndim != 2 or rank < 2 or operands[1].shape[1] < LEAST:
        return None
    data, weights = operands
    moved = str(data.ty.dtype) != str(weights.dtype)
    if moved:
        data = _signed(rewriter, data)
    product = _product(rewriter, data, const(np.ascontiguousarray(weights.T), str(weights.dtype)))
    return _with_sums(rewriter, product, weights, (0,), rank) if moved else product


def _product(rewriter: CallRewriter, data: Any, weights: Any) -> Any:
    """The call of a PrimFunc for data (…, rows, depth) · weights (columns, depth)', with its op info."""

    def compute(a: Any, w: Any) -> Any:
        depth = te.reduce_axis((0, a.shape[-1]), name="k")

        def element(*indices: Any) -> Any:
            left, right = a(*indices[:-1], depth), w(indices[-1], depth)
            return te.sum(tirx.Cast("int32", left) * tirx.Cast("int32", right), axis=depth)

        return te.compute([*a.shape[:-1], w.shape[0]], element, name="matmul")

    call_tir = rewriter.builder_.call_te(compute, data, weights, primfunc_name_hint="matmul")
    variable, module = call_tir.args[0], rewriter.builder_.get()
    letters = "abcdefgh"[: len(data.ty.shape) - 1]
    info = {
        "name": "einsum", "attrs": {"subscripts": f"{letters}k,jk->{letters}j"}, "out_dtype": "int32",
        "args": [{"param": 0}, {"param": 1}],
    }  # fmt: skip
    rewriter.builder_.update_func(variable, attach.with_ops(module[variable], [info]))
    return call_tir
