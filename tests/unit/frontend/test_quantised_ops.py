"""Quantised ONNX operators of every form against ONNX Runtime, and the refusal of damaged ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions

from .many_nodes import MICROSOFT, ManyNodes


def _point(dtype: str, value: int = 3) -> Any:
    return np.array(value, dtype)


@pytest.mark.slow
def test_quantise_and_dequantise_in_every_form(tmp_path: Path) -> None:
    m = ManyNodes()
    for dtype in ("int8", "uint8", "int16", "uint16"):
        x, zero = m.normal(2, 6, 5), m.const(_point(dtype))
        m.add(f"q_{dtype}", "QuantizeLinear", x, m.const(np.float32(0.02)), zero)
        m.add(f"d_{dtype}", "DequantizeLinear", m.levels(dtype, 2, 6, 5), m.const(np.float32(0.02)), zero)
        scales = m.const(m.rng.uniform(0.01, 0.1, 6).astype("f4"))
        zeros = m.const(m.rng.integers(1, 9, 6).astype(dtype))
        m.add(f"q_axis_{dtype}", "QuantizeLinear", x, scales, zeros, axis=-2)
        m.add(f"d_axis_{dtype}", "DequantizeLinear", m.levels(dtype, 2, 6, 5), scales, zeros)
        blocks = m.const(m.rng.uniform(0.01, 0.1, (2, 3, 5)).astype("f4"))
        zeros = m.const(m.rng.integers(1, 9, (2, 3, 5)).astype(dtype))
        m.add(f"q_block_{dtype}", "QuantizeLinear", x, blocks, zeros, axis=1, block_size=2)
        m.add(f"d_block_{dtype}", "DequantizeLinear", m.levels(dtype, 2, 6, 5), blocks, zeros, block_size=2)
    m.add("d_int32", "DequantizeLinear", m.levels("int32", 7), m.const(np.float32(1e-6)))
    m.add("q_no_zero", "QuantizeLinear", m.normal(4, 3), m.const(np.float32(0.02)))
    m.add("q_dtype", "QuantizeLinear", m.normal(4, 3), m.const(np.float32(0.02)), output_dtype=3)
    m.add(
        "one_of_rank_1", "QuantizeLinear", m.normal(4, 3), m.const(np.float32([0.02])), m.const(np.int8([4]))
    )
    m.add("rank_0", "QuantizeLinear", m.normal(), m.const(np.float32(0.02)), m.const(_point("int8")))
    m.add(
        "d_rank_0", "DequantizeLinear", m.levels("uint8"), m.const(np.float32(0.02)), m.const(_point("uint8"))
    )
    half = m.input(m.rng.normal(size=(3, 4)).astype("f2"))
    m.add("q_half", "QuantizeLinear", half, m.const(np.float16(0.02)), m.const(_point("int8")))
    m.add(
        "d_half",
        "DequantizeLinear",
        m.levels("int8", 3, 4),
        m.const(np.float16(0.02)),
        m.const(_point("int8")),
    )
    scale, zero = m.input(np.float32(0.03)), m.input(_point("uint8", 9))
    m.add("q_computed", "QuantizeLinear", m.normal(4, 3), scale, zero)
    m.add("d_computed", "DequantizeLinear", m.levels("uint8", 4, 3), scale, zero)
    m.add("ms_q", "QuantizeLinear", m.normal(4, 3), m.const(np.float32(0.001)), m.const(_point("int16")),
          domain=MICROSOFT)  # fmt: skip
    m.add("dynamic", "DynamicQuantizeLinear", m.normal(3, 5), outputs=3)
    m.add("dynamic_zero", "DynamicQuantizeLinear", m.input(np.zeros((3, 5), "f4")), outputs=3)
    m.add("dynamic_above", "DynamicQuantizeLinear", m.input(np.float32([[1, 2], [3, 4]])), outputs=3)
    m.check(tmp_path / "m.onnx", levels=1)


def test_negative_scales(tmp_path: Path) -> None:
    """Of one value, along an axis with both signs, of blocks; of a bias, as ONNX Runtime quantises it."""
    m = ManyNodes()
    both, blocks = np.float32([0.1, -0.2, 0.3, -0.4]), np.float32([[0.1, -0.2], [-0.3, 0.4]])
    for dtype in ("int8", "uint8", "int16"):
        one, four, many = (m.const(np.full(shape, 3, dtype)) for shape in ((), 4, (2, 2)))
        for name, scale, zero, more in (
            ("one", m.const(np.float32(-0.1)), one, {}),
            ("axis", m.const(both), four, {"axis": 1}),
            ("block", m.const(blocks), many, {"axis": 1, "block_size": 2}),
        ):
            m.add(f"q_{name}_{dtype}", "QuantizeLinear", m.normal(2, 4), scale, zero, **more)
            m.add(f"d_{name}_{dtype}", "DequantizeLinear", m.levels(dtype, 2, 4), scale, zero, **more)
            m.add(
                f"c_{name}_{dtype}",
                "DequantizeLinear",
                m.const(np.full((2, 4), 7, dtype)),
                scale,
                zero,
                **more,
            )
    bias = m.const(np.arange(-2, 2, dtype=np.int32))
    m.add("bias_one", "DequantizeLinear", bias, m.const(np.float32(-0.1)))
    m.add("bias_axis", "DequantizeLinear", bias, m.const(both), m.const(np.zeros(4, np.int32)), axis=0)
    m.check(tmp_path / "m.onnx")


def test_four_bit_weights(tmp_path: Path) -> None:
    m = ManyNodes()
    for kind in ("int4", "uint4"):
        dtype = np.dtype(getattr(ml_dtypes, kind))
        low, high = (-8, 8) if kind == "int4" else (0, 16)
        weights = m.const(m.rng.integers(low, high, (32, 6)).astype(dtype))
        scales = m.const(m.rng.uniform(0.01, 0.1, (2, 6)).astype("f4"))
        zeros = m.const(m.rng.integers(1, 7, (2, 6)).astype(dtype))
        real = m.add(f"real_{kind}", "DequantizeLinear", weights, scales, zeros, axis=0, block_size=16)
        m.add(f"product_{kind}", "MatMul", m.normal(3, 32), real)
    m.check(tmp_path / "m.onnx")


@pytest.mark.slow
def test_products_of_integers(tmp_path: Path) -> None:
    m = ManyNodes()
    for a in ("uint8", "int8"):
        for b in ("uint8", "int8"):
            data, weights = m.levels(a, 2, 5, 12), m.const(m.some(b, 12, 7))
            point = m.input(_point(a, 7))
            case = f"{a}_{b}"
            m.add(f"plain_{case}", "MatMulInteger", data, weights)
            m.add(f"zeros_{case}", "MatMulInteger", data, weights, point, m.const(_point(b, 11)))
            columns = m.const(m.some(b, 7))
            m.add(f"columns_{case}", "MatMulInteger", data, weights, point, columns)
            m.add(f"both_{case}", "MatMulInteger", data, m.levels(b, 2, 12, 3), point, m.const(_point(b, 11)))
            scales = (m.input(np.float32(0.01)), m.const(m.rng.uniform(0.1, 1, 7).astype("f4")))
            bias = m.const(m.rng.normal(size=7).astype("f4"))
            if case == "int8_uint8":  # ONNX Runtime lacks it
                continue
            m.add(f"float_{case}", "MatMulIntegerToFloat", data, weights, *scales, point, columns, bias,
                  domain=MICROSOFT)  # fmt: skip
    weights, scale = m.const(m.some("int8", 12, 7)), m.const(np.float32(0.02))
    m.add("dynamic", "DynamicQuantizeMatMul", m.normal(4, 12), weights, scale, domain=MICROSOFT)
    m.add("dynamic_bias", "DynamicQuantizeMatMul", m.normal(4, 12), weights, scale, m.const(_point("int8")),
          m.const(np.ones(7, "f4")), domain=MICROSOFT)  # fmt: skip
    m.check(tmp_path / "m.onnx")


@pytest.mark.slow
def test_convolutions_of_integers(tmp_path: Path) -> None:
    m = ManyNodes()
    for w in ("uint8", "int8"):
        image, kernel = m.levels("uint8", 2, 4, 7, 8), m.const(m.some(w, 6, 4, 3, 3))
        point = m.input(_point("uint8", 9))
        m.add(f"plain_{w}", "ConvInteger", image, kernel)
        m.add(f"padded_{w}", "ConvInteger", image, kernel, point, m.const(_point(w, 5)), pads=[1, 0, 2, 1])
        m.add(f"same_{w}", "ConvInteger", image, kernel, point, auto_pad="SAME_LOWER", strides=[2, 2])
        pairs, zero = m.const(m.some(w, 6, 2, 3, 3)), m.const(_point(w, 5))
        m.add(f"groups_{w}", "ConvInteger", image, pairs, point, zero, group=2, dilations=[2, 1])
        m.add(f"line_{w}", "ConvInteger", m.levels("uint8", 1, 4, 9), m.const(m.some(w, 3, 4, 3)), point,
              m.const(_point(w, 4)), pads=[1, 1])  # fmt: skip
    m.check(tmp_path / "m.onnx")


def test_a_frame_of_levels_of_the_run_is_no_second_convolution(tmp_path: Path) -> None:
    """Nor a tensor of what the frame adds to each element: it is filled with the level of the run."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (uint8[1,4,8,9] x, uint8 zero) => (int32[1,6,8,9] y)
        { y = ConvInteger<pads = [1, 1, 1, 1]>(x, weights, zero) }""")
    kernel = np.random.default_rng(0).integers(-9, 9, (6, 4, 3, 3)).astype("int8")
    model.graph.initializer.append(onnx.numpy_helper.from_array(kernel, "weights"))
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    module, _ = import_model(path, ImportOptions("m"))
    assert module.script().count("nn.conv2d(") == 1


def _quantised(m: ManyNodes, dtype: str, *shape: int, scale: float = 0.03) -> tuple[str, str, str]:
    return m.levels(dtype, *shape), m.const(np.float32(scale)), m.const(_point(dtype, 5))


@pytest.mark.slow
def test_operators_on_quantised_tensors(tmp_path: Path) -> None:
    m = ManyNodes()
    for dtype in ("uint8", "int8"):
        out = (m.const(np.float32(0.07)), m.const(_point(dtype, 2)))
        x = _quantised(m, dtype, 2, 4, 7, 8)
        kernel = (m.const(m.some("int8", 6, 4, 3, 3)), m.const(m.rng.uniform(0.01, 0.02, 6).astype("f4")),
                  m.const(np.zeros(6, "int8")))  # fmt: skip
        bias = m.const(m.rng.integers(-900, 900, 6).astype("int32"))
        m.add(
            f"conv_{dtype}", "QLinearConv", *x, *kernel, m.const(np.float32(0.4)), out[1], bias, pads=[1] * 4
        )
        m.add(f"conv2_{dtype}", "QLinearConv", *x, *kernel, m.const(np.float32(0.4)), out[1], strides=[2, 2],
              auto_pad="SAME_UPPER")  # fmt: skip
        a, b = _quantised(m, dtype, 3, 12), (m.const(m.some(dtype, 12, 5)), *_quantised(m, dtype, 1)[1:])
        m.add(f"matmul_{dtype}", "QLinearMatMul", *a, *b, m.const(np.float32(0.5)), out[1])
        gemm_bias = m.const(m.rng.integers(-900, 900, 5).astype("int32"))
        m.add(f"gemm_{dtype}", "QGemm", *a, *b, gemm_bias, m.const(np.float32(0.5)), out[1], domain=MICROSOFT)
        turned = (m.const(m.some("int8", 5, 12)), m.const(m.rng.uniform(0.01, 0.02, 5).astype("f4")),
                  m.const(np.zeros(5, "int8")))  # fmt: skip
        m.add(f"gemm_t_{dtype}", "QGemm", *a, *turned, gemm_bias, m.const(np.float32(0.5)), out[1], transB=1,
              domain=MICROSOFT)  # fmt: skip
        m.add(f"gemm_float_{dtype}", "QGemm", *a, *turned, gemm_bias, transB=1, domain=MICROSOFT)
        y = _quantised(m, dtype, 4, 1, 8, scale=0.05)
        for name in ("Add", "Mul"):
            m.add(f"{name}_{dtype}", f"QLinear{name}", *x, *y, *out, domain=MICROSOFT)
        m.add(f"leaky_{dtype}", "QLinearLeakyRelu", *x, *out, domain=MICROSOFT, alpha=0.2)
        m.add(
            f"sigmoid_{dtype}", "QLinearSigmoid", *x, m.const(np.float32(1 / 256)), out[1], domain=MICROSOFT
        )
        for axis, opset in ((-1, 13), (1, 13), (1, 11)):
            m.add(f"softmax{axis + 9}_{opset}_{dtype}", "QLinearSoftmax", *_quantised(m, dtype, 2, 3, 8),
                  m.const(np.float32(1 / 256)), out[1], axis=axis, opset=opset, domain=MICROSOFT)  # fmt: skip
        m.add(f"concat_{dtype}", "QLinearConcat", *out, *x, *_quantised(m, dtype, 2, 3, 7, 8, scale=0.05),
              axis=1, domain=MICROSOFT)  # fmt: skip
        m.add(f"mean_{dtype}", "QLinearGlobalAveragePool", *x, *out, domain=MICROSOFT, channels_last=0)
        m.add(f"mean_last_{dtype}", "QLinearGlobalAveragePool", *x, *out, domain=MICROSOFT, channels_last=1)
        m.add(f"pool_{dtype}", "QLinearAveragePool", *x, *out, domain=MICROSOFT, kernel_shape=[3, 3],
              pads=[1, 1, 1, 1], strides=[2, 2])  # fmt: skip
        m.add(f"pool_all_{dtype}", "QLinearAveragePool", *x, *out, domain=MICROSOFT, kernel_shape=[3, 3],
              pads=[1, 1, 1, 1], count_include_pad=1)  # fmt: skip
        for size in (0.5, 2.0, 1.5):  # fractions are dropped; those of 1.5 are rounded numbers
            m.add(f"resize_{size}_{dtype}", "Resize", x[0], "", m.const(np.float32([1, 1, size, size])),
                  mode="linear")  # fmt: skip
        m.add(f"where_{dtype}", "QLinearWhere", m.const(m.rng.random((2, 4, 7, 8)) > 0.5), *x, *y, *out,
              domain=MICROSOFT)  # fmt: skip
    m.check(tmp_path / "m.onnx", levels=1)


def test_channels_of_weights_with_a_scale_of_zero(tmp_path: Path) -> None:
    """Quantisers write such a scale for weights that are all 0; levels and zero points may be any."""
    m = ManyNodes()
    scale, points = np.float32([0.01, 0, 0.02]), np.array([1, 7, -3], "int8")
    activation = m.levels("int8", 2, 4, 5, 5), m.const(np.float32(0.1)), m.const(np.int8(3))
    out = m.const(np.float32(0.2)), m.const(np.int8(-4))
    weights = m.const(m.rng.integers(-127, 128, (3, 4, 3, 3)).astype("int8")), m.const(scale), m.const(points)
    m.add("conv", "QLinearConv", *activation, *weights, *out, m.const(np.int32([50, 60, 70])))
    for name, scales, zeros in (("axis", scale, points), ("tensor", np.float32(0), np.int8(3))):
        matrix = m.const(m.rng.integers(-127, 128, (5, 3)).astype("int8"))
        real = m.add(f"weights_{name}", "DequantizeLinear", matrix, m.const(scales), m.const(zeros), axis=1)
        m.add(f"product_{name}", "MatMul", m.add(f"real_{name}", "DequantizeLinear", *activation), real)
    m.check(tmp_path / "m.onnx", levels=1)


def test_constants_are_quantised_at_import(tmp_path: Path) -> None:
    """Weights that the file has in floats, as after training with rounding, are constants of integers."""
    m = ManyNodes()
    values = np.append(m.rng.normal(size=(6, 8)), [[np.nan, np.inf, -np.inf, 1e30, -2.5, 2.5, 0.5, 1e-9]], 0)
    weights, one = m.const(values, "f4"), m.const(np.float32(0.01))
    along = m.const(m.rng.uniform(0.01, 0.1, 7).astype("f4"))
    for dtype in ("int8", "uint8", "int16", "uint16"):
        point, points = m.const(np.array(3, dtype)), m.const(m.rng.integers(1, 9, 7).astype(dtype))
        m.add(f"one_{dtype}", "QuantizeLinear", weights, one, point)
        m.add(f"along_{dtype}", "QuantizeLinear", weights, along, points, axis=0)
    blocks, zero = m.const(m.rng.uniform(0.01, 0.1, (7, 3)).astype("f4")), m.const(np.int8(0))
    m.add("blocks", "QuantizeLinear", weights, blocks, axis=1, block_size=3, output_dtype=3)
    four = m.const(np.zeros(7, ml_dtypes.int4))
    levels = m.add("four", "QuantizeLinear", m.const(values[:, :4], "f4"), along, four, axis=0)
    m.cases.pop("four")
    m.add("real", "DequantizeLinear", levels, along, four, axis=0)
    levels = m.add("eight", "QuantizeLinear", weights, one, zero)
    product = m.add(
        "product", "MatMul", m.normal(3, 7), m.add("numbers", "DequantizeLinear", levels, one, zero)
    )
    fill = m.add("fill", "DequantizeLinear", m.const(np.int8(9)), one, zero)
    m.add("padded", "Pad", product, m.const(np.int64([1, 0, 0, 2])), fill)
    text = m.check(tmp_path / "m.onnx")
    assert "R.quantize" not in text and "R.round" not in text and "pad_value=0.0899999" in text


_DAMAGED: dict[str, tuple[Any, Any, str]] = {
    "zero": (np.float32(0), np.int8(0), "contains 0, allowed: finite and not 0"),
    "nan": (np.float32("nan"), np.int8(0), "contains nan, allowed: finite and not 0"),
    "infinite": (np.float32([1, np.inf, 1, 1]), np.zeros(4, "int8"), "node that makes them in float"),
    "axis": (np.ones(3, "f4"), np.zeros(3, "int8"), "has the shape (3), allowed: one value, or one for each"),
    "shapes": (np.ones(4, "f4"), np.zeros(3, "int8"), "has the shape (4) and its zero point (3)"),
}  # fmt: skip


@pytest.mark.parametrize("name", _DAMAGED)
@pytest.mark.parametrize("op", ["QuantizeLinear", "DequantizeLinear"])
def test_damaged_parameters_are_refused(tmp_path: Path, name: str, op: str) -> None:
    scale, zero, message = _DAMAGED[name]
    m = ManyNodes()
    data = m.normal(2, 4) if op == "QuantizeLinear" else m.levels("int8", 2, 4)
    m.add("broken", op, data, m.const(scale), m.const(zero))
    with pytest.raises(KilnError, match=re.escape(message)) as error:
        import_model(m.save(tmp_path / "m.onnx", typed=False), ImportOptions("m"))
    assert f"{op} (node broken)" in str(error.value)
    assert "\n" not in str(error.value)


_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "DynamicQuantizeLSTM": ({"hidden_size": 4}, "quantise the model without it"),
    "QLinearSoftmax": ({"axis": -1}, "its attribute 'opset' is missing"),
    "QLinearSigmoid": ({"speed": 1}, "its attribute 'speed' is not supported"),
}


@pytest.mark.parametrize("op", _REFUSED)
def test_unsupported_forms_are_refused(tmp_path: Path, op: str) -> None:
    attributes, message = _REFUSED[op]
    m = ManyNodes()
    zero, scale = m.const(np.uint8(0)), m.const(np.float32(1))
    m.add("broken", op, m.levels("uint8", 2, 4), scale, zero, scale, zero, domain=MICROSOFT, **attributes)
    with pytest.raises(KilnError, match=re.escape(message)) as error:
        import_model(m.save(tmp_path / "m.onnx", typed=False), ImportOptions("m"))
    assert f"{op} (node broken)" in str(error.value)
