"""Sizes that a step of the run counts.

An operator that finds as many elements as the data holds, such as NonZero, becomes a kernel that writes the
elements to the start of a tensor of the greatest size, and how many there are to a second tensor. `counted`
makes that number the size of a dimension, as if it were the axis of an input: whatever reads the elements is
compiled for that dimension, loops end at the actual size, and memory is planned for the greatest.

In the module a call of `COUNT` stands for the step: its operands are the number and the elements, its result
is the same elements in a tensor whose first axis has the counted size.
"""

from __future__ import annotations

import json
from typing import Any

import tvm
from tvm import relax

from kiln.frontend.symbols import Extent, Symbols

COUNT = "kiln.count "  # and a JSON object: dim, the name of the dimension, and tensor, that of the file


def counted(builder: Any, symbols: Symbols, tensor: str, count: Any, rows: Any, most: Extent) -> Any:
    """The first rows of `rows`, as many as the number in `count`, an int64 tensor of one element.

    `tensor`: the tensor of the file that has this size. `most`: the greatest size, which the first axis of
    `rows` has. Raises ValueError as `Symbols.counted`.
    """
    name, variable = symbols.counted(tensor, most)
    shape = [variable, *list(rows.ty.shape)[1:]]
    about = json.dumps({"dim": name, "tensor": tensor})
    result = relax.TensorType(shape, rows.ty.dtype)
    return builder.emit(relax.op.call_dps_packed(COUNT + about, [count, rows], result))


def counted_size(builder: Any, symbols: Symbols, tensor: str, count: Any, most: Extent) -> Any:
    """The variable of a size that has no elements yet: the number in `count`. The others as `counted`."""
    one = builder.emit(relax.op.reshape(count, [1]))
    return counted(builder, symbols, tensor, one, one, most).ty.shape[0]


def with_counted(module: tvm.IRModule, symbols: Symbols) -> tvm.IRModule:
    """`module` with a last parameter of `main` that defines the counted variables too.

    They became known while `main` was built, so TVM has erased them from the type of its result.
    """
    if not symbols.all_counted():
        return module
    main = module["main"]
    tensors = [param for param in main.params if not isinstance(param.ty, relax.ShapeType)]
    sizes = relax.Var("kiln_sizes", relax.ShapeType(symbols.divided()))
    body = relax.SeqExpr(main.body.blocks, main.body.body)
    function = relax.Function([*tensors, sizes], body, _type_of(main.body.body), main.is_pure)
    module["main"] = function.with_attrs(dict(main.attrs or {}))
    return relax.transform.Normalize()(module)


def _type_of(result: Any) -> Any:
    return (
        relax.TupleType([one.ty for one in result.fields]) if isinstance(result, relax.Tuple) else result.ty
    )
