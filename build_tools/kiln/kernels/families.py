"""The kernel families, in order of priority. A new family is a file in kernels/cpu and an entry here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from tvm import tirx

from kiln.frontend.linear_attention import NAME as LINEAR_ATTENTION
from kiln.frontend.recurrent import NAME as RECURRENT
from kiln.kernels.cpu import (
    attention,
    batch_matmul,
    batch_matmul_int8,
    block_int8,
    compact_gemm,
    conv2d,
    conv2d_magnitudes,
    conv2d_pairs,
    conv2d_widened,
    depthwise,
    elementwise,
    few_rows,
    linear_attention,
    recurrent,
    row_reduction,
    table,
    winograd,
    winograd_int8,
)
from kiln.kernels.operators import opaque
from kiln.kernels.operators.added import added_operator
from kiln.kernels.stored_parameters import with_stored_parameters
from kiln.opinfo.attach import OpInfo
from kiln.params.encodings import Encoding
from kiln.tir.builder import Kernel, KernelAndBuffers, Machine
from kiln.tir.fused import Fused, Nest, NotSimple
from kiln.tir.stored import tables
from kiln.tir.symbols import NO_RANGES, SymbolRanges
from kiln.tir.view import TensorView

NO_ENCODINGS: Mapping[int, Encoding] = MappingProxyType({})


@dataclass(frozen=True)
class Family:
    """A kernel family for groups that begin with certain operators; later operators become the epilogue.

    Shapes may be dynamic (tir/symbols.py).
    """

    # whether the family can compute a group
    applies: Callable[[OpInfo, Fused, Nest, set[int]], bool]
    # the kernels, each with the buffers that its parameters stand for
    make: Callable[[OpInfo, Fused, Nest, Nest, Machine], KernelAndBuffers | list[KernelAndBuffers]]
    # whether the family is allowed and fastest; otherwise the next family is tried
    pays: Callable[[OpInfo, Fused, Nest, Machine], bool] = lambda *_: True


FAMILIES = [
    Family(depthwise.applies, depthwise.make),
    Family(winograd.applies, winograd.make, winograd.pays),
    Family(block_int8.applies, block_int8.make),
    Family(compact_gemm.applies, compact_gemm.make, compact_gemm.pays),
    Family(winograd_int8.applies, winograd_int8.make, winograd_int8.pays),
    Family(conv2d_magnitudes.applies, conv2d_magnitudes.make, conv2d_magnitudes.pays),
    Family(conv2d_widened.applies, conv2d_widened.make, conv2d_widened.pays),
    Family(conv2d_pairs.applies, conv2d_pairs.make, conv2d_pairs.pays),
    Family(conv2d.pads_too, conv2d.make),
    Family(few_rows.applies, few_rows.make, few_rows.pays),
    Family(batch_matmul.applies, batch_matmul.make, batch_matmul.pays),
    Family(batch_matmul_int8.applies, batch_matmul_int8.make, batch_matmul_int8.pays),
]


@dataclass(frozen=True)
class GroupKernel:
    """One kernel of a group and the buffers of the fused function that its parameters stand for."""

    kernel: Kernel
    buffers: list[Any]
    macs: int


def _macs(nest: Nest, ranges: SymbolRanges) -> int:
    """Multiply-adds of a reduction, at the greatest sizes if shapes are dynamic; 0 for other nests."""
    if not nest.reduced:
        return 0
    return ranges.greatest(ranges.product([axis.dom.extent for axis in [*nest.axes, *nest.reduced]]))


def macs_of(func: tirx.PrimFunc, ranges: SymbolRanges) -> int:
    """Multiply-adds of a fused group; 0 if the function is not made of loop nests."""
    try:
        return sum(_macs(nest, ranges) for nest in Fused(func).nests)
    except NotSimple:
        return 0


def _is_elementwise(fused: Fused, buffer: tirx.Buffer, last: Nest) -> bool:
    """Whether no nest between that of `buffer` and `last` is a reduction, as in an argmax.

    Each element of `last` can then be computed from one element of `buffer`.
    """
    first = fused.nests.index(fused.by_buffer[buffer])
    return not any(nest.reduced for nest in fused.nests[first + 1 : fused.nests.index(last)])


@dataclass(frozen=True)
class FusedGroup:
    """Operators that are fused into `func`, with facts about its parameters, by position.

    `constants`: parameters whose values are known at build time. `views`: parameters that are stored inside
    larger tensors; `func` already uses the larger shapes. `magnitudes`: of int8 constants, magnitude()
    of kernels/cpu/gemm_int8.py. `together`: of int16 constants, pairs_together() of
    kernels/cpu/gemm_pairs.py. `encodings`: the forms in which constants may be stored. `ranges`: the ranges
    of the variables in the shapes of `func`.
    """

    func: tirx.PrimFunc
    ops: list[OpInfo]
    constants: frozenset[int]
    views: Mapping[int, TensorView]
    magnitudes: Mapping[int, int] = field(default_factory=dict)
    together: Mapping[int, int] = field(default_factory=dict)
    ranges: SymbolRanges = NO_RANGES
    encodings: Mapping[int, Encoding] = field(default_factory=lambda: NO_ENCODINGS)


def kernels_of(group: FusedGroup, machine: Machine) -> list[GroupKernel]:
    """The kernels that compute a fused group on `machine`, in order.

    A group that no family handles becomes elementwise kernels or a row reduction; a function that is not made
    of loop nests is compiled unchanged. Raises ValueError if such a function calls TVM's runtime, and
    NotSimple if it has views.
    """
    func, ops, constants = group.func, group.ops, set(group.constants)
    ranges, encodings, views = group.ranges, group.encodings, group.views
    added = added_operator(ops)
    if added == RECURRENT:
        return [GroupKernel(*recurrent.make(func, ops[0], constants, machine, ranges, encodings))]
    if added == LINEAR_ATTENTION:
        return [GroupKernel(*linear_attention.make(func, ops[0], machine, ranges))]
    try:
        fused = Fused(func, ranges)
        fused.origins = {fused.params[position]: view.before for position, view in views.items()}
        fused.magnitudes = {fused.params[position]: limit for position, limit in group.magnitudes.items()}
        fused.together = {fused.params[position]: pairs for position, pairs in group.together.items()}
        fused.encodings = {fused.params[position]: encoding for position, encoding in encodings.items()}
        fused.tables = tables(fused.encodings, machine.half)
        if 1 in encodings:  # of the size as it is stored
            growth = machine.weight_growth * encodings[1].bits / 32
            machine = replace(machine, weight_growth=growth)
        return _kernels_of_nests(fused, ops, constants, machine)
    except NotSimple:
        if views:  # not expected: in_place_padding.py checks before; TVM's own code for `func` would be wrong
            raise
        return _opaque_kernels(func, ranges, machine)


def _opaque_kernels(func: tirx.PrimFunc, ranges: SymbolRanges, machine: Machine) -> list[GroupKernel]:
    """The kernels of a function that is not made of loop nests: its copy of a parameter is a kernel alone."""
    parts = opaque.copy_and_rest(func)
    if parts is None:
        return [GroupKernel(opaque.make(func, ranges), list(func.params), 0)]
    copied, copied_buffers, rest = parts
    (copy,) = _elementwise_kernels(Fused(copied, ranges), [], machine)
    return [
        GroupKernel(replace(copy.kernel, copies=True), list(copied_buffers), 0),
        GroupKernel(opaque.make(rest, ranges), list(rest.params), 0),
    ]


def _kernels_of_nests(
    fused: Fused, ops: list[OpInfo], constants: set[int], machine: Machine
) -> list[GroupKernel]:
    """The kernels of a group that is made of loop nests."""
    attention_found = attention.applies(fused, ops)
    if attention_found is not None:
        macs = _macs(attention_found.product, fused.ranges) + _macs(attention_found.weighted, fused.ranges)
        return [
            GroupKernel(
                *with_stored_parameters(*attention.make(attention_found, fused, machine), fused), macs
            )
        ]
    kernels, done = _family_kernels(fused, ops, constants, machine)
    if table.applies(ops, fused):
        return [GroupKernel(*table.make(fused, machine), 0)]
    over_rows = row_reduction.read_rows(fused) if ops and not kernels else None
    if over_rows is not None:
        kernel_and_buffers = with_stored_parameters(*row_reduction.make(fused, over_rows, machine), fused)
        return [GroupKernel(*kernel_and_buffers, sum(_macs(nest, fused.ranges) for nest in over_rows.nests))]
    return kernels + _elementwise_kernels(fused, done, machine)


def _is_weights_alone(ops: list[OpInfo]) -> bool:
    """Whether parameter 1 is the second operand of the first operator and nothing else.

    It is not in x @ x + constant, nor in x @ w + w: the sum reads w, but the kernel has it packed only.
    """
    second = ops[0]["args"][1] if len(ops[0]["args"]) > 1 else {}
    readers = [operand for op in ops for operand in op["args"] if operand.get("param") == 1]
    return second.get("param", 1) == 1 and len(readers) <= 1


def _family_kernels(
    fused: Fused, ops: list[OpInfo], constants: set[int], machine: Machine
) -> tuple[list[GroupKernel], list[Any]]:
    """The kernels of the first family that computes the group's first reduction, and the buffers it computes.

    Both lists are empty if no family does.
    """
    anchor = next((nest for nest in fused.nests if nest.reduced), None)
    if anchor is None or not ops:
        return [], []
    if 1 in constants and not _is_weights_alone(ops):
        constants = constants - {1}
    for family in FAMILIES:
        if not family.applies(ops[0], fused, anchor, constants):
            continue
        if not family.pays(ops[0], fused, anchor, machine):
            continue
        last = fused.epilogue(anchor)
        kernels_made = family.make(ops[0], fused, anchor, last, machine)
        kernels = []
        for kernel, buffers in kernels_made if isinstance(kernels_made, list) else [kernels_made]:
            kernel, buffers = with_stored_parameters(kernel, buffers, fused)
            # Of several kernels, the kernel that reads the weights does the multiply-adds.
            main = not isinstance(kernels_made, list) or fused.params[1] in buffers
            kernels.append(GroupKernel(kernel, buffers, _macs(anchor, fused.ranges) if main else 0))
        # Nests between `anchor` and `last` are in the epilogue, however costly: no other nest reads them.
        span = slice(fused.nests.index(anchor), fused.nests.index(last) + 1)
        return kernels, [nest.buffer for nest in fused.nests[span]]
    return [], []


def _elementwise_kernels(fused: Fused, done: list[Any], machine: Machine) -> list[GroupKernel]:
    """A kernel for each nest whose result is stored, without the nests of the buffers `done`."""
    nests = [nest for nest in fused.materialised() if nest.buffer not in done]
    # A reduction whose sums only one other nest reads, element by element, is not stored.
    ends = {nest.buffer: fused.epilogue(nest) for nest in nests if nest.reduced}
    ends = {buffer: last for buffer, last in ends.items() if _is_elementwise(fused, buffer, last)}
    ends = {buffer: last for buffer, last in ends.items() if not last.buffer.same_as(buffer)}
    ends = {buffer: last for buffer, last in ends.items() if any(last is nest for nest in nests)}
    inner = [last.buffer for last in ends.values()]
    nests = [nest for nest in nests if nest.buffer not in inner]
    stored = [*fused.params, *done[-1:], *inner, *(n.buffer for n in nests if n.buffer not in ends)]
    kernels = []
    for nest in nests:
        end = ends.get(nest.buffer)
        kernel, buffers = with_stored_parameters(*elementwise.make(fused, nest, stored, machine, end), fused)
        kernels.append(GroupKernel(kernel, buffers, _macs(nest, fused.ranges)))
    return kernels
