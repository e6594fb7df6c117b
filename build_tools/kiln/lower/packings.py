"""The forms in which a weight is stored, chosen for all buckets and special cases of a model together.

A float32 weight is packed for direct convolution, or for Winograd convolution with tiles of 2x2 or 4x4
outputs. Each kernel alone would choose the form that is fastest at its sizes, so that a weight might be
stored in all three. Where the forms of a weight together exceed `weight_growth` times its size, one set of
forms within that limit is chosen: the set with the least sum, over all uses of the weight, of estimated time
divided by the best time of that use (estimates of kernels/cpu/winograd_cost.py). So a bucket for small sizes
counts as much as a bucket for large ones. Kernels then choose within the set, and pack panels of one width.
The columns that fill up the last panel of a packing do not count as growth.

Works on the graph before fusion, with dynamic dimensions at their greatest sizes; the form that a kernel
alone would choose follows from their least, middle and greatest sizes, as in winograd_cost.py. Weights whose
forms are within the limit are not restricted: their kernels are the same as without other buckets.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm

from kiln.config import sizes
from kiln.graph.bindings import Array, constant, integers, operator
from kiln.kernels.cpu.conv2d_schedule import by_pairs
from kiln.kernels.cpu.convolution import Convolution
from kiln.kernels.cpu.gemm_tile import choose_tile, narrowed
from kiln.kernels.cpu.winograd_cost import DIRECT, estimate, form_of, tile_sizes
from kiln.kernels.cpu.winograd_transforms import growth
from kiln.lower.dims import Dims
from kiln.params import store
from kiln.tir.builder import Machine
from kiln.tir.symbols import sample_sizes

# Digest of a weight (params/store.py) → the forms it may be stored in; other weights are not restricted.
Packings = Mapping[str, Sequence[int]]

_Packing = tuple[int, int, bool]  # form, vectors of a panel, whether the last panel is one of pairs
_FORMS = (DIRECT, 2, 4)
_UNWANTED = 1e6  # factor on the estimated time of a form that the model's Winograd policy excludes


@dataclass(frozen=True)
class Use:
    """A matmul or convolution (`conv`, at its greatest sizes) with the constant weight of digest `weight`."""

    weight: str
    conv: Convolution
    can_transform: bool  # whether Winograd convolution is possible
    is_dynamic: bool  # whether the data has a dynamic dimension
    samples: Sequence[Convolution] = ()  # the same at the least, middle and greatest sizes


def uses_of(mod: tvm.IRModule, model: str) -> Iterator[Use]:
    """The float32 convolutions and dense layers of `main` whose weights are constants."""
    dims = Dims(model, mod)
    values: dict[Any, Any] = {}

    def shape(expr: Any, box: Mapping[str, tuple[int, int]]) -> list[int]:
        return [sizes.bounds(size, box)[1] for size in dims.shape(expr.ty)]

    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            call = values[binding.var] = binding.value
            if operator(call) not in ("relax.nn.conv2d", "relax.matmul"):
                continue
            weight = constant(values.get(call.args[1], call.args[1]))
            if weight is None or str(weight.dtype) != "float32" or weight.ndim not in (2, 4):
                continue
            is_dynamic = any(not isinstance(size, tvm.tirx.IntImm) for size in call.args[0].ty.shape)
            use = _use(call, weight, shape(call.args[0], dims.box), shape(call, dims.box))
            if use is None:
                continue
            if is_dynamic and use.can_transform:
                boxes = sample_sizes(dims.box)
                uses = [_use(call, weight, shape(call.args[0], box), shape(call, box)) for box in boxes]
                use = replace(use, samples=[one.conv for one in uses if one is not None])
            yield replace(use, is_dynamic=is_dynamic)


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
    """`Packings` of the weights whose forms over all uses in `modules` exceed the machine's weight_growth."""
    by_weight: dict[str, list[Use]] = {}
    for mod in modules:
        for use in uses_of(mod, model):
            by_weight.setdefault(use.weight, []).append(use)
    allowed = {}
    for weight, uses in by_weight.items():
        forms = [form for form, _, _ in {_packing(use, machine) for use in uses}]
        if len(uses) > 1 and _size(forms) > machine.weight_growth + 1e-9:
            allowed[weight] = _best(uses, machine)
    return allowed


def limited(machine: Machine, forms: Sequence[int] | None) -> Machine:
    """`machine` restricted to `forms` of a weight, with panels of one width; unchanged for None."""
    if forms is None:
        return machine
    return replace(machine, forms=tuple(forms), choices={}, pairs=False)


def _packing(use: Use, machine: Machine) -> _Packing:
    """The packing that the kernel of `use` chooses where forms are not restricted."""
    conv = use.conv
    if use.is_dynamic:
        machine = replace(machine, choices={})
    samples = [(sample, sample.ranges) for sample in use.samples]
    form = form_of(conv, machine, samples) if use.can_transform else None
    if form is not None:
        tile = choose_tile(machine, form.block, conv.out_channels, conv.choice(machine).tile)
        return form.m, tile.vectors, False
    tile = choose_tile(machine, int(conv.rows), conv.columns, conv.choice(machine).tile)
    tile = narrowed(tile, conv.columns, machine)
    return DIRECT, tile.vectors, by_pairs(conv, machine)


def _size(forms: Iterable[int]) -> float:
    """Size of a weight's packings in `forms` together, as a multiple of the weight's size."""
    return sum(growth(form) if form else 1.0 for form in forms)


def _best(uses: Sequence[Use], machine: Machine) -> list[int]:
    """The set of forms within the limit with the least total cost of `uses`; of equal sets the smallest."""
    policy = (DIRECT,) if machine.winograd == "off" else tile_sizes(machine)
    if machine.winograd == "auto":
        policy = (DIRECT, *policy)

    def cost(use: Use, forms: Sequence[int]) -> float:
        """Estimated time of `use` with the best form of `forms` that is possible for it."""
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
