"""A PrimFunc whose tensors lie in other ways: its op info decides which are possible, its code follows.

1. Operator by operator the rules of kernels/layout_rules.py say in which layouts operands are wanted and
   results come. Where two operators of one function disagree, or one has no rule, the answer is None.
2. Every tensor gets its new shape. Each load and store is at the new place of the same element, so the
   values are the same whatever the operator; loops run over the new axes of what they write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import s_tir, sym, tirx
from tvm.ir import Range, TensorLoad
from tvm.tirx import PrimFunc

from kiln.callbacks import structural_map
from kiln.kernels.axes import Layout
from kiln.kernels.fused import Nest
from kiln.kernels.layout_rules import RULES, Site
from kiln.kernels.opinfo import OpInfo, of, tensors, with_ops
from kiln.kernels.opkinds import nests_of

Choose = Callable[[OpInfo], Sequence[str] | None]


@dataclass(frozen=True)
class Relaid:
    """A function in other layouts; `layouts` has one for each of its tensors, inputs first."""

    func: PrimFunc
    layouts: list[Layout]


class _Refused(Exception):  # noqa: N818 - not an error: the function keeps its layouts
    pass


class _Plan:
    """The layouts of a function's tensors, decided operator by operator."""

    def __init__(self, func: PrimFunc, given: Sequence[Layout], choose: Choose) -> None:
        self.ops = of(func)
        self.places = tensors(func)
        self.nests = nests_of(func) or []
        counts = [op.get("nests", 0) for op in self.ops]
        if not counts or not all(counts) or sum(counts) != len(self.nests):
            raise _Refused
        inputs = self.places[: len(given)]
        self.layouts: dict[Any, Layout] = dict(zip(inputs, given, strict=True))
        free = set(inputs)  # whose layout no operator has relied on yet
        ends = [sum(counts[: index + 1]) for index in range(len(counts))]
        results = [self.nests[end - 1].buffer for end in ends]
        for index, op in enumerate(self.ops):
            sources = [self._source(arg, results[:index]) for arg in op["args"]]
            wanted = tuple(choose(op) or ())
            ruling = self._ruling(op, sources, results[index], wanted)
            for source, layout in zip(sources, ruling.layouts, strict=True):
                if source in free:
                    self.layouts[source] = layout
                    free.discard(source)
                elif source is not None and self.layouts[source] != layout:
                    raise _Refused
            self.layouts[results[index]] = ruling.out
            self.ops[index] = {**op, "attrs": ruling.attrs}
        if any(place not in self.layouts for place in self.places) or free:
            raise _Refused  # an operator with several results, or a tensor that nothing is known of

    def _source(self, arg: Mapping[str, Any], results: Sequence[Any]) -> Any:
        if "out" in arg or not arg:
            raise _Refused
        if "param" in arg:
            return self.places[arg["param"]]
        return results[arg["op"]] if "op" in arg else None

    def _ruling(self, op: OpInfo, sources: Sequence[Any], result: Any, wanted: Sequence[str]) -> Any:
        layouts = [Layout(()) if source is None else self.layouts[source] for source in sources]
        shapes = [[] if source is None else list(source.shape) for source in sources]
        rule = RULES.get(op["name"])
        ruling = rule and rule(Site(op, layouts, shapes, list(result.shape), wanted))
        if ruling is None:
            raise _Refused
        return ruling


def relaid(func: PrimFunc, given: Sequence[Layout], choose: Choose) -> Relaid | None:
    """`func` with its inputs in the layouts `given`, or in others where its operators ask for those.

    `choose` may name layouts by letters for an operator (layout_rules.Site.wanted). None where an operator
    has no rule for that: the function can only be used as it is.
    """
    try:
        plan = _Plan(func, given, choose)
    except _Refused:
        return None
    layouts = [plan.layouts[place] for place in plan.places]
    if all(layout.is_same for layout in layouts):
        return Relaid(func, layouts)
    return Relaid(with_ops(_rewritten(func, plan), plan.ops), layouts)


