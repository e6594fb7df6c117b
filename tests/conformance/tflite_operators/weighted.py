"""More cases of operators with weights and windows: dilations, strides, shapes, weights that are inputs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .files import Operand, OperatorCase, Result
from .operands import (
    FLOAT,
    INT8,
    INT16,
    STEPS_3D,
    UINT8,
    WEIGHTED,
    bias,
    case,
    data,
    draw,
    filter_of,
    held,
    result,
)


def _strided(d: str) -> Iterator[OperatorCase]:
    """CONV_2D and DEPTHWISE_CONV_2D with strides and dilations."""
    image = data(2, 9, 8, 4, dtype=d)
    for padding in (0, 1):
        for strides, dilation in (((1, 1), (2, 2)), ((2, 3), (1, 1)), ((1, 1), (3, 1))):
            window = {"padding": padding, "strideH": strides[0], "strideW": strides[1]}
            window |= {"dilationHFactor": dilation[0], "dilationWFactor": dilation[1]}
            label = f"{d}_{padding}_{strides[1]}_{dilation[0]}{dilation[1]}"
            w = filter_of(5, 3, 2, 4, dtype=d)
            operands = [image, w, bias(5, d, w)]
            yield case("CONV_2D", label, operands, [result(d, 8)], "Conv2DOptions", **window)
            for multiplier in (1, 3):
                w = filter_of(1, 3, 2, 4 * multiplier, dtype=d, axis=3)
                operands = [image, w, bias(4 * multiplier, d, w)]
                yield case(
                    "DEPTHWISE_CONV_2D", f"{label}_{multiplier}", operands, [result(d, 4)],
                    "DepthwiseConv2DOptions", depthMultiplier=multiplier, **window,
                )  # fmt: skip


def _open(d: str) -> Iterator[OperatorCase]:
    """Convolutions of one pixel, with one scale, and with weights that are inputs."""
    image = data(2, 9, 8, 4, dtype=d)
    one = {"padding": 1, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    w = filter_of(5, 1, 1, 4, dtype=d)
    yield case("CONV_2D", f"{d}_point", [image, w, None], [result(d, 8)], "Conv2DOptions", **one)
    w = filter_of(5, 3, 3, 4, dtype=d, per_channel=False)
    yield case("CONV_2D", f"{d}_tensor", [image, w, bias(5, d, w)], [result(d, 8)], "Conv2DOptions", **one)
    open_w = Operand(w.array, False, w.scale, w.zero_point)
    yield case("CONV_2D", f"{d}_open", [image, open_w, bias(5, d, w)], [result(d, 8)], "Conv2DOptions", **one)
    w = filter_of(1, 3, 3, 4, dtype=d, per_channel=False)
    open_w = Operand(w.array, False, w.scale, w.zero_point)
    yield case(
        "DEPTHWISE_CONV_2D", f"{d}_open", [image, open_w, bias(4, d, w)], [result(d, 4)],
        "DepthwiseConv2DOptions", depthMultiplier=1, **one,
    )  # fmt: skip


def _transposed(d: str) -> Iterator[OperatorCase]:
    """TRANSPOSE_CONV with and without a bias."""
    image = data(2, 9, 8, 4, dtype=d)
    for padding, strides, size in (
        (1, (1, 1), (11, 9)),
        (0, (2, 2), (18, 16)),
        (1, (3, 2), (27, 16)),
        (0, (1, 1), (9, 8)),
    ):
        w = filter_of(3, 3, 2, 4, dtype=d)
        window = {"padding": padding, "strideH": strides[0], "strideW": strides[1]}
        for label, more in (("", []), ("_bias", [bias(3, d, w)])):
            yield case(
                "TRANSPOSE_CONV", f"{d}_{padding}_{strides[0]}{label}",
                [held([2, *size, 3]), w, image, *more], [result(d, 8)], "TransposeConvOptions", **window,
            )  # fmt: skip


def _pools(d: str) -> Iterator[OperatorCase]:
    """Poolings with strides, and over a whole image."""
    image = data(2, 9, 8, 4, dtype=d)
    for padding in (0, 1):
        for shape, strides in (((3, 3), (3, 2)), ((2, 1), (1, 1)), ((9, 8), (1, 1))):
            window = {"padding": padding, "filterHeight": shape[0], "filterWidth": shape[1]}
            window |= {"strideH": strides[0], "strideW": strides[1]}
            for name in ("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"):
                label = f"{d}_{padding}_{shape[0]}_{strides[0]}"
                yield case(name, label, [image], [result(d)], "Pool2DOptions", **window)


def _volumes() -> Iterator[OperatorCase]:
    """CONV_3D and CONV_3D_TRANSPOSE with dilations and both paddings."""
    for label, dilations in (
        ("dilated", {"dilationDFactor": 2, "dilationHFactor": 1, "dilationWFactor": 2}),
        ("plain", {}),
    ):
        for padding in (0, 1):
            options = {**STEPS_3D, "padding": padding, **dilations}
            w = Operand(draw(2, 2, 3, 4, 5, seed=3), True)
            yield case(
                "CONV_3D", f"{label}{padding}", [data(2, 5, 4, 6, 4), w], [Result()], "Conv3DOptions",
                **options,
            )  # fmt: skip
            if label == "plain":
                w2 = Operand(draw(2, 2, 2, 3, 4, seed=3), True)
                size = [2, 5, 4, 6, 3] if padding == 0 else [2, 6, 5, 7, 3]
                yield case(
                    "CONV_3D_TRANSPOSE", f"{label}{padding}", [held(size), w2, data(2, 5, 4, 6, 4)],
                    [Result()], "Conv3DOptions", **options,
                )  # fmt: skip


def _narrow() -> Iterator[OperatorCase]:
    """Weights of 4 bits, of floats and of integers, of an odd number of elements, with a scale or several."""
    one = {"padding": 0, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    per_channel = {**one, "depthMultiplier": 1}
    for d in (FLOAT, INT8):
        for channels in (1, 5):
            scales = list(np.linspace(0.05, 0.15, channels)) if channels > 1 else 0.1
            for name, shape, table, axis, options in (
                ("FULLY_CONNECTED", (5, 9), "FullyConnectedOptions", 0, {}),
                ("CONV_2D", (5, 3, 1, 3), "Conv2DOptions", 0, one),
                ("DEPTHWISE_CONV_2D", (1, 3, 3, 5), "DepthwiseConv2DOptions", 3, per_channel),
            ):
                levels = np.random.default_rng(4).integers(-7, 8, shape).astype(INT8)
                axis = axis if channels > 1 else 0
                w = Operand(levels, True, scales, 0, axis, "int4")
                x = data(3, 9, dtype=d) if name == "FULLY_CONNECTED" else data(1, 6, 5, shape[-1], dtype=d)
                b = Operand(draw(5), True) if d == FLOAT else bias(5, d, w)
                yield case(
                    name, f"int4_{d}_{channels}", [x, w, b], [result(d, 8)], table, relative_=0.03, **options
                )  # fmt: skip


def _dense(d: str) -> Iterator[OperatorCase]:
    """FULLY_CONNECTED of several ranks, and with weights or a bias that are inputs."""
    for shape, keep in (
        ((2, 3, 8), True),
        ((2, 3, 8), False),
        ((1, 2, 3, 8), True),
        ((8,), False),
        ((4, 4), False),
    ):
        w = filter_of(5, 8, dtype=d, per_channel=False)
        yield case(
            "FULLY_CONNECTED", f"{d}_{len(shape)}_{keep}",
            [data(*shape, dtype=d), w, bias(5, d, w)], [result(d, 8)],
            "FullyConnectedOptions", keepNumDims=keep,
        )  # fmt: skip
    w = filter_of(5, 8, dtype=d, per_channel=False)
    open_w = Operand(w.array, False, w.scale, w.zero_point)
    yield case(
        "FULLY_CONNECTED", f"{d}_open", [data(3, 8, dtype=d), open_w, bias(5, d, w)], [result(d, 8)],
        "FullyConnectedOptions",
    )  # fmt: skip
    open_b = bias(5, d, w)
    open_b = Operand(open_b.array, False, open_b.scale, 0)
    yield case(
        "FULLY_CONNECTED", f"{d}_openbias", [data(3, 8, dtype=d), w, open_b], [result(d, 8)],
        "FullyConnectedOptions",
    )  # fmt: skip


def _int16() -> Iterator[OperatorCase]:
    """Products of int16: scales of channels, a bias of int32, none, and sums that need more than 32 bits."""
    one = {"padding": 0, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    for depth, factor in ((8, 8), (1100, 64)):
        w = filter_of(5, depth, dtype=INT16)
        one_scale = filter_of(5, depth, dtype=INT16, per_channel=False)
        image = filter_of(5, 1, 1, depth, dtype=INT16)
        image = Operand(np.sign(image.array).astype(INT8) * 127, True, image.scale, 0)
        for label, weights in (("channels", w), ("tensor", one_scale)):
            wide = bias(5, INT16, weights)
            narrow = Operand(wide.array.astype("int32"), True, wide.scale, 0)
            for kind, b in (("wide", wide), ("narrow", narrow), ("none", None)):
                if depth > 8 and kind == "narrow":
                    continue  # LiteRT's sums of 32 bits overflow
                yield case(
                    "FULLY_CONNECTED", f"int16_{label}_{kind}_{depth}",
                    [data(3, depth, dtype=INT16), weights, b], [result(INT16, factor)],
                    "FullyConnectedOptions", quantizedBiasType=2 if kind == "narrow" else 4,
                )  # fmt: skip
                if label == "channels":
                    b = None if b is None else Operand(b.array, True, image.scale, 0)
                    yield case(
                        "CONV_2D", f"int16_{kind}_{depth}", [data(1, 2, 3, depth, dtype=INT16), image, b],
                        [result(INT16, factor)], "Conv2DOptions",
                        quantizedBiasType=2 if kind == "narrow" else 4, **one,
                    )  # fmt: skip


def _matmuls(d: str) -> Iterator[OperatorCase]:
    """BATCH_MATMUL of several ranks, by inputs and by constants."""
    for a, b in (((2, 1, 3, 4), (3, 4, 5)), ((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5))):
        pair = [data(*a, dtype=d), data(*b, dtype=d)]
        yield case("BATCH_MATMUL", f"{d}_{len(a)}{len(b)}", pair, [result(d, 16)], "BatchMatMulOptions")
        constant = Operand(pair[1].array, True, pair[1].scale, pair[1].zero_point)
        yield case(
            "BATCH_MATMUL", f"{d}_{len(a)}{len(b)}_held", [pair[0], constant], [result(d, 16)],
            "BatchMatMulOptions",
        )  # fmt: skip


def _hybrid() -> Iterator[OperatorCase]:
    """Batches that are broadcast, and int8 weights of products of floats."""
    for d in (FLOAT, INT8, INT16):
        pair = [data(1, 2, 3, 4, dtype=d), data(1, 1, 5, 4, dtype=d)]
        yield case("BATCH_MATMUL", f"{d}_batches", pair, [result(d, 16)], "BatchMatMulOptions", adjY=True)
    for asymmetric in (False, True):
        weights = Operand(draw(2, 4, 5, dtype=INT8), True, 0.02, 0)
        yield case(
            "BATCH_MATMUL", f"hybrid{asymmetric}", [data(2, 3, 4), weights], [Result()], "BatchMatMulOptions",
            asymmetricQuantizeInputs=asymmetric, relative_=0.03,
        )  # fmt: skip
        weights = Operand(draw(5, 8, dtype=INT8), True, 0.02, 0)
        yield case(
            "FULLY_CONNECTED", f"hybrid_asymmetric{asymmetric}", [data(3, 8), weights, None], [Result()],
            "FullyConnectedOptions", asymmetricQuantizeInputs=asymmetric, relative_=0.03,
        )  # fmt: skip


def _looked_up() -> Iterator[OperatorCase]:
    """EMBEDDING_LOOKUP of several ranks and scales."""
    ids = Operand(np.array([2, 0, 2], "int32"))
    yield case("EMBEDDING_LOOKUP", "rank3", [ids, Operand(draw(4, 3, 2), True)], [Result()])
    yield case(
        "EMBEDDING_LOOKUP", "int8", [ids, Operand(draw(4, 3, dtype=INT8), True, 0.02, 0)],
        [Result(INT8, 0.02)],
    )  # fmt: skip
    channels = Operand(draw(4, 3, dtype=INT8), True, [0.01, 0.02, 0.03, 0.04], 0, 0)
    yield case("EMBEDDING_LOOKUP", "channels", [ids, channels], [Result()])


def _slopes() -> Iterator[OperatorCase]:
    """DEQUANTIZE of channels, and slopes of PRELU of several shapes."""
    for d in (INT8, UINT8, INT16):
        yield case("DEQUANTIZE", f"{d}_rank4", [data(1, 2, 2, 3, dtype=d)], [Result()], "DequantizeOptions")
        if d != INT16:  # LiteRT's kernel computes something else
            yield case(
                "PRELU", f"{d}_full",
                [data(2, 3, 4, dtype=d), Operand(draw(2, 3, 4, dtype=d), True, 0.01, 0)], [result(d)],
            )  # fmt: skip
    channels = Operand(draw(4, 3, dtype=INT8), True, [0.01, 0.02, 0.03, 0.04], 0, 0)
    yield case("DEQUANTIZE", "channels", [channels], [Result()], "DequantizeOptions")
    yield case("PRELU", "rank4", [data(1, 2, 3, 4), Operand(draw(1, 1, 4), True)], [Result()])
    yield case("PRELU", "no_axes", [data(1, 2, 3, 4), held(0.25, FLOAT)], [Result()])
    yield case("PRELU", "scalar", [data(1, 2, 3, 4), Operand(draw(1, 1, 1), True)], [Result()])
    yield case("PRELU", "rows", [data(1, 2, 3, 4), Operand(draw(2, 3, 1), True)], [Result()])


def cases_of_weights() -> Iterator[OperatorCase]:
    """All cases of this file."""
    for d in WEIGHTED:
        for group in (_strided, _open, _transposed, _pools):
            yield from group(d)
    yield from _volumes()
    for d in WEIGHTED:
        for group in (_dense, _matmuls):
            yield from group(d)
    for rest in (_hybrid, _int16, _narrow, _looked_up, _slopes):
        yield from rest()
