"""Cases of layers: convolutions, poolings, products, normalisations, quantisation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from .files import Operand, OperatorCase, Result
from .operands import FLOAT, INT8, INT16, STEPS_3D, WEIGHTED, bias, case, data, draw, filter_of, held, result


def _windows(d: str) -> Iterator[OperatorCase]:
    """Convolutions and poolings of an image, with both paddings."""
    image = data(1, 6, 5, 4, dtype=d)
    pools = (
        ("same", {"padding": 0, "strideW": 2, "strideH": 2}),
        ("valid", {"padding": 1, "strideW": 1, "strideH": 1}),
    )
    for label, padding in pools:
        for name in ("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"):
            yield case(
                name, f"{d}_{label}", [image], [result(d)], "Pool2DOptions", filterWidth=3, filterHeight=2,
                **padding,
            )  # fmt: skip
        for act in (0, 1, 3):
            w = filter_of(8, 3, 2, 4, dtype=d)
            yield case(
                "CONV_2D", f"{d}_{label}_{act}", [image, w, bias(8, d, w)], [result(d, 8)],
                "Conv2DOptions", fusedActivationFunction=act, dilationWFactor=1, dilationHFactor=1,
                **padding,
            )  # fmt: skip
        w = filter_of(8, 3, 2, 2, dtype=d)
        yield case(
            "CONV_2D", f"{d}_{label}_grouped", [image, w, bias(8, d, w)], [result(d, 8)], "Conv2DOptions",
            dilationWFactor=1, dilationHFactor=1, **padding,
        )  # fmt: skip
        w = filter_of(1, 3, 2, 8, dtype=d, axis=3)
        yield case(
            "DEPTHWISE_CONV_2D", f"{d}_{label}", [image, w, bias(8, d, w)], [result(d, 4)],
            "DepthwiseConv2DOptions", depthMultiplier=2, dilationWFactor=1, dilationHFactor=1, **padding,
        )  # fmt: skip
        w = filter_of(3, 3, 2, 4, dtype=d)
        size = [1, 11, 9, 3] if label == "same" else [1, 8, 6, 3]
        yield case(
            "TRANSPOSE_CONV", f"{d}_{label}", [held(size), w, image, bias(3, d, w)], [result(d, 8)],
            "TransposeConvOptions", **padding,
        )  # fmt: skip


def _products(d: str) -> Iterator[OperatorCase]:
    """FULLY_CONNECTED and BATCH_MATMUL."""
    w = filter_of(5, 8, dtype=d)
    yield case(
        "FULLY_CONNECTED", d, [data(3, 8, dtype=d), w, bias(5, d, w)], [result(d, 8)],
        "FullyConnectedOptions",
    )  # fmt: skip
    w = filter_of(5, 8, dtype=d, per_channel=False)
    yield case(
        "FULLY_CONNECTED", f"{d}_relu", [data(3, 8, dtype=d), w, None], [result(d, 8)],
        "FullyConnectedOptions", fusedActivationFunction=1,
    )  # fmt: skip
    yield case(
        "BATCH_MATMUL", d, [data(2, 3, 4, dtype=d), data(2, 4, 5, dtype=d)], [result(d, 16)],
        "BatchMatMulOptions",
    )  # fmt: skip
    yield case(
        "BATCH_MATMUL", f"{d}_adj", [data(2, 4, 3, dtype=d), data(2, 5, 4, dtype=d)], [result(d, 16)],
        "BatchMatMulOptions", adjX=True, adjY=True,
    )  # fmt: skip


def _quantised(d: str) -> Iterator[OperatorCase]:
    """PRELU, QUANTIZE and DEQUANTIZE."""
    slope = Operand(draw(4, low=0, high=1), True)
    if d != FLOAT:  # LiteRT reads slopes of 8 bits with activations of 16
        slope = Operand(draw(4, dtype=INT8 if d == INT16 else d), True, 0.01, 0)
    yield case("PRELU", d, [data(2, 3, 4, dtype=d), slope], [result(d)])
    if d != FLOAT:
        yield case("QUANTIZE", d, [data(2, 5)], [result(d)], "QuantizeOptions")
        yield case("DEQUANTIZE", d, [data(2, 5, dtype=d)], [Result()], "DequantizeOptions")
        for e in WEIGHTED[1:]:
            yield case("QUANTIZE", f"{d}_{e}", [data(2, 5, dtype=d)], [result(e, 1.5)], "QuantizeOptions")


def _scales() -> Iterator[OperatorCase]:
    """Operands and results of several scales, and constants of float16."""
    # Converters write both values with a scale of their own.
    ends = (held(127, INT8, 1 / 127, 0), held(-3, INT8, 0.5, -3))
    operands = [Operand(np.array([2, 0, 5], "int32")), held(4), *ends]
    yield case("ONE_HOT", f"{INT8}_scales", operands, [Result(INT8, 1 / 127, 0)], "OneHotOptions", axis=0)
    for scale in (0.7 * 2**-20, 1.5):
        wide = [data(2, 5, dtype=INT16)], [Result("int32", scale, 0)]
        yield case("QUANTIZE", f"int16_int32_{scale:g}", *wide, "QuantizeOptions")
    yield case("DEQUANTIZE", "float16", [held(draw(2, 5), "float16")], [Result()], "DequantizeOptions")


def _rounded() -> Iterator[OperatorCase]:
    """FAKE_QUANT and LOCAL_RESPONSE_NORMALIZATION."""
    yield case(
        "FAKE_QUANT", FLOAT, [data(2, 5)], [Result()], "FakeQuantOptions", min=-1.0, max=2.0, numBits=8
    )
    yield case(
        "LOCAL_RESPONSE_NORMALIZATION", FLOAT, [data(1, 3, 3, 8)], [Result()],
        "LocalResponseNormalizationOptions", radius=2, bias=1.0, alpha=0.3, beta=0.75, kernels_="BUILTIN",
    )  # fmt: skip


def _volumes() -> Iterator[OperatorCase]:
    """CONV_3D and CONV_3D_TRANSPOSE."""
    for label, window in (
        ("", {"padding": 0}),
        ("_stride", {"padding": 1, "strideD": 2, "strideW": 2, "strideH": 1}),
    ):
        options = {**STEPS_3D, **window}
        w = Operand(draw(2, 2, 3, 3, 4, seed=3), True)
        yield case(
            "CONV_3D", FLOAT + label, [data(1, 4, 5, 6, 3), w, Operand(draw(4), True)], [Result()],
            "Conv3DOptions", **options,
        )  # fmt: skip
    w = Operand(draw(2, 2, 2, 4, 3, seed=3), True)
    options = {**STEPS_3D, "strideD": 2, "strideH": 2, "padding": 0}
    yield case(
        "CONV_3D_TRANSPOSE", FLOAT, [held([1, 4, 6, 4, 4]), w, data(1, 2, 3, 4, 3), Operand(draw(4), True)],
        [Result()], "Conv3DOptions", **options,
    )  # fmt: skip


def _hybrid() -> Iterator[OperatorCase]:
    """int8 weights of operators on floats, and EMBEDDING_LOOKUP."""
    for d in (FLOAT, INT8):
        w = Operand(draw(5, 8, dtype=INT8), True, 0.02, 0)
        if d == INT8:
            w = Operand(w.array, True, list(np.linspace(0.01, 0.03, 5)), 0, 0)
        yield case(
            "FULLY_CONNECTED", f"hybrid_{d}", [data(3, 8), w, Operand(draw(5), True)], [Result()],
            "FullyConnectedOptions", relative_=0.02,
        )  # fmt: skip
    w = Operand(draw(8, 3, 2, 4, dtype=INT8), True, list(np.linspace(0.01, 0.03, 8)), 0, 0)
    yield case(
        "CONV_2D", "hybrid", [data(1, 6, 5, 4), w, Operand(draw(8), True)], [Result()], "Conv2DOptions",
        strideW=1, strideH=1, padding=0, dilationWFactor=1, dilationHFactor=1, relative_=0.02,
    )  # fmt: skip
    w = Operand(draw(1, 3, 2, 8, dtype=INT8), True, list(np.linspace(0.01, 0.03, 8)), 0, 3)
    yield case(
        "DEPTHWISE_CONV_2D", "hybrid", [data(1, 6, 5, 4), w, Operand(draw(8), True)], [Result()],
        "DepthwiseConv2DOptions", strideW=1, strideH=1, padding=0, depthMultiplier=2, dilationWFactor=1,
        dilationHFactor=1, relative_=0.02,
    )  # fmt: skip
    yield case(
        "EMBEDDING_LOOKUP", FLOAT, [Operand(np.array([2, 0], "int32")), Operand(draw(4, 3), True)], [Result()]
    )
    yield case(
        "EMBEDDING_LOOKUP", "hybrid",
        [Operand(np.array([2, 0], "int32")), Operand(draw(4, 3, dtype=INT8), True, 0.02, 0)], [Result()],
    )  # fmt: skip


def _fourier() -> Iterator[OperatorCase]:
    """RFFT2D, whose complex results an operator makes real."""
    for name in ("REAL", "IMAG", "COMPLEX_ABS"):
        for size in ([4, 8], [3, 5], [8, 4]):
            operands = [data(2, 4, 8), held(size)]
            complex_case = case(
                "RFFT2D", f"{name}_{size[0]}x{size[1]}", operands, [Result("complex64")], "Rfft2dOptions"
            )
            yield replace(complex_case, then=name, absolute=1e-4)


def neural_cases() -> Iterator[OperatorCase]:
    """All cases of this file."""
    for d in WEIGHTED:
        for group in (_windows, _products, _quantised):
            yield from group(d)
    for rest in (_scales, _rounded, _volumes, _hybrid, _fourier):
        yield from rest()
