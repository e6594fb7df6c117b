"""Chooses the layers that are computed in patches, and the number of parts, for a limit of RAM.

Peaks are estimated on the graph, before fusion: a tensor takes memory if an operator other than an
elementwise one reads it; a tensor that only a padding reads is stored inside the padded one, and elements
that a reduction alone reads are computed where it reads them, from tensors that are stored. Among the choices
whose peak is within the limit, the one with the fewest multiply-adds is used; if there is none, the one with
the lowest peak.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from kiln.config import Target
from kiln.config.memory import region_of, regions_of
from kiln.config.sizes import ceil_div
from kiln.extents import shape_of
from kiln.graph.bindings import operator
from kiln.lower.dims import Dims
from kiln.lower.patches import ImageRegion, bands, divided, macs_of, regions, rows_of
from kiln.lower.row_rules import is_elementwise
from kiln.lower.schema import PatchRecord

# Rows of a band; those of images, and the longer ones of signals.
_HEIGHTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, *(n << s for s in range(6) for n in (128, 192)))
_MOST_BANDS = 256  # with more, their steps take more flash than they save RAM
_ALIGN = 64
_STATIC = 512  # bytes of RAM outside the arena: the session, and variables of the runtime
_REDUCTIONS = {f"relax.{name}" for name in ("sum", "mean", "max", "min", "prod")}
_CUTS = 32  # number of cuts that are tried, from the input on: later feature maps are smaller


# A size in a shape → its greatest value.
Greatest = Callable[[Any], int]


@dataclass(frozen=True)
class _Event:
    """A step: the stored tensors that it reads and the tensor that it writes, by name, with its bytes."""

    reads: tuple[Any, ...]
    writes: Any
    bytes: int


def ram_limit(target: Target, budgets: Iterable[int | None]) -> int | None:
    """The least limit of RAM, variables included: of the budgets, and of the regions that hold the arena."""
    limits = [limit for limit in (*budgets, target.budget.ram_bytes) if limit is not None]
    if target.memory is not None:
        heap, arenas = region_of(target.memory, "heap"), regions_of(target.memory, "arena")
        room = sum(region.room for region in arenas or [heap])
        # Variables are in another region, or in what `reserve` leaves free.
        in_other_region = bool(arenas) or heap is not region_of(target.memory, "data")
        limits.append(room + (_STATIC if in_other_region else 0))
    return min(limits, default=None)


def _bytes(expr: relax.Expr, greatest: Greatest) -> int:
    shape = getattr(expr.ty, "shape", None)
    if shape is None:
        return 0
    elements = math.prod(greatest(size) for size in shape)
    size = ceil_div(elements * int(tvm.DataType(str(expr.ty.dtype)).bits), 8)
    return ceil_div(size, _ALIGN) * _ALIGN


def _read(call: Any) -> list[Any]:
    """The variables that a bound expression reads."""
    expressions = []
    for arg in getattr(call, "args", [call]):
        expressions += list(arg.fields) if isinstance(arg, relax.Tuple) else [arg]
    return [item for item in expressions if isinstance(item, relax.Var)]


def _changes_shape(call: Any) -> bool:
    """Whether a call is a reshape to another shape."""
    return operator(call) == "relax.reshape" and shape_of(call) != shape_of(call.args[0])


class _StoredTensors:
    """The tensors of a function that take memory, and the steps that compute them.

    `greatest`: the greatest value of a size, for which memory is planned.
    """

    def __init__(self, func: Any, greatest: Greatest) -> None:
        self.greatest = greatest
        self.bindings = [(b.var, b.value) for b in func.body.blocks[0].bindings]
        self.calls = dict(self.bindings)
        self.outside = {*func.params, func.body.body}
        for variable, call in self.bindings:  # the caller's memory in another shape, such as a signal's
            if operator(call) == "relax.reshape" and call.args[0] in self.outside:
                self.outside.add(variable)
        readers: dict[Any, list[Any]] = {}
        fused = set[Any]()  # calls that can be fused after what they read
        for variable, call in self.bindings:
            if is_elementwise(call) and (variable in self.outside or not _changes_shape(call)):
                fused.add(call)
            for item in _read(call):
                readers.setdefault(item, []).append(call)
        # Fusion stops at a reshape: one to the same shape is stored in place of what it reads, another one is
        # a view of it.
        self.stored = {
            variable: not _changes_shape(call)
            if operator(call) == "relax.reshape"
            else (
                any(c not in fused for c in readers.get(variable, []))
                and not (
                    all(operator(c) == "relax.nn.pad" for c in readers[variable])
                    and len(readers[variable]) == 1
                )
            )
            for variable, call in self.bindings
        }
        computed = set[Any]()  # elementwise, from stored tensors alone
        for variable, call in self.bindings:
            operands = [item for item in _read(call) if item in self.calls]
            if is_elementwise(call) and all(self.stored[item] or item in computed for item in operands):
                computed.add(variable)
                called = [operator(reader) for reader in readers.get(variable, [])]
                if len(called) == 1 and called[0] in _REDUCTIONS:
                    self.stored[variable] = False
        self.stored[func.body.body] = True
        self.sizes = {
            v: 0 if v in self.outside else _bytes(v, greatest) for v, _ in self.bindings if self.stored[v]
        }
        self.reads = {v: self.sources(call) for v, call in self.bindings if self.stored[v]}

    def sources(self, call: Any) -> tuple[Any, ...]:
        """The stored tensors, and views of them, that `call` reads, through tensors that are not stored."""
        tensors: dict[Any, None] = {}
        for item in _read(call):
            if item not in self.calls or self.stored[item] or _changes_shape(self.calls[item]):
                tensors[item] = None
            else:
                tensors.update(dict.fromkeys(self.sources(self.calls[item])))
        return tuple(tensors)

    def events(self, region: ImageRegion | None = None, count: int = 1) -> list[_Event] | None:
        """The steps, with `region` in at most `count` bands; None where the region cannot be divided."""
        in_region = set() if region is None else {variable for variable, _ in region.calls}
        result: list[_Event] = []
        for variable, _ in self.bindings:
            if region is not None and variable.same_as(region.cut):
                inside = self._of_bands(region, count)
                if inside is None:
                    return None
                result += inside
            elif variable not in in_region and self.stored[variable]:
                reads = tuple(map(self._viewed, self.reads[variable]))
                result.append(_Event(reads, variable, self.sizes[variable]))
        return result

    def _viewed(self, variable: Any) -> Any:
        """The tensor that `variable` is a view of, or itself."""
        while (call := self.calls.get(variable)) is not None and _changes_shape(call):
            variable = call.args[0]
        return variable

    def _of_bands(self, region: ImageRegion, count: int) -> list[_Event] | None:
        result = []
        in_region = {variable for variable, _ in region.calls}
        copied = self._copied(region)
        for number, band in enumerate(bands(region.rows, count)):
            needs = rows_of(region, *band)
            if needs is None:
                return None
            for item in copied:
                rows = needs[item].last - needs[item].first
                size = ceil_div(_bytes(item, self.greatest) * rows, region.rows_of(item))
                result.append(_Event((self._viewed(item),), (number, item), size))
            for variable, _ in region.calls:
                if not self.stored[variable]:
                    continue
                reads = tuple(
                    (number, item) if item in in_region or item in copied else self._viewed(item)
                    for item in self.reads[variable]
                )
                size = self.sizes[variable]
                if variable.same_as(region.cut):
                    result.append(_Event(reads, variable, size))
                else:
                    need, rows = needs[variable], region.rows_of(variable)
                    result.append(_Event(reads, (number, variable), size * (need.last - need.first) // rows))
        return result

    def _copied(self, region: ImageRegion) -> list[Any]:
        """The inputs of a region that a convolution or a pool reads: each band copies its rows of them."""
        copied = [
            item
            for _, call in region.calls
            if not is_elementwise(call) and operator(call) != "relax.nn.pad"
            for item in _read(call)
        ]
        return [item for item in region.inputs if item in copied]


def peak_of(events: Sequence[_Event]) -> int:
    """The most bytes alive at one step."""
    last = {name: index for index, event in enumerate(events) for name in (*event.reads, event.writes)}
    alive: dict[Any, int] = {}
    peak = alive_bytes = 0
    for index, event in enumerate(events):
        alive_bytes += event.bytes - alive.get(event.writes, 0)
        alive[event.writes] = event.bytes
        peak = max(peak, alive_bytes)
        for name in (*event.reads, event.writes):
            if last[name] == index:
                alive_bytes -= alive.pop(name, 0)
    return peak


def in_patches(mod: tvm.IRModule, limit: int | None) -> tuple[tvm.IRModule, PatchRecord | None]:
    """`mod`, its first layers in patches if it needs more than `limit` bytes, and the choice made."""
    func = mod["main"]
    if limit is None or len(func.body.blocks) != 1:
        return mod, None
    candidates = regions(func)
    if not candidates:
        return mod, None
    graph, room = _StoredTensors(func, Dims("main", mod).greatest), limit - _STATIC
    before = peak_of(graph.events() or [])
    if before <= room:
        return mod, None
    choices = []
    cuts = [(number, region) for number, region in enumerate(candidates) if graph.stored[region.cut]]
    for number, region in cuts[:_CUTS]:
        for count in dict.fromkeys(ceil_div(region.rows, h) for h in _HEIGHTS if h < region.rows):
            if count > _MOST_BANDS:
                continue
            events = graph.events(region, count)
            if events is None:
                continue
            peak, (macs_before, macs) = peak_of(events), macs_of(region, count)
            if peak < before:
                choices.append((max(peak - room, 0), macs - macs_before, count, peak, number))
    for _, more, count, peak, number in sorted(choices):
        divided_mod = divided(mod, number, count)
        if divided_mod is not None:
            region = candidates[number]
            layers = sum(not is_elementwise(call) for _, call in region.calls)
            return divided_mod, PatchRecord(
                layers=layers, parts=len(bands(region.rows, count)), macs=more + macs_of(region, 1)[0],
                more_macs=more, limit_bytes=limit, bytes_before=before, bytes_after=peak,
            )  # fmt: skip
    return mod, None
