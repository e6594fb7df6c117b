"""RecurrentSteps: recurrent layers of floats as loops over a few steps each, where RAM is scarce.

The operator `recurrent` reads the product of all steps of its sequence with the weights of the input. In a
loop of the plan over parts of the sequence, `step_products` computes that product a part at a time. A part
has several steps, as rows of a product share the loads of weights.

Applies to layers of one direction and a fixed number of steps that are not in a loop. Values are the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import relax

from kiln.callbacks import mutator
from kiln.frontend import added_operators, loops
from kiln.frontend.recurrent import NAME, attributes
from kiln.graph.bindings import const, shape_of, variables
from kiln.lower.step_products import step_products

op = relax.op
_MOST_STEPS = 4  # of a part
_LEAST = 8192  # bytes of the product of a sequence that is worth a loop


def in_steps(mod: tvm.IRModule) -> tvm.IRModule:
    """The pass: sequences a few steps at a time, with their products."""
    return step_products(_divided(mod))


def _divided(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` with its recurrent layers as loops."""
    begins, inside = 0, set[Any]()
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            name = added_operators.name_of(binding.value)
            if name == loops.BEGIN:
                begins = max(begins, int(added_operators.attributes_of(binding.value)["loop"]))
            if name == loops.BEGIN or inside.intersection(variables(binding.value)):
                inside.add(binding.var)
    rewriter = _Rewriter(mod, begins, inside)
    rewriter.builder_.update_func(mod.get_global_var("main"), rewriter.visit_expr(mod["main"]))
    return rewriter.builder_.get()


@mutator
class _Rewriter(relax.PyExprMutator):  # type: ignore[misc]  # tvm is untyped
    def __init__(self, mod: tvm.IRModule, loops_before: int, inside: set[Any]) -> None:
        super().__init__(mod)
        self._number, self._inside = loops_before, inside

    def visit_call_(self, call: Any) -> Any:
        inside = self._inside.intersection(variables(call))
        call = self.visit_expr_post_order(call)
        if added_operators.name_of(call) != NAME or inside:
            return call
        layer = attributes(call)
        operands = dict(zip(layer.operands, call.args[1].fields, strict=True))
        sizes = shape_of(operands["given"])
        if layer.directions > 1 or layer.batch_first or "lengths" in operands:
            return call
        if not all(isinstance(size, int) for size in sizes) or 4 * int(np.prod(sizes)) < _LEAST:
            return call
        steps = next(count for count in range(_MOST_STEPS, 0, -1) if sizes[0] % count == 0)
        if steps == sizes[0]:
            return call
        self._number += 1
        return self._loop(layer, operands, sizes, steps)

    def _loop(self, layer: Any, operands: dict[str, Any], sizes: list[int], steps: int) -> Any:
        """The tuple of results of a layer, whose sequence has `sizes`, by a loop over parts of `steps`."""
        emit, parts = self.builder_.emit, sizes[0] // steps
        names = ("h", "c") if layer.kind == "LSTM" else ("h",)
        zeros = const(np.zeros((1, sizes[1], layer.hidden)), "float32")
        first = [const(np.ones(1), "bool"), const(np.zeros(1), "int64")]
        begun = emit(loops.begin(self._number, [*first, *(operands.get(name, zeros) for name in names)], []))
        counter, *states = (emit(relax.TupleGetItem(begun, 1 + n)) for n in range(1 + len(names)))
        backwards = layer.direction == "reverse"
        index = emit(op.subtract(const(np.array([parts - 1]), "int64"), counter)) if backwards else counter
        divided = emit(op.reshape(operands["given"], [parts, steps, *sizes[1:]]))
        rows = emit(op.take(divided, index, 0, mode="clip"))
        given = {
            **operands,
            **dict(zip(names, states, strict=True)),
            "given": emit(op.reshape(rows, [steps, *sizes[1:]])),
        }
        names_given = [name for name in (*layer.operands, *names) if name in given]
        part = replace(layer, operands=list(dict.fromkeys(names_given)))
        result = emit(part.call(given))
        y, *following = (emit(relax.TupleGetItem(result, n)) for n in range(1 + len(names)))
        count = emit(op.add(counter, const(np.ones(1), "int64")))
        continues = emit(op.less(count, const(np.array([parts]), "int64")))
        row = emit(loops.row(y, counter, parts, 0, backwards))
        ended = emit(loops.end(self._number, [continues, count, *following], [row]))
        *last, all_parts = (emit(relax.TupleGetItem(ended, 2 + n)) for n in range(1 + len(names)))
        return relax.Tuple([emit(op.reshape(all_parts, [sizes[0], 1, sizes[1], layer.hidden])), *last])
