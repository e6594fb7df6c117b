"""Scores and labels of ai.onnx.ml's classifiers, as ONNX Runtime computes them."""

from __future__ import annotations

import numpy as np

from kiln.frontend.onnx.body import Body

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_NEAR_ZERO = 1e-7  # for SOFTMAX_ZERO
_FACTOR = 0.147  # of an approximation of the inverse of erf


def transform_scores(body: Body, scores: str, transform: str) -> str:
    """`scores`, shape (rows, columns), after a transform of their rows."""
    if transform == "NONE":
        return scores
    if transform == "SOFTMAX":
        return body.op("Softmax", scores, axis=1)
    if transform == "LOGISTIC":
        return body.op("Sigmoid", scores)
    return _softmax_zero(body, scores) if transform == "SOFTMAX_ZERO" else _probit(body, scores)


def _softmax_zero(body: Body, scores: str) -> str:
    """The softmax of the scores that are not 0; a score of 0 stays 0."""
    axes = body.const(np.array([1], "int64"))
    most = body.op("ReduceMax", scores, axes, keepdims=1)
    curve = body.op("Exp", body.op("Sub", scores, most))
    near = body.op("LessOrEqual", body.op("Abs", scores), body.like(scores, _NEAR_ZERO))
    small = body.op("Mul", scores, body.op("Exp", body.op("Neg", most)))
    exponentials = body.op("Where", near, body.like(scores, 0.0), curve)
    total = body.op("ReduceSum", exponentials, axes, keepdims=1)
    return body.op("Div", body.op("Where", near, small, curve), total)


def _probit(body: Body, scores: str) -> str:
    """The quantile of the normal distribution, by an approximation of the inverse of erf."""
    unit = body.like(scores, 1.0)
    x = body.op("Sub", body.op("Mul", scores, body.like(scores, 2.0)), unit)
    log = body.op("Log", body.op("Mul", body.op("Sub", unit, x), body.op("Add", unit, x)))
    v = body.op(
        "Add",
        body.like(scores, 2 / (3.14159 * _FACTOR)),
        body.op("Mul", log, body.like(scores, 0.5)),
    )
    scaled_log = body.op("Mul", log, body.like(scores, 1 / _FACTOR))
    root = body.op("Sqrt", body.op("Sub", body.op("Mul", v, v), scaled_log))
    magnitude = body.op("Sqrt", body.op("Sub", root, v))
    return body.op("Mul", body.op("Mul", body.op("Sign", x), magnitude), body.like(scores, 2**0.5))


class Labels:
    """The labels of a classifier's node."""

    def __init__(self, body: Body, integers: str) -> None:
        """`integers`: the attribute of labels that are integers. Raises ValueError if there are no labels."""
        self._body = body
        numbers, texts = body.attribute(integers), body.attribute("classlabels_strings")
        if bool(numbers) == bool(texts):
            raise ValueError(f"it has no labels, or two kinds: give '{integers}' or 'classlabels_strings'")
        self.count = len(numbers or texts)
        self._numbers = None if texts else np.array(numbers, "int64")
        if texts and body.reads(0):
            raise ValueError(
                f"its output 0 ('{body.node.output[0]}') is of type string: train with integers as labels, "
                "or leave that output out with the key 'cut' and take the class from the scores"
            )

    def labels_of(self, class_numbers: str) -> str | None:
        """The labels of classes given by number, an int64 tensor; None where nothing reads them."""
        if self._numbers is None:
            return None
        if np.array_equal(self._numbers, np.arange(self.count)):
            return class_numbers
        return self._body.op("Gather", self._body.const(self._numbers), class_numbers, axis=0)

    def greatest(self, scores: str) -> str | None:
        """The labels of the greatest scores of each row."""
        return self.labels_of(self._body.op("ArgMax", scores, axis=1, keepdims=0))

    def above(self, scores: str, limit: float) -> str | None:
        """The second label where a score, shape (rows, 1), is above a limit, else the first."""
        flags = self._body.op("Greater", scores, self._body.like(scores, limit))
        rows = self._body.shape(scores)[:1]
        return self.labels_of(self._body.cast(self._body.reshape(flags, rows), "int64"))


def rows_of(body: Body, floats: tuple[str, ...] = ("float32",)) -> tuple[str, int]:
    """The data of a node of ai.onnx.ml as rows, and their length; types that are not `floats` become float32.

    Raises ValueError for data of more than two axes and for rows of dynamic length.
    """
    x = body.input(0)
    if body.dtype(x) not in floats:
        x = body.cast(x, "float32")
    if body.rank(x) not in (1, 2):
        raise ValueError(f"its input has {body.rank(x)} axes, allowed: 1 or 2")
    columns = body.size(x, -1, "its number of columns")
    return (x if body.rank(x) == 2 else body.reshape(x, [1, columns])), columns


def with_opposite_scores(body: Body, scores: str, transform: str, positive: bool) -> str:
    """Scores (rows, 2) of both classes, from the scores of the second class, shape (rows, 1).

    positive: whether a score p is a probability, whose opposite is 1 - p; else it is -p.
    """
    if transform == "LOGISTIC":
        two_scores = [body.op("Neg", scores), scores]
        return body.op("Sigmoid", body.op("Concat", *two_scores, axis=1))
    if transform == "PROBIT":
        raise ValueError("its attribute 'post_transform' is PROBIT of two classes, allowed: another one")
    opposite = body.op("Sub", body.like(scores, 1.0), scores) if positive else body.op("Neg", scores)
    return body.op("Concat", opposite, scores, axis=1)
