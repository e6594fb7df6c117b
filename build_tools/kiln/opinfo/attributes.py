"""What is put down of an operator: its attributes, those of its arguments that are no tensors, its layouts.

Relax keeps some of what an operator does in arguments (the slices of strided_slice, the limits of clip, the
size of resize2d) and some nowhere, because its operands always lie the same way (a product's matrices, the
axes along which a sum broadcasts). Here all of it is an attribute, since a PrimFunc shows none of it.
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
    """An attribute's value as JSON can hold it."""
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
    """The tensors among arguments, those in tuples too, in order."""
    found: list[Any] = []
    for argument in arguments:
        ty = getattr(argument, "ty", None)
        if isinstance(ty, relax.TensorType):
            found.append(argument)
        elif isinstance(ty, relax.TupleType) and isinstance(argument, relax.Tuple):
            found += leaves(list(argument.fields))
        elif isinstance(ty, relax.TupleType) and any(isinstance(f, relax.TensorType) for f in ty.fields):
            found += [None for _ in ty.fields]  # a tuple that has a name: which tensors, its maker knows
    return found


def _fields(attrs: Any) -> dict[str, Any]:
    """The fields of an attribute object, by tvm-ffi's own reflection of its type."""
    fields = type(attrs).__tvm_ffi_type_info__.fields
    return {str(field.name): plain(getattr(attrs, field.name)) for field in fields}


def _arguments(name: str, call: Any) -> dict[str, Any]:
    """The arguments that are no tensors, by name."""
    names = _ARGUMENTS.get(name) or [str(argument.name) for argument in call.op.arguments]
    return {
        names[index] if index < len(names) else f"argument{index}": plain(argument)
        for index, argument in enumerate(call.args)
        if not leaves([argument])
    }


def _rank(expr: Any) -> int:
    shape = getattr(expr.ty, "shape", None)
    return -1 if shape is None else len(shape)


def _product(call: Any) -> dict[str, str]:
    """Which axes are rows (M), columns (N) and depth (K) of a product; letters from A on are batches."""
    left, right = (_rank(argument) for argument in call.args)
    if min(left, right) < 1 or max(left, right) - 2 > len(BATCH):
        return {}
    batch = BATCH[: max(left - 2, right - 2, 0)]
    a = "K" if left == 1 else batch[len(batch) - (left - 2) :] + "MK"
    b = "K" if right == 1 else batch[len(batch) - (right - 2) :] + "KN"
    return {"a_layout": a, "b_layout": b, "out_layout": batch + "M" * (left > 1) + "N" * (right > 1)}


def _broadcast(call: Any) -> dict[str, Any]:
    """For each operand, along which axes of the result its own axes run."""
    rank = len(call.ty.shape)
    ranks = [_rank(argument) for argument in call.args]
    if min(ranks) < 0:
        return {}
    return {"broadcast_axes": [list(range(rank - own, rank)) for own in ranks]}


def describe(call: Any) -> OpInfo:
    """Name, attributes and result type of a Relax call; its kind and operands only its PrimFunc shows."""
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
