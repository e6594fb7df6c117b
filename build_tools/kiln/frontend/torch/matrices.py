"""Linear algebra on small matrices: inv, solve, solve_triangular, cholesky, qr, slogdet, matrix_exp.

PyTorch's exporter to ONNX converts none of them. Each function is traced by the exporter, and unrolls the
columns of LAPACK's method, with its choice of pivots and signs, so that results agree to rounding. Axes
before the last two may have any size, and be dynamic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from kiln.frontend.torch.onnx_steps import cut, ints, like
from kiln.frontend.torch.present import aten as own_operators

MOST = 32  # rows of a matrix: a column takes about fifteen nodes
_TAYLOR, _SQUARES = 9, 16  # of matrix_exp: terms, and the most squares
_INT32 = 6  # of ONNX's element types


def matrices() -> Mapping[Any, Callable[..., Any]]:
    """The operators of this module, for torch.onnx.export's `custom_translation_table`."""

    aten = own_operators()
    return {
        aten.linalg_inv.default: lambda a: inv_ex(a)[0],
        aten.inverse.default: lambda self: inv_ex(self)[0],
        aten.linalg_inv_ex.default: inv_ex,
        aten.linalg_solve.default: lambda a, b, left=True: solve_ex(a, b, left)[0],
        aten._linalg_solve_ex.default: solve_ex,
        aten.linalg_solve_triangular.default: solve_triangular,
        aten.linalg_cholesky.default: lambda self, upper=False: cholesky_ex(self, upper)[0],
        aten.cholesky.default: lambda self, upper=False: cholesky_ex(self, upper)[0],
        aten.linalg_cholesky_ex.default: cholesky_ex,
        aten.cholesky_solve.default: cholesky_solve,
        aten.linalg_qr.default: qr,
        aten._linalg_slogdet.default: slogdet,
        aten.linalg_matrix_exp.default: matrix_exp,
    }


def _size(what: str, matrix: Any, axis: int = -1) -> int:
    return check_size(what, matrix.shape[axis])


def check_size(what: str, size: Any) -> int:
    """The number of columns, or of rows. Raises ValueError where it is dynamic, or more than MOST."""
    if not isinstance(size, int):
        raise ValueError(f"{what} of matrices of a dynamic size; fix the size")
    if size > MOST:
        raise ValueError(f"{what} of matrices of {size} rows or columns, allowed: at most {MOST}")
    return size


def _turned(matrix: Any, rank: int) -> Any:
    from onnxscript import opset18 as op

    return op.Transpose(matrix, perm=[*range(rank - 2), rank - 1, rank - 2])


def _identity(matrix: Any, size: int) -> Any:
    """The identity, as many times as `matrix` [..., size, size] has matrices."""
    import numpy as np
    import onnx_ir
    from onnxscript import opset18 as op

    eye = op.Constant(value=onnx_ir.tensor(np.eye(size, dtype=np.float32)))
    return op.Expand(op.CastLike(eye, matrix), op.Shape(matrix))


def _none_wrong(matrix: Any) -> Any:
    """Zeros as PyTorch's `info`, one for each matrix of any size."""
    from onnxscript import opset18 as op

    corner = op.Cast(cut(cut(matrix, -1, 0, 1), -2, 0, 1), to=_INT32)
    return op.Squeeze(op.Mul(corner, op.Cast(op.Constant(value_int=0), to=_INT32)), ints(-2, -1))


def inv_ex(a: Any, check_errors: bool = False) -> tuple[Any, Any]:
    """aten::linalg_inv_ex: the inverse of matrices [..., n, n]."""
    size = _size("inv", a)
    return _eliminated(a, _identity(a, size), size), _none_wrong(a)


