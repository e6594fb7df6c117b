"""tf32: tensors stay float32, and products and convolutions round their operands to 10 bits of mantissa.

That is what the matrix units of a GPU from Ampere on take of a float32 number; they add in float32.
`products` is IRModule → IRModule, over fused PrimFuncs: in front of each product stand nests that round its
operands, so that the same functions give the same numbers wherever they run, but for the order of sums. A
product with few rows or columns, which has no use for matrix units, stays as it is.

The rounding, to nearest and ties away from zero, is PTX's cvt.rna.tf32.f32 (PTX ISA, "cvt"). It is an
operator of its own, for vectors too: that instruction on a GPU, arithmetic on integers on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.ir import Call, Op, register_op_attr
from tvm.ir import _ffi_api as registry
from tvm.tirx import PrimFunc

from kiln.kernels.gpu import half
from kiln.kernels.gpu.tensor_cores import LEAST, ROUNDED
from kiln.opinfo import attach
from kiln.opinfo.kinds import nests_of
from kiln.tir import loop_nest
from kiln.tir.fused import Nest
from kiln.tir.symbols import is_open

_PURE = 1  # CallEffectKind::kPure
_ON_GPU = "nvcuda::wmma::__float_to_tf32"  # of mma.h


def _register() -> None:
    registry.RegisterOp(ROUNDED, "float32 rounded to tf32")
    register_op_attr(ROUNDED, "TCallEffectKind", _PURE)
    register_op_attr(ROUNDED, "TVectorizable", True)
    register_op_attr(ROUNDED, "TScriptPrinterName", ROUNDED.removeprefix("tirx."))
    Op.get(ROUNDED).set_num_inputs(1)
    tirx.register_intrin_lowering(
        ROUNDED, "cuda", f=lambda call: tirx.call_pure_extern(str(call.ty.dtype), _ON_GPU, call.args[0])
    )
    tirx.register_intrin_lowering(ROUNDED, "llvm", f=_on_cpu)


def _on_cpu(call: Any) -> Any:
    """Half of the last place that stays is added to the magnitude, and the rest cut off; a NaN stays one."""
    (value,) = call.args
    dtype = tvm.DataType(str(value.ty.dtype))
    bits = str(dtype).replace("float", "uint")

    def number(constant: int) -> Any:
        one = tirx.const(constant, "uint32")
        return one if dtype.lanes == 1 else tirx.Broadcast(one, dtype.lanes)

    rounded = (tirx.reinterpret(bits, value) + number(0x1000)) & number(0xFFFFE000)
    return tirx.Select(value == value, tirx.reinterpret(str(dtype), rounded), value)


_register()


def products(mod: tvm.IRModule) -> tvm.IRModule:
    """The pass. Functions that are not made of plain loop nests, or that a library computes, stay."""
    mod = tvm.IRModule(dict(mod.functions), attrs=mod.attrs)
    for variable, func in list(mod.functions_items()):
        if isinstance(func, PrimFunc):
            mod.update_func(variable, rounded(func))
    return mod


def rounded(func: PrimFunc) -> PrimFunc:
    """`func` with rounded operands of its products; as it is where it has none that is large enough."""
    found = nests_of(func)
    if found is None or not any(_is_large_product(nest) for nest in found):
        return func
    forms: dict[Any, Any] = {}  # tensor → its rounded form
    body = []
    for nest in found:
        large = _is_large_product(nest)
        for load in (half.operands(nest) or ()) if large else ():
            source = load.source
            if source not in forms:
                forms[source] = loop_nest.buffer_like(source, half.WIDE, f"{source.name}_tf32")
                body.append(loop_nest.copy(source, forms[source], round_one))
        body.append(half.nest_on(nest, {}, {}, forms if large else {}))
    places = set(attach.tensors(func))
    inner = [nest.buffer for nest in found if nest.buffer not in places]
    root = s_tir.SBlock([], [], [], "root", tirx.SeqStmt(body), None, [*inner, *forms.values()])
    return PrimFunc(list(func.params), s_tir.SBlockRealize([], True, root), None, attrs=func.attrs)


def round_one(value: Any) -> Any:
    """A float32 expression rounded to tf32."""
    return Call(Op.get(ROUNDED), [value], ret_ty=value.ty)


def _is_large_product(nest: Nest) -> bool:
    return half.is_product(nest) and all(_extent(axes) >= LEAST for axes in half.own_axes(nest))


def _extent(axes: Sequence[Any]) -> int:
    """Elements along all of these axes; an open size counts as large."""
    count = 1
    for axis in axes:
        count *= LEAST if is_open(axis.dom.extent) else int(axis.dom.extent)
    return count
