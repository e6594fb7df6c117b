"""fp16 and bf16: parameters and tensors between kernels are stored in 16 bits; arithmetic stays in float32.

`half_storage` returns a pass over fused PrimFuncs with op info. For each tensor of `main` it decides whether
the tensor may be stored in 16 bits, and rewrites the functions that read or write the tensor: values are
widened when they are loaded and rounded once when they are stored. So sums, softmax, norms and exponentials
are always computed in float32, as usual in mixed precision (Micikevicius et al., Mixed Precision Training,
2018), and the operands of matmuls and convolutions have 16 bits, as the tensor cores of a GPU need: they
multiply 16-bit numbers and accumulate in float32. float16 has 11 bits of mantissa and a maximum of 65504;
bfloat16 has 8 bits of mantissa and the range of float32.

Tensors stored in 16 bits:
- results of matmuls and convolutions, and results that other operators compute from such tensors,
- results that matmuls and convolutions read, and nothing else: they would round them where they read them,
- parameters with at least two axes of more than one element: weights and tables, not biases.
Tensors that stay float32:
- inputs and outputs of the model,
- results of operators that need more range or precision: sums, means, variances, powers, exponentials,
- parameters with an element that is too large, such as -1e9 in a mask for float16,
- tensors read or written by a function that is not made of plain loop nests, or that a library computes.
An operand of a matmul or convolution that is stored in float32 is rounded where it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, s_tir, tirx
from tvm.ir import TensorLoad
from tvm.tirx import PrimFunc

from kiln.callbacks import post_order_visit, structural_map
from kiln.config.precisions import holds
from kiln.graph.bindings import operator
from kiln.kernels.gpu.product_nests import WIDE, is_product, operands, rounds
from kiln.opinfo import attach
from kiln.opinfo.kinds import nests_of
from kiln.specialize.symbols import Renamer
from kiln.tir.builder import Array
from kiln.tir.fused import Nest
from kiln.tir.inline import loads
from kiln.tir.loop_nest import around, buffer_like, copy

HALF, BRAIN = "float16", "bfloat16"
# Operators whose results may exceed the range of float16, or are often subtracted from something else.
_SENSITIVE = {
    "abs_square", "cumprod", "cumsum", "exp", "log", "mean", "power", "prod", "rsqrt", "square", "std", "sum",
    "variance",
}  # fmt: skip


def half_storage(params: dict[str, Array], dtype: str = HALF) -> Callable[[tvm.IRModule], tvm.IRModule]:
    """The pass that stores tensors in `dtype`, a 16-bit type.

    `params`: values of the parameters of `main`, by name; the pass replaces values that it stores in 16 bits.
    """
    return lambda mod: _HalfRewriter(mod, params, dtype).run()


# ---- one function ----


def stored_as(func: PrimFunc, dtypes: Sequence[str], factors: str = HALF) -> PrimFunc:
    """`func`, made of plain nests, with its tensors stored as `dtypes`, ordered like opinfo.attach.tensors.

    `factors`: data type of the operands of matmuls and convolutions. A sum that is stored in 16 bits is
    accumulated in float32 and rounded when it is complete.
    """
    nests = nests_of(func)
    assert nests is not None
    tensors = attach.tensors(func)
    buffers = {
        tensor: buffer_like(tensor, dtype) for tensor, dtype in zip(tensors, dtypes, strict=True)
        if str(tensor.dtype) != dtype
    }  # fmt: skip
    read = {load.source for nest in nests for load in loads(nest.value)}
    inner = [nest.buffer for nest in nests if nest.buffer not in tensors]
    before: list[Any] = []
    after: list[Any] = []
    wide: dict[Any, Any] = {}  # 16-bit tensor → float32 buffer that the nests use in its place
    rounded: dict[Any, Any] = {}  # float32 tensor → 16-bit buffer that matmuls and convolutions read
    for nest in nests:
        target = nest.buffer
        if target in buffers and (nest.reduced or target in read):
            wide[target] = buffer_like(target, WIDE, f"{target.name}_wide")
            inner.append(wide[target])
            after.append(copy(wide[target], buffers[target]))
    written = {nest.buffer for nest in nests}
    for nest in nests:
        if not is_product(nest):
            continue
        for load in operands(nest) or ():
            source = load.source
            if source in rounded or str(buffers.get(source, source).dtype) == factors:
                continue
            rounded[source] = buffer_like(source, factors, f"{source.name}_half")
            inner.append(rounded[source])
            if source not in written:
                before.append(copy(source, rounded[source]))
    body = [*before]
    for nest in nests:
        body.append(nest_on(nest, buffers, wide, rounded))
        if nest.buffer in rounded:
            body.append(copy(nest.buffer, rounded[nest.buffer]))
    body += after
    root = s_tir.SBlock([], [], [], "root", tirx.SeqStmt(body) if len(body) > 1 else body[0], None,
                        inner)  # fmt: skip
    params = [buffers.get(param, param) for param in func.params]
    return PrimFunc(params, s_tir.SBlockRealize([], True, root), None, attrs=func.attrs)


def nest_on(
    nest: Nest, buffers: Mapping[Any, Any], wide: Mapping[Any, Any], rounded: Mapping[Any, Any]
) -> Any:
    """`nest` rewritten to new buffers (see `stored_as`); a product reads the rounded operands."""
    product = is_product(nest)

    def on_load(load: TensorLoad) -> Any:
        source = load.source
        if source in wide:
            return tirx.BufferLoad(wide[source], load.indices)
        if product and source in rounded:
            value = tirx.BufferLoad(rounded[source], load.indices)
            return value if str(rounded[source].dtype) == WIDE else tirx.Cast(WIDE, value)
        if source in buffers:
            return tirx.Cast(str(source.dtype), tirx.BufferLoad(buffers[source], load.indices))
        return load

    target = wide.get(nest.buffer, buffers.get(nest.buffer, nest.buffer))
    value = structural_map(nest.value, ((TensorLoad, on_load),))
    if str(target.dtype) != str(nest.buffer.dtype):
        value = tirx.Cast(str(target.dtype), value)
    init = None if nest.init is None else tirx.BufferStore(target, nest.init, nest.store)
    return around(nest.axes, nest.reduced, target, nest.store, value, init)


# ---- the module ----


def _is_call(expr: relax.Expr) -> bool:
    return operator(expr) == "relax.call_tir"


class _HalfRewriter:
    """Decides which tensors of `main` are stored in 16 bits, then rebuilds the module."""

    def __init__(self, mod: tvm.IRModule, params: dict[str, Array], dtype: str) -> None:
        self.mod, self.params, self.dtype = mod, params, dtype
        self.main = mod["main"]
        self.bindings = [binding for block in self.main.body.blocks for binding in block.bindings]
        self.halved: set[Any] = set()
        self._made: dict[Any, Any] = {}

    def run(self) -> tvm.IRModule:
        fixed = self._fixed()
        count = int(self.main.attrs["num_input"])
        for param in self.main.params[count:]:
            if param not in fixed and _fits(self.params[param.name], self.dtype):
                self.halved.add(param)
        rounded = self._only_rounded()
        for binding in self.bindings:
            variable, value = binding.var, binding.value
            if variable in fixed or not _is_wide(variable):
                continue
            if operator(value) == "relax.reshape":
                source = value.args[0]
                if source in self.halved:
                    self.halved.add(variable)
            elif isinstance(value, relax.Var):
                if value in self.halved:
                    self.halved.add(variable)
            elif _is_call(value) and (self._is_half_result(value) or variable in rounded):
                self.halved.add(variable)
        return self._rewritten()

    def _fixed(self) -> set[Any]:
        """Variables that stay float32: outputs, and tensors of a function that cannot be rewritten."""
        fixed: set[Any] = set()

        def note(expr: relax.Expr) -> None:
            if isinstance(expr, relax.Var):
                fixed.add(expr)

        def fix(expr: relax.Expr) -> None:
            post_order_visit(expr, note)

        fix(self.main.body.body)
        for binding in self.bindings:
            value = binding.value
            rewritable = operator(value) == "relax.reshape" or isinstance(value, relax.Var)
            if _is_call(value):
                func = self.mod[value.args[0]]
                arguments = [item for item in value.args[1].fields if isinstance(item.ty, relax.TensorType)]
                rewritable = isinstance(value.ty, relax.TensorType) and nests_of(func) is not None
                rewritable = rewritable and len(attach.tensors(func)) == len(arguments) + 1
            if not rewritable:
                fix(value)
                fixed.add(binding.var)
        # The source of an alias or a reshape is the same memory.
        for binding in reversed(self.bindings):
            value = binding.value
            source = value.args[0] if operator(value) == "relax.reshape" else value
            if isinstance(source, relax.Var) and binding.var in fixed:
                fixed.add(source)
        return fixed

    def _only_rounded(self) -> set[Any]:
        """Results of functions that others read only as operands of products, which are rounded there."""
        candidates = {binding.var for binding in self.bindings if _is_call(binding.value)}

        def note(expr: relax.Expr) -> None:
            candidates.discard(expr)

        for binding in self.bindings:
            value = binding.value
            if not _is_call(value):
                post_order_visit(value, note)
                continue
            func = self.mod[value.args[0]]
            for param, item in zip(func.params, value.args[1].fields, strict=False):
                if item in candidates and not rounds(func, param):
                    candidates.discard(item)
        post_order_visit(self.main.body.body, note)
        return candidates

    def _is_half_result(self, call: relax.Call) -> bool:
        """Whether the result of a call may be stored in 16 bits."""
        func = self.mod[call.args[0]]
        names = [op["name"].removeprefix("nn.") for op in attach.of(func)]
        if not names or names[-1] in _SENSITIVE:
            return False
        if any(is_product(nest) for nest in nests_of(func) or ()):
            return True
        read = any(item in self.halved and item not in self.main.params for item in call.args[1].fields)
        return read and not _SENSITIVE.intersection(names)

    def _rewritten(self) -> tvm.IRModule:
        """The module with all variables in `halved` stored in 16 bits; replaces parameters in `params`."""
        other_functions = {
            name: func for name, func in self.mod.functions_items() if not func.same_as(self.main)
        }
        builder = relax.BlockBuilder(tvm.IRModule(other_functions, attrs=self.mod.attrs))
        renamed: dict[Any, Any] = {}
        for param in self.main.params:
            if param in self.halved:
                renamed[param] = relax.Var(param.name, relax.TensorType(param.ty.shape, self.dtype))
                self.params[param.name] = self.params[param.name].astype(np.dtype(self.dtype))
        swap = Renamer(renamed)
        params = [renamed.get(param, param) for param in self.main.params]
        with builder.function("main", params, attrs=dict(self.main.attrs.items())):
            with builder.dataflow():
                for binding in self.bindings:
                    value = self._value(builder, binding, swap)
                    renamed[binding.var] = builder.emit(value, name_hint=binding.var.name)
                result = builder.emit_output(swap.visit_expr(self.main.body.body))
            builder.emit_func_output(result)
        mod = builder.finalize()
        return relax.transform.DeadCodeElimination(["main"])(relax.transform.CanonicalizeBindings()(mod))

    def _value(self, builder: Any, binding: Any, swap: Renamer) -> Any:
        """The new value of a binding, with renamed variables and, for a call, a rewritten function."""
        value = binding.value
        if not _is_call(value):
            return swap.visit_expr(value)
        arguments = [swap.visit_expr(item) for item in value.args[1].fields]
        if not isinstance(value.ty, relax.TensorType):
            return relax.call_tir(value.args[0], arguments, list(value.ty.fields))
        out = relax.TensorType(value.ty.shape, self.dtype) if binding.var in self.halved else value.ty
        dtypes = [str(item.ty.dtype) for item in arguments if isinstance(item.ty, relax.TensorType)]
        dtypes.append(str(out.dtype))
        variable = value.args[0]
        if self.dtype in dtypes or any(is_product(nest) for nest in nests_of(self.mod[variable]) or ()):
            variable = self._stored(builder, variable, dtypes)
        return relax.call_tir(variable, arguments, out)

    def _stored(self, builder: relax.BlockBuilder, variable: Any, dtypes: list[str]) -> Any:
        """The function `variable` with its tensors stored as `dtypes`, built once for all of its calls."""
        key = variable, tuple(dtypes)
        if key not in self._made:
            func = stored_as(self.mod[variable], dtypes, self.dtype)
            func = func.without_attr("global_symbol") if "global_symbol" in func.attrs else func
            self._made[key] = builder.add_func(func, f"{variable.name_hint}_half")
        return self._made[key]


def _is_wide(variable: Any) -> bool:
    return isinstance(variable.ty, relax.TensorType) and str(variable.ty.dtype) == WIDE


def _fits(value: Array, dtype: str) -> bool:
    """Whether a parameter is float32, has at least two axes longer than 1, and fits the range of `dtype`."""
    if str(value.dtype) != WIDE or sum(size > 1 for size in value.shape) < 2:
        return False
    return holds(dtype, value)
