"""Two sizes that have to be equal, one of them counted in the run: the run compares them.

PyTorch writes such sizes for masks and for experts: values that a mask selects go to positions that another
tensor names, and the parts of a split are together as long as the tensor that was split.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from kiln.config.sizes import names
from kiln.extents import Extent, shape_of
from kiln.frontend.counted import movement
from kiln.frontend.counted.movement import element
from kiln.frontend.onnx.node import as_tensor, part
from kiln.frontend.onnx.value import from_items
from kiln.frontend.symbols import Symbols, int64


def is_counted(symbols: Symbols, size: Extent) -> bool:
    """Whether a size depends on a dimension that a step of the run counts."""
    try:
        return symbols.counts(names(symbols.size(size)))
    except ValueError:  # no dimensions describe the expression
        return False


def may_agree(symbols: Symbols, a: Extent, b: Extent) -> bool:
    """Whether two sizes are equal, or one of them is counted, so that the run has to compare them."""
    return symbols.equal(a, b) or is_counted(symbols, a) or is_counted(symbols, b)


def agreed(builder: Any, symbols: Symbols, tensor: str, data: Any, shape: Sequence[Extent]) -> Any:
    """`data` with the sizes `shape`, for which `may_agree`; a run where they differ ends with KILN_TOO_MANY.

    `tensor`: the tensor of the file that errors name.
    """
    sizes_before, checked = shape_of(data), data
    for axis, (size, required) in enumerate(zip(sizes_before, shape, strict=True)):
        if symbols.equal(size, required):
            continue
        pair = builder.emit(as_tensor(from_items([size, required])))

        def compare(sizes: Any) -> Any:
            actual, required = element(sizes, 0), element(sizes, 1)
            return tirx.Select(actual == required, actual, int64(-1))

        count = movement.number(builder, [pair], compare, "equal_size")
        most = size if is_counted(symbols, required) else required
        equal = movement.size(builder, symbols, tensor, axis, count, most)
        checked = builder.emit(part(checked, axis, 0, equal))
    if checked is data:
        return data
    return movement.move(builder, shape, [checked], lambda at, x: x(*at), "agreed")
