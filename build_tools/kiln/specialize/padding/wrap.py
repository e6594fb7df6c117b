"""Wraps a graph of fixed sizes with padding and cutting, so that it accepts all smaller sizes of its bucket.

main(x: [seq, …]) pads x up to the bucket's size, runs the imported graph, and cuts each output to the shape
that interface.json of the model gives for the actual sizes. kiln.specialize.padding.analysis proves that the
padding does not change the remaining elements, and kiln.golden.padding measures it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import tvm
from tvm import relax, tirx

from kiln.config import sizes
from kiln.config.boxes import Box
from kiln.config.interface import Interface, PortRecord
from kiln.errors import KilnError
from kiln.frontend.symbols import int64
from kiln.params.states import with_states
from kiln.specialize.padding.fill_values import typed_fill
from kiln.specialize.symbols import (
    Renamer,
    Symbol,
    describe,
    finished,
    is_sizes,
    prim,
    sizes_parameter,
    symbols_of,
)

# By input, the value of its padded elements.
Fill = Mapping[str, float | str]
# By dimension, its size as a TIR expression.
Extents = Mapping[str, Any]


def pad_wrapped(
    module: tvm.IRModule, interface: Interface, bucket: Box, fill: Fill | None = None
) -> tvm.IRModule:
    """Wrap `module`, imported with the padded dimensions at the bucket's size, to accept the whole bucket.

    `interface`: that of the model, with shapes as size expressions of the dimensions. `fill`: by input, the
    value of padded elements from padding.json; 0 by default. Returns `module` itself if `bucket` pads no
    dimension. Raises KilnError, naming the output, if an output's size in the graph differs from the size
    that the interface gives for the bucket's size.
    """
    padded = bucket.padded
    if not padded:
        return module
    main, interface = module["main"], with_states(interface)
    symbols = list(symbols_of(main).values())
    for name, segment in padded.items():
        step = segment.multiple
        label = name if step == 1 else f"{name}_div{step}"
        variable = tirx.Var(label, "int64")
        symbols.append(Symbol(variable, name, step, segment.min // step, segment.max // step))
    fixed = bucket.fixed
    extents = {name: int64(size) for name, size in fixed.items()}
    extents |= {symbol.dim: symbol.extent for symbol in symbols}

    tensors = [parameter for parameter in main.params if not is_sizes(parameter)]
    parameters = [
        relax.Var(p.name, relax.TensorType(_shape(p, port, padded, extents), str(p.ty.dtype)))
        for p, port in zip(tensors, interface.inputs, strict=True)
    ]
    # The parameter that defines divided variables comes last; variables of the graph come first in it.
    last = sizes_parameter(symbols)
    builder = relax.BlockBuilder()
    with builder.function("main", [*parameters, *last], attrs=dict(main.attrs or {})):
        ready = {
            inner: _padded(builder, outer, inner, port, padded, (fill or {}).get(port.name, 0))
            for outer, inner, port in zip(parameters, tensors, interface.inputs, strict=True)
        }
        ready |= {p: last[0] for p in main.params if is_sizes(p)}
        body = _inlined(builder, main.body, ready)
        many = isinstance(main.ret_ty, relax.TupleType)
        count = len(main.ret_ty.fields) if many else 0
        results = [builder.emit(relax.TupleGetItem(body, i)) for i in range(count)] if many else [body]
        cut = [
            _cut(builder, result, port, padded, extents, fixed)
            for result, port in zip(results, interface.outputs, strict=True)
        ]
        builder.emit_func_output(relax.Tuple(cut) if many else cut[0])
    wrapped = tvm.IRModule({**dict(module.functions), module.get_global_var("main"): builder.get()["main"]})
    attributes = {"kiln.dims": describe(symbols), "num_input": len(parameters) + len(last)}
    wrapped["main"] = wrapped["main"].with_attrs(attributes)
    return finished(wrapped)


def _shape(parameter: Any, port: PortRecord, padded: Collection[str], extents: Extents) -> list[Any]:
    """The shape of an input before padding: dynamic along axes that `port` names as padded dimensions."""
    return [
        extents[entry] if isinstance(entry, str) and entry in padded else size
        for size, entry in zip(parameter.ty.shape, port.shape, strict=True)
    ]


def _padded(
    builder: relax.BlockBuilder,
    outer: Any,
    inner: Any,
    port: PortRecord,
    padded: Collection[str],
    fill: float | str,
) -> Any:
    """Pad `outer` at the end of its axes to the shape of `inner`.

    Each axis is concatenated with a full-size tensor of the fill value and then cut. Every shape is thus one
    that TVM simplifies to a constant, unlike n + (64 - n). Fusion turns concat and slice into one loop.
    """
    dtype = str(inner.ty.dtype)
    value = relax.const(typed_fill(port.name, fill, dtype), dtype)
    result = outer
    for axis, entry in enumerate(port.shape):
        if not isinstance(entry, str) or entry not in padded:
            continue
        size = inner.ty.shape[axis]
        shape = list(result.ty.shape)
        shape[axis] = size
        filling = builder.emit(relax.op.full(relax.ShapeExpr(shape), value, dtype))
        longer = builder.emit(relax.op.concat([result, filling], axis))
        result = builder.emit(_leading(longer, axis, size))
    return result


def _cut(
    builder: relax.BlockBuilder,
    result: Any,
    port: PortRecord,
    padded: Collection[str],
    extents: Extents,
    fixed: Mapping[str, int],
) -> Any:
    """An output cut to the shape that the interface gives for the actual sizes of the inputs."""
    for axis, expr in enumerate(port.shape):
        if not sizes.names(expr) & set(padded):
            continue
        size = result.ty.shape[axis]
        if sizes.names(expr) <= set(fixed):
            expected = sizes.evaluate(expr, fixed)
            if not isinstance(size, tirx.IntImm) or int(size) != expected:
                raise KilnError(
                    f"output '{port.name}' axis {axis} is {_size_text(size)} for the padded size, "
                    f"but {sizes.show(expr)} gives {expected}: the padding cannot be cut off"
                )
        result = builder.emit(_leading(result, axis, prim(expr, extents)))
    return result


def _size_text(size: Any) -> str:
    return str(int(size)) if isinstance(size, tirx.IntImm) else str(size)


def _leading(tensor: Any, axis: int, size: Any) -> Any:
    """The first `size` elements of `axis`."""
    begin, end = relax.Tuple([int64(0)]), relax.Tuple([size])
    return relax.op.strided_slice(tensor, [axis], begin, end, assume_inbound=True)


def _inlined(builder: relax.BlockBuilder, body: Any, ready: Mapping[Any, Any]) -> Any:
    """Emit the bindings of `body` with its variables replaced as `ready` maps them; returns the result."""
    replacements = dict(ready)

    def replaced(expr: relax.Expr) -> Any:
        return Renamer(replacements).visit_expr(expr)

    for block in body.blocks:
        for binding in block.bindings:
            if isinstance(binding, relax.MatchCast):
                replacements[binding.var] = builder.match_cast(replaced(binding.value), binding.ty)
            else:
                replacements[binding.var] = builder.emit(replaced(binding.value), binding.var.name)
    return replaced(body.body)
