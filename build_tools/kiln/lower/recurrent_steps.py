"""RecurrentSteps: recurrent layers of floats as loops over a few steps each, where RAM is scarce.

The operator `recurrent` reads the product of all steps of its sequence with the weights of the input. In a
loop of the plan over parts of the sequence, `step_products` computes that product a part at a time. A part
has several steps, as rows of a product share the loads of weights.

A layer of two directions becomes two layers, each with the columns of the product that it reads. Results of
all steps that nothing reads are not stored.

Applies to layers of a fixed number of steps that are not in a loop. Values are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import relax

from kiln.callbacks import mutator
from kiln.extents import shape_of
from kiln.frontend import added_operators, loops
from kiln.frontend.recurrent import NAME, attributes
from kiln.graph.bindings import const, constant, count_uses, operator, variables
from kiln.lower.step_products import step_products

op = relax.op
_MOST_STEPS = 4  # of a part
_LEAST = 1024  # bytes of the product of a sequence that is worth a loop


def in_steps(mod: tvm.IRModule) -> tvm.IRModule:
    """Make loops of recurrent layers: a few steps at a time, with the products of these steps."""
    return step_products(_divided(mod))


def _divided(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` with its recurrent layers as loops."""
    begins, inside = 0, set[Any]()
    for binding in _bindings(mod):
        name = added_operators.name_of(binding.value)
        if name == loops.BEGIN:
            begins = max(begins, int(added_operators.attributes_of(binding.value)["loop"]))
        if name == loops.BEGIN or inside.intersection(variables(binding.value)):
            inside.add(binding.var)
    rewriter = _Rewriter(mod, begins, inside)
    rewriter.builder_.update_func(mod.get_global_var("main"), rewriter.visit_expr(mod["main"]))
    return rewriter.builder_.get()


def _bindings(mod: tvm.IRModule) -> Iterator[Any]:
    return (binding for block in mod["main"].body.blocks for binding in block.bindings)


@mutator
class _Rewriter(relax.PyExprMutator):  # type: ignore[misc]  # tvm is untyped
    def __init__(self, mod: tvm.IRModule, loops_before: int, inside: set[Any]) -> None:
        super().__init__(mod)
        self._number, self._inside = loops_before, inside
        self._values = {binding.var: binding.value for binding in _bindings(mod)}
        self._uses = count_uses(mod)
        # The layers with a reader of their results of all steps.
        self._read = {
            value.tuple_value
            for value in self._values.values()
            if isinstance(value, relax.TupleGetItem) and int(value.index) == 0
        }

    def visit_call_(self, call: relax.Call) -> Any:
        inside, original = self._inside.intersection(variables(call)), call
        call = self.visit_expr_post_order(call)
        if added_operators.name_of(call) != NAME or inside:
            return call
        layer = attributes(call)
        operands = dict(zip(layer.operands, call.args[1].fields, strict=True))
        sizes = shape_of(operands["given"])
        if layer.batch_first or "lengths" in operands:
            return call
        if not all(isinstance(size, int) for size in sizes):
            return call
        if np.dtype(layer.dtype).itemsize * int(np.prod(sizes)) < _LEAST:
            return call
        steps = next(count for count in range(_MOST_STEPS, 0, -1) if sizes[0] % count == 0)
        if steps == sizes[0]:
            return call
        is_read = any(value.same_as(original) and var in self._read for var, value in self._values.items())
        if layer.directions == 1:
            return relax.Tuple(self._loop(layer, operands, sizes, steps, is_read))
        sizes[2] //= 2
        given = original.args[1].fields[layer.operands.index("given")]
        sides = []
        for side, direction in enumerate(("forward", "reverse")):
            own = {name: self._side(operands[name], side) for name in layer.operands if name != "given"} | {
                "given": self._columns(given, side * sizes[2], (side + 1) * sizes[2])
            }
            one = replace(layer, direction=direction)
            sides.append(self._loop(one, own, sizes, steps, is_read))
        emit = self.builder_.emit
        return relax.Tuple(
            [emit(op.concat(pair, int(n == 0))) for n, pair in enumerate(zip(*sides, strict=True))]
        )

    def _side(self, operand: Any, side: int) -> Any:
        """The part of an operand [directions, …] that belongs to a direction."""
        value = constant(operand)
        if value is not None:
            return const(value[side : side + 1], str(value.dtype))
        return self.builder_.emit(op.strided_slice(operand, [0], [side], [side + 1]))

    def _columns(self, tensor: Any, first: int, last: int) -> Any:
        """Columns along the last axis of a tensor of the module before: computed alone where they can be."""
        emit, shape = self.builder_.emit, shape_of(tensor)
        call: Any = self._values.get(tensor)
        value = constant(tensor)
        if value is not None:
            return const(value[..., first:last], str(value.dtype)) if shape and shape[-1] > 1 else tensor
        name = operator(call) if self._uses.get(tensor) == 1 else None
        if name == "relax.add" and all(shape_of(arg)[-1:] == shape[-1:] for arg in call.args):
            return emit(op.add(*(self._columns(arg, first, last) for arg in call.args)))
        if name == "relax.matmul" and (weights := constant(call.args[1])) is not None and weights.ndim == 2:
            columns = const(weights[:, first:last], str(weights.dtype))
            return emit(op.matmul(self.visit_expr(call.args[0]), columns))
        if name == "relax.reshape" and shape_of(call.args[0])[-1] == shape[-1]:
            part = self._columns(call.args[0], first, last)
            return emit(op.reshape(part, [*shape[:-1], last - first]))
        axis = len(shape) - 1
        return emit(op.strided_slice(self.visit_expr(tensor), [axis], [first], [last]))

    def _loop(
        self, layer: Any, operands: dict[str, Any], sizes: Sequence[int], steps: int, is_read: bool
    ) -> list[Any]:
        """The results of a layer, whose sequence has `sizes`, by a loop over parts of `steps`.

        is_read: whether something reads the results of all steps, else they are zeros.
        """
        emit, parts = self.builder_.emit, sizes[0] // steps
        self._number += 1
        names = ("h", "c") if layer.kind == "LSTM" else ("h",)
        zeros = const(np.zeros((1, sizes[1], layer.hidden)), layer.dtype)
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
        written = [emit(loops.row(y, counter, parts, 0, backwards))] if is_read else []
        ended = emit(loops.end(self._number, [continues, count, *following], written))
        last = [emit(relax.TupleGetItem(ended, 2 + n)) for n in range(len(names))]
        shape = [sizes[0], 1, sizes[1], layer.hidden]
        if not is_read:
            return [emit(op.zeros(shape, layer.dtype)), *last]
        return [emit(op.reshape(emit(relax.TupleGetItem(ended, 2 + len(names))), shape)), *last]
