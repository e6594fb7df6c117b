"""The kernels of one fused group for every variant of a target: other instructions, the same parameters.

The last variant decides how weights are packed, and into which kernels a group is divided; the kernels of the
others read the same panels, in narrower tiles (`fitted` of cpu/gemm_tile.py). Where a variant has no such
kernel, all variants get the kernels of the first one, which every processor of the target can run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm import tirx

from kiln.kernels.cpu.gemm_int8 import BYTES, multiplied_types
from kiln.kernels.families import FusedGroup, GroupKernel, kernels_of
from kiln.tir.builder import Machine


def kernels_of_variants(group: FusedGroup, machines: Sequence[Machine]) -> list[list[GroupKernel]]:
    """The kernels of a group, in order; each is a list of its forms, one for each of `machines`.

    All forms of a kernel have the same buffers and packings. Raises the errors of `kernels_of`.
    """
    func = group.func
    if len(machines) == 1:
        return [[group_kernel] for group_kernel in kernels_of(group, machines[0])]
    if not any(str(param.dtype) in BYTES for param in func.params if tirx.is_buffer_var(param)):
        machines = _with_common_caches(machines)
    # Panels by pairs have the width of one machine's vectors.
    pairs = len({machine.vector_bits for machine in machines}) == 1
    common_types = frozenset.intersection(*(multiplied_types(machine) for machine in machines))
    machines = [replace(m, pairs=m.pairs and pairs, heads=BYTES - common_types) for m in machines]
    last = kernels_of(group, machines[-1])
    packing = next(
        (group_kernel.kernel.packing for group_kernel in last if group_kernel.kernel.packing is not None),
        None,
    )
    others = [kernels_of(group, replace(machine, packing=packing)) for machine in machines[:-1]]
    kernels = [*others, last]
    params = list(func.params)
    if not all(_same_interface(kernels_of_variant, last, params) for kernels_of_variant in kernels):
        kernels = [kernels_of(group, machines[0])] * len(machines)
    return [list(forms) for forms in zip(*kernels, strict=True)]


def _with_common_caches(machines: Sequence[Machine]) -> list[Machine]:
    """`machines` in which all with the same vectors have the smallest caches among these.

    Variants with other instructions for 8-bit integers compute floats alike: a bundle then contains these
    kernels once, in blocks that fit every processor.
    """
    alike: dict[tuple[str, int], list[Machine]] = {}
    for machine in machines:
        alike.setdefault((machine.isa, machine.vector_bits), []).append(machine)

    def with_smallest(machine: Machine) -> Machine:
        others = alike[machine.isa, machine.vector_bits]
        return replace(
            machine,
            l1_bytes=min(other.l1_bytes for other in others),
            l2_bytes=min(other.l2_bytes for other in others),
            shared_bytes=min(other.shared_bytes for other in others),
        )

    return [with_smallest(machine) for machine in machines]


def _same_interface(
    kernels_of_variant: Sequence[GroupKernel], other: Sequence[GroupKernel], params: Sequence[Any]
) -> bool:
    """Whether the kernels of two variants read the same buffers and packed weights.

    `params`: buffers from outside of the group. The others are between its kernels, and may differ in size.
    """
    if len(kernels_of_variant) != len(other):
        return False
    for a, b in zip(kernels_of_variant, other, strict=True):
        if a.kernel.packing != b.kernel.packing or a.kernel.packs.keys() != b.kernel.packs.keys():
            return False
        if a.kernel.packs and a.kernel.packing is None:  # not known to be equal
            return False
        if len(a.buffers) != len(b.buffers):
            return False
        for mine, theirs in zip(a.buffers, b.buffers, strict=True):
            outside = any(mine.same_as(param) or theirs.same_as(param) for param in params)
            if not (mine.same_as(theirs) if outside else str(mine.dtype) == str(theirs.dtype)):
                return False
    return True
