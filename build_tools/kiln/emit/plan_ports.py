"""Dimensions, inputs and outputs of plan.json: checked, and prepared for the templates.

An axis whose size is an expression of dimensions (such as seq // 2) becomes a computed dimension.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kiln.config import sizes
from kiln.config.interface import Dimension, PortRecord, Quantisation
from kiln.config.records import INT32_MAX
from kiln.emit import c_text
from kiln.emit.size_code import SizeCode, size_bounds
from kiln.errors import KilnError
from kiln.plan.schema import Plan

_MAX_DIMS = 16  # KILN_MAX_DIMS of kiln.h


def require(good: bool, where: str, value: object, allowed: str) -> None:
    """Raise KilnError for the entry `where` of plan.json unless `good`."""
    if not good:
        raise KilnError(f"plan.json: {where}: {value}, allowed: {allowed}")


@dataclass(frozen=True)
class DimensionCode:
    """A dimension whose sizes callers choose; `c_name`: its parameter of the generated functions."""

    name: str
    min: int
    max: int
    multiple: int
    c_name: str


@dataclass(frozen=True)
class CountedCode:
    """A dimension whose size a step of the run counts; `max`: at the greatest sizes of the others.

    `tensor`: the tensor of the model's file that has it; `bound`: C expression of its greatest size.
    """

    name: str
    tensor: str
    max: int
    bound: str
    shown: str


@dataclass(frozen=True)
class PortCode:
    """An input or output of the model.

    `shape`: a size for each axis, or -1 - k for dimension k; `greatest`: the largest size of each axis;
    `elements` and `bytes`: at these largest sizes; `shown`: shape and layout for comments.
    """

    name: str
    c_name: str
    dtype: str
    c_type: str
    dl_type: str
    shape: list[int]
    shown: str
    greatest: list[int]
    elements: int
    bytes: int
    quant: Quantisation | None
    symbolic: bool


@dataclass(frozen=True)
class PortsCode:
    """Inputs, outputs and dimensions of the model.

    `dims`: the dimensions whose sizes callers choose; `counted`: those that a run counts, numbered after
    them; `derived`: the expressions of the computed dimensions, numbered after both; `derive`: the body of
    the C function that stores the sizes of the computed ones; `limits`: of the one that stores the greatest
    sizes of the counted ones.
    """

    inputs: list[PortCode]
    outputs: list[PortCode]
    dims: list[DimensionCode]
    derived: list[str]
    derive: list[str]
    counted: list[CountedCode]
    limits: list[str]

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """The least and greatest size of each counted dimension."""
        return {dim.name: (0, dim.max) for dim in self.counted}


def read_ports(plan: Plan, used_names: set[str]) -> PortsCode:
    """Check the dimensions, inputs and outputs of a plan, and prepare them for the templates.

    `used_names`: C names already in use; the names chosen here are added to it. A dimension that no shape
    mentions was made static by the build and is left out. Raises KilnError for an invalid entry.
    """
    dims = [_dimension(dim, used_names) for dim in plan.dims]
    dim_names = [*(dim.name for dim in dims), *(counted_dim.name for counted_dim in plan.counted)]
    on_inputs = _mentioned(plan.inputs, dim_names)
    everywhere = on_inputs | _mentioned(plan.outputs, dim_names)
    dims = [dim for dim in dims if dim.name in everywhere]
    plain = {size for port in plan.inputs for size in port.shape if isinstance(size, str)}
    for name in (dim.name for dim in dims if dim.name not in plain):
        occurrence = "in expressions only" if name in on_inputs else "on outputs only"
        require(False, f"dims '{name}'", occurrence, "on an input too, as an axis of its own")
    derived: list[sizes.SizeExpr] = []
    box = {dim.name: (dim.min, dim.max) for dim in dims}
    counted, limits = _counted(plan, box)
    for counted_dim in counted:
        box[counted_dim.name] = 0, counted_dim.max
    inputs = [_port(port, box, derived, used_names) for port in plan.inputs]
    outputs = [_port(port, box, derived, used_names) for port in plan.outputs]
    count = len(box) + len(derived)
    allowed = f"at most {_MAX_DIMS}; sizes that the run counts are dimensions too: fix some, or cut the graph"
    require(count <= _MAX_DIMS, "dims", f"{count} with those computed from them", allowed)
    code = SizeCode({name: f"(int32_t)dims[{index}]" for index, name in enumerate(box)}, box)
    values = [code.value(expr, "inputs and outputs") for expr in derived]
    assigned = [f"dims[{len(box) + index}] = {value};" for index, value in enumerate(values)]
    shown = [sizes.show(expr) for expr in derived]
    return PortsCode(inputs, outputs, dims, shown, [*code.lines, *assigned], counted, limits)


def interface_digest(ports: PortsCode) -> bytes:
    """SHA-256 of the interface: tensors with names, types, shapes and scales, in order, and the dimensions.

    The ranges of dimensions are not part of it: those of a model that comes later may be wider.
    """
    tensors = [
        [[port.name, port.dtype, port.shape, None if port.quant is None else port.quant.model_dump()]
         for port in side]
        for side in (ports.inputs, ports.outputs)
    ]  # fmt: skip
    dims = [dim.name for dim in ports.dims]
    text = json.dumps(
        [tensors, dims, [counted_dim.name for counted_dim in ports.counted], ports.derived], sort_keys=True
    )
    return hashlib.sha256(text.encode()).digest()


def _counted(plan: Plan, box: Mapping[str, tuple[int, int]]) -> tuple[list[CountedCode], list[str]]:
    """The counted dimensions, and the C statements that store their greatest sizes.

    Raises KilnError for a bound that is not a size of the dimensions in `box`, for a name that is taken, and
    for an output axis whose size is not greatest where the counted sizes are.
    """
    counted: list[CountedCode] = []
    ranges, stored = dict(box), list[str]()
    for counted_dim in plan.counted:  # a bound may be a size that is counted before
        where = f"counted '{counted_dim.name}'"
        require(counted_dim.name not in ranges, where, "twice", "once")
        code = SizeCode({name: f"(int32_t)dims[{index}]" for index, name in enumerate(ranges)}, ranges)
        bound = code.value(counted_dim.bound, where)
        lines = [*code.lines, f"dims[{len(ranges)}] = {bound};"]
        stored += ["{", *(f"    {line}" for line in lines), "}"] if code.lines else lines
        greatest = size_bounds(counted_dim.bound, ranges, where)[1]
        ranges[counted_dim.name] = 0, greatest
        counted.append(
            CountedCode(counted_dim.name, counted_dim.tensor, greatest, bound, sizes.show(counted_dim.bound))
        )
    names = {port.name for port in counted}
    for port in plan.outputs:
        for axis, size in enumerate(port.shape):
            if not _grows(size, names):
                raise KilnError(
                    f"output '{port.name}' axis {axis} of size {sizes.show(size)} gets smaller while more "
                    "elements are counted: its greatest size is not known before a run; give it a fixed size"
                )
    return counted, stored


def _grows(size: sizes.SizeExpr, names: set[str]) -> bool:
    """Whether a size is never less where one of the sizes `names` is greater."""
    if not isinstance(size, (list, tuple)) or not sizes.names(size) & names:
        return True
    operator, left, right = size
    if operator in ("+", "*", "min", "max"):
        return _grows(left, names) and _grows(right, names)
    return operator in ("-", "//") and not sizes.names(right) & names and _grows(left, names)


def _mentioned(ports: Sequence[PortRecord], dim_names: Sequence[str]) -> set[str]:
    """Names of the dimensions in the shapes of `ports`. Raises KilnError for a name not in `dim_names`."""
    mentioned = set()
    for port in ports:
        for size in port.shape:
            names = sizes.names(size)
            for name in sorted(names.difference(dim_names)):
                allowed = ", ".join(dim_names) or "sizes only"
                raise KilnError(f"plan.json: '{port.name}': dimension '{name}', allowed: {allowed}")
            mentioned |= names
    return mentioned


def _dimension(dim: Dimension, used_names: set[str]) -> DimensionCode:
    c_name = c_text.free_name(re.sub(r"\W", "_", f"n_{dim.name}"), used_names)
    used_names.add(c_name)
    return DimensionCode(dim.name, dim.min, dim.max, dim.multiple, c_name)


def _port(
    port: PortRecord,
    box: Mapping[str, tuple[int, int]],
    derived: list[sizes.SizeExpr],
    used_names: set[str],
) -> PortCode:
    where = f"plan.json: '{port.name}'"
    names, shape, greatest = list(box), [], []
    for size in port.shape:
        most = size_bounds(size, box, f"'{port.name}'")[1]
        if isinstance(size, str):
            shape.append(-1 - names.index(size))
        elif not sizes.names(size):
            most = sizes.evaluate(size, {})
            if not 0 <= most <= INT32_MAX:
                raise KilnError(f"{where}: size {most}, allowed 0..{INT32_MAX}")
            shape.append(most)
        else:
            if size not in derived:
                derived.append(size)
            shape.append(-1 - len(names) - derived.index(size))
        greatest.append(most)
    elements = 1
    for size in greatest:
        elements *= size
    c_name = c_text.free_name(c_text.check_name(port.c_name + "_", where)[:-1], used_names)
    used_names.add(c_name)
    shown = ", ".join(sizes.show(size) for size in port.shape)
    layout = f" {port.layout}" if port.layout else ""
    layout += f", the bits of {port.element}" if port.element else ""
    return PortCode(
        port.name, c_name, port.dtype, c_text.c_type(port.dtype, where),
        c_text.dl_type(port.dtype, where), shape, f"({shown}){layout}", greatest, elements,
        elements * c_text.element_bytes(port.dtype, where),
        port.quant, any(size < 0 for size in shape),
    )  # fmt: skip
