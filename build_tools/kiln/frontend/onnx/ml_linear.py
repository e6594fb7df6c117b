"""LinearRegressor, LinearClassifier, SVMRegressor and SVMClassifier of ai.onnx.ml."""

from __future__ import annotations

from itertools import accumulate, combinations
from typing import Any

import numpy as np
from tvm import te

from kiln.arrays import Array
from kiln.frontend.onnx.body import Body, Expansion
from kiln.frontend.onnx.ml_coupling import coupled
from kiln.frontend.onnx.ml_scores import TRANSFORMS, Labels, rows_of, transform_scores, with_opposite_scores
from kiln.frontend.symbols import int64, int64_of

_KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
_LEAST = 1e-7  # probability that one of two classes is the right one


def _matrix(body: Body, name: str, rows: int, columns: int) -> Array:
    """An attribute of floats as a matrix. Raises ValueError for another number of floats."""
    matrix: Array = np.array(body.required(name), "float32")
    if matrix.size != rows * columns:
        raise ValueError(f"its attribute '{name}' has {matrix.size} numbers, allowed: {rows * columns}")
    return matrix.reshape(rows, columns)


def _product(body: Body, x: str, matrix: Array) -> str:
    """`x` times the transposed matrix."""
    return body.op("MatMul", x, body.const(np.ascontiguousarray(matrix.T)))


def linear_regressor(body: Body) -> list[str]:
    """LinearRegressor: x times the coefficients, plus the intercepts; the result is not transformed."""
    x, columns = rows_of(body)
    body.only("post_transform", "NONE")
    weights = _matrix(body, "coefficients", int(body.attribute("targets", 1)), columns)
    return [_plus_intercepts(body, _product(body, x, weights))]


def _plus_intercepts(body: Body, scores: str) -> str:
    """`scores` plus the attribute `intercepts`, if the node has it."""
    intercepts = np.array(body.attribute("intercepts") or [], "float32")
    return body.op("Add", scores, body.const(intercepts)) if intercepts.size else scores


def linear_classifier(body: Body) -> list[str | None]:
    """LinearClassifier: labels, and the scores of all classes."""
    x, columns = rows_of(body)
    labels, transform = Labels(body, "classlabels_ints"), body.only("post_transform", *TRANSFORMS)
    body.accept_attributes("multi_class")  # no runtime computes by it
    count = len(body.attribute("intercepts") or []) or len(body.required("coefficients")) // columns
    if labels.count < 2 or count not in (1, labels.count) or (count == 1 and labels.count != 2):
        raise ValueError(
            f"it has {labels.count} labels for {count} scores, allowed: one for each of 2 scores and more, "
            "or 2 for one score"
        )
    scores = _plus_intercepts(body, _product(body, x, _matrix(body, "coefficients", count, columns)))
    if count == 1:
        return [labels.above(scores, 0.0), with_opposite_scores(body, scores, transform, positive=True)]
    return [labels.greatest(scores), transform_scores(body, scores, transform)]


def _kernel(body: Body, x: str, vectors: Array) -> str:
    """The kernel function of each row of `x` and each support vector: shape (rows, vectors)."""
    kind = body.only("kernel_type", *_KERNELS)
    gamma, offset, degree = [float(n) for n in body.attribute("kernel_params") or (0, 0, 0)]
    if kind == "RBF":
        return body.op("Exp", body.op("Mul", _distances(body, x, vectors), body.like(x, -gamma)))
    products = _product(body, x, vectors)
    if kind == "LINEAR":
        return products
    products = body.op("Add", body.op("Mul", products, body.like(x, gamma)), body.like(x, offset))
    return body.op("Tanh", products) if kind == "SIGMOID" else body.op("Pow", products, body.like(x, degree))


def _distances(body: Body, x: str, vectors: Array) -> str:
    """The squared distances, as sums of squared differences: products of sums would cancel."""
    rows = body.shape(x)[0]

    def compute(data: Any, table: Any) -> Any:
        k = te.reduce_axis((0, int64(vectors.shape[1])), name="k")

        def element(row: Any, vector: Any) -> Any:
            difference = data(row, k) - table(vector, k)
            return te.sum(difference * difference, axis=k)

        return te.compute([int64_of(rows), int64(vectors.shape[0])], element, name="distance")

    table = body.tensor(body.const(vectors))
    return body.bind(body.emit_te(compute, body.tensor(x), table, hint="distances"))


