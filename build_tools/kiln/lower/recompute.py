"""Large constants that a formula describes are computed where kernels read them, and not stored.

Results of operators that depend on no input, such as ConstantOfShape and Range, arrive here as constants:
importers and constant folding have computed them. A load of such a tensor becomes its formula
(kiln.params.formulas), so that the tensor is neither stored nor placed in the arena.

Applies where at least LEAST bytes are saved, all readers of the tensor load its elements, and none of them
is a matmul or convolution: weights are packed, and stay parameters. Tensors that libraries read stay
parameters too, and so do operands of concats of images, which may have no kernel
(lower/views/in_place_concat.py), and of recurrent layers and linear attention.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, s_tir, tirx
from tvm.ir import Range, TensorLoad

from kiln.arrays import Array
from kiln.callbacks import post_order_visit, structural_map, structural_walk
from kiln.frontend.linear_attention import NAME as LINEAR_ATTENTION
from kiln.frontend.recurrent import NAME as RECURRENT
from kiln.graph.bindings import operator, static_shape
from kiln.graph.pipeline import Pass
from kiln.kernels.operators.added import added_operator
from kiln.opinfo import attach
from kiln.opinfo.attach import OpInfo
from kiln.opinfo.kinds import nests_of
from kiln.params.formulas import ONCE, Affine, Formula, Repeated, formula
from kiln.params.store import Tensors

# About the code size of a kernel: kernels that differ only in formulas are no longer shared.
LEAST = 4096

Formulas = Mapping[int, Formula]  # by position among the tensors of a function


def recompute(params: Tensors) -> Pass:
    """Let kernels compute large constants by formulas. `params`: values of main's parameters by name.

    The pass adds to `params` the shorter tensors that replace repeated ones (`Repeated`).
    """

    def step(mod: tvm.IRModule) -> tvm.IRModule:
        return _Recompute(mod, params).module()

    return step


class _Recompute:
    """One run of the pass over a module."""

    def __init__(self, mod: tvm.IRModule, params: Tensors) -> None:
        self.mod, self.params = mod, params
        self.main = mod["main"]
        self.bindings = [binding for block in self.main.body.blocks for binding in block.bindings]
        stored = list(self.main.params)[int(self.main.attrs["num_input"]) :]
        # Variable → the parameter whose elements it has, perhaps in another shape.
        self.origin: dict[Any, str] = {variable: variable.name for variable in stored}
        self.shorter: dict[str, Any] = {}  # parameter → the variable that takes its place

    def module(self) -> tvm.IRModule:
        """The module, with functions that compute constants in place of loading them."""
        formulas = self._formulas()
        if not formulas:
            return self.mod
        other_functions = {
            name: func for name, func in self.mod.functions_items() if not func.same_as(self.main)
        }
        builder = relax.BlockBuilder(tvm.IRModule(other_functions, attrs=self.mod.attrs))
        for variable, form in formulas.items():
            name = self.origin[variable]
            if isinstance(form, Repeated) and name not in self.shorter:
                ty = relax.TensorType(form.value.shape, str(form.value.dtype))
                self.shorter[name] = relax.Var(f"{name}.{ONCE}", ty)
                self.params[f"{name}.{ONCE}"] = form.value
        make = functools.lru_cache(maxsize=None)(functools.partial(self._function, builder))
        blocks = []
        for block in self.main.body.blocks:
            bindings = []
            for binding in block.bindings:
                value = self._call(binding.value, formulas, make)
                unchanged = value.same_as(binding.value)
                bindings.append(binding if unchanged else relax.VarBinding(binding.var, value))
            blocks.append(type(block)(bindings))
        parameters = [*self.main.params, *self.shorter.values()]
        body = relax.SeqExpr(blocks, self.main.body.body)
        main = relax.Function(parameters, body, self.main.ret_ty, self.main.is_pure, self.main.attrs)
        mod = builder.get()
        mod[self.mod.get_global_var("main")] = main
        return relax.transform.DeadCodeElimination(["main"])(mod)

    def _formulas(self) -> dict[Any, Formula]:
        """The formulas of the parameters that all readers can compute, by variable."""
        readers: list[Any] = []
        refused: set[str] = set()
        for binding in self.bindings:
            value = binding.value
            if operator(value) == "relax.reshape" and value.args[0] in self.origin and _is_static(value):
                self.origin[binding.var] = self.origin[value.args[0]]
            elif operator(value) == "relax.call_tir":
                for position, item in enumerate(_tensors(value)):
                    if item in self.origin and self.params[self.origin[item]].nbytes >= LEAST:
                        readers.append(item)
                        if _refuses(self.mod[value.args[0]], position):
                            refused.add(self.origin[item])
            else:
                refused |= self._named(value)
        outputs = self._named(self.main.body.body)  # GroupLowering.copy computes them
        by_name: dict[str, dict[tuple[int, ...], Formula]] = {}
        for name in {self.origin[item] for item in readers} - refused:
            shapes = {tuple(static_shape(item)) for item in readers if self.origin[item] == name}
            by_shape = _all_formulas(self.params[name], shapes)
            if name not in outputs or all(isinstance(form, Affine) for form in by_shape.values()):
                by_name[name] = by_shape
        by_variable = {
            item: by_name.get(self.origin[item], {}).get(tuple(static_shape(item))) for item in readers
        }
        return {item: form for item, form in by_variable.items() if form is not None}

    def _named(self, expr: relax.Expr) -> set[str]:
        """The names of the parameters that an expression reads."""
        names: set[str] = set()

        def visit(item: Any) -> None:
            if isinstance(item, relax.Var) and item in self.origin:
                names.add(self.origin[item])

        post_order_visit(expr, visit)
        return names

    def _call(self, value: Any, found: Mapping[Any, Formula], make: Any) -> Any:
        """The call `value` of a function that computes the constants in `found`, or `value` itself."""
        if operator(value) != "relax.call_tir" or not any(item in found for item in _tensors(value)):
            return value
        position, arguments, formulas = 0, [], []
        for item in value.args[1].fields:
            formula = found.get(item)
            if formula is not None:
                formulas.append((position, item))
            if isinstance(formula, Repeated):
                arguments.append(self.shorter[self.origin[item]])
            elif formula is None:
                arguments.append(item)
            position += isinstance(item.ty, relax.TensorType)
        key = tuple((position, _Key(found[item])) for position, item in formulas)
        other_arguments = list(value.args)[2:]
        return relax.Call(
            value.op,
            [make(value.args[0], key), relax.Tuple(arguments), *other_arguments],
            value.attrs,
            value.ty_args,
        )

    def _function(
        self, builder: relax.BlockBuilder, variable: tvm.ir.GlobalVar, key: Sequence[tuple[int, _Key]]
    ) -> Any:
        func = computed(self.mod[variable], {position: key_part.formula for position, key_part in key})
        return builder.add_func(func, f"{variable.name_hint}_computed")


class _Key:
    """A formula as a dictionary key; of a repeated tensor only the shape counts, as its values are loaded."""

    def __init__(self, made: Formula) -> None:
        self.formula = made
        # As text: 0.0 and -0.0 are equal, and so are 1 and True.
        self._key = repr(made) if isinstance(made, Affine) else str(made.value.shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _is_static(expr: relax.Expr) -> bool:
    return all(isinstance(size, tirx.IntImm) for size in expr.ty.shape)


def _tensors(call: relax.Call) -> list[Any]:
    return [item for item in call.args[1].fields if isinstance(item.ty, relax.TensorType)]


def _all_formulas(value: Array, shapes: set[tuple[int, ...]]) -> dict[tuple[int, ...], Formula]:
    """A formula for each shape in which `value` is read; empty where one is missing or saves too little."""
    if value.nbytes < LEAST:
        return {}
    formulas: dict[tuple[int, ...], Formula] = {}
    for shape in shapes:
        form = formula(value.reshape(shape))
        if form is None or (isinstance(form, Repeated) and len(shapes) > 1):
            return {}
        if isinstance(form, Repeated) and value.nbytes - form.value.nbytes < LEAST:
            return {}
        formulas[shape] = form
    return formulas


def constant_formula(value: Array, shape: Sequence[Any]) -> Affine | None:
    """The affine formula of a constant that is copied to an output; None below LEAST bytes or without one."""
    form = formula(value.reshape([int(size) for size in shape])) if value.nbytes >= LEAST else None
    return form if isinstance(form, Affine) else None


def _refuses(func: tirx.PrimFunc, position: int) -> bool:
    """Whether `func` must load its tensor `position` from memory."""
    ops = attach.of(func)
    if len(ops) == 1 and ops[0]["name"] == "concat" and len(attach.tensors(func)[-1].shape) == 4:
        return True
    products = [op for op in ops if op["kind"] == "out_elementwise_fusable"]
    if any({"param": position} in op["args"] or not op["args"] for op in products):
        return True
    if added_operator(ops) in (LINEAR_ATTENTION, RECURRENT):  # their kernels are written for these operands
        return True
    if nests_of(func) is not None:
        return False
    dtype, rank = str((buffer := attach.tensors(func)[position]).dtype), len(buffer.shape)
    refused: list[bool] = []
    body = computed(func, {position: Affine(dtype, 0, (0,) * rank)}).body
    structural_walk(body, ((tirx.Var, lambda variable: refused.append(variable.same_as(buffer))),))
    return any(refused)


def computed(func: tirx.PrimFunc, formulas: Formulas) -> tirx.PrimFunc:
    """`func` with formulas in place of loads of some of its tensors.

    A tensor with an affine formula is no longer a parameter; a repeated one becomes a shorter parameter.
    """
    buffers = attach.tensors(func)
    by_buffer = {buffers[position]: formula for position, formula in formulas.items()}
    shorter = {
        buffer: tirx.decl_buffer(formula.value.shape, str(buffer.dtype), buffer.name)
        for buffer, formula in by_buffer.items()
        if isinstance(formula, Repeated)
    }

    def on_load(load: TensorLoad) -> Any:
        formula = by_buffer.get(load.source)
        if formula is None:
            return load
        if isinstance(formula, Affine):
            return element(formula, load.indices)
        zero = tirx.IntImm("int64", 0)
        return tirx.BufferLoad(
            shorter[load.source],
            [zero if axis in formula.axes else index for axis, index in enumerate(load.indices)],
        )

    def on_block(block: Any) -> Any:
        lost = [region.source for region in block.reads if region.source in by_buffer]
        if not lost:
            return block
        reads = [region for region in block.reads if region.source not in by_buffer]
        reads += [
            tirx.BufferRegion(short, _whole(short)) for b in lost if (short := shorter.get(b)) is not None
        ]
        return s_tir.SBlock(
            block.iter_vars, reads, block.writes, block.name_hint, block.body, block.init,
            block.alloc_buffers, block.match_buffers, block.annotations,
        )  # fmt: skip

    body = structural_map(func.body, ((TensorLoad, on_load), (s_tir.SBlock, on_block)))
    parameters = [shorter.get(p, p) for p in func.params if p not in by_buffer or p in shorter]
    gone = [position for position, formula in formulas.items() if isinstance(formula, Affine)]
    without_loads = tirx.PrimFunc(parameters, body, None, attrs=func.attrs)
    return attach.with_ops(without_loads, [_without(op, formulas, gone) for op in attach.of(func)])


def _whole(buffer: Any) -> list[Any]:
    return [Range.from_min_extent(tirx.IntImm("int64", 0), size) for size in buffer.shape]


def _without(op: OpInfo, formulas: Formulas, gone: Sequence[int]) -> OpInfo:
    """Op info `op` with arguments renumbered for a function without the tensors at the positions `gone`."""

    def moved(arg: Mapping[str, Any]) -> Mapping[str, Any]:
        position = arg.get("param")
        if position is None:
            return arg
        formula = formulas.get(position)
        if isinstance(formula, Affine):
            return {"value": formula.start} if formula.is_uniform and math.isfinite(formula.start) else {}
        return {**arg, "param": position - sum(before < position for before in gone)}

    return {**op, "args": [moved(arg) for arg in op.get("args", [])]}


def element(made: Affine, indices: Sequence[Any]) -> Any:
    """The element at `indices` by its formula: a constant, or arithmetic in int32, of fractions in float."""
    if made.is_uniform:
        return tirx.const(made.start, made.dtype)
    is_integer = all(isinstance(number, int) for number in (made.start, *made.steps))
    sum_of_terms: Any = None
    for index, step in zip(indices, made.steps, strict=True):
        if step:
            index_value = (
                tirx.Cast("int32", index) if is_integer else tirx.Cast(made.dtype, tirx.Cast("int32", index))
            )
            term = index_value * tirx.const(step, "int32" if is_integer else made.dtype)
            sum_of_terms = term if sum_of_terms is None else sum_of_terms + term
    if made.start:
        sum_of_terms = sum_of_terms + tirx.const(made.start, "int32" if is_integer else made.dtype)
    return tirx.Cast(made.dtype, sum_of_terms) if is_integer and made.dtype != "int32" else sum_of_terms
