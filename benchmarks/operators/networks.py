"""Blocks of a few operators that common networks contain, as exporters write them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx

from benchmarks.operators.case import Case, sizes_text


def blocks() -> Iterator[Case]:
    """Yield the cases of float32."""
    yield from _normalised()
    yield from _gated()
    yield from _sequences()
    yield from _vision()


def _normalised() -> Iterator[Case]:
    """Normalisations with the operators around them."""
    case = Case("block layer_norm 1x96x28x28 channels first")
    x = case.node("Transpose", case.input([1, 96, 28, 28]), perm=[0, 2, 3, 1])
    x = case.node("LayerNormalization", x, case.weight(96), case.weight(96), axis=-1)
    case.node("Transpose", x, perm=[0, 3, 1, 2])
    yield case
    case = Case("block layer_norm 1x3136x48 then add")
    x, skip = case.input([1, 3136, 48]), case.input([1, 3136, 48])
    case.node("LayerNormalization", case.node("Add", x, skip), case.weight(48), case.weight(48), axis=-1)
    yield case
    case = Case("block layer_norm 197x384 of primitives")
    x, axes = case.input([197, 384]), case.constant([-1], "int64")
    centred = case.node("Sub", x, case.node("ReduceMean", x, axes, keepdims=1))
    variance = case.node(
        "ReduceMean", case.node("Pow", centred, case.constant(2, "float32")), axes, keepdims=1
    )
    root = case.node("Sqrt", case.node("Add", variance, case.constant(1e-5, "float32")))
    case.node("Add", case.node("Mul", case.node("Div", centred, root), case.weight(384)), case.weight(384))
    yield case
    case = Case("block group_norm 32 1x320x16x16 then silu")
    x = case.input([1, 320, 16, 16])
    ones, zeros = case.constant(np.ones(32, "float32")), case.constant(np.zeros(32, "float32"))
    parts = case.node("Reshape", x, case.constant([1, 32, -1], "int64"))
    normal = case.node(
        "Reshape",
        case.node("InstanceNormalization", parts, ones, zeros),
        case.constant([1, 320, 16, 16], "int64"),
    )
    y = case.node("Add", case.node("Mul", normal, case.weight(320, 1, 1)), case.weight(320, 1, 1))
    case.node("Mul", y, case.node("Sigmoid", y))
    yield case
    case = Case("block instance_norm 1x64x48x48 then leaky_relu")
    y = case.node("InstanceNormalization", case.input([1, 64, 48, 48]), case.weight(64), case.weight(64))
    case.node("LeakyRelu", y, alpha=0.2)
    yield case
    case = Case("block l2_normalise 100x512")
    x = case.input([100, 512])
    norm = case.node("ReduceL2", x, case.constant([1], "int64"), keepdims=1)
    case.node("Div", x, case.node("Max", norm, case.constant(1e-12, "float32")))
    yield case
    case = Case("block mean and deviation 1x256x300 over time")
    x, axes = case.input([1, 256, 300]), case.constant([2], "int64")
    mean = case.node("ReduceMean", x, axes, keepdims=1)
    centred = case.node("Sub", x, mean)
    variance = case.node("ReduceMean", case.node("Mul", centred, centred), axes, keepdims=1)
    case.node("Concat", mean, case.node("Sqrt", variance), axis=1)
    yield case


def _gated() -> Iterator[Case]:
    """Activations of primitive operators, and gates."""
    case = Case("block mish of primitives 1x64x40x40")
    x = case.input([1, 64, 40, 40])
    case.node("Mul", x, case.node("Tanh", case.node("Softplus", x)))
    yield case
    case = Case("block hard_swish of primitives 1x40x28x28")
    x = case.input([1, 40, 28, 28])
    grown = case.node(
        "Clip",
        case.node("Add", x, case.constant(3, "float32")),
        case.constant(0, "float32"),
        case.constant(6, "float32"),
    )
    case.node("Div", case.node("Mul", x, grown), case.constant(6, "float32"))
    yield case
    case = Case("block glu 1x512x200 axis 1")
    x = case.input([1, 512, 200])
    case.node("Split", x, axis=1, num_outputs=2, count=2)
    case.node("Mul", "t0_0", case.node("Sigmoid", "t0_1"))
    yield case
    case = Case("block swiglu 64x1024")
    case.node("Split", case.input([64, 1024]), axis=1, num_outputs=2, count=2)
    gate = case.node("Mul", "t0_0", case.node("Sigmoid", "t0_0"))
    case.node("Mul", gate, "t0_1")
    yield case
    case = Case("block squeeze_excite 1x96x28x28 by 24")
    x = case.input([1, 96, 28, 28])
    y = case.node(
        "Relu",
        case.node("Conv", case.node("GlobalAveragePool", x), case.weight(24, 96, 1, 1), case.weight(24)),
    )
    case.node(
        "Mul", x, case.node("Sigmoid", case.node("Conv", y, case.weight(96, 24, 1, 1), case.weight(96)))
    )
    yield case
    case = Case("block prelu 1x64x56x56")
    case.node("PRelu", case.input([1, 64, 56, 56]), case.weight(64, 1, 1))
    yield case
    case = Case("block broadcast 1x33x1x45 by 4x1x27x45 by 33x1x1")
    y = case.node("Mul", case.input([1, 33, 1, 45]), case.input([4, 1, 27, 45]))
    case.node("Add", y, case.input([33, 1, 1]))
    yield case


def _sequences() -> Iterator[Case]:
    """Parts of models of text and sound."""
    case = Case("block rotary 1x8x100x64")
    x = case.input([1, 8, 100, 64])
    axes, step = case.constant([3], "int64"), case.constant([1], "int64")
    low = case.node("Slice", x, case.constant([0], "int64"), case.constant([32], "int64"), axes, step)
    high = case.node("Slice", x, case.constant([32], "int64"), case.constant([64], "int64"), axes, step)
    turned = case.node("Concat", case.node("Neg", high), low, axis=3)
    cos, sin = case.weight(1, 1, 100, 64), case.weight(1, 1, 100, 64)
    case.node("Add", case.node("Mul", x, cos), case.node("Mul", turned, sin))
    yield case
    case = Case("block causal softmax 8x100x100")
    mask = case.constant(np.tril(np.ones((1, 100, 100), bool)))
    scores = case.node("Where", mask, case.input([8, 100, 100]), case.constant(-1e9, "float32"))
    case.node("Softmax", scores, axis=-1)
    yield case
    case = Case("block embedding 30000x384 of 128")
    table, places = case.weight(30000, 384), case.weight(128, 384)
    case.inputs["i"] = case.indices(30000, 1, 128)
    y = case.node("Add", case.node("Gather", table, "i"), places)
    case.node("LayerNormalization", y, case.weight(384), case.weight(384), axis=-1)
    yield case
    case = Case("block relative positions 14x14x64")
    case.node("Einsum", case.input([6, 14, 14, 64]), case.weight(14, 14, 64), equation="bhwc,hkc->bhwk")
    yield case
    case = Case("block causal conv 1x256x100 kernel 4 then silu")
    y = case.node(
        "Conv", case.input([1, 256, 100]), case.weight(256, 1, 4), case.weight(256), group=256, pads=[3, 0]
    )
    case.node("Mul", y, case.node("Sigmoid", y))
    yield case
    case = Case("block waveform conv 1x1x16000 to 512 kernel 10 stride 5")
    case.node("Conv", case.input([1, 1, 16000]), case.weight(512, 1, 10), strides=[5])
    yield case
    case = Case("block conv1d 1x256x400 to 256 kernel 3 stride 2")
    case.node("Conv", case.input([1, 256, 400]), case.weight(256, 256, 3), case.weight(256), strides=[2])
    yield case
    case = Case("block log mel 200x201 to 80")
    power = case.node("Pow", case.input([200, 201]), case.constant(2, "float32"))
    mel = case.node("MatMul", power, case.weight(201, 80, scale=1))
    case.node("Log", case.node("Clip", mel, case.constant(1e-5, "float32")))
    yield case
    case = Case("block gemm_run 8x512x512 columns first")
    case.node("MatMul", case.input([8, 512]), case.node("Transpose", case.input([512, 512]), perm=[1, 0]))
    yield case


def _vision() -> Iterator[Case]:
    """Parts of models of images, and what comes before and after them."""
    case = Case("block focus 1x3x256x256")
    x = case.input([1, 3, 256, 256])
    axes, step = case.constant([2, 3], "int64"), case.constant([2, 2], "int64")
    ends = case.constant([256, 256], "int64")
    parts = [
        case.node("Slice", x, case.constant([row, column], "int64"), ends, axes, step)
        for column in (0, 1)
        for row in (0, 1)
    ]
    case.node("Concat", *parts, axis=1)
    yield case
    case = Case("block channel_shuffle 1x116x28x28 in 2")
    parted = case.node("Reshape", case.input([1, 116, 28, 28]), case.constant([1, 2, 58, 28, 28], "int64"))
    turned = case.node("Transpose", parted, perm=[0, 2, 1, 3, 4])
    case.node("Reshape", turned, case.constant([1, 116, 28, 28], "int64"))
    yield case
    case = Case("block distances 1x64x2100")
    parted = case.node("Reshape", case.input([1, 64, 2100]), case.constant([1, 4, 16, 2100], "int64"))
    chances = case.node("Softmax", case.node("Transpose", parted, perm=[0, 2, 1, 3]), axis=1)
    case.node("Conv", chances, case.constant(np.arange(16, dtype="float32").reshape(1, 16, 1, 1)))
    yield case
    case = Case("block grouped conv 1x116x28x28 kernel 1 group 4")
    case.node("Conv", case.input([1, 116, 28, 28]), case.weight(116, 29, 1, 1), case.weight(116), group=4)
    yield case
    case = Case("block pool max 1x32x64x100 of 2x1 then average of 1x5")
    y = case.node("MaxPool", case.input([1, 32, 64, 100]), kernel_shape=[2, 1], strides=[2, 1])
    case.node("AveragePool", y, kernel_shape=[1, 5], strides=[1, 2], pads=[0, 2, 0, 2])
    yield case
    for mode, how, shape, size in [("linear", "align_corners", (1, 24, 20, 20), (39, 39)),
                                   ("linear", "half_pixel", (1, 32, 13, 17), (45, 60)),
                                   ("nearest", "half_pixel", (1, 48, 15, 15), (22, 22))]:  # fmt: skip
        case = Case(f"block resize {mode} {how} {sizes_text(*shape)} to {sizes_text(*size)}")
        sizes = case.constant([*shape[:2], *size], "int64")
        case.node("Resize", case.input(shape), "", "", sizes, mode=mode, coordinate_transformation_mode=how)
        yield case
    case = Case("block argmax 60x80x21 of rows")
    case.node("ArgMax", case.input([60, 80, 21]), axis=2, keepdims=0)
    yield case
    case = Case("block pixels 1x3x160x160 to uint8")
    x = case.node("Mul", case.input([1, 3, 160, 160]), case.constant(255, "float32"))
    x = case.node("Round", case.node("Clip", x, case.constant(0, "float32"), case.constant(255, "float32")))
    case.node("Cast", case.node("Transpose", x, perm=[0, 2, 3, 1]), to=onnx.TensorProto.UINT8)
    yield case


def quantised() -> Iterator[Case]:
    """Yield the cases of integers: dequantise, an operator, quantise."""
    for channels, outputs, side, size, group in [
        (32, 64, 28, 3, 1), (96, 96, 28, 3, 96), (72, 72, 28, 5, 72), (64, 64, 20, 7, 64),
        (120, 40, 28, 1, 1),
    ]:  # fmt: skip
        shape = sizes_text(1, channels, side, side)
        case = Case(f"int8 conv {shape} to {outputs} kernel {size} group {group}")
        x = _dequantised(
            case,
            case.node("QuantizeLinear", case.input([1, channels, side, side]), *_scale(case, 0.03)),
            0.03,
        )
        kernel = case.constant(case.indices(255, outputs, channels // group, size, size) - 127, "int8")
        weights = case.node(
            "DequantizeLinear", kernel, case.constant(0.01, "float32"), case.constant(0, "int8")
        )
        y = case.node("Conv", x, weights, case.weight(outputs), group=group, pads=[size // 2] * 4)
        case.node("QuantizeLinear", y, *_scale(case, 0.2))
        yield case
    case = Case("int8 gemm 64x256x512")
    x = _dequantised(case, case.node("QuantizeLinear", case.input([64, 256]), *_scale(case, 0.03)), 0.03)
    kernel = case.constant(case.indices(255, 256, 512) - 127, "int8")
    weights = case.node("DequantizeLinear", kernel, case.constant(0.01, "float32"), case.constant(0, "int8"))
    case.node("QuantizeLinear", case.node("MatMul", x, weights), *_scale(case, 0.2))
    yield case
    case = Case("int8 add 1x64x28x28")
    parts = [
        _dequantised(
            case, case.node("QuantizeLinear", case.input([1, 64, 28, 28]), *_scale(case, 0.03)), 0.03
        )
        for _ in range(2)
    ]
    case.node("QuantizeLinear", case.node("Add", *parts), *_scale(case, 0.05))
    yield case


def _scale(case: Case, scale: float) -> tuple[str, str]:
    """A scale and a zero point of uint8."""
    return case.constant(scale, "float32"), case.constant(128, "uint8")


def _dequantised(case: Case, x: str, scale: float) -> str:
    """Add a dequantisation of the uint8 tensor `x`; return its name."""
    return case.node("DequantizeLinear", x, *_scale(case, scale))
