"""Sizes that have to be equal, of which one is counted in the run: the run compares them.

PyTorch writes such sizes for masks and for experts: values that a mask selects go to places that another
tensor names, and the parts of a split are together as long as what was split.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, tirx

from kiln.config.sizes import names
from kiln.frontend.counted import movement
from kiln.frontend.counted.movement import element
from kiln.frontend.onnx.node import as_tensor, extents, prims
from kiln.frontend.onnx.value import from_items
from kiln.frontend.symbols import Extent, Symbols, int64


def is_counted(symbols: Symbols, size: Extent) -> bool:
    """Whether a size depends on one that a step of the run counts."""
    try:
        return symbols.counts(names(symbols.size(size)))
    except ValueError:  # of an expression that no dimensions describe
        return False


def may_agree(symbols: Symbols, a: Extent, b: Extent) -> bool:
    """Whether two sizes are equal, or one of them is counted, so that the run has to compare them."""
    return symbols.equal(a, b) or is_counted(symbols, a) or is_counted(symbols, b)


def agreed(builder: Any, symbols: Symbols, tensor: str, data: Any, shape: Sequence[Extent]) -> Any:
    """`data` with the sizes `shape`, for which `may_agree`; a run where they differ ends with KILN_TOO_MANY.

    `tensor`: the tensor of the file that errors name.
    """
    own, checked = extents(data), data
    for axis, (size, wanted) in enumerate(zip(own, shape, strict=True)):
        if symbols.equal(size, wanted):
            continue
        both = builder.emit(as_tensor(from_items([size, wanted])))

        def compare(sizes: Any) -> Any:
            given, needed = element(sizes, 0), element(sizes, 1)
            return tirx.Select(given == needed, given, int64(-1))

        count = movement.number(builder, [both], compare, "equal_size")
        most = size if is_counted(symbols, wanted) else wanted
        equal = movement.size(builder, symbols, tensor, axis, count, most)
        part = relax.op.strided_slice(checked, [axis], prims([0]), prims([equal]), assume_inbound=True)
        checked = builder.emit(part)
    if checked is data:
        return data
    return movement.move(builder, shape, [checked], lambda at, x: x(*at), "agreed")
