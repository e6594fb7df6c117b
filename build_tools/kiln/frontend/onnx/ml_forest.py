"""Decision trees of ai.onnx.ml as tables of branches and of leaves, checked so that every walk ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kiln.arrays import Array

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
EQUAL, UNEQUAL = MODES.index("BRANCH_EQ"), MODES.index("BRANCH_NEQ")
MISSING = 8  # added to a mode: a NaN takes the true branch
_LEAF = -1  # as the mode of a node
_GREATEST = np.iinfo(np.int32).max


@dataclass(frozen=True)
class BranchColumns:
    """Nodes with two children, as columns. value: the threshold. mode: an index of MODES, plus MISSING.

    yes, no: the node that follows, which is the index of a branch, or -1 - i for leaf i.
    """

    feature: Array
    value: Array
    mode: Array
    yes: Array
    no: Array


@dataclass(frozen=True)
class LeafWeights:
    """The weights that leaves add to targets: by entry, its leaf (-1 - i for leaf i), target and weight."""

    leaf: Array
    target: Array
    weight: Array


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

    def without_zeros(self) -> Forest:
        """This forest without entries of weight 0, which converters write for each class of a leaf."""
        is_kept = self.weight != 0
        kept_before = np.concatenate([[0], np.cumsum(is_kept)])
        return replace(
            self,
            first=_shortest_integers(kept_before[self.first]),
            target=self.target[is_kept],
            weight=self.weight[is_kept],
        )

    def with_one_entry(self) -> Forest:
        """The same trees of one target, with the first entry of each leaf alone.

        scikit-learn's converter writes the number of a leaf (decision_leaf) once for each class. ONNX Runtime
        reads the first of them, where ONNX adds all. Raises ValueError for entries with other weights.
        """
        has_entry = self.first[1:] > self.first[:-1]
        weight = self.weight[self.first[:-1][has_entry]]
        if (np.repeat(weight, np.diff(self.first)[has_entry]) != self.weight).any():
            raise ValueError(
                "a leaf has several weights of its one target, which runtimes do not agree about: allowed is "
                "one, or several that are equal, of which the first counts"
            )
        first = _shortest_integers(np.cumsum([0, *has_entry]))
        return replace(self, first=first, target=np.zeros_like(self.target[: len(weight)]), weight=weight)

    def check_columns(self, columns: int, targets: int) -> None:
        """Raise ValueError where a branch reads, or a leaf adds to, a column that does not exist."""
        for noun, numbers, most in (("feature", self.feature, columns), ("target", self.target, targets)):
            wrong = numbers[(numbers < 0) | (numbers >= most)]
            if len(wrong):
                raise ValueError(f"a node has {noun} {wrong[0]}, allowed: 0..{most - 1}")


def forest_tables(
    branches: BranchColumns,
    roots: Array,
    leaves: int,
    weights: LeafWeights,
    dtype: str,
    name: Callable[[int], Any],
) -> Forest:
    """The tables of trees; name: how errors call a branch. Raises ValueError for a walk without an end."""
    order = _parents_first(branches, roots, name)
    number = np.zeros(len(branches.yes) + 1, "int64")
    number[order] = np.arange(len(order))
    entries = np.argsort(-1 - weights.leaf, kind="stable")
    counts = np.bincount(-1 - weights.leaf, minlength=leaves)

    def renumbered(nodes: Array) -> Array:
        return _shortest_integers(np.where(nodes >= 0, number[np.maximum(nodes, -1)], nodes))

    return Forest(
        feature=_shortest_integers(branches.feature[order]),
        value=branches.value[order].astype(dtype),
        mode=branches.mode[order].astype("uint8"),
        yes=renumbered(branches.yes[order]),
        no=renumbered(branches.no[order]),
        roots=renumbered(roots),
        first=_shortest_integers(np.cumsum([0, *counts])),
        target=_shortest_integers(weights.target[entries]),
        weight=weights.weight[entries].astype(dtype),
    )


def _shortest_integers(numbers: Any) -> Array:
    """Integers as int16, or as int32 where one is too large."""
    array: Array = np.asarray(numbers, "int64").reshape(-1)
    if array.size and max(array.max(), -array.min()) > _GREATEST:
        raise ValueError(f"it has a number of {int(array.max())}, allowed: at most {_GREATEST}")
    limits = np.iinfo(np.int16)
    is_short = not array.size or (limits.min <= array.min() and array.max() <= limits.max)
    return array.astype("int16" if is_short else "int32")


def _parents_first(branches: BranchColumns, roots: Array, name: Callable[[int], Any]) -> Array:
    """The branches that the roots reach, tree by tree, parents before children, true children first.

    Raises ValueError for a cycle.
    """
    roots, sides = roots[roots >= 0], (branches.yes, branches.no)
    followers = np.concatenate([roots, *(side[side >= 0] for side in sides)])
    if np.bincount(followers).max(initial=0) > 1:
        return _depth_first(branches, roots, name)
    levels = []
    level = roots
    while len(level):
        levels.append(level)
        level = np.concatenate([side[level] for side in sides])
        level = level[level >= 0]
    size = np.append(np.ones(len(branches.yes), "int64"), 0)  # branches of a subtree; of a leaf, at -1, none
    for level in reversed(levels):
        size[level] += sum(size[np.maximum(side[level], -1)] for side in sides)
    offset = np.zeros_like(size)
    offset[roots] = np.cumsum(size[roots]) - size[roots]
    for level in levels:
        free = offset[level] + 1
        for side in sides:
            child = np.maximum(side[level], -1)
            offset[child] = free
            free += size[child]
    reached = np.concatenate([roots, *levels[1:]])
    order = np.empty_like(reached)
    order[offset[reached]] = reached
    return order


def _depth_first(branches: BranchColumns, roots: Array, name: Callable[[int], Any]) -> Array:
    """_parents_first where a branch follows several."""
    children = list(zip(branches.yes.tolist(), branches.no.tolist(), strict=True))
    done: dict[int, bool] = {}  # whether all that follows the branch has been visited
    reversed_order: list[int] = []
    waiting = [(root, False) for root in roots.tolist()]
    while waiting:
        branch, leaving = waiting.pop()
        if leaving:
            done[branch] = True
            reversed_order.append(branch)
        elif branch not in done:
            done[branch] = False
            waiting.append((branch, True))
            waiting += [(child, False) for child in children[branch] if child >= 0]
        elif not done[branch]:
            raise ValueError(f"its node {name(branch)} follows itself")
    return np.array(reversed_order[::-1], "int64")


class _NodesByNumber:
    """Finds nodes by the numbers of tree and node. Raises ValueError where two have the same ones."""

    def __init__(self, trees: Array, nodes: Array) -> None:
        self.trees, tree = np.unique(trees, return_inverse=True)
        self.nodes, node = np.unique(nodes, return_inverse=True)
        keys = tree * len(self.nodes) + node
        self.order = np.argsort(keys)
        self.keys = keys[self.order]
        if (self.keys[1:] == self.keys[:-1]).any():
            raise ValueError("it has two nodes of one tree with one number")

    def find(self, trees: Array, nodes: Array) -> Array:
        """The position of each node, or -1."""
        if not len(self.keys):
            return np.full(len(nodes), -1)
        tree, node = self._position(self.trees, trees), self._position(self.nodes, nodes)
        keys = tree * len(self.nodes) + node
        at = self._position(self.keys, keys)
        is_known = (self.trees[tree] == trees) & (self.nodes[node] == nodes) & (self.keys[at] == keys)
        return np.where(is_known, self.order[at], -1)

    @staticmethod
    def _position(ascending: Array, values: Array) -> Array:
        nearest: Array = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
        return nearest


def _mode(name: str) -> int:
    if name != "LEAF" and name not in MODES:
        raise ValueError(f"it has a node of mode {name}, allowed: LEAF, {', '.join(MODES)}")
    return _LEAF if name == "LEAF" else MODES.index(name)


def forest_of_nodes(
    lists: Mapping[str, Sequence[Any]], entries: Sequence[Sequence[Any]], dtype: str
) -> Forest:
    """The trees of TreeEnsembleClassifier and TreeEnsembleRegressor.

    lists: the attributes nodes_…, by name without `nodes_`. entries: the lists of trees, nodes,
    targets and weights of the leaves. Raises ValueError for nodes that are not trees.
    """
    trees, ids = (np.array(lists[name], "int64") for name in ("treeids", "nodeids"))
    nodes = _NodesByNumber(trees, ids)
    codes = {name: _mode(name) for name in set(lists["modes"])}
    mode = np.array([codes[name] for name in lists["modes"]], "int64")
    is_leaf = mode == _LEAF
    at = np.flatnonzero(~is_leaf)  # positions of the branches
    number = np.where(is_leaf, -np.cumsum(is_leaf), np.cumsum(~is_leaf) - 1)
    wanted = [np.array(lists[name], "int64")[at] for name in ("truenodeids", "falsenodeids")]
    children = [nodes.find(trees[at], one) for one in wanted]
    followed = np.zeros(len(ids) + 1, bool)
    followed[np.concatenate(children)] = True
    inner = np.isin(trees, trees[at])  # a tree without branches is a leaf
    heads = np.flatnonzero(~followed[:-1] & ~(is_leaf & inner))
    count = len(nodes.trees)
    if len(heads) != count or len(np.unique(trees[heads])) != count:
        raise ValueError(f"its {count} trees have {len(heads)} roots, allowed: one for each tree")
    for child, one in zip(children, wanted, strict=True):
        for missing in np.flatnonzero(child < 0)[:1]:
            raise ValueError(f"its node {(int(trees[at][missing]), int(one[missing]))} does not exist")
    branches = BranchColumns(
        feature=np.array(lists["featureids"], "int64")[at],
        value=np.array(lists["values"], "float64")[at],
        mode=mode[at] + MISSING * (np.array(lists["missing_value_tracks_true"] or [0] * len(ids))[at] != 0),
        yes=number[children[0]],
        no=number[children[1]],
    )
    owners = [np.array(column, "int64") for column in entries[:2]]
    leaf = nodes.find(*owners)
    unknown = sorted(zip(*(owner[(leaf < 0) | ~is_leaf[leaf]].tolist() for owner in owners), strict=True))
    if unknown:
        raise ValueError(f"it has a weight of node {unknown[0]}, which is not a leaf")
    weights = LeafWeights(number[leaf], np.array(entries[2], "int64"), np.array(entries[3], "float64"))
    names = trees[at], ids[at]
    return forest_tables(
        branches, number[heads], int(is_leaf.sum()), weights, dtype,
        lambda branch: tuple(int(column[branch]) for column in names),
    )  # fmt: skip


def forest_of_ensemble(
    lists: Mapping[str, Sequence[Any]], members: Iterator[Sequence[float]], dtype: str
) -> Forest:
    """The trees of TreeEnsemble; members: the sets of its nodes of mode MEMBER, in order.

    A test of membership becomes a branch for each member.
    """
    modes, leaves = [int(mode) for mode in lists["nodes_modes"]], len(lists["leaf_targetids"])
    missing = lists["nodes_missing_value_tracks_true"] or [0] * len(modes)
    values = [
        [lists["nodes_splits"][index]] if mode < len(MODES) else _members(index, mode, members)
        for index, mode in enumerate(modes)
    ]
    first = np.cumsum([0, *(len(tests) for tests in values)]).tolist()  # the first branch of each node
    owner = np.repeat(np.arange(len(modes)), np.diff(first))

    def child(kind: str, index: int) -> int:
        number = int(lists[f"nodes_{kind}nodeids"][index])
        noun, most = ("leaf", leaves) if lists[f"nodes_{kind}leafs"][index] else ("node", len(modes))
        if not 0 <= number < most:
            raise ValueError(f"its node {index} has {noun} {number}, allowed: 0..{most - 1}")
        return -1 - number if noun == "leaf" else int(first[number])

    yes = np.array([child("true", index) for index in range(len(modes))], "int64")
    no = np.array([child("false", index) for index in range(len(modes))], "int64")
    following = np.arange(1, len(owner) + 1)
    mode = np.array([mode if mode < len(MODES) else EQUAL for mode in modes], "int64")
    branches = BranchColumns(
        feature=np.array(lists["nodes_featureids"], "int64")[owner],
        value=np.array([value for tests in values for value in tests], "float64"),
        mode=mode[owner] + MISSING * (np.array(missing)[owner] != 0),
        yes=yes[owner],
        no=np.where(following == np.array(first)[owner + 1], no[owner], following),
    )
    weights = LeafWeights(
        -1 - np.arange(leaves),
        np.array(lists["leaf_targetids"], "int64"),
        np.array(lists["leaf_weights"], "float64"),
    )

    def root_of(root: int) -> int:
        """The first node of a tree; a tree that is a leaf alone has a branch with it on both sides."""
        if not 0 <= root < len(modes):
            raise ValueError(f"its tree begins at node {root}, allowed: 0..{len(modes) - 1}")
        return int(yes[root]) if yes[root] < 0 and yes[root] == no[root] else int(first[root])

    roots = np.array([root_of(int(root)) for root in lists["tree_roots"]], "int64")
    return forest_tables(branches, roots, leaves, weights, dtype, lambda branch: int(owner[branch]))


def _members(node: int, mode: int, members: Iterator[Sequence[float]]) -> Sequence[float]:
    """The next set of `members`: the one of node number `node`, whose mode is not a comparison.

    Raises ValueError for an unknown mode, and for a set that is missing or empty.
    """
    if mode > len(MODES):
        raise ValueError(f"its node {node} has mode {mode}, allowed: 0..{len(MODES)}")
    values = next(members, None)
    if not values:
        raise ValueError(
            f"its attribute 'membership_values' has no set, or one without members, for its node {node}"
        )
    return values
