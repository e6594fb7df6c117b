"""Attributes recorded for an operator: Relax attributes, non-tensor arguments, layouts.

Relax stores some properties of an operator in arguments (the slices of strided_slice, the limits of clip, the
size of resize2d), and does not store others, because the layout of the operands is fixed (the matrices of a
matmul, the axes along which an addition broadcasts). Op info records all of them as attributes, since a
PrimFunc shows none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

OpInfo = dict[str, Any]

# Arguments by position, where Op.arguments does not name them.
_ARGUMENTS = {"strided_slice": ("x", "axes", "begin", "end", "strides")}

BROADCAST = frozenset(
    {
        "add", "bitwise_and", "bitwise_or", "bitwise_xor", "divide", "equal", "floor_divide", "floor_mod",
        "greater", "greater_equal", "left_shift", "less", "less_equal", "logical_and", "logical_or",
        "logical_xor", "maximum", "minimum", "mod", "multiply", "not_equal", "power", "right_shift",
        "subtract", "where",
    }
)  # fmt: skip

BATCH = "ABCDEFGH"


def plain(value: Any) -> Any:
    """The value of an attribute as a JSON value; a value of another kind becomes its text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tvm.tirx.IntImm | tvm.tirx.FloatImm):
        return value.value
    if isinstance(value, tvm.DataType):
        return str(value)
    if isinstance(value, tvm.ir.StringImm):
        return str(value.value)
    if isinstance(value, relax.ShapeExpr):
        return [plain(entry) for entry in value.values]
    if isinstance(value, relax.Tuple):
        return [plain(entry) for entry in value.fields]
    try:
        return [plain(entry) for entry in value]
    except TypeError:
        return str(value)


def leaves(arguments: Sequence[Any]) -> list[Any]:
    """The tensors among `arguments`, including tensors in tuples, in order.

    A tuple that is a variable adds None for each of its fields, since its tensors are not known here.
    """
    tensors: list[Any] = []
    for argument in arguments:
        ty = getattr(argument, "ty", None)
        if isinstance(ty, relax.TensorType):
            tensors.append(argument)
        elif isinstance(ty, relax.TupleType) and isinstance(argument, relax.Tuple):
            tensors += leaves(list(argument.fields))
        elif isinstance(ty, relax.TupleType) and any(isinstance(f, relax.TensorType) for f in ty.fields):
            tensors += [None for _ in ty.fields]
    return tensors


def _fields(attrs: Any) -> dict[str, Any]:
    """The fields of an attribute object, by tvm-ffi's own reflection of its type."""
    fields = type(attrs).__tvm_ffi_type_info__.fields
    return {str(field.name): plain(getattr(attrs, field.name)) for field in fields}


def _arguments(name: str, call: relax.Call) -> dict[str, Any]:
    """The non-tensor arguments of a call, by name."""
    names = _ARGUMENTS.get(name) or [str(argument.name) for argument in call.op.arguments]
    return {
        names[index] if index < len(names) else f"argument{index}": plain(argument)
        for index, argument in enumerate(call.args)
        if not leaves([argument])
    }


def _rank(expr: relax.Expr) -> int:
    """Number of dimensions of a tensor; -1 if not known."""
    shape = getattr(expr.ty, "shape", None)
    return -1 if shape is None else len(shape)


def _product(call: relax.Call) -> dict[str, str]:
    """Layouts of a matmul: rows (M), columns (N), depth (K); letters from A on are batch axes."""
    left, right = (_rank(argument) for argument in call.args)
    if min(left, right) < 1 or max(left, right) - 2 > len(BATCH):
        return {}
    batch = BATCH[: max(left - 2, right - 2, 0)]
    a = "K" if left == 1 else batch[len(batch) - (left - 2) :] + "MK"
    b = "K" if right == 1 else batch[len(batch) - (right - 2) :] + "KN"
    return {"a_layout": a, "b_layout": b, "out_layout": batch + "M" * (left > 1) + "N" * (right > 1)}


def _broadcast(call: relax.Call) -> dict[str, Any]:
    """The axes of the result that the axes of each operand correspond to."""
    rank = len(call.ty.shape)
    ranks = [_rank(argument) for argument in call.args]
    if min(ranks) < 0:
        return {}
    return {"broadcast_axes": [list(range(rank - own, rank)) for own in ranks]}


def describe(call: relax.Call) -> OpInfo:
    """Name, attributes and result data type of a Relax call: its op info without `kind`, `args`, `nests`."""
    name = str(call.op.name).removeprefix("relax.")
    attrs = {} if call.attrs is None else _fields(call.attrs)
    attrs |= _arguments(name, call)
    result = call.ty
    if isinstance(result, relax.TensorType) and result.shape is not None:
        if name == "matmul":
            attrs |= _product(call)
        elif name in BROADCAST:
            attrs |= _broadcast(call)
    dtype = str(result.dtype) if isinstance(result, relax.TensorType) else ""
    return {"name": name, "attrs": attrs, "out_dtype": dtype}
