"""Trees, support vector machines and encoders of ai.onnx.ml against ONNX Runtime, and what is refused."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from relaxed import virtual_machine

from .test_onnx_ops import check

ML = "ai.onnx.ml"
FLOAT, INT64, DOUBLE = TensorProto.FLOAT, TensorProto.INT64, TensorProto.DOUBLE
RANDOM = np.random.default_rng(7)
COLUMNS = 5
# Thresholds and data are quarters, so that some are equal.
ROWS = (RANDOM.integers(-8, 8, (9, COLUMNS)) / 4).astype("float32")
ROWS[0, 0] = ROWS[3, 2] = ROWS[5] = np.nan
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def write(
    path: Path, nodes: list[Any], inputs: Any, outputs: dict[str, tuple[int, int]], ml: int = 3
) -> Path:
    """A file; outputs: by name, the type and the number of axes."""
    results = [
        helper.make_tensor_value_info(name, kind, [f"{name}{axis}" for axis in range(rank)])
        for name, (kind, rank) in outputs.items()
    ]
    graph = helper.make_graph(nodes, "g", inputs, results)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML, ml)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def x(kind: int = FLOAT, name: str = "x", rows: int = len(ROWS), columns: int = COLUMNS) -> Any:
    return helper.make_tensor_value_info(name, kind, [rows, columns])


def nodes_of(depths: list[int], modes: tuple[str, ...], missing: bool = False) -> dict[str, Any]:
    """The attributes of random trees, each complete up to a depth; their nodes are numbered by level."""
    found: dict[str, list[Any]] = {key: [] for key in (
        "treeids", "nodeids", "featureids", "truenodeids", "falsenodeids", "modes", "values",
        "missing_value_tracks_true",
    )}  # fmt: skip
    for tree, depth in enumerate(depths):
        count, inner = 2 ** (depth + 1) - 1, 2**depth - 1
        for node in range(count):
            is_leaf = node >= inner
            mode = "LEAF" if is_leaf else modes[(tree + node) % len(modes)]
            row = (
                tree, node, int(RANDOM.integers(COLUMNS)), 0 if is_leaf else 2 * node + 1,
                0 if is_leaf else 2 * node + 2, mode, float(RANDOM.integers(-6, 6) / 4),
                int(missing and node % 2),
            )  # fmt: skip
            for values, item in zip(found.values(), row, strict=True):
                values.append(item)
    return {f"nodes_{key}": values for key, values in found.items()}


def leaves_of(nodes: dict[str, Any], kind: str, targets: list[int], least: float = -2.0) -> dict[str, Any]:
    """The attributes of the leaves: each has a weight for each of `targets`."""
    keys = zip(nodes["nodes_treeids"], nodes["nodes_nodeids"], nodes["nodes_modes"], strict=True)
    rows = [(tree, node, one) for tree, node, mode in keys if mode == "LEAF" for one in targets]
    return {
        f"{kind}_treeids": [row[0] for row in rows],
        f"{kind}_nodeids": [row[1] for row in rows],
        f"{kind}_ids": [row[2] for row in rows],
        f"{kind}_weights": [float(RANDOM.uniform(least, 2)) for _ in rows],
    }


def node(op: str, outputs: list[str], source: str = "x", **attributes: Any) -> Any:
    return helper.make_node(op, [source], outputs, f"{op} of {outputs[0]}", domain=ML, **attributes)


@pytest.mark.slow
def test_regressors_of_every_mode_and_aggregate(tmp_path: Path) -> None:
    nodes, outputs = [], {}
    cases: list[tuple[str, str, list[int], tuple[str, ...], dict[str, Any]]] = [
        ("SUM", "NONE", [0], MODES[:1], {}),
        ("AVERAGE", "NONE", [0], MODES, {"base_values": [0.5]}),
        ("MIN", "NONE", [0, 1, 2], MODES[2:3], {"base_values": [0.5, -1.0, 2.0]}),
        ("MAX", "LOGISTIC", [0, 1], MODES[5:], {}),
        ("SUM", "SOFTMAX", [0, 1, 2], MODES[4:5], {}),
        ("SUM", "SOFTMAX_ZERO", [0, 1, 2], MODES[3:4], {}),
    ]
    for number, (kind, transform, targets, modes, more) in enumerate(cases):
        trees = nodes_of([3, 0, 1, 4], modes, missing=number % 2 == 0)
        given = {**trees, **leaves_of(trees, "target", targets), **more}
        given |= {"aggregate_function": kind, "post_transform": transform, "n_targets": len(targets)}
        nodes.append(node("TreeEnsembleRegressor", [f"y{number}"], **given))
        outputs[f"y{number}"] = FLOAT, 2
    trees = nodes_of([2, 2], MODES[:1])
    given = {**trees, **leaves_of(trees, "target", [0], 0.2), "aggregate_function": "AVERAGE"}
    given["target_weights"] = [weight / 3 for weight in given["target_weights"]]
    nodes.append(node("TreeEnsembleRegressor", ["probit"], **given, n_targets=1, post_transform="PROBIT"))
    check(write(tmp_path / "m.onnx", nodes, [x()], {**outputs, "probit": (FLOAT, 2)}), ROWS)


def test_classifiers_of_two_and_of_more_classes(tmp_path: Path) -> None:
    nodes, outputs = [], {}
    cases: list[tuple[list[int], float, str, dict[str, Any]]] = [
        ([0], 0.0, "NONE", {"classlabels_int64s": [3, 9]}),
        ([0], -2.0, "NONE", {"classlabels_int64s": [0, 1], "base_values": [0.25]}),
        ([0], -2.0, "LOGISTIC", {"classlabels_int64s": [9, 3]}),
        ([0, 1, 2], -2.0, "SOFTMAX", {"classlabels_int64s": [5, 6, 7], "base_values": [0.5, 0.0, -0.5]}),
        ([0, 1, 2, 3], 0.0, "NONE", {"classlabels_int64s": [0, 1, 2, 3]}),
    ]
    for number, (classes, least, transform, more) in enumerate(cases):
        trees = nodes_of([2, 3], MODES[:1])
        given = {**trees, **leaves_of(trees, "class", classes, least), **more, "post_transform": transform}
        nodes.append(node("TreeEnsembleClassifier", [f"label{number}", f"y{number}"], **given))
        outputs |= {f"label{number}": (INT64, 1), f"y{number}": (FLOAT, 2)}
    check(write(tmp_path / "m.onnx", nodes, [x()], outputs), ROWS)


def test_weights_of_zero_are_not_stored(tmp_path: Path) -> None:
    """Converters write a weight for each class of a leaf; only a sum can do without those of 0."""
    trees = nodes_of([2, 3], MODES[:1])
    given = {**trees, **leaves_of(trees, "target", [0, 1, 2]), "n_targets": 3}
    weights = np.array(given["target_weights"])
    weights[np.arange(36) % 3 != np.arange(36) // 3 % 2] = 0
    for kind, entries in (("SUM", 12), ("MIN", 36)):
        attributes = {**given, "target_weights": weights.tolist(), "aggregate_function": kind}
        forest = node("TreeEnsembleRegressor", ["y"], **attributes)
        text = check(write(tmp_path / "m.onnx", [forest], [x()], {"y": (FLOAT, 2)}), ROWS)
        assert re.search(rf"\((T\.int64\()?{entries}\)?,\)", text), kind


def test_a_leaf_with_its_weight_several_times(tmp_path: Path) -> None:
    """Of one target, as in decision_leaf of scikit-learn, it counts once; of several, all are added."""
    nodes = []
    for targets in (1, 2):
        trees = nodes_of([2, 3], MODES[:1])
        given = leaves_of(trees, "target", [0] * 3)
        given["target_weights"] = [7.0 + number // 3 for number in range(len(given["target_weights"]))]
        nodes.append(node("TreeEnsembleRegressor", [f"y{targets}"], **trees, **given, n_targets=targets))
    check(write(tmp_path / "m.onnx", nodes, [x()], {"y1": (FLOAT, 2), "y2": (FLOAT, 2)}), ROWS)


@pytest.mark.parametrize("modes", [MODES[:1], MODES])
def test_a_large_forest(modes: tuple[str, ...], tmp_path: Path) -> None:
    """More branches than 16 bits count: a branch is four words."""
    trees = nodes_of([3, 15, 0, 5], modes, missing=len(modes) > 1)
    given = {**trees, **leaves_of(trees, "target", [0, 1]), "n_targets": 2}
    nodes = [node("TreeEnsembleRegressor", ["y"], **given)]
    check(write(tmp_path / "m.onnx", nodes, [x()], {"y": (FLOAT, 2)}), ROWS)


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX"])
def test_two_classes_with_a_score_each(transform: str, tmp_path: Path) -> None:
    """As converters of forests wrote them; ONNX Runtime gives the second label above a score of 0."""
    trees = nodes_of([2, 3], MODES[:1])
    given = {**trees, **leaves_of(trees, "class", [0, 1], 0.0), "classlabels_int64s": [0, 1]}
    nodes = [node("TreeEnsembleClassifier", ["label", "y"], **given, post_transform=transform)]
    check(write(tmp_path / "m.onnx", nodes, [x()], {"y": (FLOAT, 2)}), ROWS)
    path = write(tmp_path / "l.onnx", nodes, [x()], {"label": (INT64, 1)})
    with pytest.raises(KilnError, match=r"output 0 \('label'\) is the label of two classes.*'cut'"):
        import_model(path, ImportOptions("m"))


@pytest.mark.parametrize("least", [0.25, -2.0])
def test_classes_that_may_have_no_vote(least: float, tmp_path: Path) -> None:
    """ONNX Runtime gives no label of one, though its score, 0, is above negative ones."""
    trees = nodes_of([2], MODES[:1])
    leaves = leaves_of(trees, "class", [0], least) | {"class_ids": [0, 1, 1, 2]}
    nodes = [node("TreeEnsembleClassifier", ["l", "y"], **trees, **leaves, classlabels_int64s=[3, 7, 9])]
    path = write(tmp_path / "m.onnx", nodes, [x()], {"y": (FLOAT, 2), "l": (INT64, 1)})
    refused = pytest.raises(KilnError, match=r"output 0 \('l'\) is the label of classes for which not every")
    with contextlib.nullcontext() if least > 0 else refused:
        check(path, ROWS)


def test_labels_that_are_texts_are_refused_where_they_are_read(tmp_path: Path) -> None:
    trees = nodes_of([2], MODES[:1])
    given = {**trees, **leaves_of(trees, "class", [0]), "classlabels_strings": ["cat", "dog"]}
    nodes = [node("TreeEnsembleClassifier", ["label", "y"], **given)]
    check(write(tmp_path / "m.onnx", nodes, [x()], {"y": (FLOAT, 2)}), ROWS)
    with pytest.raises(KilnError, match=r"output 'label' is of type string.*'cut'"):
        path = write(tmp_path / "s.onnx", nodes, [x()], {"label": (TensorProto.STRING, 1)})
        import_model(path, ImportOptions("m"))


def test_maps_are_refused_with_the_way_round(tmp_path: Path) -> None:
    nodes = [
        node("ZipMap", ["maps"], classlabels_int64s=list(range(COLUMNS))),
        helper.make_node("Abs", ["x"], ["label"]),
    ]
    kind = helper.make_sequence_type_proto(
        helper.make_map_type_proto(INT64, helper.make_tensor_type_proto(FLOAT, []))
    )
    outputs = [helper.make_tensor_value_info("label", FLOAT, [1, COLUMNS])]
    outputs.append(helper.make_value_info("maps", kind))
    graph = helper.make_graph(nodes, "g", [x()], outputs)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML, 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "m.onnx")
    with pytest.raises(KilnError, match=r"sequence.*zipmap.*outputs: {label: label, scores: x}}"):
        import_model(tmp_path / "m.onnx", ImportOptions("m"))


def test_trees_of_doubles_with_sets(tmp_path: Path) -> None:
    """TreeEnsemble, against ONNX's evaluator: ONNX Runtime has no trees of doubles in every version."""

    def tensor(values: list[float], kind: int = DOUBLE) -> Any:
        return helper.make_tensor("t", kind, [len(values)], values)

    given = {
        "nodes_splits": tensor([0.5 + 2.0**-40, 0.0, -1.0]),
        "nodes_featureids": [0, 1, 2],
        "nodes_modes": helper.make_tensor("m", TensorProto.UINT8, [3], [0, 6, 3]),
        "nodes_truenodeids": [1, 0, 2],
        "nodes_falsenodeids": [2, 1, 3],
        "nodes_trueleafs": [0, 1, 1],
        "nodes_falseleafs": [0, 1, 1],
        "nodes_missing_value_tracks_true": [1, 0, 0],
        "membership_values": tensor([0.25, -1.0, 1.5, np.nan]),
        "leaf_targetids": [1, 0, 0, 1],
        "leaf_weights": tensor([1.0, 2.0**-30, 3.0, 4.0]),
        "tree_roots": [0, 2],
        "n_targets": 2,
    }
    outputs = {"y": (DOUBLE, 2)}
    path = write(tmp_path / "m.onnx", [node("TreeEnsemble", ["y"], **given)], [x(DOUBLE)], outputs, ml=5)
    rows = ROWS.astype("float64")
    rows[1, 0] = 0.5 + 2.0**-40
    rows[2, 0] = 0.5 + 2.0**-39
    (expected,) = ReferenceEvaluator(str(path)).run(None, {"x": rows})
    assert len(np.unique(expected)) > 4
    module, _ = import_model(path, ImportOptions("m"))
    machine = virtual_machine(module)
    np.testing.assert_allclose(machine["main"](tvm.runtime.tensor(rows)).numpy(), expected, rtol=1e-15)


