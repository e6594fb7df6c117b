"""Effect of the build-time transforms of parameters on size: bytes in the graph, and bytes stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kiln.lower.schema import LoweredCase
from kiln.params.formulas import ONCE
from kiln.plan.schema import LiftedSummary, SeveralForms, StoredTensor, TransformTotal

# Tensors that belong to a parameter in few levels, in addition to the tensor of its levels.
PARTS = ("scales", "zeros")


@dataclass(frozen=True)
class Origin:
    """The tensor from which a stored tensor was made, and the transform; see `StoredTensor`."""

    made: str = "while lowering"
    bytes_before: int = 0
    of: str | None = None
    dtype: str | None = None  # as it is stored; None: the type of its elements


def origin(case: LoweredCase, name: str) -> Origin:
    """Origin of the stored tensor `name` of a function."""
    families = {kernel.symbol: kernel.family for kernel in case.kernels}
    stem, _, last = name.rpartition(".")
    source, transform = (stem, f"packed for {families[last]}") if last in families else (name, "as it is")
    if last == ONCE:
        source, transform = stem, "equal elements once"
    dtype = None
    if source not in case.lifted and source.rpartition(".")[0] in case.lifted:
        source, _, dtype = source.rpartition(".")
        transform += f" as {dtype}"
    lifted = case.lifted.get(source)
    if lifted is None:
        return Origin()
    before = 0 if dtype in PARTS else lifted.bytes  # the bytes that were stored before count once
    return Origin(transform, before, lifted.sha256[:16], None if dtype in PARTS else dtype)


def transforms(cases: Sequence[LoweredCase], stored: Sequence[StoredTensor]) -> LiftedSummary:
    """Summary of the transforms; `cases`: functions of all buckets; `stored`: tensors in params.bin."""
    bytes_lifted = 0
    bytes_of: dict[str, int] = {}
    for case in cases:
        read = {name for step in case.steps for name in step.tensors}
        read |= {name.rpartition(".")[0] for name in read}
        read |= {name.rpartition(".")[0] for name in read}
        for name in read & case.lifted.keys():
            entry = case.lifted[name]
            bytes_lifted += entry.bytes
            bytes_of[entry.sha256] = entry.bytes
    kinds: dict[str, TransformTotal] = {}
    for tensor in stored:
        so_far = kinds.get(tensor.made, TransformTotal())
        kinds[tensor.made] = TransformTotal(
            tensors=so_far.tensors + 1,
            bytes_before=so_far.bytes_before + tensor.bytes_before,
            bytes_after=so_far.bytes_after + tensor.bytes,
        )
    return LiftedSummary(
        lifted_bytes=bytes_lifted,
        distinct_bytes=sum(bytes_of.values()),
        stored_bytes=sum(tensor.bytes for tensor in stored),
        transforms=kinds,
        several=_several(stored),
    )


def _several(stored: Sequence[StoredTensor]) -> list[SeveralForms]:
    """Parameters that are stored in more than one form, over all buckets and kernels; most bytes first."""
    forms: dict[str, list[StoredTensor]] = {}
    for tensor in stored:
        if tensor.of is not None and tensor.bytes_before:
            forms.setdefault(tensor.of, []).append(tensor)
    rows = [
        SeveralForms(
            name=tensors[0].name.partition(".")[0],
            forms=len(tensors),
            bytes_before=tensors[0].bytes_before,
            bytes_after=sum(tensor.bytes for tensor in tensors),
        )
        for tensors in forms.values()
        if len(tensors) > 1
    ]
    return sorted(rows, key=lambda row: (-row.bytes_after, row.name))
