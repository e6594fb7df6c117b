"""Makes slices of the parts of a split, where that lets fusion take them into the kernels that read them.

A split has several results, and fusion takes a function into its reader only where all of its results are
read there: the gates of a recurrent cell, which have two readers, would be copied. A slice whose reader
computes element by element costs nothing; any other slice is copied, as the part of a split is.

Applies to splits of what a product or a convolution computes, and of tensors with other readers: fusion ends
there anyway. What else computes the tensor, such as a transpose, is in one kernel with the split.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from kiln.graph.bindings import CallRewriter, count_uses, operator, rewrite_calls
from kiln.graph.layout import NARY, UNARY

_ELEMENTWISE = {f"relax.{name}" for name in (*UNARY, *NARY)}
_PRODUCTS = ("relax.matmul", "relax.nn.conv")  # beginnings of their names


def split_parts(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace splits by slices."""
    uses = count_uses(mod)

    def joins_product(rewriter: CallRewriter, value: Any) -> bool:
        """Whether `value` is computed in the kernel of a product: by it, or element by element after it."""
        made = rewriter.definition(value)
        name = operator(made) or ""
        if name.startswith(_PRODUCTS):
            return True
        operands = made.args if name in _ELEMENTWISE else ()
        return any(uses.get(one) == 1 and joins_product(rewriter, one) for one in operands)

    def slices(rewriter: CallRewriter, call: relax.Call) -> Any:
        [data], axis = call.args, int(call.attrs.axis) % len(call.args[0].ty.shape)
        if uses.get(data) == 1 and not joins_product(rewriter, data):
            return None
        begin, parts = 0, []
        for field in call.ty.fields:
            end = begin + field.shape[axis]
            parts.append(rewriter.emit(relax.op.strided_slice(data, [axis], [begin], [end])))
            begin = end
        return relax.Tuple(parts)

    mod = rewrite_calls(mod, {"relax.split": slices})
    for step in (relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()):
        mod = step(mod)
    return mod