def svm_regressor(body: Body) -> list[str]:
    """SVMRegressor: one number for each row; with `one_class` 1 inside of the class and -1 outside."""
    x, columns = rows_of(body)
    count, rho = int(body.attribute("n_supports", 0)), float(body.required("rho")[0])
    body.only("post_transform", "NONE")
    if count:
        scores = _kernel(body, x, _matrix(body, "support_vectors", count, columns))
        scores = _product(body, scores, _matrix(body, "coefficients", 1, count))
    else:  # linear whatever the kernel is
        body.accept_attributes("kernel_type", "kernel_params", "support_vectors")
        scores = _product(body, x, _matrix(body, "coefficients", 1, columns))
    scores = body.op("Add", scores, body.like(x, rho))
    if body.only("one_class", 0, 1):
        inside = body.op("Greater", scores, body.like(x, 0.0))
        scores = body.op("Where", inside, body.like(x, 1.0), body.like(x, -1.0))
    return [scores]


def svm_classifier(body: Body) -> list[str | None]:
    """SVMClassifier: labels by votes of all pairs of classes; scores of the pairs, or probabilities."""
    x, columns = rows_of(body)
    labels, transform = Labels(body, "classlabels_ints"), body.only("post_transform", *TRANSFORMS)
    sizes = [int(size) for size in body.attribute("vectors_per_class") or []]
    if not sum(sizes):
        if labels.count < 3:
            raise ValueError(
                f"it has {labels.count} labels and no support vectors, allowed: 3 labels and more"
            )
        body.accept_attributes(
            "kernel_type", "kernel_params", "support_vectors", "prob_a", "prob_b", "vectors_per_class"
        )
        scores = _product(body, x, _matrix(body, "coefficients", labels.count, columns))
        scores = body.op("Add", scores, body.like(x, float(body.required("rho")[0])))
        return [labels.greatest(scores), transform_scores(body, scores, transform)]
    if len(sizes) != labels.count or labels.count < 2:
        raise ValueError(
            f"its attribute 'vectors_per_class' has {len(sizes)} numbers for {labels.count} labels"
        )
    pairs = list(combinations(range(labels.count), 2))
    kernel = _kernel(body, x, _matrix(body, "support_vectors", sum(sizes), columns))
    scores = _pair_scores(body, kernel, sizes, pairs)
    label = labels.greatest(_votes(body, scores, labels.count, pairs))
    if body.attribute("prob_a"):
        probabilities = coupled(body, _pair_probabilities(body, scores, len(pairs)), labels.count)
        return [label, transform_scores(body, probabilities, transform)]
    if labels.count > 2:
        return [label, transform_scores(body, scores, transform)]
    return [label, with_opposite_scores(body, scores, transform, positive=transform != "NONE")]


def _pair_scores(body: Body, kernel: str, sizes: list[int], pairs: list[tuple[int, int]]) -> str:
    """The score of the first class of each pair: the sum over the vectors of both classes, and rho."""
    classes = len(sizes)
    weights = _matrix(body, "coefficients", classes - 1, sum(sizes))
    sums, ends = [], list(accumulate(sizes))
    for first, end in zip([0, *ends], ends, strict=False):
        axes = [body.const(np.array([n], "int64")) for n in (first, end, 1)]
        sums.append(_product(body, body.op("Slice", kernel, *axes), weights[:, first:end]))
    by_class = body.op("Concat", *sums, axis=1)  # by class, its part of the scores with all other classes
    other_classes = classes - 1
    chosen = [[i * other_classes + j - 1 for i, j in pairs], [j * other_classes + i for i, j in pairs]]
    halves = [
        body.op("Gather", by_class, body.const(np.array(columns, "int64")), axis=1) for columns in chosen
    ]
    rho = _matrix(body, "rho", 1, len(pairs))
    return body.op("Add", body.op("Add", *halves), body.const(rho))


def _votes(body: Body, scores: str, classes: int, pairs: list[tuple[int, int]]) -> str:
    """By class, the number of pairs that it wins: shape (rows, classes)."""
    signs, second = np.zeros((len(pairs), classes), "float32"), np.zeros((1, classes), "float32")
    for number, (i, j) in enumerate(pairs):
        signs[number, i], signs[number, j] = 1, -1
        second[0, j] += 1
    won = body.cast(body.op("Greater", scores, body.like(scores, 0.0)), "float32")
    return body.op("Add", body.op("MatMul", won, body.const(signs)), body.const(second))


def _pair_probabilities(body: Body, scores: str, pairs: int) -> str:
    """The probability of the first class of each pair."""
    factors, offsets = (body.const(_matrix(body, name, 1, pairs)) for name in ("prob_a", "prob_b"))
    value = body.op("Neg", body.op("Add", body.op("Mul", scores, factors), offsets))
    ends = body.like(scores, _LEAST), body.like(scores, 1 - _LEAST)
    return body.op("Clip", body.op("Sigmoid", value), *ends)


MODELS: dict[str, Expansion] = {
    "LinearClassifier": linear_classifier,
    "LinearRegressor": linear_regressor,
    "SVMClassifier": svm_classifier,
    "SVMRegressor": svm_regressor,
}
