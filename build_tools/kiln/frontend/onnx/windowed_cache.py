"""GroupQueryAttention's cache of the window alone (`sliding_window_cache`).

The cache has a capacity of C positions, at least the W of the window. Of T tokens so far it holds the last
L(T), at rows 0 to L(T) - 1: all of them up to C, later T less the multiple of C - W + 1 that makes it fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import relax

from kiln.extents import Extent
from kiln.frontend.onnx.attention import positions
from kiln.frontend.onnx.body import Body

op = relax.op


def _number(value: int) -> Any:
    return relax.const(value, "int64")


@dataclass(frozen=True)
class WindowedCache:
    """The cache of one node. Tensors are int64, (batch, 1, 1, 1).

    tokens_before, tokens: how many were seen before the node and after it. first_before, first: the position
    of the token in row 0 of the past and of the present cache. held_before: the rows of the past that count.
    """

    body: Body
    capacity: int
    window: int
    queries: Extent
    tokens_before: Any
    first_before: Any
    held_before: Any
    first: Any

    def mask(self) -> str:
        """Which of the past's rows and the new keys each query attends: (batch, 1, queries, keys)."""
        rows = op.reshape(positions(self.capacity), [1, 1, 1, self.capacity])
        batch = self.body.shape(self.body.input(0))[0]
        held = op.less(rows, self.held_before)
        new = op.full([batch, 1, 1, self.queries], relax.const(True, "bool"), "bool")
        query = op.add(self.tokens_before, op.reshape(positions(self.queries), [1, 1, self.queries, 1]))
        key = self.body.tensor(self._key_positions())
        near = op.logical_and(
            op.less_equal(key, query), op.greater(key, op.subtract(query, _number(self.window)))
        )
        return self.body.bind(op.logical_and(op.concat([held, new], 3), near))

    def _key_positions(self) -> str:
        """The positions of the tokens in the past's rows, then of the new ones: (batch, 1, 1, keys)."""
        rows = op.reshape(positions(self.capacity), [1, 1, 1, self.capacity])
        new = op.reshape(positions(self.queries), [1, 1, 1, self.queries])
        return self.body.bind(
            op.concat([op.add(self.first_before, rows), op.add(self.tokens_before, new)], 3)
        )

    def bias(self, bias: str) -> str:
        """A bias by position, (…, queries, positions), with the columns of the keys."""
        body, batch = self.body, self.body.shape(self.body.input(0))[0]
        _, heads, queries, columns = body.shape(bias)
        keys = body.symbols.simplify(self.queries + self.capacity)
        last = op.subtract(positions(1, columns), _number(1))
        column = op.minimum(op.maximum(body.tensor(self._key_positions()), _number(0)), last)
        index = body.bind(op.broadcast_to(column, [batch, heads, queries, keys]))
        whole = body.bind(op.broadcast_to(body.tensor(bias), [batch, heads, queries, columns]))
        return body.op("GatherElements", whole, index, axis=3)

    def present(self, whole: str) -> str:
        """The present cache from the past's rows, then the new ones, (batch, heads, keys, size)."""
        body = self.body
        batch, heads, keys, width = body.shape(whole)
        token = op.add(self.first, op.reshape(positions(self.capacity), [1, 1, self.capacity, 1]))
        token = body.tensor(body.bind(token))
        old = op.subtract(token, self.first_before)
        new = op.add(op.subtract(token, self.tokens_before), _number(self.capacity))
        row = op.where(op.less(token, self.tokens_before), old, new)
        last = op.subtract(positions(1, keys), _number(1))
        row = op.minimum(op.maximum(row, _number(0)), last)  # rows after the last token are not defined
        if batch == 1:
            return body.op("Gather", whole, body.reshape(body.bind(row), [self.capacity]), axis=2)
        index = body.bind(op.broadcast_to(row, [batch, heads, self.capacity, width]))
        return body.op("GatherElements", whole, index, axis=2)


def windowed_cache(body: Body, queries: Extent, window: int) -> WindowedCache:
    """The cache of a node. Raises ValueError for a window or a capacity that is not possible."""
    if window < 1:
        raise ValueError(
            f"its attribute 'local_window_size' is {window} with a cache of the window alone, allowed: 1 and "
            "more"
        )
    if not body.has(3) or not body.has(4):
        raise ValueError(
            "it has no 'past_key' and 'past_value', whose size is the capacity of a cache of the window alone"
        )
    capacity = body.size(body.input(3), 2, "the capacity of the cache")
    if capacity < window:
        raise ValueError(
            f"its cache '{body.input(3)}' has {capacity} positions, allowed: at least {window}, the window"
        )
    batch = body.shape(body.input(0))[0]
    last = op.reshape(op.astype(body.tensor(body.input(5)), "int64"), [batch, 1, 1, 1])
    tokens = body.bind_tensor(op.add(last, _number(1)))
    # Less than none: the first tokens of a sequence that is shorter than others of its batch.
    length = op.reshape(positions(1, queries), [1, 1, 1, 1])
    before = body.bind_tensor(op.maximum(op.subtract(tokens, length), _number(0)))
    held_before = body.bind_tensor(_held(before, capacity, window))
    return WindowedCache(
        body=body,
        capacity=capacity,
        window=window,
        queries=queries,
        tokens_before=before,
        first_before=body.bind_tensor(op.subtract(before, held_before)),
        held_before=held_before,
        first=body.bind_tensor(op.subtract(tokens, _held(tokens, capacity, window))),
    )


def _held(tokens: Any, capacity: int, window: int) -> Any:
    """The number of tokens that the cache holds after `tokens` tokens: the last ones."""
    parts = capacity - window + 1
    excess = op.maximum(op.subtract(tokens, _number(capacity)), _number(0))
    evicted = op.floor_divide(op.add(excess, _number(parts - 1)), _number(parts))
    return op.subtract(tokens, op.multiply(evicted, _number(parts)))
