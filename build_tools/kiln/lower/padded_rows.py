"""Rows of tensors between kernels of a GPU end in zeros, so that they can be copied 16 bytes at a time.

A thread copies 16 bytes of an operand to shared memory at once where every row begins at a multiple of 16
bytes. The scores of attention over 197 patches have rows of 197 numbers, which would be copied one by one.
This pass stores such a tensor in rows of 200: the function that computes it writes zeros after each row, and
the products that read it multiply them by zeros.

    sum over 197 of a b   =   sum over 200 of a b, where a and b are 0 from 197 on

Applies to a tensor that one function stores element by element, and that products of at least LEAST rows and
columns read, and nothing else, as the operand that is contiguous along the summed axis. Sizes are known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import Range, TensorLoad

from kiln.callbacks import mutator, structural_map, structural_walk
from kiln.config.sizes import ceil_div
from kiln.graph.bindings import count_uses, operator
from kiln.kernels.gpu import product_nests
from kiln.opinfo import attach
from kiln.opinfo.kinds import nests_of
from kiln.tir import loop_nest
from kiln.tir.fused import Nest
from kiln.tir.inline import loads
from kiln.tir.symbols import is_dynamic

ROW = 8  # elements of 16 bits in 16 bytes; a row becomes a multiple of it


@dataclass(frozen=True)
class _RowTensor:
    """A tensor to store in longer rows: its variable, the call that computes it, and the calls that read it.

    `readers`: with each call the position of the tensor among its operands.
    """

    variable: Any
    call: Any
    readers: list[tuple[Any, int]]


def padded_rows(mod: tvm.IRModule) -> tvm.IRModule:
    """Lengthen rows that tensor cores read; runs after fusion, before operands get the precision's type."""
    tensors = _tensors(mod)
    if not tensors:
        return mod
    writer = _Padder(mod, tensors)
    main = mod.get_global_var("main")
    writer.builder_.update_func(main, writer.visit_expr(mod["main"]))
    return relax.transform.DeadCodeElimination()(writer.builder_.get())


def _tensors(mod: tvm.IRModule) -> list[_RowTensor]:
    uses = count_uses(mod)
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    readers: dict[Any, list[tuple[Any, int]]] = {}
    for binding in bindings:
        if _is_call(binding.value):
            for at, item in enumerate(binding.value.args[1].fields):
                readers.setdefault(item, []).append((binding.value, at))
    row_tensors = []
    for binding in bindings:
        variable, call = binding.var, binding.value
        read = readers.get(variable, [])
        if not _is_call(call) or not read or uses.get(variable) != len(read) or not _is_odd(variable):
            continue
        functions = [(mod[reader.args[0]], at) for reader, at in read]
        if _stored(mod[call.args[0]]) is not None and all(_product(f, at) is not None for f, at in functions):
            row_tensors.append(_RowTensor(variable, call, read))
    return row_tensors


def _is_call(expr: relax.Expr) -> bool:
    return operator(expr) == "relax.call_tir" and isinstance(expr.ty, relax.TensorType)


def _is_odd(variable: relax.Var) -> bool:
    """Whether a tensor has float32 rows, each longer than ROW, of a known length that ROW does not divide."""
    shape, dtype = variable.ty.shape, str(variable.ty.dtype)
    if dtype != product_nests.WIDE or len(shape) < 2 or is_dynamic(shape[-1]):
        return False
    return int(shape[-1]) > ROW and int(shape[-1]) % ROW != 0


def _stored(func: tirx.PrimFunc) -> Nest | None:
    """The nest that stores the result of `func` element by element, if no nest of `func` reads the result."""
    nests = nests_of(func)
    if nests is None or nests[-1].reduced:
        return None
    nest, last = nests[-1], nests[-1].store[-1]
    read = any(load.source.same_as(nest.buffer) for each in nests for load in loads(each.value))
    is_result = attach.tensors(func)[-1].same_as(nest.buffer)
    is_axis = any(last.same_as(axis.var) for axis in nest.axes)
    return nest if is_result and is_axis and not read else None


def _product(func: tirx.PrimFunc, at: int) -> tuple[Nest, Any, int] | None:
    """The product in `func` that reads parameter number `at`, its other operand's load, and that one's axis.

    None if the parameter is read elsewhere, or is not contiguous along the only summed axis.
    """
    nests = nests_of(func)
    if nests is None:
        return None
    param = func.params[at]
    reading = [(nest, load) for nest in nests for load in loads(nest.value) if load.source.same_as(param)]
    if len(reading) != 1:
        return None
    (nest, load) = reading[0]
    pair = product_nests.operands(nest)
    if pair is None or len(nest.reduced) != 1 or not product_nests.is_large(nest):
        return None
    summed = nest.reduced[0].var
    operand = pair[1] if load.same_as(pair[0]) or pair[0].source.same_as(param) else pair[0]
    if _uses(load, summed) != [len(load.indices) - 1]:
        return None
    axes = _uses(operand, summed)
    return (nest, operand, axes[0]) if len(axes) == 1 and operand.indices[axes[0]].same_as(summed) else None