def solve_ex(a: Any, b: Any, left: bool = True, check_errors: bool = False) -> tuple[Any, Any, Any, Any]:
    """aten::_linalg_solve_ex: X of a X = b, or of X a = b where `left` is false; no factors of a."""
    from onnxscript import opset18 as op

    size, rank = _size("solve", a), len(a.shape)
    is_vector = len(b.shape) == 1 or (len(b.shape) == rank - 1 and list(b.shape) == list(a.shape)[:-1])
    rank_b = len(b.shape) + is_vector
    columns = op.Unsqueeze(b, ints(-1)) if is_vector else b
    if not left:
        a, columns = _turned(a, rank), _turned(columns, rank_b)
    zero = op.Mul(cut(cut(a, -1, 0, 1), -2, 0, 1), like(0, a))
    zero_b = op.Mul(cut(cut(columns, -1, 0, 1), -2, 0, 1), like(0, a))
    result = _eliminated(op.Add(a, zero_b), op.Add(columns, zero), size)
    if not left:
        result = _turned(result, max(rank, rank_b))
    result = op.Squeeze(result, ints(-1)) if is_vector else result
    return result, op.Identity(a), _none_wrong(a), _none_wrong(a)


def _eliminated(a: Any, b: Any, size: int) -> Any:
    """The inverse of a [..., n, n] times b [..., n, m]: Gauss-Jordan with the greatest pivots."""
    from onnxscript import opset18 as op

    both = op.Concat(a, b, axis=-1)
    rows = ints(*range(size))
    for k in range(size):  # the columns before k are those of the identity, and left out
        column = cut(both, -1, 0, 1)
        below = op.Squeeze(op.Abs(cut(column, -2, k, size)), ints(-1))
        pivot = op.Add(op.ArgMax(below, axis=-1, keepdims=1), ints(k))
        here = op.Equal(rows, ints(k))
        order = op.Where(here, pivot, op.Where(op.Equal(rows, pivot), ints(k), rows))
        both = op.GatherElements(both, op.Expand(op.Unsqueeze(order, ints(-1)), op.Shape(both)), axis=-2)
        column, both = cut(both, -1, 0, 1), cut(both, -1, 1, 2**62)
        row = op.Div(cut(both, -2, k, k + 1), cut(column, -2, k, k + 1))
        both = op.Where(op.Unsqueeze(here, ints(-1)), row, op.Sub(both, op.Mul(column, row)))
    return both


