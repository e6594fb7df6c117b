"""SignedTensors: uint8 tensors as int8, for machines whose instructions multiply bytes of one signedness.

Helium multiplies int8 by int8 or uint8 by uint8, and weights are int8. Tensors of uint8 that such products
read are moved by 128 into int8 where they are quantised, with their zero point, and products get a constant:

    sum x w = sum (x - 128) w + 128 · sum w         in int32, exact

Needs: integer products with 32-bit sums (kiln.graph.integer) and constant weights. A tensor that is an input
of the model is moved where it is read. Results are the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from kiln.arrays import Array
from kiln.graph.bindings import (
    CallRewriter,
    Rule,
    const,
    constant,
    integers,
    operator,
    rewrite_calls,
    variables,
)

op = relax.op
_MIDDLE = 128
# Operators that move elements or choose among them, whose first operand has the type of their result.
_MOVES = {"relax.reshape", "relax.permute_dims", "relax.squeeze", "relax.expand_dims", "relax.strided_slice"}
_PAD, _POOL = "relax.nn.pad", "relax.nn.max_pool2d"
_PRODUCTS = {"relax.nn.conv2d", "relax.matmul"}


def signed_tensors(mod: tvm.IRModule) -> tvm.IRModule:
    """Store uint8 tensors that products with int8 weights read as int8, with another zero point."""
    moved = _Signed(mod)
    rules: dict[str, Rule] = {
        "relax.nn.conv2d": moved.conv2d,
        "relax.matmul": moved.matmul,
        "relax.dequantize": moved.dequantize,
        "relax.astype": moved.astype,
        "relax.add": moved.add,
    }
    if not moved.moves_any:
        return mod
    # Fusion stops at a variable that is another name of one.
    changed = relax.transform.CanonicalizeBindings()(rewrite_calls(mod, rules))
    return relax.transform.DeadCodeElimination()(changed)


def _product_weights(call: Any) -> Array | None:
    """The constant weights of a product of uint8 by int8 that this pass rewrites; None for other calls."""
    if operator(call) not in _PRODUCTS or str(call.ty.dtype) != "int32":
        return None
    weights = constant(call.args[1])
    if weights is None or (str(call.args[0].ty.dtype), str(weights.dtype)) != ("uint8", "int8"):
        return None
    if operator(call) == "relax.matmul":
        return weights if weights.ndim == 2 else None
    layouts = tuple(str(call.attrs[key]) for key in ("data_layout", "kernel_layout", "out_layout"))
    return weights if layouts == ("NHWC", "HWIO", "NHWC") else None


def _moves(call: Any) -> bool:
    """Whether each element of the result is an element of the first operand, or a constant."""
    name = operator(call)
    if name == _PAD:
        return str(call.attrs.pad_mode) == "constant"
    # The padding of a pool is less than all elements: not where it would be moved.
    return name in _MOVES or (name == _POOL and not any(integers(call.attrs.padding)))


def _reads_signed(call: Any) -> bool:
    """Whether a rule of the pass, other than that of moves, rewrites a call that reads a moved tensor."""
    if operator(call) == "relax.dequantize":
        return constant(call.args[2]) is not None
    wide = operator(call) == "relax.astype" and str(call.ty.dtype) not in ("int8", "uint8", "bool")
    return wide or _product_weights(call) is not None


class _Signed:
    """The rules of the pass; `chosen`: the variables of uint8 tensors that are stored as int8."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self.chosen: set[Any] = set()
        self._made: dict[Any, Any] = {}
        self._sums: dict[Any, tuple[Any, Array]] = {}  # by result of a product: the product and what is added
        bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
        wanted = {b.value.args[0] for b in bindings if _product_weights(b.value) is not None}
        for binding in reversed(bindings):
            if binding.var in wanted and _moves(binding.value):
                wanted.add(binding.value.args[0])
        for binding in bindings:
            if _moves(binding.value) and binding.value.args[0] in wanted:
                wanted.add(binding.var)
        kept = set(variables(mod["main"].body.body))  # tensors that another operator reads as uint8
        for binding in reversed(bindings):
            if not _reads_signed(binding.value) and (not _moves(binding.value) or binding.var in kept):
                kept.update(variables(binding.value))
        self.chosen = wanted - kept
        self.moves_any = bool(wanted)

    def _signed(self, rewriter: CallRewriter, tensor: Any) -> Any:
        """`tensor` less 128, as int8."""
        if tensor not in self._made:
            self._made[tensor] = self._new(rewriter, tensor)
        return self._made[tensor]

    def _new(self, rewriter: CallRewriter, tensor: Any) -> Any:
        emit = rewriter.emit
        call: Any = rewriter.definition(tensor) if tensor in self.chosen else None
        name = operator(call)
        if name == "relax.quantize" and constant(call.args[2]) is not None:
            zero = _less(constant(call.args[2]))
            return emit(op.quantize(call.args[0], call.args[1], zero, int(call.attrs.axis), "int8"))
        if name == _PAD and _moves(call):
            operand = self._signed(rewriter, call.args[0])
            widths, value = integers(call.attrs.pad_width), float(call.attrs.pad_value)
            return emit(op.nn.pad(operand, widths, "constant", value - _MIDDLE))
        if name is not None and _moves(call):
            operand = self._signed(rewriter, call.args[0])
            return emit(relax.Call(call.op, [operand, *call.args[1:]], call.attrs, call.ty_args))
        wide = emit(op.astype(tensor, "int16"))
        return emit(op.astype(emit(op.subtract(wide, const(_MIDDLE, "int16"))), "int8"))

    def _with_sums(
        self, rewriter: CallRewriter, call: relax.Call, weights: Array, axes: tuple[int, ...]
    ) -> Any:
        """The product `call` of a moved tensor, plus 128 · sum of the weights over `axes`."""
        sums = _MIDDLE * weights.astype(np.int64).sum(axis=axes)
        shape = [1] * (len(call.args[0].ty.shape) - 1) + [-1]
        product = rewriter.emit(call)
        result = rewriter.emit(op.add(product, const(sums.reshape(shape), "int32")))
        self._sums[result] = product, sums
        return result

    def conv2d(self, rewriter: CallRewriter, call: relax.Call) -> Any:
        weights, attrs = _product_weights(call), call.attrs
        if weights is None:
            return None
        data, padding = self._signed(rewriter, call.args[0]), integers(attrs.padding)
        if any(padding):  # the padding is 0 before it is moved
            top, left, bottom, right = padding
            widths = [0, 0, top, bottom, left, right, 0, 0]
            data = rewriter.emit(op.nn.pad(data, widths, "constant", -_MIDDLE))
        product = op.nn.conv2d(
            data, call.args[1], integers(attrs.strides), 0, integers(attrs.dilation), int(attrs.groups),
            "NHWC", "HWIO", "NHWC", "int32",
        )  # fmt: skip
        return self._with_sums(rewriter, product, weights, (0, 1, 2))

    def matmul(self, rewriter: CallRewriter, call: relax.Call) -> Any:
        weights = _product_weights(call)
        if weights is None:
            return None
        product = op.matmul(self._signed(rewriter, call.args[0]), call.args[1], out_dtype="int32")
        return self._with_sums(rewriter, product, weights, (0,))

    def dequantize(self, rewriter: CallRewriter, call: relax.Call) -> Any:
        zero = constant(call.args[2])
        if call.args[0] not in self.chosen or zero is None:
            return None
        data = self._signed(rewriter, call.args[0])
        return op.dequantize(data, call.args[1], _less(zero), int(call.attrs.axis), str(call.attrs.out_dtype))

    def astype(self, rewriter: CallRewriter, call: relax.Call) -> Any:
        if call.args[0] not in self.chosen or not _reads_signed(call):
            return None
        kind = str(call.ty.dtype)
        wide = rewriter.emit(op.astype(self._signed(rewriter, call.args[0]), kind))
        return op.add(wide, const(_MIDDLE, kind))

    def add(self, rewriter: CallRewriter, call: relax.Call) -> Any:
        """One constant in place of two."""
        left = call.args[0]
        bound = rewriter.lookup_binding(left) if isinstance(left, relax.Var) else None
        product, sums = self._sums.get(bound, (None, None))
        more = constant(call.args[1])
        if product is None or sums is None or more is None or more.shape[-1:] not in ((), (1,), sums.shape):
            return None
        return op.add(product, const(more.astype(np.int64) + sums, "int32"))


def _less(zero: Any) -> Any:
    """Zero points of uint8 less 128, as a constant of int8."""
    return const(np.asarray(zero).astype(np.int16) - _MIDDLE, "int8")
