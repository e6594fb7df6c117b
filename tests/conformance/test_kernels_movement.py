"""Operators that move, join and look up elements, matrix products of two inputs, and scans, against numpy."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tvm import relax

from . import arithmetic
from .lowered import Array, Compiled, const, module, runnable
from .operators import Case, agree, one

op = relax.op
GAMMA = np.linspace(0.5, 1.5, 35, dtype="f4")
INDICES = np.array([4, 0, 2, 2, 3], "int64")
FILTER = np.linspace(-1, 1, 72, dtype="f4").reshape(3, 4, 6)


def _resize(x: Array, height: int, width: int) -> Array:
    """Bilinear, half-pixel centres, NHWC."""

    def lines(size: int, new: int) -> tuple[Array, Array, Array]:
        at = np.clip((np.arange(new) + 0.5) * size / new - 0.5, 0, size - 1)
        low = np.floor(at).astype(int)
        return low, np.minimum(low + 1, size - 1), at - low

    (top, bottom, v), (left, right, h) = lines(x.shape[1], height), lines(x.shape[2], width)
    v, h = v[:, None, None], h[:, None]
    rows = x[:, top] * (1 - v) + x[:, bottom] * v
    return np.asarray(rows[:, :, left] * (1 - h) + rows[:, :, right] * h)


def _scattered(x: Array) -> Array:
    made = x.copy()
    np.put_along_axis(made, np.array([[0, 4], [1, 2], [3, 0]]), 1, axis=1)
    return made


def _group_norm(x: Array) -> Array:
    groups = x.reshape(2, 2, 3, 3, 5).astype("f8")
    where = (2, 3, 4)
    normal = (groups - groups.mean(where, keepdims=True)) / np.sqrt(groups.var(where, keepdims=True) + 1e-5)
    return np.asarray(normal.reshape(x.shape))


CASES: dict[str, Case] = {
    "concat_last": Case(
        ((2, 3, 5), (2, 3, 8), (2, 3, 1)),
        lambda *x: op.concat(list(x), -1),
        lambda *x: np.concatenate(x, -1),
        True,
    ),
    "concat_first": Case(
        ((1, 3, 4), (2, 3, 4)), lambda *x: op.concat(list(x), 0), lambda *x: np.concatenate(x, 0), True
    ),
    "concat_middle_relu": Case(
        ((2, 3, 4), (2, 5, 4)),
        lambda *x: op.nn.relu(op.concat(list(x), 1)),
        lambda *x: np.maximum(np.concatenate(x, 1), 0),
        True,
    ),
    "split_take_second": one(
        (2, 12, 3), lambda x: op.split(x, 3, 1)[1], lambda x: np.split(x, 3, 1)[1], True
    ),
    "split_uneven_sum": one(
        (2, 9),
        lambda x: op.add(op.split(x, [4, 8], 1)[0], op.split(x, [4, 8], 1)[1]),
        lambda x: x[:, :4] + x[:, 4:8],
        True,
    ),
    "strided_slice": one(
        (3, 11, 17),
        lambda x: op.strided_slice(x, [1, 2], [1, 3], [10, 16], [3, 2]),
        lambda x: x[:, 1:10:3, 3:16:2],
        True,
    ),
    "strided_slice_back": one(
        (4, 9), lambda x: op.strided_slice(x, [1], [8], [2], [-2]), lambda x: x[:, 8:2:-2], True
    ),
    "transpose_4d": one(
        (2, 5, 7, 9), lambda x: op.permute_dims(x, [0, 3, 1, 2]), lambda x: x.transpose(0, 3, 1, 2), True
    ),
    "transpose_all": one((3, 5, 17), op.permute_dims, lambda x: x.transpose(), True),
    "reshape_then_add": one(
        (3, 8),
        lambda x: op.add(op.reshape(x, [4, 6]), const(1.0)),
        lambda x: x.reshape(4, 6) + np.float32(1),
        True,
    ),
    "flip": one((3, 7), lambda x: op.flip(x, 1), lambda x: x[:, ::-1], True),
    "tile": one((2, 3), lambda x: op.tile(x, [2, 3]), lambda x: np.tile(x, (2, 3)), True),
    "repeat": one((2, 3), lambda x: op.repeat(x, 4, 1), lambda x: np.repeat(x, 4, 1), True),
    "broadcast_to": one(
        (3, 1, 5),
        lambda x: op.broadcast_to(x, [2, 3, 4, 5]),
        lambda x: np.broadcast_to(x, (2, 3, 4, 5)),
        True,
    ),
    "pad_constant": one(
        (2, 3, 5),
        lambda x: op.nn.pad(x, [0, 0, 1, 2, 3, 0], "constant", 0.5),
        lambda x: np.pad(x, [(0, 0), (1, 2), (3, 0)], constant_values=0.5),
        True,
    ),
    "pad_reflect": one(
        (2, 4, 5),
        lambda x: op.nn.pad(x, [0, 0, 1, 2, 3, 1], "reflect"),
        lambda x: np.pad(x, [(0, 0), (1, 2), (3, 1)], mode="reflect"),
        True,
    ),
    "pad_edge": one(
        (4, 5),
        lambda x: op.nn.pad(x, [1, 2, 3, 1], "replicate"),
        lambda x: np.pad(x, [(1, 2), (3, 1)], mode="edge"),
        True,
    ),
    "resize_up": one(
        (1, 5, 6, 7),
        lambda x: op.image.resize2d(
            x, [10, 13], layout="NHWC", method="linear", coordinate_transformation_mode="half_pixel"
        ),
        lambda x: _resize(x, 10, 13),
    ),
    "resize_nearest": one(
        (1, 4, 3, 5),
        lambda x: op.image.resize2d(
            x,
            [8, 6],
            layout="NHWC",
            method="nearest_neighbor",
            coordinate_transformation_mode="asymmetric",
            rounding_method="floor",
        ),
        lambda x: x.repeat(2, 1).repeat(2, 2),
        True,
    ),
    "batch_matmul": Case(((3, 5, 7), (3, 7, 9)), op.matmul, lambda a, b: a.astype("f8") @ b),
    "batch_matmul_broadcast": Case(((2, 3, 5, 7), (7, 4)), op.matmul, lambda a, b: a.astype("f8") @ b),
    "matmul_transposed": Case(
        ((2, 5, 16), (2, 9, 16)),
        lambda a, b: op.matmul(a, op.permute_dims(b, [0, 2, 1])),
        lambda a, b: a.astype("f8") @ b.transpose(0, 2, 1),
    ),
    "matmul_few_rows": Case(
        ((2, 5, 67), (2, 7, 67)),
        lambda a, b: op.einsum([a, b], "bik,bjk->bij"),
        lambda a, b: np.einsum("bik,bjk->bij", a.astype("f8"), b),
    ),
    "attention": Case(
        ((2, 6, 8), (2, 6, 8), (2, 6, 8)),
        lambda q, k, v: op.matmul(
            op.nn.softmax(op.multiply(op.matmul(q, op.permute_dims(k, [0, 2, 1])), const(0.35)), -1), v
        ),
        lambda q, k, v: arithmetic.softmax(q.astype("f8") @ k.transpose(0, 2, 1) * np.float32(0.35), -1) @ v,
    ),
    # An index out of range is a fault of the caller's data; it must not become a read of other memory.
    "take_far_outside": one(
        (4, 5),
        lambda x: op.take(const(GAMMA.reshape(7, 5)), op.astype(op.multiply(x, const(1e6)), "int64"), axis=0),
        lambda x: GAMMA.reshape(7, 5)[np.clip((x * np.float32(1e6)).astype("i8"), 0, 6)],
    ),
    "take": one(
        (3, 5, 4), lambda x: op.take(x, const(INDICES, "int64"), axis=1), lambda x: x[:, INDICES], True
    ),
    "embedding": one(
        (2, 6),
        lambda x: op.take(const(GAMMA.reshape(7, 5)), op.astype(op.abs(op.round(x)), "int64"), axis=0),
        lambda x: GAMMA.reshape(7, 5)[np.abs(np.round(x)).astype(int)],
        True,
    ),
    "cumsum": one((3, 9), lambda x: op.cumsum(x, 1), lambda x: x.cumsum(1, dtype="f8")),
    "cumsum_flat": one((3, 9), lambda x: op.cumsum(x), lambda x: x.cumsum(dtype="f8")),
    "cumsum_of_rows": one((2, 9, 3, 7), lambda x: op.cumsum(x, -3), lambda x: x.cumsum(1, dtype="f8")),
    **{
        f"cumsum_of_{length}{'_exclusive' if exclusive else ''}": one(
            (3, length),
            lambda x, exclusive=exclusive: op.cumsum(x, 1, exclusive=exclusive),
            lambda x, exclusive=exclusive: np.cumsum(x, 1, dtype="f8") - (x if exclusive else 0),
        )
        for length in (1, 2, 8, 17, 130)
        for exclusive in (False, True)
    },
    "cumprod_of_lines": one(
        (2, 3, 35), lambda x: op.cumprod(x, 2), lambda x: x.cumprod(2, dtype="i8").astype("i4"), True, "int32"
    ),
    "cumsum_of_whole_numbers": one(
        (5, 33), lambda x: op.cumsum(x, 0), lambda x: x.cumsum(0, dtype="i4"), True, "int32"
    ),
    "cumprod_exclusive": one(
        (2, 4, 3),
        lambda x: op.cumprod(x, 1, exclusive=True),
        lambda x: np.concatenate([np.ones((2, 1, 3)), x.cumprod(1, dtype="f8")[:, :-1]], 1),
    ),
    "scatter_elements": one(
        (3, 5),
        lambda x: op.scatter_elements(x, const([[0, 4], [1, 2], [3, 0]], "int64"), const(np.ones((3, 2))), 1),
        _scattered,
        True,
    ),
    "instance_norm": one(
        (2, 5, 6, 7),
        lambda x: op.nn.instance_norm(
            x, const(np.ones(5)), const(np.zeros(5)), channel_axis=1, axes=[2, 3], epsilon=1e-5
        ),
        lambda x: (x - x.mean((2, 3), keepdims=True)) / np.sqrt(x.var((2, 3), keepdims=True) + 1e-5),
    ),
    "group_norm": one(
        (2, 6, 3, 5),
        lambda x: op.nn.group_norm(
            x, const(np.ones(6)), const(np.zeros(6)), num_groups=2, channel_axis=1, axes=[2, 3], epsilon=1e-5
        ),
        _group_norm,
    ),
    "conv1d": one(
        (1, 20, 4),
        lambda x: op.nn.conv1d(x, const(FILTER), data_layout="NWC", kernel_layout="WIO", padding=1),
        lambda x: arithmetic.conv2d(x[:, None], FILTER[None], padding=(0, 1, 0, 1))[:, 0],
    ),
    **{
        f"{name}_of_{dtype}": one(
            shape,
            lambda x, axes=axes: op.permute_dims(x, axes),
            lambda x, axes=axes: x.transpose(axes),
            True,
            dtype,
        )
        for dtype in ("float32", "int8")
        for name, shape, axes in (
            ("to_channels_last", (2, 17, 33, 19), (0, 2, 3, 1)),
            ("to_channels_first", (1, 16, 35, 47), (0, 3, 1, 2)),
            ("transpose", (130, 65), (1, 0)),
        )
    },
    **{
        f"woven_{name}_{shape[2]}x{shape[3]}_of_{dtype}": one(shape, make, compute, True, dtype)
        for dtype in ("float32", "int8")
        for shape in ((1, 3, 5, 32), (2, 3, 4, 41), (1, 2, 3, 17), (1, 7, 2, 16), (2, 5, 9, 8), (1, 1, 6, 40))
        for name, make, compute in (
            ("planes", lambda x: op.permute_dims(x, [0, 2, 3, 1]), lambda x: x.transpose(0, 2, 3, 1)),
            (
                "flipped",
                lambda x: op.permute_dims(op.flip(x, 1), [0, 3, 2, 1]),
                lambda x: x[:, ::-1].T.transpose(3, 0, 1, 2),
            ),
        )
    },
    "woven_phases": one(
        (2, 5, 27, 2, 2),
        lambda x: op.sigmoid(op.add(op.permute_dims(x, [0, 1, 3, 2, 4]), const([0.5, -1.0]))),
        lambda x: 1 / (1 + np.exp(-(x.transpose(0, 1, 3, 2, 4) + np.array([0.5, -1])))),
    ),
    "woven_pixels_to_numbers": one(
        (1, 3, 19, 37),
        lambda x: op.multiply(
            op.astype(op.permute_dims(x, [0, 2, 3, 1]), "float32"), const([0.5, 2.0, 0.25])
        ),
        lambda x: (x.transpose(0, 2, 3, 1) * [0.5, 2.0, 0.25]).astype("f4"),
        True,
        "uint8",
    ),
    # A load under a condition must not be executed where the condition is false.
    "woven_and_padded": one(
        (3, 9, 18),
        lambda x: op.nn.pad(op.permute_dims(x, [1, 2, 0]), [1, 0, 2, 3, 0, 0], "constant", 1.5),
        lambda x: np.pad(x.transpose(1, 2, 0), [(1, 0), (2, 3), (0, 0)], constant_values=1.5),
        True,
    ),
    **{
        f"padded_input_{channels}": one(
            (2, 5, 19, channels),
            lambda x: op.nn.pad(x, [0, 0, 1, 2, 0, 3, 0, 0], "constant", 0.5),
            lambda x: np.pad(x, [(0, 0), (1, 2), (0, 3), (0, 0)], constant_values=0.5),
            True,
        )
        for channels in (1, 3, 8, 17)
    },
    "transposed_to_one_channel": one(
        (3, 70, 1, 81),
        lambda x: op.strided_slice(op.permute_dims(x, [0, 3, 1, 2]), [1], [1], [80]),
        lambda x: x.transpose(0, 3, 1, 2)[:, 1:80],
        True,
    ),
    "transposed_sum": Case(
        ((70, 81), (81, 70)),
        lambda x, y: op.add(op.nn.relu(x), op.permute_dims(y, [1, 0])),
        lambda x, y: np.maximum(x, 0) + y.T,
    ),
    "transposed_and_padded": one(
        (1, 18, 21, 37),
        lambda x: op.nn.pad(op.permute_dims(x, [0, 2, 3, 1]), [0, 0, 1, 2, 3, 0, 0, 0], "constant", 2.0),
        lambda x: np.pad(x.transpose(0, 2, 3, 1), [(0, 0), (1, 2), (3, 0), (0, 0)], constant_values=2),
        True,
    ),
    "argmax": one((4, 23), lambda x: op.argmax(x, 1), lambda x: x.argmax(1), True),
    "argmin_keep": one(
        (4, 5, 6), lambda x: op.argmin(x, 1, keepdims=True), lambda x: x.argmin(1, keepdims=True), True
    ),
    "argmax_of_all": one((3, 7, 5), lambda x: op.argmax(x), lambda x: np.array(x.argmax()), True),
    "argmax_of_equal_ones": one(
        (17, 9), lambda x: op.argmax(op.round(x), 0), lambda x: np.round(x).argmax(0), True
    ),
    "topk": one((3, 17), lambda x: op.topk(x, 5, ret_type="values"), lambda x: -np.sort(-x)[:, :5], True),
    "topk_of_all": one((40,), lambda x: op.topk(x, 40, ret_type="values"), lambda x: -np.sort(-x), True),
    "topk_of_equal_ones": one(
        (2, 130),
        lambda x: op.topk(op.round(x), 9, ret_type="indices", dtype="int64"),
        lambda x: np.argsort(-np.round(x), kind="stable")[:, :9],
        True,
    ),
    "topk_least": one(
        (3, 7, 5),
        lambda x: op.topk(x, 2, axis=1, ret_type="indices", largest=False, dtype="int32"),
        lambda x: np.argsort(x, 1)[:, :2].astype("i4"),
        True,
    ),
    "tiled": one((3, 1, 18), lambda x: op.tile(x, (2, 4, 3)), lambda x: np.tile(x, (2, 4, 3)), True),
    "tiled_short": one((5, 3), lambda x: op.tile(x, (3, 8)), lambda x: np.tile(x, (3, 8)), True),
    "repeated": one((4, 9), lambda x: op.repeat(x, 5, axis=1), lambda x: x.repeat(5, 1), True),
    "number": one(
        (3, 17),
        lambda x: op.multiply(x, op.divide(const(2.0), op.subtract(op.max(x), op.min(x)))),
        lambda x: x * (2 / (x.max() - x.min())),
    ),
}


def test_positions_of_what_is_no_number_lie_in_the_tensor(tmp_path: Path) -> None:
    x = np.full((2, 19), np.nan, "f4")
    x[0, 3:9] = 1
    mod = module([(x.shape, "float32")], lambda x: [op.argmax(x, 1), op.topk(x, 4, ret_type="values")])
    best, values = Compiled(mod, runnable("x86_64"), tmp_path).load().run([x])
    assert ((best >= 0) & (best < 19)).all()
    assert (np.isnan(values) | (values == 1)).all()


# Cases that have a size, or a type, of other ones.
HEAVY = re.compile(
    r"woven_.*_(4x41|3x17|2x16)_of_float32|woven_.*_(5x32|9x8|6x40)_of_int8"
    r"|cumsum_of_(1_exclusive|2|8_exclusive|17)|padded_input_(3|8)"
)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.heavy] if HEAVY.fullmatch(n) else []) for n in CASES]
)
def test_operator(name: str, tmp_path: Path) -> None:
    agree(CASES[name], tmp_path)
