"""Attention by kernels for GPUs: one product for q, k and v, read in place, and rows of scores."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tvm
from kiln.config.target import Cuda
from kiln.graph.bindings import operator
from kiln.kernels.gpu import dlight
from kiln.lower.pipeline import fused
from kiln.opinfo import attach
from tvm import relax, tirx

from .launched import Kernels, evaluate

Array = npt.NDArray[Any]
CUDA = Cuda(archs=["sm_80", "sm_90"], ptx=False)
ROWS, HEADS, WIDTH = 37, 3, 16
ALL = HEADS * WIDTH
R = np.random.default_rng(7)
# Products of q, k and v, and their biases: k has none.
WEIGHTS = [R.standard_normal((ALL, ALL), np.float32) * np.float32(0.2) for _ in range(3)]
BIASES = [R.standard_normal(ALL, np.float32), None, R.standard_normal(ALL, np.float32)]
MOST = 3  # images
SCALE = np.float32(0.25)


def _module(shape: list[Any], heads: list[Any]) -> tvm.IRModule:
    """Attention over x of `shape`, whose projections are reshaped to `heads`."""
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(shape, "float32"))
    dims = json.dumps({"n": {"dim": "n", "divide": 1, "min": 1, "max": MOST}})
    with builder.function("main", [x], attrs={"num_input": 1, "kiln.dims": dims}):
        with builder.dataflow():
            # What the model reads stays float32; the product below has an operand in 16 bits.
            doubled = builder.emit(relax.op.multiply(x, relax.const(2.0, "float32")))
            parts = []
            for weights, bias in zip(WEIGHTS, BIASES, strict=True):
                product = builder.emit(relax.op.matmul(doubled, relax.const(weights)))
                product = product if bias is None else builder.emit(relax.op.add(product, relax.const(bias)))
                parts.append(builder.emit(relax.op.reshape(product, heads)))
            q, k, v = parts
            scores = builder.emit(relax.op.einsum([q, k], "bqhd,bkhd->bhqk"))
            scores = builder.emit(relax.op.multiply(scores, relax.const(SCALE)))
            shares = builder.emit(relax.op.nn.softmax(scores, -1))
            result = builder.emit_output(relax.op.einsum([shares, v], "bhqk,bkhd->bqhd"))
        builder.emit_func_output(result)
    return builder.get()


def _wanted(x: Array) -> Array:
    q, k, v = (
        (2 * x @ weights + (0 if bias is None else bias)).reshape(-1, ROWS, HEADS, WIDTH)
        for weights, bias in zip(WEIGHTS, BIASES, strict=True)
    )
    power = np.exp(np.einsum("bqhd,bkhd->bhqk", q, k) * SCALE)
    shares: Array = np.einsum("bhqk,bkhd->bqhd", power / power.sum(-1, keepdims=True), v)
    return shares


def _open() -> tvm.IRModule:
    images = tirx.Var("n", "int64")
    return _module([images, ROWS, ALL], [images, ROWS, HEADS, WIDTH])


# name → the module, and the shapes of x
CASES: dict[str, tuple[Callable[[], tvm.IRModule], list[tuple[int, ...]]]] = {
    "rows of one image": (lambda: _module([ROWS, ALL], [1, ROWS, HEADS, WIDTH]), [(ROWS, ALL)]),
    "dynamic number of images": (_open, [(1, ROWS, ALL), (MOST, ROWS, ALL)]),
}


@pytest.mark.parametrize(
    ("precision", "case"),
    [
        ("fp16", "rows of one image"),
        pytest.param("fp16", "dynamic number of images", marks=pytest.mark.heavy),
        *(pytest.param(p, "rows of one image", marks=pytest.mark.heavy) for p in ("bf16", "tf32", "fp32")),
    ],
)
def test_attention(case: str, precision: str, tmp_path: Path) -> None:
    make, shapes = CASES[case]
    mod, params = fused(make(), precision)
    functions = {
        variable.name_hint: func
        for variable, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc)
    }
    target = dlight.tvm_target(CUDA)
    values_of = {}
    for name, func in functions.items():
        tensors = [param for param in func.params if tirx.is_buffer_var(param)]
        bare = tirx.PrimFunc(tensors, func.body, None, attrs=func.attrs).without_attr(attach.ATTRIBUTE)
        values_of[name] = dlight.lower(bare, target, lambda size: evaluate(size, {"n": MOST}))
    kernels = Kernels(values_of, CUDA, tmp_path)
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    called = [b.value.args[0].name_hint for b in bindings if operator(b.value) == "relax.call_tir"]
    assert len(called) == 3, "x, one product for q, k and v, attention"
    assert "kiln_copy_if<16>" in kernels.text(f"{called[-1]}_0"), (
        "rows of q, k and v are copied 16 bytes at once"
    )
    for shape in shapes:
        x = np.random.default_rng(len(shape)).standard_normal(shape, np.float32) * np.float32(0.5)
        values: dict[Any, Array] = dict(zip(mod["main"].params, [x, *params.values()], strict=True))
        got = x
        for binding in bindings:
            value, sizes = binding.value, {"n": shape[0]}
            if operator(value) == "relax.reshape":
                got = values[value.args[0]].reshape([evaluate(s, sizes) for s in value.args[1].values])
            elif isinstance(value, relax.Var):
                got = values[value]
            else:
                given = [values[item] for item in value.args[1].fields if item in values]
                result = [evaluate(size, sizes) for size in value.ty.shape]
                got = kernels.run(value.args[0].name_hint, given, result, **sizes)
            values[binding.var] = got
        bound = {"fp16": 6e-3, "bf16": 3e-2, "tf32": 4e-3, "fp32": 1e-5}[precision]
        np.testing.assert_allclose(got.reshape(_wanted(x).shape), _wanted(x), rtol=bound, atol=bound)
