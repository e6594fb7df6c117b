"""Dynamic dimensions of a Relax function: their symbolic variables, and size expressions as TIR."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx

from kiln.callbacks import mutator
from kiln.config.sizes import SizeExpr
from kiln.errors import KilnError
from kiln.frontend.symbols import int64

SIZES = "kiln_sizes"  # the parameter that defines variables which are not an axis of any tensor parameter

_OPERATORS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": tirx.min,
    "max": tirx.max,
}


@dataclass(frozen=True)
class Symbol:
    """A symbolic variable of a dimension: the size of dimension `dim` is `variable * divide`.

    least, greatest: range of the variable (not of the size); greatest None: unknown. counted: a step of the
    run counts the size.
    """

    variable: Any
    dim: str
    divide: int = 1
    least: int = 0
    greatest: int | None = None
    counted: bool = False

    @property
    def extent(self) -> Any:
        """The size of the dimension, as an expression of the variable."""
        return self.variable if self.divide == 1 else self.variable * self.divide


def symbols_of(function: Any) -> dict[str, Symbol]:
    """The symbols of a Relax function, by dimension.

    Dimension, divisor and range come from the attribute kiln.dims; without an entry, a variable stands for
    the dimension of the same name.
    """
    attributes = function.attrs or {}
    described = json.loads(str(attributes["kiln.dims"])) if "kiln.dims" in attributes else {}
    symbols: dict[str, Symbol] = {}
    types = [parameter.ty for parameter in function.params]
    variables = dict.fromkeys(v for ty in types for v in relax.analysis.tir_vars_in_type(ty))
    for variable in variables:
        entry = described.get(variable.name)
        if entry is None:
            symbols[variable.name] = Symbol(variable, variable.name)
        else:
            symbols[entry["dim"]] = Symbol(
                variable, entry["dim"], int(entry["divide"]), int(entry["min"]), int(entry["max"]),
                bool(entry.get("counted")),
            )  # fmt: skip
    return symbols


def describe(symbols: Sequence[Symbol]) -> str:
    """The value of attribute kiln.dims: JSON, by variable the dimension, the divisor and the range.

    Symbols of unknown range are left out.
    """
    return json.dumps(
        {
            symbol.variable.name: {
                "dim": symbol.dim,
                "divide": symbol.divide,
                "min": symbol.least,
                "max": symbol.greatest,
                **({"counted": True} if symbol.counted else {}),
            }
            for symbol in symbols
            if symbol.greatest is not None
        }
    )


def prim(expr: SizeExpr, extents: Mapping[str, Any]) -> Any:
    """Convert a size expression (kiln.config.sizes) to an int64 expression of TIR.

    `extents`: by dimension, its size. Raises KilnError for a dimension that is not in `extents`.
    """
    if isinstance(expr, int):
        return int64(expr)
    if isinstance(expr, str):
        if expr not in extents:
            raise KilnError(f"dimension '{expr}' has no size here, known: {', '.join(extents) or 'none'}")
        return extents[expr]
    return _OPERATORS[expr[0]](prim(expr[1], extents), prim(expr[2], extents))


def sizes_parameter(symbols: Sequence[Symbol]) -> list[Any]:
    """A list with the parameter that defines divided and counted variables; empty if there are none."""
    divided = [symbol.variable for symbol in symbols if symbol.divide != 1 or symbol.counted]
    return [relax.Var(SIZES, relax.ShapeType(divided))] if divided else []


def is_sizes(parameter: Any) -> bool:
    """Whether a parameter is `kiln_sizes`, which carries no data and only defines variables."""
    return isinstance(parameter.ty, relax.ShapeType)


def copied(function: Any) -> Any:
    """A copy of the function with fresh variables, as two functions of a module must not share a variable."""
    return relax.utils.copy_with_new_vars(function)


def finished(module: tvm.IRModule) -> tvm.IRModule:
    """Normalise the module to dataflow blocks without dead code, and check that it is well-formed."""
    public = [v.name_hint for v, f in module.functions_items() if "global_symbol" in (f.attrs or {})]
    for step in (
        relax.transform.Normalize(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.ConvertToDataflow(1),
        relax.transform.DeadCodeElimination(public),
    ):
        module = step(module)
    relax.analysis.well_formed(module)
    return module


@mutator
class Renamer(relax.PyExprMutator):  # type: ignore[misc]  # tvm is untyped
    """Replaces variables of a function, as `replacements` maps them."""

    def __init__(self, replacements: Mapping[Any, Any]) -> None:
        super().__init__()
        self.replacements = replacements

    def visit_var_(self, op: Any) -> Any:
        return self.replacements.get(op, op)

    visit_dataflow_var_ = visit_var_

    def visit_generic_const_(self, op: Any) -> Any:
        return op
