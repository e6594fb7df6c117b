"""Sizes that a step of the run counts.

An operator that finds as many elements as the data holds, such as NonZero, becomes a kernel that writes the
elements to the start of a tensor of the greatest size, and how many there are to a second tensor. `counted`
makes that number the size of a dimension, as if it were the axis of an input: whatever reads the elements is
compiled for that dimension, loops end at the actual size, and memory is planned for the greatest.

In the module a call of `COUNT` stands for the step: its operands are the number and the elements, its result
is the same elements in a tensor whose first axis has the counted size. A tensor of that size may have no
operand that was counted, as a range of it: a call of `AFTER` makes it depend on the count, which would else
be dead code.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, tirx

from kiln.callbacks import post_order_visit, structural_walk
from kiln.extents import Extent
from kiln.frontend.symbols import Symbols

COUNT = "kiln.count "  # and a JSON object: dim, the name of the dimension, and tensor, that of the file
AFTER = "kiln.after"  # its result is its first operand, after the steps that count the sizes of the others


def counted(
    builder: relax.BlockBuilder,
    symbols: Symbols,
    tensor: str,
    count: Any,
    tables: Sequence[Any],
    most: Extent,
) -> list[Any]:
    """The first rows of each of `tables`, as many as the number in `count`, an int64 tensor of one element.

    `tensor`: the tensor of the file that has this size. `most`: the greatest size, which the first axis of
    the tables has. Raises ValueError as `Symbols.counted`.
    """
    name, variable = symbols.counted(tensor, most)
    about = COUNT + json.dumps({"dim": name, "tensor": tensor})
    types = [relax.TensorType([variable, *list(table.ty.shape)[1:]], table.ty.dtype) for table in tables]
    calls = [
        relax.op.call_dps_packed(about, [count, table], ty) for table, ty in zip(tables, types, strict=True)
    ]
    return [builder.emit(call) for call in calls]


def counted_size(builder: Any, symbols: Symbols, tensor: str, count: Any, most: Extent) -> Any:
    """The variable of a size that has no elements yet: the number in `count`. The others as `counted`."""
    return counted(builder, symbols, tensor, count, [count], most)[0].ty.shape[0]


def after_counting(tensor: Any, counted_tensors: Sequence[Any]) -> Any:
    """`tensor`, computed after the steps that count the sizes of `counted_tensors`, results of `counted`."""
    return relax.op.call_dps_packed(AFTER, [tensor, *counted_tensors], tensor.ty)


def with_counted(module: tvm.IRModule, symbols: Symbols) -> tvm.IRModule:
    """`module` with a last parameter of `main` that defines the counted variables too.

    They became known while `main` was built, so TVM has erased them from the type of its result.
    """
    if not symbols.all_counted():
        return module
    main = module["main"]
    tensors = [param for param in main.params if not isinstance(param.ty, relax.ShapeType)]
    sizes = relax.Var("kiln_sizes", relax.ShapeType(symbols.divided()))
    body = relax.SeqExpr([_with_origins(block) for block in main.body.blocks], main.body.body)
    function = relax.Function([*tensors, sizes], body, _type_of(main.body.body), main.is_pure)
    module["main"] = function.with_attrs(dict(main.attrs or {}))
    return relax.transform.Normalize()(module)


def decides_sizes(value: Any) -> bool:
    """Whether a call stands for the step that counts a size, or makes a tensor depend on it."""
    called = value.args[0] if isinstance(value, relax.Call) and len(value.args) else None
    return _is_count(value) or (isinstance(called, relax.ExternFunc) and str(called.global_symbol) == AFTER)


def _type_of(result: Any) -> Any:
    return (
        relax.TupleType([one.ty for one in result.fields]) if isinstance(result, relax.Tuple) else result.ty
    )


def _with_origins(block: Any) -> Any:
    """`block`, in which a tensor that has a counted size from no operand follows the step that counts it."""
    origins: dict[Any, Any] = {}  # variable → a tensor whose first axis it is
    bindings = []
    variable = relax.DataflowVar if isinstance(block, relax.DataflowBlock) else relax.Var
    for binding in block.bindings:
        value = binding.value
        if _is_count(value):
            origins.setdefault(value.ty.shape[0], binding.var)
        operand_types = [part.ty for part in _tensors(value)]
        known = {variable for ty in operand_types for variable in relax.analysis.tir_vars_in_type(ty)}
        used = [*relax.analysis.tir_vars_in_type(binding.var.ty), *_variables(value)]
        missing = [one for one in dict.fromkeys(used) if one in origins and one not in known]
        if not missing or _is_count(value) or isinstance(binding, relax.MatchCast):
            bindings.append(binding)
            continue
        open_variable = variable(f"{binding.var.name}_open", binding.var.ty)
        after = after_counting(open_variable, [origins[one] for one in missing])
        bindings += [relax.VarBinding(open_variable, value), relax.VarBinding(binding.var, after)]
    return type(block)(bindings)


def _is_count(value: Any) -> bool:
    called = value.args[0] if isinstance(value, relax.Call) and len(value.args) else None
    return isinstance(called, relax.ExternFunc) and str(called.global_symbol).startswith(COUNT)


def _tensors(value: Any) -> list[Any]:
    """The variables of Relax that an expression reads."""
    variables: list[Any] = []
    post_order_visit(value, lambda part: variables.append(part) if isinstance(part, relax.Var) else None)
    return [part for part in variables if isinstance(part.ty, (relax.TensorType, relax.TupleType))]


def _variables(value: Any) -> list[Any]:
    """The variables in the sizes that a call is given, such as the limits of a range."""
    size_variables: list[Any] = []
    structural_walk(value, ((tirx.Var, size_variables.append),))
    return size_variables