def _rewritten(func: PrimFunc, plan: _Plan) -> PrimFunc:
    buffers: dict[Any, Any] = {}
    for buffer in [*plan.places, *(nest.buffer for nest in plan.nests)]:
        layout = plan.layouts.get(buffer, Layout.same(len(buffer.shape)))
        if buffer not in buffers:
            shape = layout.shape(list(buffer.shape))
            buffers[buffer] = (
                buffer if layout.is_same else tirx.decl_buffer(shape, str(buffer.dtype), buffer.name)
            )
    nests = [_nest(nest, index, plan.layouts, buffers) for index, nest in enumerate(plan.nests)]
    inner = [buffers[nest.buffer] for nest in plan.nests if nest.buffer not in plan.places]
    root = s_tir.SBlock([], [], [], "root", tirx.SeqStmt(nests) if len(nests) > 1 else nests[0], None, inner)
    params = [buffers.get(param, param) for param in func.params]
    return PrimFunc(params, s_tir.SBlockRealize([], True, root), None, attrs=func.attrs)


def _nest(nest: Nest, index: int, layouts: Mapping[Any, Layout], buffers: Mapping[Any, Any]) -> Any:
    """The statement of a nest, over the new axes of what it writes where it writes each axis as it is."""
    layout = layouts.get(nest.buffer, Layout.same(len(nest.buffer.shape)))
    plain = len(nest.axes) == len(nest.store) and all(
        position.same_as(axis.var) for position, axis in zip(nest.store, nest.axes, strict=True)
    )
    own = layout if plain else Layout.same(len(nest.axes))
    extents = own.shape([axis.dom.extent for axis in nest.axes])
    analyzer = sym.Analyzer()
    axes = [_axis(f"v{at}", extent, tirx.IterVar.DataPar) for at, extent in enumerate(extents)]
    reduced = [_axis(a.var.name, a.dom.extent, tirx.IterVar.CommReduce) for a in nest.reduced]
    for axis in [*axes, *reduced]:
        analyzer.bind(axis.var, axis.dom)
    old = [axis.var for axis in (*nest.axes, *nest.reduced)]
    new = [*own.backward([axis.var for axis in axes]), *(axis.var for axis in reduced)]
    bound = dict(zip(old, new, strict=True))
    reads: list[Any] = []

    def on_variable(variable: Any) -> Any:
        return bound.get(variable, variable)

    def moved(buffer: Any, indices: Sequence[Any]) -> list[Any]:
        where = layouts.get(buffer, Layout.same(len(indices))).forward(list(indices))
        return [analyzer.simplify(index) for index in where]

    def on_load(load: Any) -> Any:
        if load.source not in buffers:
            return load
        made = tirx.BufferLoad(buffers[load.source], moved(load.source, load.indices))
        if not load.source.same_as(nest.buffer):
            reads.append(_element(made.source, made.indices))
        return made

    def mapped(expr: Any) -> Any:
        expr = structural_map(expr, ((tirx.Var, on_variable),))
        return structural_map(expr, ((TensorLoad, on_load),))

    target = buffers[nest.buffer]
    position = moved(nest.buffer, [mapped(index) for index in nest.store])
    value = mapped(nest.value)
    init = None if nest.init is None else tirx.BufferStore(target, mapped(nest.init), position)
    block = s_tir.SBlock(
        [*axes, *reduced], reads, [_element(target, position)], f"nest{index}",
        tirx.BufferStore(target, value, position), init,
    )  # fmt: skip
    loops = [tirx.Var(f"i{at}", "int64") for at in range(len(axes) + len(reduced))]
    body: Any = s_tir.SBlockRealize(loops, True, block)
    for variable, axis in reversed(list(zip(loops, [*axes, *reduced], strict=True))):
        body = tirx.For(variable, tirx.const(0, "int64"), axis.dom.extent, tirx.ForKind.SERIAL, body)
    return body


def _axis(name: str, extent: Any, kind: int) -> Any:
    extent = tirx.IntImm("int64", extent) if isinstance(extent, int) else extent
    return tirx.IterVar(Range(tirx.const(0, "int64"), extent), tirx.Var(name, "int64"), kind)


def _element(buffer: Any, indices: Sequence[Any]) -> Any:
    """One element as a region."""
    return tirx.BufferRegion(
        buffer, [Range.from_min_extent(index, tirx.const(1, "int64")) for index in indices]
    )
