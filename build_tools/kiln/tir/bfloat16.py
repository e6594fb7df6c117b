"""bfloat16 on CPUs: computed in float32 and stored as bits in uint16, as LLVM ends the process on the type.

Kiln's importers compute in float32 what a model's file has in bfloat16; a user's own operator may have
tensors and numbers of the type. Every result is rounded to it, as the user's function says.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, TensorLoad

from kiln.callbacks import structural_map, structural_walk
from kiln.tir.vector_expr import cast, scalar

TYPE = "bfloat16"
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.Min, tirx.Max)
_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)
# Calls that move numbers without computing with them.
_MOVES = ("tirx.if_then_else", "tirx.reinterpret")


def in_float32(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with casts around all arithmetic of bfloat16, which is then done in float32."""
    for variable, function in list(mod.functions_items()):
        if has_bfloat16(function):
            rules = ((_ARITHMETIC, _computed), (_COMPARISONS, _compared), (Call, _called))
            mod.update_func(variable, function.with_body(structural_map(function.body, rules)))
    return mod


def stored_as_bits(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A lowered function without casts of bfloat16 whose buffers of the type are buffers of uint16."""
    if not declares(function, TYPE):
        return function
    mod = tirx.transform.BF16StorageLegalize()(tvm.IRModule({"function": function}))
    return mod["function"]


def has_bfloat16(function: tirx.PrimFunc) -> bool:
    """Whether a function in TIR reads, writes or computes a number of bfloat16."""
    if not isinstance(function, tirx.PrimFunc):
        return False

    def visit(node: Any) -> Any:
        value = node.value if isinstance(node, tirx.BufferStore) else node
        return tvm_ffi.VisitInterrupt() if _is_number(value) else None

    kinds = (TensorLoad, tirx.BufferStore, tirx.Cast, Call)
    return structural_walk(function.body, ((kinds, visit),)) is not None


def declares(function: tirx.PrimFunc, *dtypes: str) -> bool:
    """Whether a function over pointers declares buffers, or makes numbers, of one of the types `dtypes`.

    A number comes from a buffer, a constant, a cast or a call. Functions have few of these, and thousands of
    loads and sums, which are not visited.
    """

    def visit(node: Any) -> Any:
        declared = isinstance(node, (tirx.DeclBuffer, tirx.AllocBuffer))
        dtype = node.buffer.dtype if declared else getattr(node.ty, "dtype", "")
        return tvm_ffi.VisitInterrupt() if str(dtype).partition("x")[0] in dtypes else None

    if any(tirx.is_buffer_var(param) and str(param.dtype) in dtypes for param in function.params):
        return True
    kinds = (tirx.DeclBuffer, tirx.AllocBuffer, tirx.FloatImm, tirx.Cast, Call)
    return structural_walk(function.body, ((kinds, visit),)) is not None


def _wide(value: Any) -> Any:
    if scalar(value) != TYPE:
        return value
    if isinstance(value, tirx.FloatImm):
        return tirx.FloatImm("float32", float(ml_dtypes.bfloat16(value.value)))
    return cast("float32", value)


def _computed(node: Any) -> Any:
    return cast(TYPE, type(node)(_wide(node.a), _wide(node.b))) if scalar(node) == TYPE else node


def _compared(node: Any) -> Any:
    return type(node)(_wide(node.a), _wide(node.b)) if scalar(node.a) == TYPE else node


def _called(call: Call) -> Any:
    if getattr(call.op, "name", "") in _MOVES or not any(map(_is_number, call.args)):
        return call
    dtype = str(call.ty.dtype)
    wide = tirx.call_intrin(dtype.replace(TYPE, "float32"), call.op, *map(_widened, call.args))
    return cast(TYPE, wide) if scalar(call) == TYPE else wide


def _is_number(argument: Any) -> bool:
    return hasattr(argument.ty, "dtype") and scalar(argument) == TYPE


def _widened(argument: Any) -> Any:
    return _wide(argument) if _is_number(argument) else argument
