"""Divisions in the position of a vector that have one result for all its elements: of the first one alone.

The channels of a pixel are copied as vectors of `lanes` elements, whose window place is a quotient:

    (first + lane) // channels, where `lanes` divides `first` and `channels`, and lane < lanes

It is first // channels for every lane. TVM's simplifier keeps the lane where `first` is a sum, and its
vectoriser then copies element by element.
"""

from __future__ import annotations

from typing import Any

from tvm import sym, tirx
from tvm.tirx.analysis import undefined_vars

from kiln.callbacks import structural_map
from kiln.tir.fused import replace


def whole_vectors(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with divisions of the first element in place of those of all, in its vectorised loops.

    A remainder becomes that of the first element plus the number of the lane.
    """
    analyzer = sym.Analyzer()

    def on_loop(loop: Any) -> Any:
        if int(loop.kind) != tirx.ForKind.VECTORIZED or not isinstance(loop.extent, tirx.IntImm):
            return loop
        lane, lanes = loop.loop_var, int(loop.extent)

        def first_of(numerator: Any, divisor: Any) -> Any:
            """The numerator for the first element of the vector; None if other elements may differ."""
            if not isinstance(divisor, tirx.IntImm) or int(divisor) <= 0 or int(divisor) % lanes != 0:
                return None
            if not any(used.same_as(lane) for used in undefined_vars(numerator)):
                return None
            dtype = str(numerator.ty.dtype)
            first = analyzer.simplify(replace(numerator, {lane: tirx.IntImm(dtype, 0)}, {}))
            zero = tirx.IntImm(dtype, 0)
            adds = analyzer.can_prove_equal(numerator - first - lane, zero)
            begins = analyzer.can_prove_equal(tirx.floormod(first, tirx.IntImm(dtype, lanes)), zero)
            return first if adds and begins else None

        def on_quotient(node: Any) -> Any:
            first = first_of(node.a, node.b)
            return node if first is None else tirx.FloorDiv(first, node.b)

        def on_remainder(node: Any) -> Any:
            first = first_of(node.a, node.b)
            return node if first is None else tirx.FloorMod(first, node.b) + lane

        body = structural_map(loop.body, [(tirx.FloorDiv, on_quotient), (tirx.FloorMod, on_remainder)])
        return tirx.For(lane, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations)

    return func.with_body(structural_map(func.body, [(tirx.For, on_loop)]))