@pytest.mark.slow
def test_linear_models_and_support_vector_machines(tmp_path: Path) -> None:
    def numbers(*shape: int) -> list[float]:
        found: list[float] = RANDOM.normal(size=shape).reshape(-1).tolist()
        return found

    nodes = [
        node("LinearClassifier", ["l0", "y0"], coefficients=numbers(5), intercepts=[0.1],
             classlabels_ints=[4, 2], post_transform="LOGISTIC"),
        node("LinearClassifier", ["l1", "y1"], coefficients=numbers(15), intercepts=[0.1, 0.2, 0.3],
             classlabels_ints=[4, 2, 1], post_transform="SOFTMAX", multi_class=1),
        node("SVMRegressor", ["r0"], coefficients=numbers(5), rho=[0.5], n_supports=0, kernel_type="LINEAR",
             kernel_params=[0.0, 0.0, 0.0]),
    ]  # fmt: skip
    outputs = {"l0": (INT64, 1), "y0": (FLOAT, 2), "l1": (INT64, 1), "y1": (FLOAT, 2), "r0": (FLOAT, 2)}
    for number, kind in enumerate(("LINEAR", "POLY", "RBF", "SIGMOID")):
        shared = {"kernel_type": kind, "kernel_params": [0.2, 0.5, 3.0], "support_vectors": numbers(6, 5)}
        one = number % 2
        name = f"s{number}"
        nodes.append(node("SVMRegressor", [name], coefficients=numbers(6), rho=[0.1], n_supports=6,
                          one_class=one, **shared))  # fmt: skip
        outputs[name] = FLOAT, 2
        for classes, sizes in ((2, [4, 2]), (3, [1, 3, 2])):
            pairs = classes * (classes - 1) // 2
            more: dict[str, Any] = {}
            if number > 1:
                more = {"prob_a": [-1.5] * pairs, "prob_b": [0.1] * pairs}
            name = f"c{number}_{classes}"
            nodes.append(node("SVMClassifier", [f"l{name}", name], coefficients=numbers(classes - 1, 6),
                              rho=numbers(pairs), vectors_per_class=sizes,
                              classlabels_ints=[7, 8, 9][:classes], **shared, **more))  # fmt: skip
            outputs |= {f"l{name}": (INT64, 1), name: (FLOAT, 2)}
    rows = np.nan_to_num(ROWS)
    check(write(tmp_path / "m.onnx", nodes, [x()], outputs, ml=1), rows, absolute=1e-4)


