"""Cases of NaN, infinities, zeros of both signs and the least and greatest numbers: elementwise operators.

Left out is EXP, which ends at 2.4e38, and NaN in MAXIMUM and MINIMUM, which in LiteRT depend on the order of
the operands. LiteRT's reference kernels of ADD and others cut infinities off: the cases are compared with its
other kernels.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .files import Operand, OperatorCase, Result
from .operands import FLOAT, case

_SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-7, -1e-7, 3e38, -3e38, 1.0, -1.0, 0.5, -0.5, 6.0, -3.0], FLOAT
)
# By operator, its options.
_ONE = {
    "ABS": "", "CEIL": "", "ELU": "", "FLOOR": "", "GELU": "GeluOptions", "HARD_SWISH": "",
    "LOG": "", "LOGISTIC": "", "NEG": "", "ROUND": "", "RSQRT": "", "SIGN": "", "SQRT": "",
    "RELU": "", "RELU6": "", "RELU_0_TO_1": "", "RELU_N1_TO_1": "", "SQUARE": "", "TANH": "",
}  # fmt: skip
_TWO = {
    "ADD": "AddOptions", "DIV": "DivOptions", "EQUAL": "EqualOptions", "GREATER": "GreaterOptions",
    "LESS_EQUAL": "LessEqualOptions", "MAXIMUM": "MaximumMinimumOptions", "MINIMUM": "MaximumMinimumOptions",
    "MUL": "MulOptions", "NOT_EQUAL": "NotEqualOptions",
    "SQUARED_DIFFERENCE": "SquaredDifferenceOptions", "SUB": "SubOptions",
}  # fmt: skip
_COMPARED = ("EQUAL", "GREATER", "LESS_EQUAL", "NOT_EQUAL")


def cases_of_specials() -> Iterator[OperatorCase]:
    """Each operator on all special numbers, those of two operands on all pairs of them."""
    with np.errstate(all="ignore"):
        for name, table in _ONE.items():
            yield case(name, "special", [Operand(_SPECIAL)], [Result()], table)
        x, y = (grid.reshape(-1) for grid in np.meshgrid(_SPECIAL, _SPECIAL))
        for name, table in _TWO.items():
            number = slice(None) if name not in ("MAXIMUM", "MINIMUM") else ~(np.isnan(x) | np.isnan(y))
            operands = [Operand(x[number]), Operand(y[number])]
            yield case(
                name,
                "special",
                operands,
                [Result("bool" if name in _COMPARED else FLOAT)],
                table,
                kernels_="BUILTIN",
            )
