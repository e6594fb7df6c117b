"""Operators of ONNX Runtime (domain com.microsoft), as exporters of transformers write them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from .draw import Draw, Input, Maker, Node
from .elementwise import operands, part_of
from .movement import trilu
from .quantised import MICROSOFT
from .windows import grid_sample, picture, window


def microsoft(maker: Maker, name: str, d: Draw) -> Node:
    """A node of ONNX's operator in ONNX Runtime's domain."""
    made = maker(d)
    made.domain, made.operator = MICROSOFT, name
    return made


def fused_matmul(d: Draw) -> Node:
    m, k, n = d.size(), d.size(1, 8), d.size()
    lead = d.shape(0, 2, 1, 3)
    left, right = d.number(0, 1), d.number(0, 1)
    first = (*lead, k, m) if left else (*lead, m, k)
    second = (*part_of(d, lead), *((n, k) if right else (k, n)))
    return d.node(
        *operands(d, d.values(first), d.values(second)),
        domain=MICROSOFT,
        transA=left,
        transB=right,
        alpha=d.real(-1, 2),
    )


def fused_gemm(d: Draw) -> Node:
    m, k, n = d.size(), d.size(1, 8), d.size()
    bias = d.either(d.values(part_of(d, (m, n)))) if d.chance() else None
    return d.node(
        d.data(d.values((m, k))),
        d.either(d.values((k, n))),
        bias,
        domain=MICROSOFT,
        activation=d.pick(("Relu", "LeakyRelu", "Sigmoid", "Tanh")),
        activation_alpha=d.real(0.01, 0.3),
        **d.some(alpha=d.real(0.5, 2), beta=d.real(0.5, 2)),
    )


def biased(d: Draw, optional: bool = False) -> Node:
    shape = d.shape(1, 4)
    bias = d.either(d.values(shape[-1:])) if not optional or d.chance() else None
    return d.node(d.data(d.values(shape)), bias, domain=MICROSOFT)


def plain(d: Draw, **attributes: Any) -> Node:
    return d.node(d.data(d.values(d.shape(0, 4))), domain=MICROSOFT, **attributes)


def quick_gelu(d: Draw) -> Node:
    return plain(d, **d.some(alpha=d.real(0.5, 2)))


def skip_normalization(d: Draw) -> Node:
    batch, length, width = d.size(1, 3), d.size(1, 5), d.number(1, 8)
    shape = (batch, length, width) if d.chance(0.8) else (length, width)
    skip = d.pick((shape, shape, shape[1:], (1, *shape[1:]))) if len(shape) == 3 else shape

    def row() -> Input:
        return d.either(d.values((width,)), data=0.2)

    simple = d.operator == "SkipSimplifiedLayerNormalization"
    given = [d.data(d.values(shape)), d.data(d.values(skip)), row()]
    if not simple:
        given.append(row() if d.chance() else None)
    given.append(row() if d.chance() else None)
    return d.node(*given, outputs=1, domain=MICROSOFT, **d.some(epsilon=d.real(1e-5, 0.1)))


def simplified_normalization(d: Draw) -> Node:
    shape = d.shape(1, 4)
    axis = d.axis(len(shape))
    scale = d.either(d.values(shape[axis % len(shape) :]), data=0.3)
    return d.node(d.data(d.values(shape)), scale, axis=axis, **d.some(epsilon=d.real(1e-5, 0.1)))


def embed_layer_normalization(d: Draw) -> Node:
    batch, length, width = d.size(1, 3), d.size(1, 5), d.number(2, 8)
    segments = d.chance(0.6)
    ids = d.data(d.indices((batch, length), 0, 10, "int32"))
    kinds = d.data(d.indices((batch, length), 0, 1, "int32")) if segments else None
    tables = [d.constant(d.values((rows, width))) for rows in (11, 10, 2)]
    mask: Input | None = None
    if d.chance(0.4):
        mask = d.data(d.values((batch, length), "bool").astype("int32"))
    positions = d.data(d.indices((batch, length), 0, 9, "int32")) if d.chance(0.4) else None
    return d.node(
        ids,
        kinds,
        tables[0],
        tables[1],
        tables[2] if segments else None,
        d.constant(d.values((width,))),
        d.constant(d.values((width,))),
        mask,
        positions,
        outputs=2,
        domain=MICROSOFT,
        **d.some(epsilon=d.real(1e-5, 0.1)),
    )


def fused_conv(d: Draw) -> Node:
    groups = d.pick((1, 2))
    shape = picture(d, groups * d.number(1, 3), most_rank=2)
    attributes = window(d, len(shape) - 2)
    outputs = groups * d.number(1, 3)
    weight = d.values((outputs, shape[1] // groups, *attributes["kernel_shape"]))
    bias = d.constant(d.values((outputs,))) if d.chance() else None
    attributes["activation"] = d.pick(("Relu", "Tanh", "Sigmoid", "LeakyRelu", "Clip", "HardSigmoid"))
    values = {"LeakyRelu": [0.1], "Clip": [-1.0, 1.0], "HardSigmoid": [0.3, 0.4]}
    if attributes["activation"] in values:
        attributes["activation_params"] = values[attributes["activation"]]
    return d.node(
        d.data(d.values(shape)), d.constant(weight), bias, group=groups, domain=MICROSOFT, **attributes
    )


def nhwc_pool(d: Draw) -> Node:
    shape = (d.size(1, 2), d.size(5, 9), d.size(5, 9), d.number(1, 4))
    dtype, attributes = d.pick(("int8", "uint8")), window(d, 2)
    if "auto_pad" in attributes:  # ONNX Runtime cuts where a stride is wider than the window
        attributes["strides"] = [1, 1]
    return d.node(d.data(d.values(shape, dtype)), domain=MICROSOFT, **attributes, **d.some(ceil_mode=1))


def gather_nd(d: Draw) -> Node:
    from .movement import gather_nd as made

    node = made(d)
    node.attributes.clear()
    return node


def expand_dims(d: Draw) -> Node:
    shape = d.shape(0, 4)
    axis = np.asarray(d.number(-len(shape) - 1, len(shape)), "int32")
    return d.node(d.data(d.values(shape)), d.constant(axis), domain=MICROSOFT)


def distances(d: Draw) -> Node:
    k = d.size(1, 6)
    pair = (d.data(d.values((d.size(), k))), d.either(d.values((d.size(), k))))
    return d.node(*pair, domain=MICROSOFT, metric=d.pick(("euclidean", "sqeuclidean")))


def gather_block_quantized(d: Draw) -> Node:
    rows, width, bits = d.number(2, 6), d.pick((32, 64)), d.pick((4, 4, 8))
    block = d.pick((16, 32))
    count = width // block
    data = d.constant(d.indices((rows, width * bits // 8), 0, 255, "uint8"))
    scales = d.constant(np.abs(d.values((rows, count), "float32", 0.2)))
    packed = -(-count * bits // 8)
    points = d.constant(d.indices((rows, packed), 0, 255, "uint8")) if d.chance() else None
    indices = d.indices(d.shape(1, 2, 1, 4), -rows, rows - 1)
    return d.node(
        data,
        d.data(indices),
        scales,
        points,
        domain=MICROSOFT,
        bits=bits,
        block_size=block,
        gather_axis=0,
        quantize_axis=1,
    )


def unfold(d: Draw) -> Node:
    shape = d.shape(1, 3, 4, 8)
    dim = d.axis(len(shape))
    return d.node(
        d.data(d.values(shape)), domain=MICROSOFT, dim=dim, size=d.number(1, 3), step=d.number(1, 2)
    )


def inverse(d: Draw) -> Node:
    n = d.number(1, 6)
    x = d.values((*d.shape(0, 2, 1, 3), n, n), d.pick(("float32", "float64")))
    return d.node(d.data(x), domain=MICROSOFT)


def matmul_bnb4(d: Draw) -> Node:
    rows, depth, block = d.number(1, 20), d.number(1, 40), d.pick((16, 32, 64))
    count = rows * depth
    return d.node(
        d.data(d.values((*d.shape(0, 2, 1, 4), d.size(), depth))),
        d.constant(d.indices((-(-count // 2),), 0, 255, "uint8")),
        d.constant(np.abs(d.values((-(-count // block),)))),
        domain=MICROSOFT, N=rows, K=depth, block_size=block, quant_type=d.number(0, 1),
    )  # fmt: skip


def matmul_integer16(d: Draw) -> Node:
    rows, depth, columns = (d.size() for _ in range(3))
    batch = d.shape(0, 2, 1, 3)
    a, b = (
        d._noise().integers(-(2**15), 2**15, shape) for shape in ((*batch, rows, depth), (depth, columns))
    )
    return d.node(d.data(a.astype("int16")), d.either(b, "int16"), domain=MICROSOFT)


def ngram_repeat_block(d: Draw) -> Node:
    rows, words = d.size(), d.number(2, 5)
    ids = d.data(d.indices((rows, d.size(1, 9)), 0, words - 1))
    return d.node(ids, d.data(d.values((rows, words))), domain=MICROSOFT, ngram_size=d.number(1, 4))


def crop_and_resize(d: Draw) -> Node:
    count, images, regions = d.number(1, 3), d.number(1, 3), d.size()
    x = d.data(d.values((images, d.size(), d.number(2, 6), d.number(2, 6))))
    rois = d.data(np.asarray(d._noise().uniform(-0.3, 1.3, (regions, 4)), "float32"))
    which = d.data(d.indices((regions,), 0, images - 1, "int32"))
    return d.node(
        x, rois, which, d.constant([count, d.number(1, 4)], "int32"), domain=MICROSOFT,
        **d.some(mode=d.pick(("bilinear", "nearest")), extrapolation_value=0.25),
    )  # fmt: skip


MAKERS: dict[str, Maker] = {
    "CropAndResize": crop_and_resize,
    "MatMulInteger16": matmul_integer16,
    "NGramRepeatBlock": ngram_repeat_block,
    "FusedMatMul": fused_matmul,
    "TransposeMatMul": fused_matmul,
    "FusedGemm": fused_gemm,
    "BiasGelu": biased,
    "FastGelu": partial(biased, optional=True),
    "QuickGelu": quick_gelu,
    "ContribGelu": partial(microsoft, plain, "Gelu"),
    "SkipLayerNormalization": skip_normalization,
    "SkipSimplifiedLayerNormalization": skip_normalization,
    "SimplifiedLayerNormalization": simplified_normalization,
    "EmbedLayerNormalization": embed_layer_normalization,
    "FusedConv": fused_conv,
    "NhwcMaxPool": nhwc_pool,
    "ContribTrilu": partial(microsoft, trilu, "Trilu"),
    "ContribGridSample": partial(microsoft, grid_sample, "GridSample"),
    "ContribGatherND": partial(microsoft, gather_nd, "GatherND"),
    "ExpandDims": expand_dims,
    "CDist": distances,
    "GatherBlockQuantized": gather_block_quantized,
    "UnfoldTensor": unfold,
    "Inverse": inverse,
    "MatMulBnb4": matmul_bnb4,
}