def test_encoders(tmp_path: Path) -> None:
    nodes = [
        node("LabelEncoder", ["a"], keys_floats=[0.25, float("nan"), -1.0], values_int64s=[5, 6, 7]),
        node("LabelEncoder", ["b"], "n", keys_int64s=[3, -2], values_floats=[1.5, 2.5], default_float=9.0),
        node("LabelEncoder", ["c"], "n", keys_int64s=[0, 1, 4], values_int64s=[4, 1, 0], default_int64=-7),
        node("OneHotEncoder", ["d"], "n", cats_int64s=[3, -1, 0, 8]),
        node("Imputer", ["e"], imputed_value_floats=[1.0, 2.0, 3.0, 4.0, 5.0],
             replaced_value_float=float("nan")),
        node("Imputer", ["f"], "n", imputed_value_int64s=[9], replaced_value_int64=0),
        node("LabelEncoder", ["h"], keys_floats=[0.25, 0.5], values_floats=[2.0, 3.0],
             default_tensor=helper.make_tensor("t", FLOAT, [1], [-7.0])),
        node("LabelEncoder", ["i"], "n", keys_int64s=[3, 0], default_int64=9,
             values_tensor=helper.make_tensor("t", INT64, [2], [1, 2])),
        helper.make_node("FeatureVectorizer", ["x", "e", "b"], ["g"], domain=ML, inputdimensions=[5, 5, 3]),
    ]  # fmt: skip
    kinds = {"a": (INT64, 2), "b": (FLOAT, 2), "c": (INT64, 2), "d": (FLOAT, 3), "e": (FLOAT, 2),
             "f": (INT64, 2), "g": (FLOAT, 2), "h": (FLOAT, 2), "i": (INT64, 2)}  # fmt: skip
    integers = RANDOM.integers(-3, 5, (len(ROWS), 3))
    path = write(tmp_path / "m.onnx", nodes, [x(), x(INT64, "n", columns=3)], kinds, ml=4)
    check(path, ROWS, integers)


