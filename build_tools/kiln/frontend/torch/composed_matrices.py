"""The factors of LU decompositions, and what is solved with them, for matrices of a fixed size.

Each function has the arguments of the operator of its name, and unrolls the columns of LAPACK's method, with
its choice of pivots. Axes before the last two may have any size, and be dynamic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from kiln.frontend.torch.matrices import check_size
from kiln.frontend.torch.present import aten as own_operators
from kiln.frontend.torch.replaced import Replacement


def matrices() -> Mapping[Any, Callable[..., Any]]:
    """By operator of PyTorch, a function of the same arguments."""
    aten = own_operators()
    return {
        aten.linalg_lu_factor_ex.default: lu_factor_ex,
        aten.linalg_lu.default: linalg_lu,
        aten.linalg_lu_solve.default: lu_solve,
        aten.lu_unpack.default: lu_unpack,
        aten.cholesky_inverse.default: cholesky_inverse,
        aten.triangular_solve.default: triangular_solve,
    }


def lu_factor_ex(a: Any, pivot: bool = True, check_errors: bool = False) -> tuple[Any, Any, Any]:
    """aten::linalg_lu_factor_ex: both factors in one matrix, the rows that were exchanged, and zeros."""
    import torch

    rows, columns = (check_size("lu", a.shape[axis]) for axis in (-2, -1))
    numbers = torch.arange(rows)
    pivots = []
    for k in range(min(rows, columns)):
        place = a[..., k:, k].abs().argmax(-1, keepdim=True) + k if pivot else a[..., 0, :1].long() * 0 + k
        pivots.append(place + 1)
        order = torch.where(numbers == k, place, torch.where(numbers == place, k, numbers))
        a = a.gather(-2, order.unsqueeze(-1).expand(a.shape)) if pivot else a
        head, rest = a[..., : k + 1, :], a[..., k + 1 :, :]
        if k + 1 == rows:
            break
        corner = head[..., k:, k : k + 1]
        factor = torch.where(corner == 0, 0.0, rest[..., k : k + 1] / torch.where(corner == 0, 1.0, corner))
        below = [rest[..., :k], factor, rest[..., k + 1 :] - factor * head[..., k:, k + 1 :]]
        a = torch.cat([head, torch.cat(below, -1)], -2)
    exchanged = torch.cat(pivots, -1).to(torch.int32)
    return a, exchanged, torch.zeros(a.shape[:-2], dtype=torch.int32)


def tensorinv(a: Any, ind: int = 2) -> Any:
    """aten::linalg_tensorinv: the inverse of a matrix of the first `ind` axes by the others."""
    import torch

    rows = math.prod(a.shape[:ind])
    return torch.linalg.inv_ex(a.reshape(rows, -1)).inverse.reshape(*a.shape[ind:], *a.shape[:ind])


def lu_unpack(
    data: Any, pivots: Any, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Any, Any, Any]:
    """aten::lu_unpack: the permutation, the lower and the upper factor; empty ones that are not asked for."""
    import torch

    rows, columns = (check_size("lu_unpack", data.shape[axis]) for axis in (-2, -1))
    least = min(rows, columns)
    lower = upper = permutation = data.new_empty((0,))
    if unpack_data:
        lower = data[..., :least].tril(-1) + torch.eye(rows, least, dtype=data.dtype)
        upper = data[..., :least, :].triu()
    if unpack_pivots:
        order = _order(pivots, rows)
        permutation = (order.unsqueeze(-2) == torch.arange(rows).unsqueeze(-1)).to(data.dtype)
    return permutation, lower, upper


def _order(pivots: Any, rows: int) -> Any:
    """The number of the row of the product of both factors that becomes each row of the matrix, [..., rows].

    `pivots`: the row that each row was exchanged with, one exchange after the other, counted from 1.
    """
    import torch

    numbers = torch.arange(rows)
    order = numbers.expand(*pivots.shape[:-1], rows)
    for k in range(pivots.shape[-1]):
        place = pivots[..., k : k + 1].long() - 1
        exchanged = torch.where(numbers == k, place, torch.where(numbers == place, k, numbers))
        order = order.gather(-1, exchanged)
    return order


def linalg_lu(a: Any, pivot: bool = True) -> tuple[Any, Any, Any]:
    """aten::linalg_lu: the permutation (empty without pivots), the lower and the upper factor."""
    factors, pivots, _ = lu_factor_ex(a, pivot)
    return lu_unpack(factors, pivots, True, pivot)


def lu_solve(factors: Any, pivots: Any, b: Any, left: bool = True, adjoint: bool = False) -> Any:
    """aten::linalg_lu_solve: X of A X = B, or of X A = B, for the factors of A, or of its transpose."""
    import torch

    size = check_size("lu_solve", factors.shape[-1])
    if not left:
        return lu_solve(factors, pivots, b.mT, True, not adjoint).mT
    permutation = lu_unpack(factors, pivots, False, True)[0]
    lower = factors.tril(-1) + torch.eye(size, dtype=factors.dtype)
    solve = torch.linalg.solve_triangular
    if adjoint:
        half = solve(factors.triu().mT, b, upper=False)
        return permutation @ solve(lower.mT, half, upper=True, unitriangular=True)
    half = solve(lower, permutation.mT @ b, upper=False, unitriangular=True)
    return solve(factors.triu(), half, upper=True)


def cholesky_inverse(self: Any, upper: bool = False) -> Any:
    """aten::cholesky_inverse: the inverse of the matrix whose Cholesky factor is `self`."""
    import torch

    identity = torch.eye(check_size("cholesky_inverse", self.shape[-1]), dtype=self.dtype)
    low = self.mT if upper else self
    root = torch.linalg.solve_triangular(low.tril(), identity.expand(self.shape), upper=False)
    return root.mT @ root


def triangular_solve(
    self: Any, a: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Any, Any]:
    """aten::triangular_solve: X of A X = `self`, or of its transpose, and A."""
    import torch

    factor = a.triu() if upper else a.tril()
    turned = factor.mT if transpose else factor
    solution = torch.linalg.solve_triangular(
        turned, self, upper=upper != transpose, unitriangular=unitriangular
    )
    return solution, a.clone()


# PyTorch itself composes it of a check of values, too, which nothing would take out.
TENSOR_INVERSES = Replacement(lambda *_: True, lambda aten: {aten.linalg_tensorinv.default: tensorinv})
