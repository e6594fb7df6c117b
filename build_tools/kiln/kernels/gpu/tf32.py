"""tf32: tensors stay float32; matmuls and convolutions round their operands to 10 bits of mantissa.

The tensor cores of GPUs from Ampere on use that many bits of a float32 operand and accumulate in float32.
`products` is a pass over fused PrimFuncs: it inserts nests that round the operands before each matmul and
convolution, so that the same functions give the same numbers on every device, except for the order of sums. A
matmul with few rows or columns, which cannot use tensor cores well, is not changed.

The rounding, to nearest and ties away from zero, is PTX's cvt.rna.tf32.f32 (PTX ISA, "cvt"). It is a TIR
operator of its own, which also works on vectors: lowered to that instruction on a GPU, to integer arithmetic
on a CPU.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.ir import Call, Op, register_op_attr
from tvm.ir import _ffi_api as registry
from tvm.tirx import PrimFunc

from kiln.kernels.gpu import half, product_nests
from kiln.kernels.gpu.tensor_cores import ROUNDED
from kiln.opinfo import attach
from kiln.opinfo.kinds import nests_of
from kiln.tir import loop_nest
from kiln.tir.fused import Nest

_PURE = 1  # CallEffectKind::kPure
_ON_GPU = "nvcuda::wmma::__float_to_tf32"  # of mma.h


def _register() -> None:
    """Register the rounding operator, and how it is lowered for CUDA and LLVM."""
    registry.RegisterOp(ROUNDED, "float32 rounded to tf32")
    register_op_attr(ROUNDED, "TCallEffectKind", _PURE)
    register_op_attr(ROUNDED, "TVectorizable", True)
    register_op_attr(ROUNDED, "TScriptPrinterName", ROUNDED.removeprefix("tirx."))
    Op.get(ROUNDED).set_num_inputs(1)
    tirx.register_intrin_lowering(
        ROUNDED, "cuda", f=lambda call: tirx.call_pure_extern(str(call.ty.dtype), _ON_GPU, call.args[0])
    )
    tirx.register_intrin_lowering(ROUNDED, "llvm", f=_on_cpu)


def _on_cpu(call: Call) -> Any:
    """Round a magnitude to 10 bits: add half of the last bit kept, drop the lower bits; NaN stays NaN."""
    (value,) = call.args
    dtype = tvm.DataType(str(value.ty.dtype))
    bits = str(dtype).replace("float", "uint")

    def number(constant: int) -> Any:
        scalar = tirx.const(constant, "uint32")
        return scalar if dtype.lanes == 1 else tirx.Broadcast(scalar, dtype.lanes)

    rounded = (tirx.reinterpret(bits, value) + number(0x1000)) & number(0xFFFFE000)
    return tirx.Select(value == value, tirx.reinterpret(str(dtype), rounded), value)


_register()


def products(mod: tvm.IRModule) -> tvm.IRModule:
    """Round the operands in all functions of plain loop nests; functions of libraries are unchanged."""
    mod = tvm.IRModule(dict(mod.functions), attrs=mod.attrs)
    for variable, func in list(mod.functions_items()):
        if isinstance(func, PrimFunc):
            mod.update_func(variable, rounded(func))
    return mod


def rounded(func: PrimFunc) -> PrimFunc:
    """`func` with the operands of its matmuls and convolutions rounded; unchanged if none is large enough."""
    nests = nests_of(func)
    if nests is None or not any(_is_large_product(nest) for nest in nests):
        return func
    forms: dict[Any, Any] = {}  # tensor → its rounded form
    body = []
    for nest in nests:
        large = _is_large_product(nest)
        for load in (product_nests.operands(nest) or ()) if large else ():
            source = load.source
            if source not in forms:
                forms[source] = loop_nest.buffer_like(source, product_nests.WIDE, f"{source.name}_tf32")
                body.append(loop_nest.copy(source, forms[source], round_one))
        body.append(half.nest_on(nest, {}, {}, forms if large else {}))
    parameters = set(attach.tensors(func))
    inner = [nest.buffer for nest in nests if nest.buffer not in parameters]
    root = s_tir.SBlock([], [], [], "root", tirx.SeqStmt(body), None, [*inner, *forms.values()])
    return PrimFunc(list(func.params), s_tir.SBlockRealize([], True, root), None, attrs=func.attrs)


def round_one(value: Any) -> Any:
    """A float32 expression rounded to tf32."""
    return Call(Op.get(ROUNDED), [value], ret_ty=value.ty)


def _is_large_product(nest: Nest) -> bool:
    """Whether a nest is a matmul or convolution with enough rows and columns for tensor cores."""
    return product_nests.is_product(nest) and product_nests.is_large(nest)
