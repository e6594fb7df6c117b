"""Products of matrices, sums of products, determinants, transforms of signals."""

from __future__ import annotations

import numpy as np

from .draw import Draw, Maker, Node
from .elementwise import operands, part_of


def matrices(d: Draw) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of two factors: either may be a vector, or have further axes that are broadcast."""
    m, k, n = d.size(), d.size(1, 8), d.size()
    lead = d.shape(0, 3, 1, 3)
    first: tuple[int, ...] = (*part_of(d, lead), m, k)
    second: tuple[int, ...] = (*part_of(d, lead), k, n)
    form = d.number(0, 5)
    if form == 0:
        first = (k,)
    elif form == 1:
        second = (k,)
    elif form == 2:
        second = (k, n)
    return first, second


def matmul(d: Draw) -> Node:
    first, second = matrices(d)
    dtype = d.pick(("float32", "float32", "float64", "int32", "int64"))
    return d.node(*operands(d, d.values(first, dtype), d.values(second, dtype)))


def gemm(d: Draw) -> Node:
    m, k, n = d.size(), d.size(1, 8), d.size()
    left, right = d.number(0, 1), d.number(0, 1)
    dtype = d.pick(("float32", "float32", "float64"))
    a, b = d.values((k, m) if left else (m, k), dtype), d.values((n, k) if right else (k, n), dtype)
    c = d.values(part_of(d, (m, n)), dtype)
    given = [*operands(d, a, b)]
    if d.opset < 11 or d.chance():
        given.append(d.either(c))
    attributes = d.some(alpha=d.real(-1, 2), beta=d.real(-1, 2))
    return d.node(*given, transA=left or None, transB=right or None, **attributes)


EQUATIONS = (
    "ij,jk->ik",
    "ij,jk",
    "bij,bjk->bik",
    "...ij,...jk->...ik",
    "ii->i",
    "ij->ji",
    "ij->",
    "i,j->ij",
    "bij,bkj->bik",
    "bhqd,bhkd->bhqk",
    "...ij->...ji",
    "ij,ij->i",
    "ij,j->i",
    "abc,cd,de->abe",
    "i,i",
    "ii",
    "ba",
    "bijc,bc->bij",
)


def einsum(d: Draw) -> Node:
    equation = d.pick(EQUATIONS)
    sizes: dict[str, int] = {}
    lead = d.shape(0, 2, 1, 3)
    values = []
    for term in equation.split("->")[0].split(","):
        shape: list[int] = []
        if term.startswith("..."):
            shape += lead
            term = term[3:]
        for letter in term:
            if letter not in sizes:
                sizes[letter] = d.size(1, 5)
            shape.append(sizes[letter])
        values.append(d.values(shape))
    if d.chance(0.3):
        equation = equation.replace(",", " , ").replace("->", " -> ")
    return d.node(d.data(values[0]), *(d.either(value, data=0.6) for value in values[1:]), equation=equation)


def det(d: Draw) -> Node:
    n = d.number(1, 4)
    return d.node(d.data(d.values((*d.shape(0, 2, 1, 3), n, n))))


def dft(d: Draw) -> Node:
    inner = d.shape(1, 3, 2, 8)
    back = d.number(0, 1)
    onesided = d.number(0, 1)
    parts = 2 if back else d.pick((1, 2))
    onesided = 0 if parts == 2 or back else onesided
    shape = (d.size(1, 3), *inner, parts)
    axis = d.number(1, len(shape) - 2)
    axis -= len(shape) if d.chance(0.3) else 0
    length = d.size_input(np.asarray(d.number(2, 9)), "int64") if d.chance(0.4) else None
    x = d.data(d.values(shape))
    if d.opset >= 20:
        axis_input = d.size_input(np.asarray(axis)) if d.chance(0.7) else None
        return d.node(x, length, axis_input, **d.some(inverse=back, onesided=onesided))
    return d.node(x, length, inverse=back, onesided=onesided, **d.some(axis=axis % len(shape)))


def stft(d: Draw) -> Node:
    shape = (d.size(1, 3), d.size(16, 30), 1)
    step, length = np.asarray(d.number(2, 6)), d.number(4, 10)
    form = d.number(0, 2)
    window = d.either(d.values((length,)), data=0.3) if form else None
    frame = d.size_input(np.asarray(length), "int64") if form != 1 else None
    return d.node(d.data(d.values(shape)), d.size_input(step), window, frame, onesided=d.number(0, 1))


def window(d: Draw) -> Node:
    return d.node(d.data(np.asarray(d.number(2, 9))), **d.some(periodic=d.number(0, 1)))


def loss(d: Draw) -> Node:
    classes, spatial = d.number(2, 5), d.shape(0, 2, 1, 4)
    batch = d.size(1, 4)
    x = d.values((batch, classes, *spatial))
    labels = d.indices((batch, *spatial), 0, classes - 1, d.pick(("int64", "int32")))
    weights = d.either(np.abs(d.values((classes,))) + np.float32(0.2), data=0.4) if d.chance() else None
    attributes = d.some(reduction=d.pick(("none", "sum", "mean")), ignore_index=d.number(-1, classes - 1))
    outputs = d.number(1, 2) if d.operator == "SoftmaxCrossEntropyLoss" else 1
    return d.node(d.data(x), d.data(labels), weights, outputs=outputs, **attributes)


def non_max_suppression(d: Draw) -> Node:
    batch, classes, count = d.size(1, 2), d.size(1, 3), d.size(2, 8)
    centre = d.number(0, 1)
    corner = np.abs(d.values((batch, count, 2)))
    extent = np.abs(d.values((batch, count, 2), "float32", 1.0)) + np.float32(0.5)
    boxes = np.concatenate([corner, extent if centre else corner + extent], -1)
    scores = d.values((batch, classes, count), "float32", 1.0)
    limits = [
        np.asarray([d.number(1, 3)]),
        np.asarray([d.real(0.1, 0.6)], "f4"),
        np.asarray([d.real(-1, 0.5)], "f4"),
    ]
    given = [d.constant(limit) for limit in limits][: d.number(1, 3)]
    return d.node(d.data(boxes), d.data(scores), *given, **d.some(center_point_box=centre) if centre else {})


MAKERS: dict[str, Maker] = {
    "MatMul": matmul,
    "Gemm": gemm,
    "Einsum": einsum,
    "Det": det,
    "DFT": dft,
    "STFT": stft,
    "HannWindow": window,
    "HammingWindow": window,
    "BlackmanWindow": window,
    "NegativeLogLikelihoodLoss": loss,
    "SoftmaxCrossEntropyLoss": loss,
    "NonMaxSuppression": non_max_suppression,
}
