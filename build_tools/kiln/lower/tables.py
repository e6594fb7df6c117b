"""Tables: a chain of elementwise operators on one 8-bit tensor becomes a table of 256 entries.

    quantize(f(dequantize(q))) = table[q]

The chain may contain further quantize and dequantize pairs, of one scale each, so that a GELU or hard-swish
that was quantised operator by operator becomes one table. Its entries are computed in float32 as the
reference computes them, one operator after the other, rounding half to even.
Needs: scales, zero points and other operands as constants of one element. Guarantees: chains that cost a few
vector instructions, such as a rescaling, stay in float where the processor has floats: they are faster than a
look-up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from kiln.extents import shape_of
from kiln.graph.bindings import Array, CallRewriter, const, constant, operator, rewrite_calls
from kiln.kernels.cpu.table import NAME
from kiln.opinfo import attach

_BYTES = {"int8": (-128, 127), "uint8": (0, 255)}
_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-x))
    return result


def _gelu(x: Array) -> Array:
    result: Array = x * (0.5 * (1 + _erf(x / math.sqrt(2))))
    return result


def _gelu_tanh(x: Array) -> Array:
    result: Array = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return result


# Functions of one tensor; they are evaluated in float64 and rounded to float32.
_COSTLY: dict[str, Callable[[Array], Array]] = {
    "relax.exp": np.exp, "relax.tanh": np.tanh, "relax.sigmoid": _sigmoid, "relax.erf": _erf,
    "relax.log": np.log, "relax.sqrt": np.sqrt, "relax.rsqrt": lambda x: 1 / np.sqrt(x), "relax.sin": np.sin,
    "relax.cos": np.cos, "relax.nn.silu": lambda x: x * _sigmoid(x), "relax.nn.gelu": _gelu,
    "relax.nn.gelu_tanh": _gelu_tanh, "relax.nn.softplus": lambda x: np.logaddexp(x, 0),
}  # fmt: skip
_CHEAP: dict[str, Callable[[Array], Array]] = {
    "relax.abs": np.abs, "relax.negative": np.negative, "relax.nn.relu": lambda x: np.maximum(x, 0),
    "relax.square": np.square, "relax.floor": np.floor, "relax.ceil": np.ceil,
}  # fmt: skip
_PAIRS: dict[str, Callable[[Array, Array], Array]] = {
    "relax.add": np.add, "relax.subtract": np.subtract, "relax.multiply": np.multiply,
    "relax.divide": np.divide, "relax.maximum": np.maximum, "relax.minimum": np.minimum,
    "relax.power": np.power,
}  # fmt: skip


class _ElementwiseChain:
    """The values of an expression for each of the 256 bytes of `leaf`, the 8-bit tensor that it is made of.

    `cost` counts functions that take many instructions; `stages` the quantised tensors, the result included.
    """

    def __init__(self, rewriter: CallRewriter) -> None:
        self.rewriter = rewriter
        self.leaf: Any = None
        self.cost = 0
        self.known: dict[Any, Array | None] = {}
        self.stages = 1

    def values(self, expr: relax.Expr) -> Array | None:
        """The float32 values of `expr`: 256, or one of a constant; None if it cannot be in a chain."""
        if isinstance(expr, relax.Var) and expr in self.known:
            return self.known[expr]
        values_of_expr = self._values(expr)
        if isinstance(expr, relax.Var):
            self.known[expr] = values_of_expr
        return values_of_expr

    def _values(self, expr: relax.Expr) -> Array | None:
        call = self.rewriter.definition(expr)
        fixed = constant(call)
        if fixed is not None:
            return fixed.astype("float32").reshape(()) if fixed.size == 1 else None
        name = operator(call) or ""
        if name == "relax.dequantize":
            return self._dequantized(call)
        if name == "relax.clip":
            inner = self.values(call.args[0])
            low, high = (float(argument.value) for argument in call.args[1:3])
            return None if inner is None else np.clip(inner, low, high).astype("float32")
        if name == "relax.nn.leakyrelu":
            inner = self.values(call.args[0])
            if inner is None:
                return None
            return np.where(inner < 0, inner * np.float32(call.attrs.alpha), inner).astype("float32")
        function = _COSTLY.get(name) or _CHEAP.get(name)
        if function is not None:
            inner = self.values(call.args[0])
            self.cost += name in _COSTLY
            return None if inner is None else function(inner.astype("float64")).astype("float32")
        if name not in _PAIRS:
            return None
        left, right = (self.values(argument) for argument in call.args)
        if left is None or right is None:
            return None
        if name in ("relax.divide", "relax.power"):
            self.cost += right.ndim > 0 or name == "relax.power"
        pair: Array = _PAIRS[name](left, right).astype("float32")
        return pair

    def _dequantized(self, call: relax.Call) -> Array | None:
        data, dtype = call.args[0], str(call.args[0].ty.dtype)
        parameters = [constant(argument) for argument in call.args[1:3]]
        if dtype not in _BYTES or any(value is None or value.size != 1 for value in parameters):
            return None
        levels = self._levels(data, dtype)
        if levels is None:
            return None
        scale, zero = (np.asarray(value).reshape(()) for value in parameters)
        real: Array = ((levels.astype("int32") - int(zero)) * np.float32(scale)).astype("float32")
        return real

    def _levels(self, data: Any, dtype: str) -> Array | None:
        """The 256 levels of an 8-bit tensor: of the leaf, of a table or of a quantize in the chain."""
        call = self.rewriter.definition(data)
        source = _table_of(self.rewriter, call)
        before, levels_of, stages, cost = self.leaf, dict(self.known), self.stages, self.cost
        if source is not None and (before is None or source[0].same_as(before)):
            self.leaf, self.stages = source[0], stages + 1
            return source[1]
        if operator(call) == "relax.quantize":
            inner = self.quantized(call)
            if inner is not None:
                self.stages += 1
                return inner
            self.leaf, self.known, self.stages, self.cost = before, levels_of, stages, cost
        if operator(call) in ("relax.maximum", "relax.minimum"):  # a ReLU on levels
            limit = constant(call.args[1])
            inner = None if limit is None or limit.size != 1 else self._levels(call.args[0], dtype)
            if inner is not None and limit is not None:
                limited: Array = _PAIRS[operator(call) or ""](inner, limit.reshape(()))
                return limited.astype(dtype)
            self.leaf, self.known, self.stages, self.cost = before, levels_of, stages, cost
        if constant(call) is not None or (before is not None and not data.same_as(before)):
            return None
        self.leaf = data
        return np.arange(256, dtype="uint8").view(dtype)

    def quantized(self, call: relax.Call) -> Array | None:
        """The levels that relax.quantize computes from its chain; None if there is no such chain."""
        dtype = str(call.ty.dtype)
        parameters = [constant(argument) for argument in call.args[1:3]]
        if dtype not in _BYTES or any(value is None or value.size != 1 for value in parameters):
            return None
        values = self.values(call.args[0])
        if values is None or values.ndim == 0 or np.isnan(values).any():
            return None
        if self.leaf is None or shape_of(self.leaf) != shape_of(call):
            return None
        scale, zero = (np.asarray(value).reshape(()) for value in parameters)
        nearest = np.rint(np.clip(values / np.float32(scale), -1e6, 1e6)) + int(zero)
        levels: Array = np.clip(nearest, *_BYTES[dtype]).astype(dtype)
        return levels


def _table_of(rewriter: CallRewriter, call: Any) -> tuple[Any, Array] | None:
    """(leaf, entries) where `call` is the result of an earlier table."""
    lookup: Any = rewriter.definition(call.args[0]) if operator(call) == "relax.reshape" else None
    if operator(lookup) != "relax.call_tir":
        return None
    func = rewriter.builder_.get()[lookup.args[0]]
    if [info["name"] for info in attach.of(func)] != [NAME]:
        return None
    data, entries = lookup.args[1].fields[:2]  # variables of dynamic sizes follow
    value = constant(entries)
    return None if value is None else (rewriter.definition(data).args[0], value)


def _look_up(rewriter: CallRewriter, call: relax.Call) -> Any:
    """The table for a relax.quantize, or None to keep it."""
    chain = _ElementwiseChain(rewriter)
    with np.errstate(all="ignore"):
        table = chain.quantized(call)
    if table is None or (not chain.cost and chain.stages == 1):
        return None

    return relax.op.reshape(
        rewriter.emit(looked_up(rewriter, chain.leaf, table, call.ty.shape)), call.ty.shape
    )


def looked_up(rewriter: CallRewriter, data: Any, table: Array, shape: Any) -> Any:
    """table[q] for each element q of the 8-bit `data`, in `shape`; the 256 entries are by the byte of q."""

    def compute(data: Any, entries: Any) -> Any:
        def element(*indices: Any) -> Any:
            return entries(tirx.bitwise_and(tirx.Cast("int32", data(*indices)), tirx.IntImm("int32", 255)))

        return te.compute(data.shape, element, name="table")

    leaf = rewriter.emit(relax.op.reshape(data, shape))  # ends the leaf's group
    lookup = rewriter.builder_.call_te(
        compute, leaf, const(table, str(table.dtype)), primfunc_name_hint="table"
    )
    info = {
        "name": NAME, "attrs": {}, "out_dtype": str(table.dtype), "args": [{"param": 0}, {"param": 1}],
    }  # fmt: skip
    module = rewriter.builder_.get()
    rewriter.builder_.update_func(lookup.args[0], attach.with_ops(module[lookup.args[0]], [info]))
    return lookup


def tables(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace chains between dequantize and quantize by tables (see the module's docstring)."""
    return relax.transform.DeadCodeElimination()(rewrite_calls(mod, {"relax.quantize": _look_up}))
