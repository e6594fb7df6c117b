"""TreeEnsembleRegressor, TreeEnsembleClassifier and TreeEnsemble: walks over tables (ml_forest_kernel.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from kiln.arrays import Array
from kiln.frontend.onnx.body import Body, Expansion
from kiln.frontend.onnx.ml_forest import Forest, forest_of_ensemble, forest_of_nodes
from kiln.frontend.onnx.ml_forest_kernel import forest_sums
from kiln.frontend.onnx.ml_scores import TRANSFORMS, Labels, rows_of, transform_scores, with_opposite_scores

_NODES = ("treeids", "nodeids", "featureids", "truenodeids", "falsenodeids")
_FLOATS = ("float32", "float64")
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


def _numbers(body: Body, name: str) -> Any:
    """An attribute of numbers: floats, or the tensor that doubles need; None where the node has neither."""
    floats, tensor = body.attribute(name), body.attribute(f"{name}_as_tensor")
    return _tensor_elements(tensor) if tensor is not None else floats


def _elements_of(body: Body, name: str, count: int) -> Sequence[Any]:
    """An attribute with `count` elements. Raises ValueError for another number."""
    elements = _numbers(body, name)
    elements = list(elements if elements is not None else body.required(name))
    if len(elements) != count:
        raise ValueError(f"its attribute '{name}' has {len(elements)} elements, allowed: {count}")
    return [
        element.decode(errors="replace") if isinstance(element, bytes) else element for element in elements
    ]


def _forest(body: Body, kind: str, dtype: str) -> tuple[Forest, Array]:
    """The trees, whose leaves have the attributes `kind`_…, and the target of each entry of a leaf."""
    count = len(body.required("nodes_nodeids"))
    lists = {name: _elements_of(body, f"nodes_{name}", count) for name in (*_NODES, "modes", "values")}
    missing = "nodes_missing_value_tracks_true"
    lists["missing_value_tracks_true"] = _elements_of(body, missing, count) if body.attribute(missing) else []
    body.accept_attributes("nodes_hitrates", "nodes_hitrates_as_tensor")
    ends = len(body.required(f"{kind}_ids"))
    names = ("treeids", "nodeids", "ids", "weights")
    entries = [_elements_of(body, f"{kind}_{name}", ends) for name in names]
    return forest_of_nodes(lists, entries, dtype), np.array(entries[2], "int64")


def _with_base(body: Body, sums: str, targets: int) -> str:
    """`sums` plus the attribute `base_values`, if the node has it."""
    base = _numbers(body, "base_values")
    if not base:
        return sums
    if len(base) != targets:
        raise ValueError(f"its attribute 'base_values' has {len(base)} numbers, allowed: {targets}")
    return body.op("Add", sums, body.const(base, body.dtype(sums)))


def _aggregated(body: Body, x: str, forest: Forest, targets: int, kind: str) -> str:
    """The weights of the leaves of each row, combined by target."""
    sums = forest_sums(body, x, forest, targets, "SUM" if kind == "AVERAGE" else kind)
    if kind != "AVERAGE":
        return sums
    return body.op("Div", sums, body.like(sums, len(forest.roots)))


def _check_transform(targets: int, transform: str) -> None:
    if targets == 1 and transform not in ("NONE", "PROBIT"):
        raise ValueError(
            f"its attribute 'post_transform' is {transform} of one target, which runtimes do not agree "
            "about: allowed are NONE and PROBIT; add the operator after the node"
        )


def regressor(body: Body) -> list[str]:
    """TreeEnsembleRegressor, in float32; trees of doubles are compared and added as such."""
    x, columns = rows_of(body, _FLOATS)
    forest, _ = _forest(body, "target", body.dtype(x))
    targets = int(body.required("n_targets"))
    forest.check_columns(columns, targets)
    forest = forest.with_one_entry() if targets == 1 else forest
    kind, transform = (
        body.only("aggregate_function", "SUM", *_AGGREGATES),
        body.only("post_transform", *TRANSFORMS),
    )
    _check_transform(targets, transform)
    sums = _with_base(body, _aggregated(body, x, forest, targets, kind), targets)
    return [transform_scores(body, body.cast(sums, "float32"), transform)]


def _greatest(body: Body, labels: Labels, scores: str, all_scored: bool) -> str | None:
    """The labels of the greatest scores of each row; None where nothing reads them.

    Raises ValueError for labels of two classes: ONNX Runtime gives the second where its score is above 0; and
    where a row may have no vote for a class, whose score of 0 ONNX Runtime leaves out.
    """
    if not body.reads(0):
        return None
    what = "two classes that have a score each"
    if labels.count > 2:
        if all_scored:
            return labels.greatest(scores)
        what = "classes for which not every row has a vote, with weights that are not all positive"
    raise ValueError(
        f"its output 0 ('{body.node.output[0]}') is the label of {what}, which runtimes do not agree about: "
        "leave that output out with the key 'cut', and take the class from the scores"
    )


def _scored_in_all_rows(body: Body) -> set[int]:
    """The classes for which every row has a vote: all leaves of one tree vote for them."""
    kinds = zip(body.required("nodes_treeids"), body.required("nodes_modes"), strict=True)
    leaves = Counter(tree for tree, mode in kinds if mode == b"LEAF")
    columns = [body.required(f"class_{name}") for name in ("treeids", "nodeids", "ids")]
    votes = Counter((tree, number) for tree, _, number in {*zip(*columns, strict=True)})
    return {number for (tree, number), count in votes.items() if count == leaves[tree]}


def classifier(body: Body) -> list[str | None]:
    """TreeEnsembleClassifier: labels, and the scores of all classes."""
    x, columns = rows_of(body, _FLOATS)
    forest, classes = _forest(body, "class", body.dtype(x))
    labels, transform = Labels(body, "classlabels_int64s"), body.only("post_transform", *TRANSFORMS)
    if labels.count < 2:
        raise ValueError(f"it has {labels.count} class, allowed: 2 and more")
    scored = set(classes.tolist())
    if labels.count > 2 or scored == {0, 1}:
        forest.check_columns(columns, labels.count)
        sums = _with_base(body, forest_sums(body, x, forest, labels.count, "SUM"), labels.count)
        scores = body.cast(sums, "float32")
        is_based, is_positive = bool(_numbers(body, "base_values")), bool((forest.weight > 0).all())
        all_scored = is_based or is_positive or len(_scored_in_all_rows(body)) == labels.count
        return [_greatest(body, labels, scores, all_scored), transform_scores(body, scores, transform)]
    if scored != {0}:
        raise ValueError(
            f"of two classes, its class_ids are {sorted(scored)}, which runtimes do not agree about: allowed "
            "are 0, for scores of the second class, and scores of both, as converters write them"
        )
    forest.check_columns(columns, 1)
    positive = bool((forest.weight >= 0).all())
    scores = body.cast(_with_base(body, forest_sums(body, x, forest, 1, "SUM"), 1), "float32")
    return [
        labels.above(scores, 0.5 if positive else 0.0),
        with_opposite_scores(body, scores, transform, positive),
    ]


def ensemble(body: Body) -> list[str]:
    """TreeEnsemble, in the type of its input."""
    dtype = body.dtype(body.input(0))
    x, columns = rows_of(body, _FLOATS)
    names = (
        "nodes_featureids", "nodes_truenodeids", "nodes_falsenodeids", "nodes_trueleafs", "nodes_falseleafs",
        "leaf_targetids", "tree_roots",
    )  # fmt: skip
    lists: dict[str, Sequence[Any]] = {name: list(body.required(name)) for name in names}
    for name in ("nodes_splits", "nodes_modes", "leaf_weights"):
        lists[name] = _tensor_elements(body.required(name))
    lists["nodes_missing_value_tracks_true"] = list(body.attribute("nodes_missing_value_tracks_true") or [])
    count = len(lists["nodes_modes"])
    for name, elements in lists.items():
        expected = len(lists["leaf_targetids"]) if name.startswith("leaf") else count
        if name != "tree_roots" and elements and len(elements) != expected:
            raise ValueError(f"its attribute '{name}' has {len(elements)} elements, allowed: {expected}")
    body.accept_attributes("nodes_hitrates")
    members = body.attribute("membership_values")
    sets = _sets(_tensor_elements(members) if members is not None else [])
    forest, targets = forest_of_ensemble(lists, sets, body.dtype(x)), int(body.attribute("n_targets", 1))
    forest.check_columns(columns, targets)
    kind = int(body.only("aggregate_function", 1, 0, 2, 3))
    transform = TRANSFORMS[int(body.only("post_transform", 0, 1, 2, 3, 4))]
    _check_transform(targets, transform)
    sums = _aggregated(body, x, forest, targets, _AGGREGATES[kind])
    return [body.cast(transform_scores(body, sums, transform), dtype)]


def _tensor_elements(tensor: onnx.TensorProto) -> list[Any]:
    elements: list[Any] = numpy_helper.to_array(tensor).reshape(-1).tolist()
    return elements


def _sets(values: Sequence[float]) -> Iterator[list[float]]:
    """The sets in a list; a NaN ends each of them."""
    members: list[float] = []
    for value in values:
        if value == value:
            members.append(value)
        else:
            yield members
            members = []


TREES: dict[str, Expansion] = {
    "TreeEnsemble": ensemble,
    "TreeEnsembleClassifier": classifier,
    "TreeEnsembleRegressor": regressor,
}