def solve_triangular(self: Any, b: Any, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    """aten::linalg_solve_triangular: X of a X = b for a triangular a = `self`, or of X a = b."""
    size, rank, rank_b = _size("solve_triangular", self), len(self.shape), len(b.shape)
    a = self
    if not left:
        a, b, upper = _turned(a, rank), _turned(b, rank_b), not upper
    solution = _substituted(a, b, size, upper, unitriangular)
    return solution if left else _turned(solution, max(rank, rank_b))


def _substituted(a: Any, b: Any, size: int, upper: bool, unitriangular: bool) -> Any:
    """X of a X = b, row by row, from the last one where a is an upper triangle."""
    from onnxscript import opset18 as op

    solved_rows: Any = None
    for place in reversed(range(size)) if upper else range(size):
        row, value = cut(a, -2, place, place + 1), cut(b, -2, place, place + 1)
        if solved_rows is not None:
            known = cut(row, -1, place + 1, size) if upper else cut(row, -1, 0, place)
            value = op.Sub(value, op.MatMul(known, solved_rows))
        if not unitriangular:
            value = op.Div(value, cut(row, -1, place, place + 1))
        elif solved_rows is None:  # the axes before the last two are those of both
            value = op.Add(value, op.Mul(cut(row, -1, place, place + 1), like(0, a)))
        parts = [value] if solved_rows is None else [value, solved_rows] if upper else [solved_rows, value]
        solved_rows = value if solved_rows is None else op.Concat(*parts, axis=-2)
    return solved_rows


def cholesky_ex(self: Any, upper: bool = False, check_errors: bool = False) -> tuple[Any, Any]:
    """aten::linalg_cholesky_ex: the triangular factor of positive definite matrices, by columns."""
    from onnxscript import opset18 as op

    size = _size("cholesky", self)
    factor: Any = None
    for k in range(size):
        column = cut(cut(self, -1, k, k + 1), -2, k, size)
        if factor is not None:
            row = _turned(cut(factor, -2, k, k + 1), len(self.shape))
            column = op.Sub(column, op.MatMul(cut(factor, -2, k, size), row))
        column = op.Div(column, op.Sqrt(cut(column, -2, 0, 1)))
        if k:
            above = op.Mul(cut(cut(self, -1, k, k + 1), -2, 0, k), like(0, self))
            column = op.Concat(above, column, axis=-2)
        factor = column if factor is None else op.Concat(factor, column, axis=-1)
    return (_turned(factor, len(self.shape)) if upper else factor), _none_wrong(self)


def cholesky_solve(self: Any, input2: Any, upper: bool = False) -> Any:
    """aten::cholesky_solve: X of a X = `self`, where `input2` is the Cholesky factor of a."""
    rank, size = len(input2.shape), _size("cholesky_solve", input2)
    low = _turned(input2, rank) if upper else input2
    half = _substituted(low, self, size, False, False)
    return _substituted(_turned(low, rank), half, size, True, False)


def qr(a: Any, mode: str = "reduced") -> tuple[Any, Any]:
    """aten::linalg_qr: Householder reflections of the columns, with LAPACK's signs."""
    from onnxscript import opset18 as op

    rows, columns = _size("qr", a, -2), _size("qr", a)
    rank, least = len(a.shape), min(rows, columns)
    square = op.MatMul(a, _turned(a, rank))
    q, r = _identity(square, rows), a
    for k in range(min(rows - 1, columns)):
        x = cut(cut(r, -1, k, k + 1), -2, k, rows)
        first, rest = cut(x, -2, 0, 1), cut(x, -2, 1, rows - k)
        tail = op.ReduceSum(op.Mul(rest, rest), ints(-2))
        norm = op.Sqrt(op.Add(op.Mul(first, first), tail))
        beta = op.Where(op.Less(first, like(0, a)), norm, op.Neg(norm))
        still = op.Equal(tail, like(0, a))  # already triangular: no reflection
        safe = op.Where(still, like(1, a), beta)
        tau = op.Where(still, like(0, a), op.Div(op.Sub(safe, first), safe))
        over = op.Where(still, like(1, a), op.Sub(first, safe))
        one = op.Add(op.Mul(first, like(0, a)), like(1, a))
        v = op.Concat(one, op.Div(rest, over), axis=-2)
        scaled, turned = op.Mul(tau, v), _turned(v, rank)
        low = cut(r, -2, k, rows)
        low = op.Sub(low, op.MatMul(scaled, op.MatMul(turned, low)))
        r = low if k == 0 else op.Concat(cut(r, -2, 0, k), low, axis=-2)
        right = cut(q, -1, k, rows)
        right = op.Sub(right, op.MatMul(op.MatMul(right, scaled), turned))
        q = right if k == 0 else op.Concat(cut(q, -1, 0, k), right, axis=-1)
    r = op.Trilu(r, upper=1)
    if mode == "complete":
        return q, r
    return cut(q, -1, 0, 0 if mode == "r" else least), cut(r, -2, 0, least)


def slogdet(a: Any) -> tuple[Any, Any, Any, Any]:
    """aten::_linalg_slogdet: the sign of the determinant, and the logarithm of its size; no factors."""
    from onnxscript import opset18 as op

    det = op.Det(a)
    return op.Sign(det), op.Log(op.Abs(det)), op.Identity(a), _none_wrong(a)


def matrix_exp(self: Any) -> Any:
    """aten::linalg_matrix_exp: Taylor's series of the matrix divided by a power of two, then squared.

    The power is that of each matrix, up to 2^16: the series is of matrices whose norm is at most 1/2.
    """
    from onnxscript import opset18 as op

    norm = op.ReduceMax(op.ReduceSum(op.Abs(self), ints(-1), keepdims=1), ints(-2), keepdims=1)
    steps = op.Ceil(op.Div(op.Log(op.Max(op.Add(norm, norm), like(1, self))), like(math.log(2), self)))
    steps = op.Min(steps, like(_SQUARES, self))
    small = op.Div(self, op.Pow(like(2, self), steps))
    size = _size("matrix_exp", self)
    power = one = _identity(self, size)
    for order in range(_TAYLOR, 0, -1):
        power = op.Add(one, op.Div(op.MatMul(small, power), like(order, self)))
    for step in range(_SQUARES):
        power = op.Where(op.Less(like(step, self), steps), op.MatMul(power, power), power)
    return power
