"""Open sizes in their simplest form: where a function knows h only as h * 160, that product is its variable.

The height of a layer comes as h * 160 when the model's is a multiple of 32. TVM proves little about positions
made of such products: row // (w * 160) * (w * 160) + row % (w * 160) stays what it is, two divisions for each
pixel, where row // w * w + row % w becomes row. Code for each of them takes longer to make, too.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from typing import Any

from tvm import tirx

from kiln.callbacks import structural_map, structural_walk
from kiln.tir.symbols import int64, variables


def whole_products(func: tirx.PrimFunc, known: Iterable[Any]) -> tuple[tirx.PrimFunc, dict[Any, Any]]:
    """`func` with a variable for each product of a variable in `known`, and by new variable that product.

    Where a variable occurs with several factors, the new one is the product with what divides them all; where
    it occurs without a factor too, it stays.
    """
    factors = dict.fromkeys(known, 0)

    def note(product: Any) -> None:
        if _is_product(product, factors):
            factors[product.a] = math.gcd(factors[product.a], int(product.b))

    structural_walk(func, ((tirx.Mul, note),))
    made = {old: tirx.Var(old.name, "int64") for old, factor in factors.items() if factor > 1}
    while made:
        result = _replaced(func, made, factors)
        left = [old for old in made if any(old.same_as(other) for other in variables(result))]
        if not left:
            return result, {new: old * factors[old] for old, new in made.items()}
        made = {old: new for old, new in made.items() if not any(old.same_as(other) for other in left)}
    return func, {}


def _replaced(func: tirx.PrimFunc, made: Mapping[Any, Any], factors: Mapping[Any, int]) -> tirx.PrimFunc:
    def on_product(product: Any) -> Any:
        if not _is_product(product, made):
            return product
        rest = int(product.b) // factors[product.a]
        return made[product.a] if rest == 1 else made[product.a] * int64(rest)

    return structural_map(func, ((tirx.Mul, on_product),))


def _is_product(product: Any, of: Container[Any]) -> bool:
    return isinstance(product.b, tirx.IntImm) and isinstance(product.a, tirx.Var) and product.a in of
