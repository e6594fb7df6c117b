"""The kernel families, in the order in which they are asked. A new family is a file and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from kiln.kernels.cpu import batch_matmul, conv2d, depthwise, elementwise, row_reduction, winograd
from kiln.kernels.operators import opaque
from kiln.opinfo.attach import OpInfo
from kiln.tir.builder import Kernel, Machine
from kiln.tir.fused import Fused, Nest, NotSimple
from kiln.tir.symbols import greatest, is_open, product
from kiln.tir.view import TensorView

Made = tuple[Kernel, list[Any]]


@dataclass(frozen=True)
class Family:
    """Kernels for groups that begin with one of some operators; what follows goes into its epilogue.

    Sizes may be known only at run time (tir/symbols.py).
    """

    applies: Callable[[OpInfo, Fused, Nest, set[int]], bool]
    make: Callable[[OpInfo, Fused, Nest, Nest, Machine], Made | list[Made]]
    # whether it is the fastest and allowed; the next family is asked otherwise
    pays: Callable[[OpInfo, Fused, Nest, Machine], bool] = lambda *_: True


FAMILIES = [
    Family(depthwise.applies, depthwise.make),
    Family(winograd.applies, winograd.make, winograd.pays),
    Family(conv2d.applies, conv2d.make),
    Family(batch_matmul.applies, batch_matmul.make),
]


@dataclass(frozen=True)
class Part:
    """One kernel of a group and the buffers of the fused function that its parameters stand for."""

    kernel: Kernel
    buffers: list[Any]
    macs: int


def _macs(nest: Nest) -> int:
    """Multiply-adds; at the greatest sizes, where they are open."""
    return greatest(product([axis.dom.extent for axis in [*nest.axes, *nest.reduced]])) if nest.reduced else 0


def macs_of(func: tirx.PrimFunc) -> int:
    """Multiply-adds of a fused group; 0 where it is no loop nest."""
    try:
        return sum(_macs(nest) for nest in Fused(func).nests)
    except NotSimple:
        return 0


def _is_open(func: tirx.PrimFunc) -> bool:
    return any(is_open(size) for param in func.params if tirx.is_buffer_var(param) for size in param.shape)


def kernels_of(
    func: tirx.PrimFunc,
    ops: list[OpInfo],
    constants: set[int],
    machine: Machine,
    views: Mapping[int, TensorView],
    narrow: frozenset[int] = frozenset(),
) -> list[Part]:
    """The kernels that compute a fused group, in order.

    `constants`: positions of the parameters that are known at build time. `views`: those, by position, that
    lie inside larger tensors; `func` already says so. `narrow`: constants that gemm_int.narrow holds for.
    Always succeeds: what no family takes becomes vectorised loops, and what is no loop nest is compiled as
    it stands.
    """
    try:
        fused = Fused(func)
        fused.origins = {fused.params[position]: view.before for position, view in views.items()}
        fused.narrow = {fused.params[position] for position in narrow}
        parts: list[Part] = []
        done: list[Any] = []
        anchor = next((nest for nest in fused.nests if nest.reduced), None)
        for family in FAMILIES if anchor is not None and ops else []:
            assert anchor is not None
            if family.applies(ops[0], fused, anchor, constants) and family.pays(
                ops[0], fused, anchor, machine
            ):
                last = fused.epilogue(anchor)
                made = family.make(ops[0], fused, anchor, last, machine)
                for kernel, buffers in made if isinstance(made, list) else [made]:
                    # Of several kernels, the one that reads the weights does the products.
                    main = not isinstance(made, list) or fused.params[1] in buffers
                    parts.append(Part(kernel, buffers, _macs(anchor) if main else 0))
                # What stands between the two is part of the epilogue, however costly; nobody else reads it.
                span = slice(fused.nests.index(anchor), fused.nests.index(last) + 1)
                done = [nest.buffer for nest in fused.nests[span]]
                break
        over_rows = row_reduction.read_rows(fused) if ops and not parts else None
        if over_rows is not None:
            kernel, buffers = row_reduction.make(fused, over_rows, machine)
            return [Part(kernel, buffers, sum(_macs(nest) for nest in over_rows.nests))]
        nests = [nest for nest in fused.materialised() if nest.buffer not in done]
        stored = [*fused.params, *done[-1:], *(nest.buffer for nest in nests)]
        for nest in nests:
            kernel, buffers = elementwise.make(fused, nest, stored, machine)
            parts.append(Part(kernel, buffers, _macs(nest)))
        return parts
    except NotSimple:
        if views:  # lower/views/in_place_padding.py asks beforehand; TVM's own code for `func` would be wrong
            raise
        if _is_open(func):
            raise ValueError("its code takes no size that is known only at run time") from None
        return [Part(opaque.make(func), list(func.params), 0)]
