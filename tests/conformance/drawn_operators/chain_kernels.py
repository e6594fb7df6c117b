"""Steps of drawn graphs that reduce, normalise, multiply, convolve, pool or resize a tensor."""

from __future__ import annotations

from math import prod

import numpy as np

from .chain_links import MOST_ELEMENTS, Chain, Link, Shape, need


def reduce(c: Chain, x: str, shape: Shape) -> None:
    axes, keep = c.d.axes(len(shape), 1), c.d.number(0, 1)
    name = c.d.pick(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceL1"))
    gone = {axis % len(shape) for axis in axes} or set(range(len(shape)))
    result_shape = tuple(1 if at in gone else size for at, size in enumerate(shape) if keep or at not in gone)
    operands = [c.const(axes, "int64")] if axes else []
    c.step(name, x, *operands, keepdims=keep, shape=result_shape)


def soften(c: Chain, x: str, shape: Shape) -> None:
    need(len(shape) > 0)
    c.step(c.d.pick(("Softmax", "LogSoftmax")), x, axis=c.d.axis(len(shape)), shape=shape)


def running(c: Chain, x: str, shape: Shape) -> None:
    need(len(shape) > 0)
    axis = c.const(np.int64(c.d.axis(len(shape))))
    c.step(
        "CumSum", x, axis, exclusive=c.d.number(0, 1), reverse=c.d.number(0, 1), shape=shape
    )  # fmt: skip


def normal(c: Chain, x: str, shape: Shape) -> None:
    """LayerNormalization, InstanceNormalization or BatchNormalization."""
    rank = len(shape)
    need(rank >= 1)
    kind = c.d.pick(("Layer", "Instance", "Batch"))
    if kind == "Layer":
        axis = c.d.axis(rank)
        part = shape[axis % rank :]
        need(prod(part) > 1)
        bias = [c.weights(part)] if c.d.chance() else []
        c.step("LayerNormalization", x, c.weights(part), *bias, axis=axis, epsilon=0.1, shape=shape)
        return
    need(rank >= 3)
    channels = (shape[1],)
    scale, bias_ = c.weights(channels), c.weights(channels)
    if kind == "Instance":
        c.step("InstanceNormalization", x, scale, bias_, epsilon=0.1, shape=shape)
        return
    mean = c.weights(channels)
    variance = c.const(np.abs(c.d.values(channels)) + np.float32(0.5))
    c.step("BatchNormalization", x, scale, bias_, mean, variance, shape=shape)


def product(c: Chain, x: str, shape: Shape) -> None:
    rank = len(shape)
    need(rank >= 1)
    columns = c.d.number(1, 9)
    if rank == 2 and c.d.chance(0.4):
        left, right = c.d.number(0, 1), c.d.number(0, 1)
        depth, rows = (shape[0], shape[1]) if left else (shape[1], shape[0])
        weights = c.weights((columns, depth) if right else (depth, columns))
        bias = [c.weights((columns,))] if c.d.chance() else []
        c.step(
            "Gemm", x, weights, *bias, transA=left, transB=right, alpha=c.d.real(0.5, 1.5), beta=0.7,
            shape=(rows, columns),
        )  # fmt: skip
        return
    if rank >= 2 and c.d.chance(0.3):
        c.step("MatMul", c.weights((columns, shape[-2])), x, shape=(*shape[:-2], columns, shape[-1]))
        return
    c.step("MatMul", x, c.weights((shape[-1], columns)), shape=(*shape[:-1], columns))


def attend(c: Chain, x: str, shape: Shape) -> None:
    """A tensor times its own transpose, a softmax, and the product with the tensor."""
    need(len(shape) >= 2)
    order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    scores = c.step("MatMul", x, c.step("Transpose", x, perm=order))
    scores = c.step("Mul", scores, c.const(np.float32(0.3)))
    c.step("MatMul", c.step("Softmax", scores, axis=-1), x, shape=shape)


def convolve(c: Chain, x: str, shape: Shape) -> None:
    rank = len(shape) - 2
    need(1 <= rank <= 3)
    groups = c.d.pick((1, 1, shape[1]))
    kernel = [min(c.d.number(1, 3), size) for size in shape[2:]]
    strides, pads = [c.d.number(1, 2) for _ in kernel], [c.d.number(0, 1) for _ in kernel * 2]
    outputs = groups * c.d.number(1, 4)
    if c.d.chance(0.25):
        need(max(pads[at] + pads[at + rank] for at in range(rank)) == 0 or min(kernel) > 1)
        sizes = [
            (size - 1) * strides[at] + kernel[at] - pads[at] - pads[at + rank]
            for at, size in enumerate(shape[2:])
        ]
        name, weights = "ConvTranspose", c.weights((shape[1], outputs // groups, *kernel))
    else:
        sizes = [
            (size + pads[at] + pads[at + rank] - kernel[at]) // strides[at] + 1
            for at, size in enumerate(shape[2:])
        ]
        name, weights = "Conv", c.weights((outputs, shape[1] // groups, *kernel))
    need(min(sizes) > 0 and prod(sizes) * outputs * shape[0] <= MOST_ELEMENTS)
    bias = [c.weights((outputs,))] if c.d.chance(0.6) else []
    c.step(
        name, x, weights, *bias, strides=strides, pads=pads, group=groups, shape=(shape[0], outputs, *sizes)
    )


def pool(c: Chain, x: str, shape: Shape) -> None:
    rank = len(shape) - 2
    need(1 <= rank <= 3)
    name = c.d.pick(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"))
    if name.startswith("Global"):
        c.step(name, x, shape=(*shape[:2], *[1] * rank))
        return
    kernel = [min(c.d.number(1, 3), size) for size in shape[2:]]
    strides = [c.d.number(1, 2) for _ in kernel]
    pads = [c.d.number(0, (size - 1) // 2) for size in kernel] * 2
    sizes = [(size + 2 * pads[at] - kernel[at]) // strides[at] + 1 for at, size in enumerate(shape[2:])]
    c.step(name, x, kernel_shape=kernel, strides=strides, pads=pads, shape=(*shape[:2], *sizes))


def resize(c: Chain, x: str, shape: Shape) -> None:
    rank = len(shape) - 2
    need(1 <= rank <= 2)
    scales = [1.0, 1.0, *(c.d.pick((1.0, 2.0)) for _ in range(rank))]
    result_shape = tuple(int(size * scale) for size, scale in zip(shape, scales, strict=True))
    need(prod(result_shape) <= MOST_ELEMENTS)
    c.step(
        "Resize", x, "", c.const(scales, "float32"), mode=c.d.pick(("nearest", "linear")), shape=result_shape,
        coordinate_transformation_mode=c.d.pick(("asymmetric", "half_pixel")),
    )  # fmt: skip


def shuffle(c: Chain, x: str, shape: Shape) -> None:
    """DepthToSpace or SpaceToDepth."""
    need(len(shape) == 4)
    n, channels, h, w = shape
    if channels % 4 == 0:
        result_shape = (n, channels // 4, h * 2, w * 2)
        c.step("DepthToSpace", x, blocksize=2, mode=c.d.pick(("DCR", "CRD")), shape=result_shape)
        return
    need(h % 2 == 0 and w % 2 == 0)
    c.step("SpaceToDepth", x, blocksize=2, shape=(n, channels * 4, h // 2, w // 2))


def cast(c: Chain, x: str, shape: Shape) -> None:
    """Another type and back: float64, or integers."""
    kind = c.d.pick((11, 6, 7))
    c.step("Cast", c.step("Cast", x, to=kind), to=1, shape=shape)


def place(c: Chain, x: str, shape: Shape) -> None:
    """ArgMax as a tensor of floats."""
    need(len(shape) > 0)
    axis, keep = c.d.number(0, len(shape) - 1), c.d.number(0, 1)
    result_shape = (*shape[:axis], *([1] if keep else []), *shape[axis + 1 :])
    c.step(
        "Cast", c.step(c.d.pick(("ArgMax", "ArgMin")), x, axis=axis, keepdims=keep), to=1, shape=result_shape
    )


LINKS: dict[Link, int] = {
    reduce: 2,
    soften: 1,
    running: 1,
    normal: 1,
    product: 2,
    attend: 1,
    convolve: 4,
    pool: 2,
    resize: 1,
    shuffle: 1,
    cast: 1,
    place: 1,
}
