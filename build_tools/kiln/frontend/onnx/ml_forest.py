"""Decision trees of ai.onnx.ml as tables of branches and of leaves, checked so that every walk ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kiln.arrays import Array

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
EQUAL, UNEQUAL = MODES.index("BRANCH_EQ"), MODES.index("BRANCH_NEQ")
MISSING = 8  # added to a mode: a NaN takes the true branch
_GREATEST = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Split:
    """A node with two children. value: the threshold. children: (true, false), each a branch or a leaf.

    A child is the key of a branch, or -1 - i for leaf i.
    """

    feature: int
    value: float
    mode: int
    children: tuple[Any, Any]


@dataclass(frozen=True)
class Forest:
    """Trees as tables. A node is the index of a branch, or -1 - i for leaf i.

    feature, value, mode, yes, no: by branch, the column that it compares, the value that it compares with,
    an index of MODES (plus MISSING), and the nodes that follow. The parents of a branch have lower indices.
    roots: by tree, its first node. first: by leaf, its first entry of `target` and `weight`, and the number
    of entries at the end.
    """

    feature: Array
    value: Array
    mode: Array
    yes: Array
    no: Array
    roots: Array
    first: Array
    target: Array
    weight: Array

    def check_columns(self, columns: int, targets: int) -> None:
        """Raise ValueError where a branch reads, or a leaf adds to, a column that does not exist."""
        for noun, numbers, most in (("feature", self.feature, columns), ("target", self.target, targets)):
            wrong = [int(n) for n in numbers if not 0 <= n < most]
            if wrong:
                raise ValueError(f"a node has {noun} {wrong[0]}, allowed: 0..{most - 1}")


def forest_tables(
    branches: Mapping[Any, Split], roots: Sequence[Any], leaves: Sequence[Sequence[tuple[int, float]]],
    dtype: str,
) -> Forest:  # fmt: skip
    """The tables of trees whose branches are given by key; leaves: for each leaf, pairs (target, weight).

    Raises ValueError for a walk without an end.
    """
    order = _parents_first(branches, [root for root in roots if _is_branch(root)])
    number = {key: index for index, key in enumerate(order)}
    nodes = [branches[key] for key in order]

    def node_of(child: Any) -> int:
        return int(number[child]) if _is_branch(child) else int(child)

    entries = [entry for leaf in leaves for entry in leaf]
    return Forest(
        feature=_shortest_integers([node.feature for node in nodes]),
        value=np.array([node.value for node in nodes], dtype),
        mode=np.array([node.mode for node in nodes], "uint8"),
        yes=_shortest_integers([node_of(node.children[0]) for node in nodes]),
        no=_shortest_integers([node_of(node.children[1]) for node in nodes]),
        roots=_shortest_integers([node_of(root) for root in roots]),
        first=_shortest_integers(np.cumsum([0, *(len(leaf) for leaf in leaves)])),
        target=_shortest_integers([target for target, _ in entries]),
        weight=np.array([weight for _, weight in entries], dtype),
    )


def _is_branch(node: Any) -> bool:
    return not isinstance(node, int)


def _shortest_integers(numbers: Any) -> Array:
    """Integers as int16, or as int32 where one is too large."""
    array: Array = np.asarray(numbers, "int64").reshape(-1)
    if array.size and max(array.max(), -array.min()) > _GREATEST:
        raise ValueError(f"it has a number of {int(array.max())}, allowed: at most {_GREATEST}")
    limits = np.iinfo(np.int16)
    is_short = not array.size or (limits.min <= array.min() and array.max() <= limits.max)
    return array.astype("int16" if is_short else "int32")


def _parents_first(branches: Mapping[Any, Split], roots: Sequence[Any]) -> list[Any]:
    """The branches that the roots reach, parents before children. Raises ValueError for a cycle."""
    done: dict[Any, bool] = {}  # key → whether all that follows it has been visited
    reversed_order: list[Any] = []
    waiting: list[tuple[Any, bool]] = [(root, False) for root in roots]
    while waiting:
        key, leaving = waiting.pop()
        if leaving:
            done[key] = True
            reversed_order.append(key)
            continue
        if key in done:
            if not done[key]:
                raise ValueError(f"its node {key} follows itself")
            continue
        if key not in branches:
            raise ValueError(f"its node {key} does not exist")
        done[key] = False
        waiting.append((key, True))
        waiting += [(child, False) for child in branches[key].children if _is_branch(child)]
    return reversed_order[::-1]


def forest_of_nodes(lists: Mapping[str, Sequence[Any]], entries: Mapping[Any, Any], dtype: str) -> Forest:
    """The trees of TreeEnsembleClassifier and TreeEnsembleRegressor.

    lists: the attributes nodes_…, by name without `nodes_`. entries: by (tree, node), a leaf's pairs (target,
    weight). Raises ValueError for nodes that are not trees.
    """
    keys = list(zip(lists["treeids"], lists["nodeids"], strict=True))
    if len(set(keys)) != len(keys):
        raise ValueError("it has two nodes of one tree with one number")
    leaves: list[Any] = []
    branches: dict[Any, Split] = {}
    numbers: dict[Any, int] = {}
    for key, mode in zip(keys, lists["modes"], strict=True):
        if mode == "LEAF":
            numbers[key] = -1 - len(leaves)
            leaves.append(entries.get(key, ()))
    missing = lists["missing_value_tracks_true"] or [0] * len(keys)
    for index, (key, mode) in enumerate(zip(keys, lists["modes"], strict=True)):
        if mode == "LEAF":
            continue
        if mode not in MODES:
            raise ValueError(f"it has a node of mode {mode}, allowed: LEAF, {', '.join(MODES)}")
        child_keys = [(key[0], lists[name][index]) for name in ("truenodeids", "falsenodeids")]
        yes, no = (numbers.get(child, child) for child in child_keys)
        mode_number = MODES.index(mode) + (MISSING if missing[index] else 0)
        branches[key] = Split(int(lists["featureids"][index]), lists["values"][index], mode_number, (yes, no))
    followers = {child for branch in branches.values() for child in branch.children}
    inner = {tree for tree, _ in branches}  # a tree without branches is a leaf
    heads = [key for key in keys if key not in followers and (key in branches or key[0] not in inner)]
    trees = len(set(lists["treeids"]))
    if len(heads) != trees or len({tree for tree, _ in heads}) != trees:
        raise ValueError(f"its {trees} trees have {len(heads)} roots, allowed: one for each tree")
    roots = [numbers.get(key, key) for key in heads]
    unknown = sorted(set(entries) - set(numbers))
    if unknown:
        raise ValueError(f"it has a weight of node {unknown[0]}, which is not a leaf")
    return forest_tables(branches, roots, leaves, dtype)


def forest_of_ensemble(
    lists: Mapping[str, Sequence[Any]], members: Iterator[Sequence[float]], dtype: str
) -> Forest:
    """The trees of TreeEnsemble; members: the sets of its nodes of mode MEMBER, in order.

    A test of membership becomes a branch for each member.
    """
    leaves = [
        ((int(target), float(weight)),)
        for target, weight in zip(lists["leaf_targetids"], lists["leaf_weights"], strict=True)
    ]
    branches: dict[Any, Split] = {}
    missing = lists["nodes_missing_value_tracks_true"] or [0] * len(lists["nodes_modes"])

    def child(kind: str, index: int) -> Any:
        number = int(lists[f"nodes_{kind}nodeids"][index])
        if not lists[f"nodes_{kind}leafs"][index]:
            return (number, 0)
        if not 0 <= number < len(leaves):
            raise ValueError(f"its node {index} has leaf {number}, allowed: 0..{len(leaves) - 1}")
        return -1 - number

    for index, mode in enumerate(lists["nodes_modes"]):
        feature, children = (
            int(lists["nodes_featureids"][index]),
            (child("true", index), child("false", index)),
        )
        nan = MISSING if missing[index] else 0
        if int(mode) < len(MODES):
            value = lists["nodes_splits"][index]
            branches[index, 0] = Split(feature, value, int(mode) + nan, children)
            continue
        if int(mode) > len(MODES):
            raise ValueError(f"it has a node of mode {int(mode)}, allowed: 0..{len(MODES)}")
        values = next(members, None)
        if not values:
            raise ValueError("its attribute 'membership_values' has a set without members, or too few sets")
        for position, value in enumerate(values):
            false_child = children[1] if position == len(values) - 1 else (index, position + 1)
            branches[index, position] = Split(feature, value, EQUAL + nan, (children[0], false_child))
    return forest_tables(
        branches, [_root(lists, int(root), child) for root in lists["tree_roots"]], leaves, dtype
    )


def _root(lists: Mapping[str, Sequence[Any]], root: int, child: Callable[[str, int], Any]) -> Any:
    """The first node of a tree; a tree that is a leaf alone has a branch with that leaf on both sides."""
    if not 0 <= root < len(lists["nodes_modes"]):
        raise ValueError(f"its tree begins at node {root}, allowed: 0..{len(lists['nodes_modes']) - 1}")
    yes, no = child("true", root), child("false", root)
    return yes if not _is_branch(yes) and yes == no else (root, 0)