def test_a_vector_is_a_row(tmp_path: Path) -> None:
    nodes = [helper.make_node("FeatureVectorizer", ["v"], ["y"], domain=ML, inputdimensions=[4])]
    given = helper.make_tensor_value_info("v", FLOAT, [4])
    check(write(tmp_path / "m.onnx", nodes, [given], {"y": (FLOAT, 2)}), ROWS[0, :4])


# Tree 0 has two roots, and the only branch of tree 1 follows itself.
CROSSED = {
    "nodes_treeids": [0, 0, 0, 0, 1, 1],
    "nodes_nodeids": [0, 1, 2, 3, 0, 1],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_LEQ", "BRANCH_LEQ", "LEAF"],
    "nodes_truenodeids": [1, 0, 0, 1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0, 2, 1, 0],
    "nodes_featureids": [0] * 6,
    "nodes_values": [0.5] * 6,
    "nodes_missing_value_tracks_true": [0] * 6,
}
LOOP = {
    "nodes_modes": ["BRANCH_LEQ", "BRANCH_LEQ", "LEAF"],
    "nodes_truenodeids": [1, 1, 0],
    "nodes_falsenodeids": [2, 2, 0],
    "target_nodeids": [2, 2],
}
TREE: dict[str, Any] = {**nodes_of([1], MODES[:1]), "n_targets": 1}
LEAVES = leaves_of(TREE, "target", [0])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"nodes_featureids": [5, 0, 0]}, "a node has feature 5, allowed: 0..4"),
        ({"nodes_truenodeids": [0, 0, 0]}, "its 1 trees have 0 roots"),
        (CROSSED, "its 2 trees have 2 roots, allowed: one for each tree"),
        (LOOP, r"its node \(0, 1\) follows itself"),
        ({"nodes_truenodeids": [9, 0, 0]}, r"its node \(0, 9\) does not exist"),
        ({"nodes_modes": ["BRANCH_XOR", "LEAF", "LEAF"]}, "a node of mode BRANCH_XOR, allowed: LEAF"),
        ({"target_ids": [0, 3]}, "a node has target 3, allowed: 0..0"),
        ({"post_transform": "LOGISTIC"}, "'post_transform' is LOGISTIC of one target"),
        ({"base_values": [1.0, 2.0]}, "'base_values' has 2 numbers, allowed: 1"),
        ({"target_nodeids": [1, 1]}, "a leaf has several weights of its one target"),
        ({"nodes_values": [1.0]}, "'nodes_values' has 1 elements, allowed: 3"),
    ],
)
def test_refused_trees(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    nodes = [node("TreeEnsembleRegressor", ["y"], **{**TREE, **LEAVES, **change})]
    with pytest.raises(KilnError, match=says):
        import_model(write(tmp_path / "m.onnx", nodes, [x()], {"y": (FLOAT, 2)}), ImportOptions("m"))
