"""RotaryEmbedding of ONNX and of ONNX Runtime (Su et al., "RoFormer", 2021)."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from kiln.frontend.onnx.body import Body, Expansion

op = relax.op


def _slice(x: Any, axis: int, begin: int, end: int, step: int = 1) -> Any:
    return op.strided_slice(x, [axis], [begin], [end], [step])


def rotate(body: Body, name: str, cos: str, sin: str, interleaved: bool) -> str:
    """The tensor `name` (batch, sequence, heads, size) rotated by the angles of its positions.

    cos, sin: (batch or 1, sequence, rotated size / 2). Elements of the last axis beyond the rotated size are
    not changed.
    """
    x, size = body.tensor(name), body.size(name, 3, "the size of a head")
    half = body.size(cos, 2, "the last size of the cosines")
    rotated_size = 2 * half
    if rotated_size > size or body.size(sin, 2, "the last size of the sines") != half:
        raise ValueError(
            f"its cosines have {half} columns, allowed: at most {size // 2}, and as many as the sines"
        )
    if interleaved:
        first, second = _slice(x, 3, 0, rotated_size, 2), _slice(x, 3, 1, rotated_size, 2)
    else:
        first, second = _slice(x, 3, 0, half), _slice(x, 3, half, rotated_size)
    c, s = (op.expand_dims(body.tensor(table), 2) for table in (cos, sin))
    real = op.subtract(op.multiply(c, first), op.multiply(s, second))
    imaginary = op.add(op.multiply(s, first), op.multiply(c, second))
    if interleaved:
        pairs = body.bind(op.concat([op.expand_dims(real, -1), op.expand_dims(imaginary, -1)], 4))
        rotated = body.tensor(body.reshape(pairs, [*body.shape(name)[:3], rotated_size]))
    else:
        rotated = op.concat([real, imaginary], 3)
    if rotated_size == size:
        return body.bind(rotated)
    return body.bind(op.concat([rotated, _slice(x, 3, rotated_size, size)], 3))


def at_positions(body: Body, table: str, positions: str) -> str:
    """Rows of a table (positions, half) for each of `positions` (batch, sequence)."""
    return body.op("Gather", table, positions, axis=0)


def _with_heads(body: Body, name: str, heads: int) -> tuple[str, bool]:
    """The tensor `name` as (batch, sequence, heads, size), and whether its heads came before the sequence."""
    if body.rank(name) == 4:
        return body.transpose(name, [0, 2, 1, 3]), True
    batch, length, width = body.shape(name)
    if heads < 1 or not isinstance(width, int) or width % heads:
        raise ValueError(
            f"its attribute 'num_heads' is {heads}, allowed: a divisor of {width}, the last size"
        )
    return body.reshape(name, [batch, length, heads, width // heads]), False


def _without_heads(body: Body, rotated: str, like: str, first: bool) -> str:
    return body.transpose(rotated, [0, 2, 1, 3]) if first else body.reshape(rotated, body.shape(like))


def rotary_embedding(body: Body) -> list[str]:
    """RotaryEmbedding of ONNX: inputs X, cosines, sines and optionally positions."""
    x, cos, sin, positions = (body.input(index) for index in range(4))
    by_head, first = _with_heads(body, x, int(body.attribute("num_heads", 0)))
    _check_rotated_size(body, by_head, cos)
    if positions:
        cos, sin = (at_positions(body, table, positions) for table in (cos, sin))
    return [
        _without_heads(
            body, rotate(body, by_head, cos, sin, bool(body.attribute("interleaved", 0))), x, first
        )
    ]


def _check_rotated_size(body: Body, by_head: str, cos: str) -> None:
    size = body.size(by_head, 3, "the size of a head")
    declared = int(body.attribute("rotary_embedding_dim", 0)) or 0
    half = body.size(cos, -1, "the last size of the cosines")
    if declared and declared != 2 * half:
        raise ValueError(
            f"its attribute 'rotary_embedding_dim' is {declared}, allowed: {2 * half}, of {size}"
        )


def microsoft_rotary_embedding(body: Body) -> list[str]:
    """com.microsoft.RotaryEmbedding: positions are the second input, one offset or one per element."""
    x, positions, cos, sin = (body.input(index) for index in range(4))
    body.only("is_packed_batching", 0)
    body.only("scale", 1.0)
    by_head, first = _with_heads(body, x, _heads_of(body, x, cos))
    _check_rotated_size(body, by_head, cos)
    if body.rank(positions) == 1:
        length = body.shape(by_head)[1]
        steps = op.arange(0, relax.prim_value(length), 1, "int64")
        steps_from_offset = op.add(op.reshape(body.tensor(positions), []), steps)
        positions = body.bind(op.expand_dims(steps_from_offset, 0))
    cos, sin = (at_positions(body, table, positions) for table in (cos, sin))
    return [
        _without_heads(
            body, rotate(body, by_head, cos, sin, bool(body.attribute("interleaved", 0))), x, first
        )
    ]


def _streams(body: Body, half: int) -> list[int]:
    """For each of the `half` columns of MRotaryEmbedding's angles, the positions that it uses.

    0, 1 or 2: time, height, width.

    Raises ValueError for sections that do not make `half` columns.
    """
    sections = [int(size) for size in body.required("mrope_section")]
    layout = body.only("mrope_layout", 0, 1)
    if len(sections) != 3 or min(sections) < 0 or sum(sections) != half:
        raise ValueError(
            f"its attribute 'mrope_section' is {sections}, allowed: three sizes of {half} columns together"
        )
    if layout == 0:
        return [stream for stream, size in enumerate(sections) for _ in range(size)]
    thirds = (column % 3 for column in range(half))
    return [third if column < 3 * sections[third] else 0 for column, third in enumerate(thirds)]


def multimodal_rotary_embedding(body: Body) -> list[str]:
    """com.microsoft.MRotaryEmbedding: angles by positions of time, height and width, in columns."""
    x, positions, cos, sin = (body.input(index) for index in range(4))
    body.only("is_packed_batching", 0)
    body.only("scale", 1.0)
    if body.shape(positions)[:-2] != [3]:
        raise ValueError(
            f"its positions '{positions}' are {body.shape(positions)}, allowed: [3, batch, length]"
        )
    by_head, first = _with_heads(body, x, _heads_of(body, x, cos))
    _check_rotated_size(body, by_head, cos)
    streams = _streams(body, body.size(cos, 1, "the last size of the cosines"))

    def angles(table: str) -> str:
        """The rows of a table at the positions, each column at those of its stream."""
        rows = body.tensor(at_positions(body, table, positions))  # (3, batch, sequence, half)
        chosen = None
        for stream in sorted(set(streams)):
            one = op.squeeze(_slice(rows, 0, stream, stream + 1), [0])
            mask = relax.const(np.equal(streams, stream))
            chosen = one if chosen is None else op.where(mask, one, chosen)
        return body.bind(chosen)

    interleaved = bool(body.attribute("interleaved", 0))
    return [_without_heads(body, rotate(body, by_head, angles(cos), angles(sin), interleaved), x, first)]


def _heads_of(body: Body, x: str, cos: str) -> int:
    """The attribute `num_heads`, or as many as heads of twice the cosines' columns fit."""
    heads = int(body.attribute("num_heads", 0))
    if body.rank(x) == 3 and not heads:
        heads = body.size(x, 2, "the last size") // (2 * body.size(cos, 1, "the last size of the cosines"))
    return heads


ONNX: dict[str, Expansion] = {"RotaryEmbedding": rotary_embedding}
MICROSOFT: dict[str, Expansion] = {
    "MRotaryEmbedding": multimodal_rotary_embedding,
    "RotaryEmbedding": microsoft_rotary_embedding,
}
