"""The kernel of a forest: for each tree, a walk of every row from the root to a leaf, over tables.

A branch of a small forest is an element of each of several tables, as short as its numbers allow. One of a
large forest, which exceeds the caches, is four words side by side: a step of a walk reads one line of memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as script

from kiln.arrays import Array
from kiln.frontend.counted.memory import COMBINE, serial
from kiln.frontend.onnx.body import Body
from kiln.frontend.onnx.ml_forest import MISSING, UNEQUAL, Forest
from kiln.frontend.symbols import int64, int64_of

_EXPONENT = {"float32": 0x7F800000, "float64": 0x7FF0000000000000}
_COMPARISONS: tuple[Callable[[Any, Any], Any], ...] = (
    lambda a, b: a <= b,
    lambda a, b: a < b,
    lambda a, b: a >= b,
    lambda a, b: a > b,
    lambda a, b: a == b,
    lambda a, b: a != b,
)


def is_nan(value: Any) -> Any:
    """Whether a float is a NaN, by its bits: TVM folds `x != x` to false."""
    dtype = str(value.ty.dtype)
    kind = dtype.replace("float", "int")
    bits = tirx.reinterpret(kind, value)
    return (bits & tirx.const((1 << (int(kind[3:]) - 1)) - 1, kind)) > tirx.const(_EXPONENT[dtype], kind)


def forest_sums(body: Body, x: str, forest: Forest, targets: int, combine: str) -> str:
    """For each row of `x`, shape (n, columns), the combined weights of its leaves: shape (n, targets).

    x: of the type of the forest's values. A target without a leaf has 0.
    """
    rows, dtype = body.shape(x)[0], body.dtype(x)
    counts = np.diff(forest.first)
    plain = targets == 1 and bool((counts == 1).all())  # a leaf has the entry of its own number
    if combine == "SUM" and not plain:
        forest = forest.without_zeros()
    names = ("feature", "value", "yes", "no", "roots", "first", "target", "weight", "mode")
    tables = {name: _not_empty(getattr(forest, name)) for name in names}
    if plain:
        del tables["first"], tables["target"]
    modes = np.unique(forest.mode).tolist() or [0]
    if _is_large(forest):
        tables = {name: tables[name] for name in tables if name not in _WORDS and name != "mode"}
        words = [forest.feature + (forest.mode.astype("int32") << _MODE_SHIFT), forest.value.view("int32")]
        tables["words"] = np.stack([*words, forest.yes, forest.no], axis=1, dtype="int32").reshape(-1)
    elif len(modes) == 1:
        del tables["mode"]
    walk = _Walk(list(tables), modes, targets, combine)

    def compute(data: Any, *operands: Any) -> Any:
        return te.extern(
            [[int64_of(rows), int64(targets)], [int64(1)]], [data, *operands],
            lambda i, o: walk.statement(i, o), dtype=[dtype, "int32"], name="forest",
        )  # fmt: skip

    constants = [relax.const(table, str(table.dtype)) for table in tables.values()]
    results = body.emit_te(compute, body.tensor(x), *constants, hint="forest")
    return body.bind(relax.TupleGetItem(results, 0))


# What the four words of a branch are. The first contains the mode too, from this bit on.
_WORDS = ("feature", "value", "yes", "no")
_MODE_SHIFT = 24


def _is_large(forest: Forest) -> bool:
    """Whether branches are stored as words: where most of their numbers need 32 bits anyway."""
    numbers = [forest.value, forest.yes, forest.no]
    return all(table.dtype.itemsize == 4 for table in numbers) and forest.feature.max() < 1 << _MODE_SHIFT


def _not_empty(table: Array) -> Array:
    """The table, with an element at least: a forest of leaves alone has no branches."""
    return table if table.size else np.zeros(1, table.dtype)


class _Walk:
    """Writes the kernel's statement. `tables`: the names of its operands after the first."""

    def __init__(self, tables: list[str], modes: list[int], targets: int, combine: str) -> None:
        self.names, self.modes, self.targets = tables, modes, targets
        self.combine, self.kind = COMBINE[combine.lower()], combine

    def statement(self, inputs: Any, outputs: Any) -> Any:
        """Clear the results; for each tree, add its leaf to the result of each row: rows share its nodes."""
        x, (out, current) = inputs[0], outputs
        tables = dict(zip(self.names, inputs[1:], strict=True))
        dtype = str(x.dtype)
        trees = tables["roots"].shape[0]

        def entry(table_name: str, index: Any) -> Any:
            if "words" not in tables or table_name not in (*_WORDS, "mode"):
                return tirx.BufferLoad(tables[table_name], [tirx.Cast("int64", index)])
            place = 0 if table_name == "mode" else _WORDS.index(table_name)
            word = tirx.BufferLoad(tables["words"], [tirx.Cast("int64", index) * int64(4) + int64(place)])
            if table_name == "mode":
                return tirx.Cast("uint8", word >> tirx.IntImm("int32", _MODE_SHIFT))
            if table_name == "feature":
                return word & tirx.IntImm("int32", (1 << _MODE_SHIFT) - 1)
            return tirx.reinterpret(dtype, word) if table_name == "value" else word

        with IRBuilder() as ir, script.seq_scope():
            with serial(x.shape[0]) as row, serial(self.targets) as target:
                script.buffer_store(out, self._start(dtype), [row, target])
            with serial(trees) as tree, serial(x.shape[0]) as row:
                script.buffer_store(current, tirx.Cast("int32", entry("roots", tree)), [int64(0)])
                node = tirx.BufferLoad(current, [int64(0)])
                with script.While(node >= tirx.IntImm("int32", 0)):
                    value = tirx.BufferLoad(x, [row, tirx.Cast("int64", entry("feature", node))])
                    takes_true = self._takes_true(value, entry("value", node), lambda: entry("mode", node))
                    next_node = tirx.Select(takes_true, entry("yes", node), entry("no", node))
                    script.buffer_store(current, tirx.Cast("int32", next_node), [int64(0)])
                self._add_leaf(out, row, tirx.IntImm("int32", -1) - node, entry)
            if self.kind != "SUM":
                with serial(x.shape[0]) as row, serial(self.targets) as target:
                    value_so_far = tirx.BufferLoad(out, [row, target])
                    nothing = value_so_far == self._start(dtype)
                    script.buffer_store(
                        out, tirx.Select(nothing, tirx.const(0, dtype), value_so_far), [row, target]
                    )
        return ir.get()

    def _start(self, dtype: str) -> Any:
        """The combined weight of no leaf: the neutral element of `combine`."""
        if self.kind == "SUM":
            return tirx.const(0, dtype)
        return tirx.max_value(dtype) if self.kind == "MIN" else tirx.min_value(dtype)

    def _takes_true(self, value: Any, threshold: Any, mode: Callable[[], Any]) -> Any:
        """Whether the walk goes on with the true branch."""
        if len(self.modes) == 1:
            return _compare(self.modes[0], value, threshold)
        kind = mode()
        tests = [
            tirx.all(kind == tirx.IntImm("uint8", mode_number), _compare(mode_number, value, threshold))
            for mode_number in self.modes
        ]
        return reduce(tirx.any, tests)

    def _add_leaf(self, out: Any, row: Any, leaf: Any, entry: Callable[[str, Any], Any]) -> None:
        """Combine the weights of a leaf with the results of its targets."""
        if "first" not in self.names:
            combined = self.combine(tirx.BufferLoad(out, [row, int64(0)]), entry("weight", leaf))
            script.buffer_store(out, combined, [row, int64(0)])
            return
        begin, end = (
            tirx.Cast("int64", entry("first", leaf_number))
            for leaf_number in (leaf, leaf + tirx.IntImm("int32", 1))
        )
        with serial(end - begin) as number:
            target = tirx.Cast("int64", entry("target", begin + number))
            combined = self.combine(tirx.BufferLoad(out, [row, target]), entry("weight", begin + number))
            script.buffer_store(out, combined, [row, target])


def _compare(mode: int, value: Any, threshold: Any) -> Any:
    """Whether a branch of `mode` goes to its true side."""
    kind = mode & ~MISSING
    on_nan = bool(mode & MISSING) or kind == UNEQUAL
    holds = _COMPARISONS[kind](value, threshold)
    return tirx.any(is_nan(value), holds) if on_nan else tirx.all(tirx.Not(is_nan(value)), holds)
