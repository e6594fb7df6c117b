"""Selection of fill values: the first value for each input's padded elements that the proof accepts."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import tvm

from kiln.config.interface import Interface, PortRecord
from kiln.config.model import Tensor
from kiln.graph.bindings import constant, operator
from kiln.specialize.padding.analysis import Fill, NotProvenError, prove
from kiln.specialize.padding.fill_values import typed_fill
from kiln.specialize.padding.values import Number, greatest, is_float, least

MOST_TRIED = 64  # combinations of the inputs' values
_COMPARED = ("relax.equal", "relax.not_equal")


def proven_fills(
    module: tvm.IRModule, padded: Sequence[str], interface: Interface, declared: Mapping[str, Tensor]
) -> dict[str, Number]:
    """A value of the padded elements of each input with which padding is proven neutral, by input.

    `module`: imported with the dimensions `padded` dynamic. `declared`: the YAML's
    `inputs` (`pad`, `mask`). Candidates in order: 0, the zero point of a quantised input, the least and the
    greatest value of the type, 1, and integers that the graph compares tensors with. Raises the
    NotProvenError of the first combination if none of at most MOST_TRIED combinations is proven.
    """
    ports = interface.inputs
    outputs = [port.name for port in interface.outputs]
    compared = _compared_integers(module)
    choices = [_choices(port, padded, declared.get(port.name), compared) for port in ports]
    first: NotProvenError | None = None
    for chosen in itertools.islice(itertools.product(*choices), MOST_TRIED):
        fills = [
            Fill(value, port.name in declared and declared[port.name].mask)
            for value, port in zip(chosen, ports, strict=True)
        ]
        try:
            prove(module, padded, fills, outputs)
        except NotProvenError as error:
            first = first or error
            continue
        return {port.name: value for value, port in zip(chosen, ports, strict=True)}
    assert first is not None
    raise first


def _choices(
    port: PortRecord, padded: Sequence[str], declared: Tensor | None, integers: Sequence[Number]
) -> list[Number]:
    """The candidate values for the padded elements of one input, in the order in which they are tried."""
    dtype = port.dtype
    if declared is not None and declared.mask:
        return [0]
    if declared is not None and declared.pad is not None:
        return [typed_fill(port.name, declared.pad, dtype)]
    if not any(name in padded for name in port.shape if isinstance(name, str)):
        return [0]
    quant = port.quant
    values: list[Number] = [0, *([quant.zero_point] if quant else []), least(dtype), greatest(dtype), 1]
    candidates: list[Number] = []
    for value in [*values, *(() if is_float(dtype) else integers)]:
        if least(dtype) <= value <= greatest(dtype) and value not in candidates:
            candidates.append(value)
    return candidates


def _compared_integers(module: tvm.IRModule) -> list[Number]:
    """Integer constants that the graph compares tensors with, such as the id of a padding token."""
    numbers: list[Number] = []
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            if operator(binding.value) not in _COMPARED:
                continue
            for array in map(constant, binding.value.args):
                if array is not None and array.size == 1 and np.issubdtype(array.dtype, np.integer):
                    numbers.append(int(array.reshape(-1)[0]))
    return numbers
