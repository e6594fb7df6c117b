"""StepProducts: products of a sequence with weights, computed a step at a time by the loop that reads them.

The import of an LSTM multiplies all steps of a sequence at once, before the loop over the steps, which reads
a row of the result in each iteration. The result has gates * units numbers for each step, and is often most
of the arena. Here each iteration picks its step of the sequence and multiplies that.

Applies where the iterations of a loop read one row each, by the loop's counter, of a tensor that nothing else
reads, that is computed row by row, by at least one product, and that has more bytes than the tensors from
which it is computed. Values are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import tvm
from tvm import relax, te, tirx
from tvm.ir import TensorLoad

from kiln.callbacks import structural_walk
from kiln.extents import bytes_of, shape_of
from kiln.frontend import added_operators, loops
from kiln.graph.bindings import CallRewriter, constant, count_uses, integers, operator, variables
from kiln.tir.fused import Fused, Nest, NotSimple, replace

op = relax.op
_ELEMENTWISE = {
    f"relax.{name}"
    for name in (
        "add", "subtract", "multiply", "divide", "maximum", "minimum", "right_shift", "left_shift", "astype",
        "nn.relu", "sigmoid", "tanh", "negative", "clip",
    )
}  # fmt: skip
_LEAST = 1024  # bytes of a product that is worth the calls of its kernel in each iteration


@dataclass(frozen=True)
class _PartRule:
    """How a part of a call's result is computed: one of several equal parts along an axis.

    operands: for each tensor operand, the axis of which the same part is read; None: all of it is read.
    build: the call for the parts of the operands.
    """

    operands: list[tuple[Any, int | None]]
    build: Callable[[CallRewriter, list[Any]], Any]
    is_product: bool = False


@dataclass
class _LoopReads:
    """The bindings of `main`, the reads of each variable, and the loops whose iterations compute it anew."""

    mod: tvm.IRModule
    bindings: dict[Any, Any] = field(default_factory=dict)
    uses: dict[Any, int] = field(default_factory=dict)
    loops_of: dict[Any, frozenset[int]] = field(default_factory=dict)
    counters: dict[Any, Any] = field(default_factory=dict)  # variables that hold the counter of a loop

    def __post_init__(self) -> None:
        self.uses = count_uses(self.mod)
        begins: dict[Any, int] = {}
        for block in self.mod["main"].body.blocks:
            for binding in block.bindings:
                variable, value = binding.var, binding.value
                self.bindings[variable] = value
                around = frozenset[int]().union(
                    *(self.loops_of.get(item, frozenset()) for item in variables(value))
                )
                name = added_operators.name_of(value)
                if name in (loops.BEGIN, loops.END):
                    number = int(added_operators.attributes_of(value)["loop"])
                    around = around | {number} if name == loops.BEGIN else around - {number}
                    if name == loops.BEGIN:
                        begins[variable] = number
                is_counter = isinstance(value, relax.TupleGetItem) and int(value.index) == 1
                if is_counter and value.tuple_value in begins:
                    self.counters[variable] = begins[value.tuple_value]
                self.loops_of[variable] = around

    def is_row(self, take: Any) -> bool:
        """Whether `take` picks one row in each iteration of a loop, of a tensor from before the loop."""
        rows, index = take.args
        if not isinstance(rows, relax.Var) or not isinstance(index, relax.Var) or take.attrs.axis is None:
            return False
        number, around = self._counter_loop(index), self.loops_of.get(rows, frozenset())
        return number is not None and self.loops_of[index] - around == {number} and shape_of(index) == [1]

    def _counter_loop(self, index: Any) -> int | None:
        """The loop whose counter, or the distance of whose counter from a constant, `index` is."""
        value: Any = self.bindings.get(index)
        if operator(value) == "relax.subtract" and constant(value.args[0]) is not None:
            index = value.args[1]
        number: int | None = self.counters.get(index)
        return number


def step_products(mod: tvm.IRModule) -> tvm.IRModule:
    """Move products of sequences into the loops that read their rows, where that saves memory.

    Needs constant weights, so it runs before parameters are separated from the graph.
    """
    graph = _LoopReads(mod)

    def rule(rewriter: CallRewriter, _: Any) -> Any:
        take = rewriter.original
        if not graph.is_row(take):
            return None
        parts, axis = _Parts(graph, rewriter, take), int(take.attrs.axis)
        return parts.part(take.args[0], axis) if parts.is_larger(take.args[0], axis) else None

    rewriter = CallRewriter(mod, {"relax.take": rule})
    rewriter.builder_.update_func(mod.get_global_var("main"), rewriter.visit_expr(mod["main"]))
    canonical = relax.transform.CanonicalizeBindings()(rewriter.builder_.get())
    return relax.transform.DeadCodeElimination()(canonical)


class _Parts:
    """Emits the calls that compute one of `steps` equal parts of a tensor: the part that a loop reads."""

    def __init__(self, graph: _LoopReads, rewriter: CallRewriter, take: Any) -> None:
        self._graph, self._rewriter = graph, rewriter
        self._index, self._mode = take.args[1], str(take.attrs.mode)
        self._steps = shape_of(take.args[0])[int(take.attrs.axis)]

    def is_larger(self, tensor: Any, axis: int) -> bool:
        """Whether a product computes `tensor`, which has more bytes than the stored tensors it depends on."""
        sources: dict[Any, None] = {}
        if not self._has_product(tensor, axis, sources):
            return False
        params = set(self._graph.mod["main"].params)  # inputs of the model take no memory of the arena
        held = [bytes_of(item) for item in sources if item not in params and constant(item) is None]
        size = bytes_of(tensor)
        return size is not None and size >= _LEAST and all(held) and size > sum(filter(None, held))

    def _has_product(self, tensor: Any, axis: int, sources: dict[Any, None]) -> bool:
        """Whether a product computes `tensor`; adds the tensors whose parts are picked to `sources`."""
        rule = self._rule(tensor, axis)
        if rule is None:
            sources[tensor] = None
            return False
        parts = [
            self._has_product(operand, place, sources)
            for operand, place in rule.operands
            if place is not None
        ]
        return rule.is_product or any(parts)

    def part(self, tensor: Any, axis: int) -> Any:
        """The variable of the part of `tensor` along `axis`."""
        rule = self._rule(tensor, axis)
        if rule is None:
            return self._picked(tensor, axis)
        operands = [
            self._rewriter.visit_expr(operand) if place is None else self.part(operand, place)
            for operand, place in rule.operands
        ]
        return self._rewriter.emit(rule.build(self._rewriter, operands))

    def _picked(self, tensor: Any, axis: int) -> Any:
        """A part of a tensor that is stored whole."""
        emit, shape = self._rewriter.emit, shape_of(tensor)
        tensor, index = (self._rewriter.visit_expr(item) for item in (tensor, self._index))
        size = shape[axis] // self._steps
        if size == 1:
            return emit(op.take(tensor, index, axis, mode=self._mode))
        divided = [*shape[:axis], self._steps, size, *shape[axis + 1 :]]
        picked = emit(op.take(emit(op.reshape(tensor, divided)), index, axis, mode=self._mode))
        return emit(op.reshape(picked, [*shape[:axis], size, *shape[axis + 1 :]]))

    def _rule(self, tensor: Any, axis: int) -> _PartRule | None:
        """The rule of the call that computes `tensor`; None: it is stored whole."""
        call = self._graph.bindings.get(tensor)
        if self._graph.uses.get(tensor) != 1 or not isinstance(call, relax.Call):
            return None
        if not all(isinstance(size, int) for size in shape_of(tensor)):
            return None
        name = operator(call)
        if name in _ELEMENTWISE:
            return _elementwise(call, axis)
        rule = _RULES.get(name or "")
        return rule(self._graph.mod, call, axis, self._steps) if rule else None


def _elementwise(call: relax.Call, axis: int) -> _PartRule:
    """The rule of an operator whose operands are broadcast against each other."""
    shape = shape_of(call)
    operands: list[tuple[Any, int | None]] = []
    for arg in call.args:
        sizes = shape_of(arg) if isinstance(arg.ty, relax.TensorType) else []
        place = axis - (len(shape) - len(sizes))
        operands.append((arg, place if place >= 0 and sizes[place] > 1 else None))
    return _PartRule(operands, lambda _, args: relax.Call(call.op, args, call.attrs, call.ty_args))


def _matmul(_mod: tvm.IRModule, call: relax.Call, axis: int, _steps: int) -> _PartRule | None:
    x, weights = call.args
    rank = len(shape_of(call))
    if axis == rank - 1 or len(shape_of(x)) != rank or len(shape_of(weights)) != 2:
        return None
    dtype = call.attrs.out_dtype
    return _PartRule(
        [(x, axis), (weights, None)],
        lambda _, args: op.matmul(*args, out_dtype=None if dtype is None else str(dtype)),
        is_product=True,
    )


def _permute(_mod: tvm.IRModule, call: relax.Call, axis: int, _steps: int) -> _PartRule | None:
    if call.attrs.axes is None:
        return None
    axes = integers(call.attrs.axes)
    return _PartRule([(call.args[0], axes[axis])], lambda _, args: op.permute_dims(args[0], axes))


def _reshape(_mod: tvm.IRModule, call: relax.Call, axis: int, steps: int) -> _PartRule | None:
    shape, sizes = shape_of(call), shape_of(call.args[0])
    outer = math.prod(shape[:axis])
    places = (
        n for n, size in enumerate(sizes) if size % steps == 0 and math.prod(sizes[:n]) == outer and size
    )
    place = next(places, None)
    if place is None:
        return None
    part = _part_of(shape, axis, steps)
    return _PartRule([(call.args[0], place)], lambda _, args: op.reshape(args[0], part))


def _part_of(shape: list[int], axis: int, steps: int) -> list[int]:
    """The shape of a part."""
    return [*shape[:axis], shape[axis] // steps, *shape[axis + 1 :]]


def _function(mod: tvm.IRModule, call: relax.Call, axis: int, steps: int) -> _PartRule | None:
    """The rule of a function in TIR of one loop nest, without a reduction."""
    func = mod[call.args[0]]
    tensors = [param for param in func.params if tirx.is_buffer_var(param)]
    try:
        nests = Fused(func).nests
    except NotSimple:
        return None
    if len(nests) != 1 or len(tensors) != len(func.params) or not nests[0].buffer.same_as(tensors[-1]):
        return None
    nest, shape = nests[0], shape_of(call)
    variables_of_axes = [item.var for item in nest.axes]
    if nest.reduced or not all(map(tirx.Var.same_as, nest.store, variables_of_axes)):
        return None
    places = _places(nest, variables_of_axes[axis], tensors[:-1])
    if places is None:
        return None

    def build(rewriter: CallRewriter, args: list[Any]) -> Any:
        def compute(*given: Any) -> Any:
            loads = {tensor: partial(_load, item) for tensor, item in zip(tensors, given, strict=False)}

            def element(*at: Any) -> Any:
                return replace(nest.value, dict(zip(variables_of_axes, at, strict=True)), loads)

            return te.compute(_part_of(shape, axis, steps), element, name=str(nest.buffer.name))

        return rewriter.builder_.call_te(compute, *args, primfunc_name_hint=str(nest.buffer.name))

    return _PartRule(list(zip(call.args[1].fields, places, strict=True)), build)


def _load(tensor: Any, indices: list[Any]) -> Any:
    return tensor(*indices)


def _places(nest: Nest, variable: relax.Var, tensors: list[Any]) -> list[int | None] | None:
    """For each of `tensors` the axis that `variable` indexes, or None if it indexes none.

    None in place of the list if an element depends on the variable in another way.
    """
    places = dict.fromkeys(tensors, None) | dict[Any, int | None]()
    uses, indices = 0, 0

    def note(load: TensorLoad) -> None:
        nonlocal indices
        for position, index in enumerate(load.indices):
            if index.same_as(variable) and places.get(load.source, -1) in (None, position):
                places[load.source] = position
                indices += 1

    def count(item: Any) -> None:
        nonlocal uses
        uses += item.same_as(variable)

    structural_walk(nest.value, ((TensorLoad, note),))
    structural_walk(nest.value, ((tirx.Var, count),))
    return [places[item] for item in tensors] if uses == indices else None


_RULES: dict[str, Callable[[tvm.IRModule, Any, int, int], _PartRule | None]] = {
    "relax.matmul": _matmul,
    "relax.permute_dims": _permute,
    "relax.reshape": _reshape,
    "relax.call_tir": _function,
}
