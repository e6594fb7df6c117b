"""Operators of classical models (domain ai.onnx.ml), as skl2onnx and onnxmltools write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from .draw import Draw, Input, Maker, Node

ML = "ai.onnx.ml"
_TYPES = ("float32", "float32", "float32", "float64", "int64", "int32")
_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
_TRANSFORMS = ("NONE", "NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")


def classical(d: Draw, *inputs: Input | None, opset: int = 1, outputs: int = 1, **attributes: Any) -> Node:
    made = d.node(*inputs, outputs=outputs, domain=ML, **attributes)
    made.domain_opset = opset
    return made


def quarters(d: Draw, shape: Sequence[int], dtype: str = "float32") -> Any:
    """Numbers of few values, so that some equal a threshold."""
    if np.dtype(dtype).kind == "f":
        return (d.indices(shape, -8, 8) / 4).astype(dtype)
    return d.indices(shape, -3, 3, dtype)


def _rows(d: Draw, types: Sequence[str] = _TYPES) -> tuple[Input, int]:
    columns = d.number(1, 5)
    shape = (columns,) if d.chance(0.1) else (d.size(1, 6), columns)
    return d.data(quarters(d, shape, d.pick(types))), columns


def _numbers(d: Draw, count: int) -> list[float]:
    return [d.real(-2, 2) for _ in range(count)]


def extractor(d: Draw) -> Node:
    shape = d.shape(1, 3)
    columns = d.indices((d.number(1, 4),), 0, shape[-1] - 1 if len(d.sizes) < 1 else 0)
    return classical(d, d.data(d.values(shape, d.pick(_TYPES))), d.either(columns))


def binarizer(d: Draw) -> Node:
    x = d.data(quarters(d, d.shape(0, 3), d.pick(_TYPES)))
    return classical(d, x, **d.some(threshold=d.pick((-0.5, 0.0, 0.25, 1.0))))


def scaler(d: Draw) -> Node:
    x, columns = _rows(d)
    count = d.pick((1, columns))
    return classical(d, x, offset=_numbers(d, count), scale=_numbers(d, count))


def normalizer(d: Draw) -> Node:
    x = d.data(quarters(d, (d.size(1, 6), d.number(1, 5)), d.pick(_TYPES)))
    return classical(d, x, norm=d.pick(("MAX", "L1", "L2")))


def imputer(d: Draw) -> Node:
    x, columns = _rows(d, ("float32", "int64"))
    count = d.pick((1, columns))
    if x.value.dtype == np.int64:
        values = [d.number(-9, 9) for _ in range(count)]
        return classical(d, x, imputed_value_int64s=values, **d.some(replaced_value_int64=d.number(-2, 2)))
    return classical(
        d, x, imputed_value_floats=_numbers(d, count), **d.some(replaced_value_float=d.pick((0.25, -1.0)))
    )


def vectorizer(d: Draw) -> Node:
    rows, widths, inputs = d.size(1, 5), [], []
    for _ in range(d.number(1, 3)):
        widths.append(d.number(1, 4))
        inputs.append(d.data(quarters(d, (rows, widths[-1]), "float32")))
    return classical(d, *inputs, inputdimensions=widths)


def one_hot(d: Draw) -> Node:
    x = d.data(d.indices(d.shape(0, 3), -3, 5, d.pick(("int64", "float32", "int32", "float64"))))
    cats = [int(n) for n in d.rng.permutation(8)[: d.number(1, 6)] - 2]
    return classical(d, x, cats_int64s=cats, **d.some(zeros=1))


def label_encoder(d: Draw) -> Node:
    source, target = d.pick(("int64", "float32", "float64")), d.pick(("int64", "float32", "float64"))
    if "float64" in (source, target):
        source, target = "float64", "float64"
    keys = (d.rng.permutation(9)[: d.number(1, 6)] - 4) / (1 if source == "int64" else 4)
    values = d.rng.integers(-9, 9, len(keys)) / (1 if target == "int64" else 4)
    attributes: dict[str, Any] = {}
    names = {"int64": "int64s", "float32": "floats"}
    for name, kind, numbers in (("keys", source, keys), ("values", target, values)):
        if kind in names and d.chance(0.8):
            attributes[f"{name}_{names[kind]}"] = numbers.astype(kind).tolist()
        else:
            number = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
            attributes[f"{name}_tensor"] = helper.make_tensor("t", number, [len(keys)], numbers.astype(kind))
            attributes["default_tensor"] = helper.make_tensor(
                "d", helper.np_dtype_to_tensor_dtype(np.dtype(target)), [1], [d.number(-9, 9)]
            )
    if "values_tensor" not in attributes and d.chance():
        attributes.pop("default_tensor", None)
        attributes["default_int64" if target == "int64" else "default_float"] = d.number(-9, 9) * (
            1 if target == "int64" else 1.0
        )
    return classical(d, d.data(quarters(d, d.shape(0, 3), source)), opset=4, **attributes)


def linear_regressor(d: Draw) -> Node:
    x, columns = _rows(d, ("float32",))
    targets = d.number(1, 3)
    return classical(
        d, x, coefficients=_numbers(d, targets * columns), **d.some(intercepts=_numbers(d, targets)),
        targets=targets if targets > 1 or d.chance() else None,
    )  # fmt: skip


def linear_classifier(d: Draw) -> Node:
    x, columns = _rows(d)
    classes = d.number(2, 4)
    scores = 1 if classes == 2 and d.chance() else classes
    return classical(
        d, x, outputs=2, coefficients=_numbers(d, scores * columns), intercepts=_numbers(d, scores),
        classlabels_ints=[int(one) for one in d.rng.permutation(7)[:classes] - 2],
        **d.some(post_transform=d.pick(_TRANSFORMS), multi_class=d.number(0, 1)),
    )  # fmt: skip


def _kernel(d: Draw, columns: int, vectors: int) -> dict[str, Any]:
    return {
        "kernel_type": d.pick(("LINEAR", "POLY", "RBF", "SIGMOID")),
        "kernel_params": [d.real(0.05, 0.5), d.real(0, 1), float(d.number(1, 3))],
        "support_vectors": _numbers(d, vectors * columns),
    }


def svm_regressor(d: Draw) -> Node:
    x, columns = _rows(d, ("float32",))
    if d.chance(0.3):
        return classical(d, x, coefficients=_numbers(d, columns), rho=_numbers(d, 1), n_supports=0,
                         kernel_type="LINEAR", kernel_params=[0.0, 0.0, 0.0])  # fmt: skip
    count = d.number(1, 5)
    return classical(
        d, x, coefficients=_numbers(d, count), rho=_numbers(d, 1), n_supports=count,
        **_kernel(d, columns, count), **d.some(one_class=d.number(0, 1)),
    )  # fmt: skip


def svm_classifier(d: Draw) -> Node:
    x, columns = _rows(d)
    classes = d.number(2, 4)
    labels = [int(one) for one in d.rng.permutation(7)[:classes]]
    attributes: dict[str, Any] = {"classlabels_ints": labels} | d.some(post_transform=d.pick(_TRANSFORMS))
    if d.chance(0.2):
        return classical(d, x, outputs=2, coefficients=_numbers(d, classes * columns), rho=_numbers(d, 1),
                         kernel_type="LINEAR", kernel_params=[0.0, 0.0, 0.0], **attributes)  # fmt: skip
    sizes = [d.number(1, 3) for _ in range(classes)]
    pairs = classes * (classes - 1) // 2
    if d.chance():
        attributes |= {"prob_a": [-abs(n) for n in _numbers(d, pairs)], "prob_b": _numbers(d, pairs)}
    return classical(
        d, x, outputs=2, coefficients=_numbers(d, (classes - 1) * sum(sizes)), rho=_numbers(d, pairs),
        vectors_per_class=sizes, **_kernel(d, columns, sum(sizes)), **attributes,
    )  # fmt: skip


def _tree(d: Draw, tree: int, columns: int, depth: int, modes: Sequence[str]) -> list[dict[str, Any]]:
    """The nodes of a tree, in the order of a walk."""
    found: list[dict[str, Any]] = []

    def grow(left: int) -> int:
        number = len(found)
        row = {"treeids": tree, "nodeids": number, "featureids": 0, "modes": "LEAF", "values": 0.0,
               "truenodeids": 0, "falsenodeids": 0, "missing_value_tracks_true": 0}  # fmt: skip
        found.append(row)
        if left and d.chance(0.8):
            row |= {
                "featureids": d.number(0, columns - 1),
                "modes": d.pick(modes),
                "values": d.number(-8, 8) / 4,
                "missing_value_tracks_true": d.number(0, 1),
            }
            row["truenodeids"] = grow(left - 1)
            row["falsenodeids"] = grow(left - 1)
        return number

    grow(depth)
    return found


def _forest(
    d: Draw, x: Input, columns: int, kind: str, targets: Sequence[int], least: float
) -> dict[str, Any]:
    modes = _MODES if d.chance(0.3) else [d.pick(_MODES)]
    nodes = [row for tree in range(d.number(1, 4))
             for row in _tree(d, tree, columns, d.number(0, 4), modes)]  # fmt: skip
    leaves = [(row["treeids"], row["nodeids"], one, d.real(least, 2)) for row in nodes
              if row["modes"] == "LEAF" for one in targets]  # fmt: skip
    attributes = {f"nodes_{name}": [row[name] for row in nodes] for name in nodes[0]}
    if d.chance():
        attributes.pop("nodes_missing_value_tracks_true")
    for name, column in zip(("treeids", "nodeids", "ids", "weights"), zip(*leaves, strict=True), strict=True):
        attributes[f"{kind}_{name}"] = list(column)
    if x.value.dtype == np.float64:
        for name in ("nodes_values", f"{kind}_weights"):
            numbers = attributes.pop(name)
            attributes[f"{name}_as_tensor"] = helper.make_tensor(
                "t", TensorProto.DOUBLE, [len(numbers)], numbers
            )
    return attributes


def _with_holes(d: Draw, x: Input) -> Input:
    """Data of trees, some of which is not a number."""
    if x.value.dtype.kind == "f" and d.chance(0.3):
        holes = d.values(x.value.shape, "bool") & d.values(x.value.shape, "bool")
        return d.data(np.where(holes, np.nan, x.value).astype(x.value.dtype))
    return x


def tree_regressor(d: Draw) -> Node:
    x, columns = _rows(d)
    targets = d.number(1, 3)
    attributes = _forest(d, x, columns, "target", range(targets), -2.0)
    if targets > 1:
        attributes |= d.some(post_transform=d.pick(_TRANSFORMS))
    if x.value.dtype != np.float64 and d.chance(0.4):
        attributes["base_values"] = _numbers(d, targets)
    return classical(
        d, _with_holes(d, x), opset=3, n_targets=targets, **attributes,
        **d.some(aggregate_function=d.pick(("SUM", "AVERAGE", "MIN", "MAX"))),
    )  # fmt: skip


def tree_classifier(d: Draw) -> Node:
    x, columns = _rows(d)
    classes = d.number(2, 4)
    scored = range(classes) if classes > 2 else [0]
    attributes = _forest(d, x, columns, "class", scored, d.pick((0.0, -2.0)))
    if x.value.dtype != np.float64 and d.chance(0.4):
        attributes["base_values"] = _numbers(d, len(scored))
    return classical(
        d, _with_holes(d, x), opset=3, outputs=2,
        classlabels_int64s=[int(one) for one in d.rng.permutation(7)[:classes] - 2], **attributes,
        **d.some(post_transform=d.pick(_TRANSFORMS)),
    )  # fmt: skip


MAKERS: dict[str, Maker] = {
    "ArrayFeatureExtractor": extractor,
    "Binarizer": binarizer,
    "FeatureVectorizer": vectorizer,
    "Imputer": imputer,
    "LabelEncoder": label_encoder,
    "LinearClassifier": linear_classifier,
    "LinearRegressor": linear_regressor,
    "Normalizer": normalizer,
    "OneHotEncoder": one_hot,
    "SVMClassifier": svm_classifier,
    "SVMRegressor": svm_regressor,
    "Scaler": scaler,
    "TreeEnsembleClassifier": tree_classifier,
    "TreeEnsembleRegressor": tree_regressor,
}
