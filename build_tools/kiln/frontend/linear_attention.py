"""The operator `linear_attention`: attention with a matrix for each head, updated at each position.

Its operands are tensors of float32. H heads have a state each, and G queries read it at each position; batch
B, length L, K numbers of a key, V of a value:

    queries  [B, L, H * G * K]
    keys     [B, L, H * K]
    values   [B, L, H * V]
    decay    [B, L, H * K] or [B, L, H]  factors of the state's rows, or of the whole state
    beta     [B, L, H] or [B, L, 1]      rates of the delta rule
    state    [B, H, K, V]                before the first position; zeros without it

and its results are y [B, L, H * G * V] and the state after the last position. A position first multiplies the
state S by its decay. The delta rule then adds key * beta * (value - S^T key), other rules key * value; y is
scale * S^T query. These are the equations of ONNX's operator LinearAttention, whose decay is a logarithm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tvm import relax

from kiln.frontend import added_operators

NAME = "linear_attention"
OPERANDS = ("queries", "keys", "values", "decay", "beta", "state")


@dataclass(frozen=True)
class LinearAttention:
    """The attributes of a `linear_attention`.

    `heads`: number of states; `queries`: number of queries that read one; `key`, `value`: elements of a key
    and of a value. `row_decay`: whether each row of the state has a decay of its own; `head_beta`: whether
    each head has a rate of its own. `operands`: names of the operands that the call has, in the order of
    OPERANDS; with `beta`, the delta rule is used.
    """

    heads: int
    queries: int
    key: int
    value: int
    scale: float
    operands: list[str]
    row_decay: bool = False
    head_beta: bool = True

    def shapes(self, batch: Any, length: Any) -> list[list[Any]]:
        """The shapes of the results for a batch and a length."""
        y = [batch, length, self.heads * self.queries * self.value]
        return [y, [batch, self.heads, self.key, self.value]]

    def call(self, tensors: Mapping[str, Any]) -> Any:
        """The tuple of results for the operands in `tensors`, by name."""
        batch, length, _ = tensors["queries"].ty.shape
        types = [relax.TensorType(shape, "float32") for shape in self.shapes(batch, length)]
        return added_operators.call(NAME, [tensors[name] for name in self.operands], asdict(self), types)


def attributes(values: Mapping[str, Any]) -> LinearAttention:
    """The attributes in `values`, which may have more keys."""
    keys = LinearAttention.__dataclass_fields__
    return LinearAttention(**{key: value for key, value in values.items() if key in keys})
