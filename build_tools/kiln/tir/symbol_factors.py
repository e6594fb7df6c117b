"""Dynamic sizes in their simplest form: a function that uses h only as h * 160 gets a variable for h * 160.

A layer's height has a form such as h * 160 when the model's height is a multiple of 32. TVM proves little
about positions made of such products: row // (w * 160) * (w * 160) + row % (w * 160) is not simplified, which
costs two divisions for each pixel, whereas row // w * w + row % w becomes row. Generating the code takes
longer, too.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from typing import Any

from tvm import tirx

from kiln.callbacks import structural_map, structural_walk
from kiln.tir.symbols import int64, variables


def whole_products(
    func: tirx.PrimFunc, known_variables: Iterable[Any]
) -> tuple[tirx.PrimFunc, dict[Any, Any]]:
    """Replace each product v * c of a variable in `known_variables` by a new variable.

    Returns the function, and the product by new variable. If v occurs with several factors, c is their
    greatest common divisor; if v also occurs without a factor, v stays.
    """
    factors = dict.fromkeys(known_variables, 0)

    def note(product: Any) -> None:
        if _is_product(product, factors):
            factors[product.a] = math.gcd(factors[product.a], int(product.b))

    structural_walk(func, ((tirx.Mul, note),))
    fresh = {old: tirx.Var(old.name, "int64") for old, factor in factors.items() if factor > 1}
    while fresh:
        result = _replaced(func, fresh, factors)
        unreplaced = [old for old in fresh if any(old.same_as(other) for other in variables(result))]
        if not unreplaced:
            return result, {new: old * factors[old] for old, new in fresh.items()}
        fresh = {
            old: new for old, new in fresh.items() if not any(old.same_as(other) for other in unreplaced)
        }
    return func, {}


def _replaced(func: tirx.PrimFunc, fresh: Mapping[Any, Any], factors: Mapping[Any, int]) -> tirx.PrimFunc:
    """`func` with the products of the variables in `fresh` replaced."""

    def on_product(product: Any) -> Any:
        if not _is_product(product, fresh):
            return product
        quotient = int(product.b) // factors[product.a]
        return fresh[product.a] if quotient == 1 else fresh[product.a] * int64(quotient)

    return structural_map(func, ((tirx.Mul, on_product),))


def _is_product(product: Any, variables: Container[Any]) -> bool:
    """Whether a multiplication is a variable in `variables` times a constant."""
    return isinstance(product.b, tirx.IntImm) and isinstance(product.a, tirx.Var) and product.a in variables