def _uses(load: TensorLoad, variable: relax.Var) -> list[int]:
    """The positions of the indices of `load` that depend on `variable`."""
    positions = []
    for at, index in enumerate(load.indices):
        used: list[Any] = []
        structural_walk(index, ((tirx.Var, used.append),))
        if any(one.same_as(variable) for one in used):
            positions.append(at)
    return positions


def _longer(size: Any) -> int:
    return ceil_div(int(size), ROW) * ROW


def _lengthened(axis: Any) -> Any:
    """The axis with as many elements as a row that is stored."""
    count = tirx.const(_longer(axis.dom.extent), str(axis.dom.extent.ty.dtype))
    return tirx.IterVar(Range(axis.dom.min, count), axis.var, axis.iter_type)


def _long(buffer: Any, axis: int, name: str) -> Any:
    shape = list(buffer.shape)
    shape[axis] = tirx.const(_longer(shape[axis]), str(shape[axis].ty.dtype))
    return tirx.decl_buffer(shape, str(buffer.dtype), name)


def _inside(variable: relax.Var, size: Any, value: Any, dtype: str) -> Any:
    return tirx.if_then_else(variable < size, value, tirx.const(0, dtype))


def with_zeros(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with rows of its result that end in zeros."""
    nest, nests = _stored(func), nests_of(func)
    assert nest is not None and nests is not None
    old = nest.buffer
    new, last = _long(old, -1, old.name), nest.store[-1]
    axes = [_lengthened(axis) if axis.var.same_as(last) else axis for axis in nest.axes]
    value = _inside(last, old.shape[-1], nest.value, str(old.dtype))
    changed = replace(nests[-1], buffer=new, axes=axes, value=value)
    return loop_nest.function(func, [*nests[:-1], changed], {old: new})


def reading(func: tirx.PrimFunc, at: int) -> tirx.PrimFunc:
    """`func` with longer rows of parameter number `at`, which its product reads."""
    factors, nests = _product(func, at), nests_of(func)
    assert factors is not None and nests is not None
    product, operand, axis = factors
    param = func.params[at]
    new = _long(param, -1, param.name)
    zeros = _long(operand.source, axis, f"{operand.source.name}_zeros")

    def padded(variables: list[Any]) -> Any:
        value = tirx.BufferLoad(operand.source, variables)
        return _inside(variables[axis], operand.source.shape[axis], value, str(zeros.dtype))

    def on_load(load: TensorLoad) -> Any:
        for old, buffer in ((param, new), (operand.source, zeros)):
            if load.source.same_as(old):
                return tirx.BufferLoad(buffer, load.indices)
        return load

    rewritten = []
    for nest in nests:
        if not nest.buffer.same_as(product.buffer):
            rewritten.append(nest)
            continue
        rewritten.append(loop_nest.computed(zeros, padded))
        value = structural_map(nest.value, ((TensorLoad, on_load),))
        rewritten.append(replace(nest, reduced=[_lengthened(nest.reduced[0])], value=value))
    return loop_nest.function(func, rewritten, {param: new})


@mutator
class _Padder(relax.PyExprMutator):  # type: ignore[misc]  # tvm is untyped
    """Rewrites the calls that compute and read `tensors`."""

    def __init__(self, mod: tvm.IRModule, tensors: list[_RowTensor]) -> None:
        super().__init__(mod)
        self.mod = mod
        self.computed = {tensor.call for tensor in tensors}
        self.read: dict[Any, list[int]] = {}
        for tensor in tensors:
            for call, at in tensor.readers:
                self.read.setdefault(call, []).append(at)
        self.made: dict[Any, Any] = {}

    def visit_call_(self, call: relax.Call) -> Any:
        stores, reads = call in self.computed, tuple(self.read.get(call, ()))
        if not stores and not reads:
            return self.visit_expr_post_order(call)
        key = call.args[0], stores, reads
        if key not in self.made:
            func = self.mod[call.args[0]]
            for at in reads:
                func = reading(func, at)
            func = with_zeros(func) if stores else func
            self.made[key] = self.builder_.add_func(func, call.args[0].name_hint)
        shape = list(call.ty.shape)
        if stores:
            shape[-1] = _longer(shape[-1])
        result = relax.TensorType(shape, call.ty.dtype)
        items = [self.visit_expr(item) for item in call.args[1].fields]
        return relax.call_tir(self.made[key], items, result, *call.args[2:])
