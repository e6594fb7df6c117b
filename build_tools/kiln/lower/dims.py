"""Shape variables of `main` as expressions of the model's dimensions, which later stages can compute."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax

from kiln.config import sizes
from kiln.config.sizes import SizeExpr
from kiln.errors import KilnError
from kiln.frontend.size_of import part_of, to_size
from kiln.tir.symbols import variables


class Dims:
    """Dynamic dimensions of a model with their ranges (`box`), and the shape variables of its `main`."""

    def __init__(self, model: str, mod: tvm.IRModule) -> None:
        self.model = model
        self.box: dict[str, tuple[int, int]] = {}  # dimension → (least, greatest) size
        self._dims = json.loads(str((mod["main"].attrs or {}).get("kiln.dims", "{}")))
        for dim in self._dims.values():
            factor = int(dim["divide"])
            self.box[dim["dim"]] = dim["min"] * factor, dim["max"] * factor
        self._values: dict[Any, SizeExpr] = {}  # variable of main → size
        self._multiples: dict[str, int] = {}  # dimension → a divisor of its size
        for param in mod["main"].params:
            self._learn(param.ty)

    def _learn(self, ty: Any) -> None:
        """Record the size of each variable in `ty`, the type of a parameter."""
        for entry in (ty.values if isinstance(ty, relax.ShapeType) else getattr(ty, "shape", None)) or []:
            for variable in variables(entry):
                dim = self._dims[variable.name]
                divide = int(dim["divide"])
                self._values[variable] = part_of(dim["dim"], divide)
                self._multiples[dim["dim"]] = divide

    def size(self, expr: relax.Expr, values: Mapping[Any, SizeExpr] | None = None) -> SizeExpr:
        """Convert `expr`, an expression of the variables of main or of the keys of `values`, to a size.

        Raises ValueError for an expression that sizes cannot represent.
        """
        return to_size(expr, self._values if values is None else values, self._multiples)

    def greatest(self, expr: relax.Expr) -> int:
        """The greatest value of a size in main; the greatest int64 where the size cannot be computed."""
        try:
            return sizes.bounds(self.size(expr), self.box)[1]
        except (ValueError, KeyError):
            return (1 << 63) - 1

    def shape(self, ty: Any) -> list[SizeExpr]:
        """The shape of a tensor of type `ty` in main. Raises KilnError where a size cannot be computed."""
        try:
            return [self.size(size) for size in ty.shape]
        except ValueError as error:
            raise KilnError(f"{self.model}: a tensor's size cannot be computed: {error}") from error
