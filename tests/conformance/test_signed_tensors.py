"""Models with uint8 tensors, moved to int8 for machines that multiply bytes of one signedness: equal bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from kiln.graph.bindings import operator
from kiln.graph.pipeline import simplify
from kiln.lower.pipeline import Lowering, lower
from kiln.lower.signed_tensors import signed_tensors
from symbolic import imported, write

from .lowered import loaded, runnable_alone
from .programs import compile_unoptimised, execute

# Padding by convolutions and by Pad, a depthwise convolution, pools with and without padding, a residual sum,
# a dense layer; the model reads and returns uint8, and one returned tensor is read by a product, too.
LAYERS = """
g (uint8[1,3,10,10] x) => (uint8[1,6] last, uint8[1,8,5,5] middle, float[1,8] mean)
<float s = {{0.05}}, float big = {{4}}, uint8 z = {{3}}, uint8 none = {{0}},
 int8 weights_zero = {{0}}, float ws = {{0.01}}, int64[8] widths = {{0,0,1,2,0,0,1,0}},
 int64[2] flat = {{1,72}},
 int8[8,3,3,3] w0 = {{{w0}}}, int8[8,1,3,3] w1 = {{{w1}}}, int8[8,8,1,1] w2 = {{{w2}}},
 int8[72,6] w3 = {{{w3}}}> {{
  a = DequantizeLinear(x, s, z)
  a1 = Pad(a, widths)
  d0 = DequantizeLinear(w0, ws, weights_zero)
  b = Conv<strides=[2,2]>(a1, d0)
  b0 = Relu(b)
  b1 = QuantizeLinear(b0, s, none)
  b2 = DequantizeLinear(b1, s, none)
  d1 = DequantizeLinear(w1, ws, weights_zero)
  c = Conv<pads=[1,1,1,1],group=8>(b2, d1)
  c1 = QuantizeLinear(c, s, z)
  c2 = DequantizeLinear(c1, s, z)
  d2 = DequantizeLinear(w2, ws, weights_zero)
  e = Conv(c2, d2)
  e1 = QuantizeLinear(e, s, z)
  e2 = DequantizeLinear(e1, s, z)
  f = Add(e2, b2)
  middle = QuantizeLinear(f, s, z)
  f2 = DequantizeLinear(middle, s, z)
  m = MaxPool<kernel_shape=[3,3],strides=[1,1]>(f2)
  m1 = Conv(m, d2)
  m2 = QuantizeLinear(m1, s, z)
  m3 = DequantizeLinear(m2, s, z)
  p = MaxPool<kernel_shape=[3,3],strides=[1,1],pads=[1,1,1,1]>(m3)
  r = Reshape(p, flat)
  d3 = DequantizeLinear(w3, ws, weights_zero)
  h = MatMul(r, d3)
  last = QuantizeLinear(h, big, z)
  mean = ReduceMean<axes=[2,3],keepdims=0>(m3)
}}
"""


def _products(module: Any) -> list[Any]:
    bindings = [binding.value for block in module["main"].body.blocks for binding in block.bindings]
    return [call for call in bindings if operator(call) in ("relax.nn.conv2d", "relax.matmul")]


def test_results_are_equal(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = {"w0": 8 * 27, "w1": 72, "w2": 64, "w3": 72 * 6}
    drawn = {name: ",".join(map(str, rng.integers(-127, 128, size))) for name, size in sizes.items()}
    module = simplify(imported(write(tmp_path / "m.onnx", LAYERS.format(**drawn)), {})[0])
    signed = signed_tensors(module)
    assert {str(call.args[0].ty.dtype) for call in _products(module)} == {"uint8"}
    assert {str(call.args[0].ty.dtype) for call in _products(signed)} == {"int8"}
    target = runnable_alone("x86_64")
    pair = [lower(mod, Lowering(name, target, "pthread")) for name, mod in (("a", module), ("b", signed))]
    # The sums of convolutions are rescaled by their kernels, and not stored.
    images = (tensor for steps in pair for tensor in steps.tensors.values() if tensor.shape[1:2] > [1])
    assert "int32" not in {tensor.dtype for tensor in images if len(tensor.shape) == 4}
    functions = {name: value for steps in pair for name, value in steps.functions.items()}
    compile_unoptimised(functions, tmp_path / "all.o")
    library = loaded(tmp_path / "all.o")
    x = rng.integers(0, 256, (1, 3, 10, 10)).astype("uint8")
    ours, theirs = (execute(steps, library, [x]) for steps in pair)
    for a, b in zip(ours, theirs, strict=True):
        assert len(np.unique(a)) > 4
        np.testing.assert_array_equal(a, b)
