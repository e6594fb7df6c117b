"""Chooses the layers that are computed in patches, and the number of parts, for a limit of RAM.

Peaks are estimated on the graph, before fusion: a tensor takes memory if an operator other than an
elementwise one reads it; a tensor that only a padding reads is stored inside the padded one, and elements
that a reduction alone reads are computed where it reads them, from tensors that are stored. In a band, a
kernel that a convolution begins reads whole tensors: of a longer one its rows are copied. Among the choices
whose peak is within the limit, the one with the fewest multiply-adds is used; if there is none, the one with
the lowest peak.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from kiln.config import Target
from kiln.config.memory import region_of, regions_of
from kiln.config.sizes import ceil_div
from kiln.extents import shape_of
from kiln.graph.bindings import operands, operator
from kiln.lower.dims import Dims
from kiln.lower.patches import ImageRegion, bands, divided, macs_of, regions, rows_of
from kiln.lower.row_rules import Need, is_elementwise
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
    return [item for item in operands(call) if isinstance(item, relax.Var)]


def _changes_shape(call: Any) -> bool:
    """Whether a call is a reshape to another shape."""
    return operator(call) == "relax.reshape" and shape_of(call) != shape_of(call.args[0])


class _StoredTensors:
    """The tensors of a function that take memory, and the steps that compute them.

    `greatest`: the greatest value of a size, for which memory is planned.
    """

    def __init__(self, mod: tvm.IRModule, greatest: Greatest) -> None:
        func, functions = mod["main"], dict(mod.functions_items())
        self.greatest = greatest
        self.bindings = [(b.var, b.value) for b in func.body.blocks[0].bindings]
        self.calls = dict(self.bindings)
        self.elementwise = {variable for variable, call in self.bindings if is_elementwise(call, functions)}
        self.outside = {*func.params, func.body.body}
        for variable, call in self.bindings:  # the caller's memory in another shape, such as a signal's
            if operator(call) == "relax.reshape" and call.args[0] in self.outside:
                self.outside.add(variable)
        readers: dict[Any, list[Any]] = {}
        for variable, call in self.bindings:
            for item in _read(call):
                readers.setdefault(item, []).append(variable)
        self.stored: dict[Any, bool] = {}
        kernels: dict[Any, set[Any]] = {}  # by variable: those that read it, by the tensor that each stores
        for variable, call in reversed(self.bindings):
            kernels[variable] = set().union(
                *(kernels[one] if self._is_fused(one) and not self.stored[one] else {one}
                  for one in readers.get(variable, []))
            )  # fmt: skip
            self.stored[variable] = self._is_stored(call, readers.get(variable, []), len(kernels[variable]))
        computed = set[Any]()  # elementwise, from stored tensors alone
        for variable, call in self.bindings:
            sources = [item for item in _read(call) if item in self.calls]
            if variable in self.elementwise and all(
                self.stored[item] or item in computed for item in sources
            ):
                computed.add(variable)
                called = [operator(self.calls[reader]) for reader in readers.get(variable, [])]
                if len(called) == 1 and called[0] in _REDUCTIONS:
                    self.stored[variable] = False
        self.stored[func.body.body] = True
        self.sizes = {
            v: 0 if v in self.outside else _bytes(v, greatest) for v, _ in self.bindings if self.stored[v]
        }
        self.reads = {v: self.sources(call) for v, call in self.bindings if self.stored[v]}

    def _is_fused(self, variable: Any) -> bool:
        """Whether the call that computes a variable can be fused after what it reads."""
        changes = _changes_shape(self.calls[variable])
        return variable in self.elementwise and (variable in self.outside or not changes)

    def _is_stored(self, call: Any, readers: Sequence[Any], kernels: int) -> bool:
        """Whether a call's result takes memory; `kernels`: the number of those that read it.

        Fusion stops at a reshape: one to the same shape is stored in place of what it reads, another one is a
        view of it.
        """
        if operator(call) == "relax.reshape":
            return not _changes_shape(call)
        if [operator(self.calls[one]) for one in readers] == ["relax.nn.pad"]:
            return False
        return kernels > 1 or not all(map(self._is_fused, readers))

    def sources(self, call: Any) -> tuple[Any, ...]:
        """The stored tensors, and views of them, that `call` reads, through tensors that are not stored."""
        tensors: dict[Any, None] = {}
        for item in _read(call):
            if self._is_read(item):
                tensors[item] = None
            else:
                tensors.update(dict.fromkeys(self.sources(self.calls[item])))
        return tuple(tensors)

    def _is_read(self, item: Any) -> bool:
        """Whether kernels read a tensor, or a view of one, and do not compute its elements themselves."""
        return item not in self.calls or self.stored[item] or _changes_shape(self.calls[item])

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
                reads = []
                for item, part in self._read_in_band(variable, region, needs):
                    held = item in in_region or item in copied
                    name = (number, item) if held else self._viewed(item)
                    if part is not None:  # some rows of a tensor of the band
                        size = ceil_div(self.sizes[item] * part, region.rows_of(item))
                        result.append(_Event((name,), (number, item, variable), size))
                        name = number, item, variable
                    reads.append(name)
                size = self.sizes[variable]
                if variable.same_as(region.cut):
                    result.append(_Event(tuple(reads), variable, size))
                else:
                    need, rows_of_all = needs[variable], region.rows_of(variable)
                    size = size * (need.last - need.first) // rows_of_all
                    result.append(_Event(tuple(reads), (number, variable), size))
        return result

    def _read_in_band(
        self, variable: Any, region: ImageRegion, needs: Mapping[Any, Need]
    ) -> list[tuple[Any, int | None]]:
        """The stored tensors that a stored tensor of a band is computed from, with the rows that are copied.

        None for a tensor that is read in place.
        """
        read: dict[Any, int | None] = {}
        anchored = self._is_anchored(variable)

        def visit(reader: Any) -> None:
            need = region.rules[reader].rows_read(needs[reader].first, needs[reader].last)
            for item in _read(self.calls[reader]):
                if item in needs and item in self.sizes and item not in region.inputs and need is not None:
                    held = needs[item]
                    part = (need.first, need.last) != (held.first, held.last)
                    read[item] = need.last - need.first if part and anchored else read.get(item)
                elif self._is_read(item) or item not in region.rules:
                    read.setdefault(item, None)
                else:
                    visit(item)

        visit(variable)
        return list(read.items())

    def _is_anchored(self, variable: Any) -> bool:
        """Whether a convolution or a pool is in the kernel that computes a stored tensor."""
        if variable not in self.elementwise and operator(self.calls[variable]) != "relax.nn.pad":
            return True
        sources = [item for item in _read(self.calls[variable]) if item in self.calls]
        return any(not self.stored[item] and self._is_anchored(item) for item in sources)

    def _copied(self, region: ImageRegion) -> list[Any]:
        """The inputs of a region that a convolution or a pool reads: each band copies its rows of them."""
        copied = [
            item
            for variable, call in region.calls
            if variable not in self.elementwise and operator(call) != "relax.nn.pad"
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
    candidates = regions(mod)
    if not candidates:
        return mod, None
    graph, room = _StoredTensors(mod, Dims("main", mod).greatest), limit - _STATIC
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
        region = candidates[number]
        divided_mod = divided(mod, region, count)
        if divided_mod is not None:
            layers = sum(variable not in graph.elementwise for variable, _ in region.calls)
            return divided_mod, PatchRecord(
                layers=layers, parts=len(bands(region.rows, count)), macs=more + macs_of(region, 1)[0],
                more_macs=more, limit_bytes=limit, bytes_before=before, bytes_after=peak,
            )  # fmt: skip
    return mod, None
