"""byoc_casts: IRModule → IRModule. Removes conversions from 16 bits to a wider type and back.

Between two calls of libraries that compute in 16 bits there are two conversions (`Code.dtypes`), perhaps
with a reshape between them; the second one returns the first one's operand exactly, bit by bit.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from kiln.callbacks import mutator
from kiln.graph.bindings import operator

_CAST, _RESHAPE = "relax.astype", "relax.reshape"
_NARROW = ("float16", "bfloat16")


@mutator
class _Canceller(relax.PyExprMutator):  # type: ignore[misc]  # tvm is untyped
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.definitions = relax.analysis.get_var2val(mod["main"])

    def visit_call_(self, call: Any) -> Any:
        dtype = str(call.ty.dtype) if operator(call) == _CAST else None
        if dtype in _NARROW:
            wide = self.definitions.get(call.args[0], None)
            shape = call.args[0].ty.shape
            reshaped = False
            while operator(wide) == _RESHAPE:
                wide, reshaped = self.definitions.get(wide.args[0], None), True
            if wide is not None and operator(wide) == _CAST and str(wide.args[0].ty.dtype) == dtype:
                narrow = self.visit_expr(wide.args[0])
                return relax.op.reshape(narrow, shape) if reshaped else narrow
        return self.visit_expr_post_order(call)


def cancel_casts(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with cancelled casts; dead-code elimination removes the conversions left unread."""
    canceller = _Canceller(mod)
    canceller.builder_.update_func(mod.get_global_var("main"), canceller.visit_expr(mod["main"]))
    return relax.transform.DeadCodeElimination()(canceller.builder_.get().with_attrs(dict(mod.attrs or {})))
