"""TfIdfVectorizer of numbers: how often each n-gram of a pool occurs in a row, as comparisons and sums.

Its converter has the interface of kiln.frontend.onnx.ops. The size of the code does not depend on the pool.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from kiln.extents import Extent, shape_of
from kiln.frontend.onnx.node import Node, shape_expr

op = relax.op
_MODES = ("TF", "IDF", "TFIDF")


def tfidf(node: Node) -> Any:
    """TfIdfVectorizer: counts (TF), weights of n-grams that occur (IDF), or their products, in float32."""
    emit, attributes = node.builder.emit, node.attributes
    mode = node.text("mode", "")
    if mode not in _MODES:
        raise ValueError(f"attribute 'mode' is {mode}, allowed: {', '.join(_MODES)}")
    if attributes.get("pool_strings"):
        raise ValueError("attribute 'pool_strings': its n-grams are texts; number words outside of the model")
    x, shape = node.tensor(0), node.shape(0)
    if len(shape) not in (1, 2):
        raise ValueError(f"a tensor of {len(shape)} axes, allowed: 1 or 2")
    columns = np.array(attributes["ngram_indexes"], np.int64)
    size = int(columns.max()) + 1
    rows = emit(op.reshape(x, shape_expr([1, *shape][-2:])))
    counts: list[Any] = []
    column_lists: list[npt.NDArray[np.int64]] = []
    for length, pool, first in _pools(node):
        column_lists.append(columns[first : first + len(pool)])
        counts.append(_counts(node, rows, shape[-1], pool, length))
    if not counts:
        result = emit(op.zeros(shape_expr([shape_of(rows)[0], size]), "float32"))
    else:
        every = counts[0] if len(counts) == 1 else emit(op.concat(counts, 1))
        result = _in_columns(node, every, np.concatenate(column_lists), size)
    numbers = attributes.get("weights") or [1.0] * len(columns)
    if len(numbers) != len(columns):
        raise ValueError(
            f"attribute 'weights' has {len(numbers)} numbers, allowed: {len(columns)}, as n-grams"
        )
    weights = np.zeros((1, size), np.float32)
    weights[0, columns] = numbers
    if mode == "IDF":
        result = emit(op.astype(emit(op.greater(result, relax.const(0.0, "float32"))), "float32"))
    if mode != "TF":
        result = emit(op.multiply(result, relax.const(weights, "float32")))
    return op.reshape(result, shape_expr([size])) if len(shape) == 1 else result


def _pools(node: Node) -> list[tuple[int, npt.NDArray[np.int64], int]]:
    """The n-grams by length, from min_gram_length to max_gram_length.

    An entry is the length, the n-grams [G, length], and the number of the first one in the pool.
    """
    attributes = node.attributes
    pool = np.array(attributes["pool_int64s"], np.int64)
    starts = [*(int(start) for start in attributes["ngram_counts"]), len(pool)]
    least, most = (int(attributes[key]) for key in ("min_gram_length", "max_gram_length"))
    pools, first = [], 0
    for length, (begin, end) in enumerate(itertools.pairwise(starts), 1):
        grams = pool[begin : begin + max(end - begin, 0) // length * length].reshape(-1, length)
        if len(grams) and least <= length <= most:
            pools.append((length, grams, first))
        first += len(grams)
    if first > len(attributes["ngram_indexes"]):
        raise ValueError(f"attribute 'ngram_indexes' has fewer than {first} numbers, one for each n-gram")
    return pools


def _counts(node: Node, rows: Any, size: Extent, pool: npt.NDArray[np.int64], length: int) -> Any:
    """Counts [B, G] of the n-grams of `pool` in `rows` [B, size], with up to max_skip_count items skipped."""
    emit, batch = node.builder.emit, shape_of(rows)[0]
    most = 0 if length == 1 else int(node.attributes["max_skip_count"])
    total = emit(op.zeros(shape_expr([batch, len(pool)]), "float32"))
    wide = rows if str(rows.ty.dtype) == "int64" else emit(op.astype(rows, "int64"))
    for distance in range(1, most + 2):
        reach = distance * (length - 1)
        windows = node.symbols.simplify(size - reach)
        if isinstance(windows, int) and windows <= 0:
            continue
        if not node.symbols.holds(windows >= 1):
            raise ValueError(
                f"its rows of {node.symbols.shown(size)} items are shorter than an n-gram of {reach + 1} for "
                "some sizes; raise their min in 'dims'"
            )
        matches = None
        for item in range(length):
            begin = item * distance
            end = node.symbols.simplify(windows + begin)
            items = emit(op.strided_slice(wide, [1], [begin], [end]))
            items = emit(op.reshape(items, shape_expr([batch, windows, 1])))
            gram = relax.const(pool[:, item].reshape(1, 1, -1), "int64")
            alike = emit(op.equal(items, gram))
            matches = alike if matches is None else emit(op.logical_and(matches, alike))
        total = emit(op.add(total, emit(op.sum(emit(op.astype(matches, "float32")), 1))))
    return total


def _in_columns(node: Node, counts: Any, columns: npt.NDArray[np.int64], size: int) -> Any:
    """Counts of n-grams [B, G] in the columns of the result [B, size], other columns 0."""
    emit = node.builder.emit
    if len(set(columns.tolist())) == len(columns):
        batch = shape_of(counts)[0]
        more = emit(op.concat([counts, emit(op.zeros(shape_expr([batch, 1]), "float32"))], 1))
        sources = np.full(size, len(columns), np.int64)
        sources[columns] = np.arange(len(columns))
        return emit(op.take(more, relax.const(sources, "int64"), 1))
    spread = np.zeros((len(columns), size), np.float32)
    spread[np.arange(len(columns)), columns] = 1
    return emit(op.matmul(counts, relax.const(spread, "float32")))


CONVERTERS: dict[str, Callable[[Node], Any]] = {"TfIdfVectorizer": tfidf}
