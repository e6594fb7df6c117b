"""In how many forms a weight is stored: chosen for all buckets and special cases of a model together.

A float32 weight is packed for direct convolution, or for Winograd convolution with tiles of 2x2 or 4x4
outputs. Each kernel would take what is fastest at its sizes, so that a weight might be stored in all of them.
Where the forms that a weight would get take more than `weight_growth` times its size, one set of forms that
keeps the limit is chosen: the one with which the uses take the fewest times their best, in sum, by the
estimates of kernels/cpu/winograd_cost.py. So a bucket for small sizes counts as much as one for large ones.
Kernels then choose within the set, and pack panels of one width. The columns that fill up the last panel of
every packing are no growth.

Works on the graph before fusion, with open sizes at their greatest. Weights whose forms keep the limit are
free: nothing is said of them, and their kernels are what they are without other buckets.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm

from kiln.config import sizes
from kiln.graph.bindings import Array, constant, integers, operator
from kiln.kernels.cpu.conv2d import Convolution, by_pairs
from kiln.kernels.cpu.gemm import choose_tile
from kiln.kernels.cpu.winograd_cost import DIRECT, estimate, form_of, wanted
from kiln.kernels.cpu.winograd_transforms import growth
from kiln.lower.dims import Dims
from kiln.params import store
from kiln.tir.builder import Machine

# By digest of a weight (params/store.py): the forms that it may be stored in; those not named are free.
Packings = Mapping[str, Sequence[int]]

_Packing = tuple[int, int, bool]  # form, vectors of a panel, whether the last panel is one of pairs
_FORMS = (DIRECT, 2, 4)
_UNWANTED = 1e6  # how much worse than any other a form is that the model's policy does not name


@dataclass(frozen=True)
class Use:
    """A product or convolution with a constant weight, at its greatest sizes."""

    weight: str
    conv: Convolution
    can_transform: bool  # whether Winograd convolution is possible
    is_open: bool


def uses_of(mod: tvm.IRModule, model: str) -> Iterator[Use]:
    """The float32 convolutions and dense layers of `main` whose weights are constants."""
    dims = Dims(model, mod)
    values: dict[Any, Any] = {}

    def greatest(expr: Any) -> list[int]:
        return [sizes.bounds(size, dims.box)[1] for size in dims.shape(expr.ty)]

    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            call = values[binding.var] = binding.value
            if operator(call) not in ("relax.nn.conv2d", "relax.matmul"):
                continue
            weight = constant(values.get(call.args[1], call.args[1]))
            if weight is None or str(weight.dtype) != "float32" or weight.ndim not in (2, 4):
                continue
            is_open = any(not isinstance(size, tvm.tirx.IntImm) for size in call.args[0].ty.shape)
            found = _use(call, weight, greatest(call.args[0]), greatest(call))
            if found is not None:
                yield replace(found, is_open=is_open)


def _use(call: Any, weight: Array, x: list[int], out: list[int]) -> Use | None:
    name = store.digest(weight)
    if operator(call) == "relax.matmul":
        return Use(name, Convolution.dense(x, list(weight.shape)), False, False) if weight.ndim == 2 else None
    attrs = call.attrs
    if (str(attrs.data_layout), str(attrs.kernel_layout)) != ("NHWC", "HWIO"):
        return None
    top, left, bottom, right = integers(attrs.padding)
    padded = [x[0], x[1] + top + bottom, x[2] + left + right, x[3]]
    strides, dilation, groups = integers(attrs.strides), integers(attrs.dilation), int(attrs.groups)
    if groups > 1 and groups == weight.shape[3]:
        return None  # depthwise: read as it is
    steps = {"strides": strides, "dilation": dilation, "groups": groups}
    conv = Convolution.of_sizes(padded, list(weight.shape), out, steps)
    plain = all(step == 1 for step in (*strides, *dilation, groups))
    return Use(name, conv, plain and list(weight.shape[:2]) == [3, 3], False)


def limits(modules: Iterable[tvm.IRModule], model: str, machine: Machine) -> dict[str, list[int]]:
    """The forms of the weights that would grow too large over all uses in `modules`: see Packings."""
    by_weight: dict[str, list[Use]] = {}
    for mod in modules:
        for use in uses_of(mod, model):
            by_weight.setdefault(use.weight, []).append(use)
    found = {}
    for weight, uses in by_weight.items():
        forms = [form for form, _, _ in {_packing(use, machine) for use in uses}]
        if len(uses) > 1 and _size(forms) > machine.weight_growth + 1e-9:
            found[weight] = _best(uses, machine)
    return found


def limited(machine: Machine, forms: Sequence[int] | None) -> Machine:
    """`machine` for kernels of a weight that may have these forms, all with panels of one width."""
    if forms is None:
        return machine
    return replace(machine, forms=tuple(forms), choices={}, pairs=False)


def _packing(use: Use, machine: Machine) -> _Packing:
    """What a kernel would choose by itself."""
    conv = use.conv
    if use.is_open:
        machine = replace(machine, choices={})
    form = form_of(conv, machine) if use.can_transform else None
    if form is not None:
        tile = choose_tile(machine, form.block, conv.out_channels, conv.choice(machine).tile)
        return form.m, tile.vectors, False
    tile = choose_tile(machine, int(conv.rows), conv.columns, conv.choice(machine).tile)
    return DIRECT, tile.vectors, by_pairs(conv, machine)


def _size(forms: Iterable[int]) -> float:
    """How many times its size a weight takes in packings of these forms."""
    return sum(growth(form) if form else 1.0 for form in forms)


def _best(uses: Sequence[Use], machine: Machine) -> list[int]:
    """The set of forms within the limit that costs all uses least; of equal ones the smallest."""
    policy = (DIRECT,) if machine.winograd == "off" else wanted(machine)
    if machine.winograd == "auto":
        policy = (DIRECT, *policy)

    def cost(use: Use, forms: Sequence[int]) -> float:
        """Of the best of these forms that are possible."""
        possible = [form for form in forms if form == DIRECT or use.can_transform]
        return min(estimate(use.conv, m, machine) * (1 if m in policy else _UNWANTED) for m in possible)

    def total(forms: Sequence[int]) -> float:
        return sum(cost(use, forms) / cost(use, _FORMS) for use in uses)

    sets = []
    for count in range(1, len(_FORMS) + 1):
        for forms in itertools.combinations(_FORMS, count):
            size = _size(forms)
            possible = DIRECT in forms or all(use.can_transform for use in uses)
            if possible and (size <= machine.weight_growth + 1e-9 or forms == (DIRECT,)):
                sets.append((total(forms), size, list(forms)))
    return min(sets)[2]
