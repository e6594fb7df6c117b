"""A fused PrimFunc, read as loop nests: which buffer each nest writes, over which axes, with which value.

TVM's FuseTIR writes one nest or more for each original operator; each nest stores one buffer. Kernel families
do not schedule these nests: they get the expression of an element from this module and write their own loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call, Expr, TensorLoad

from kiln.callbacks import structural_map, structural_walk
from kiln.extents import Extent, extent
from kiln.params.encodings import Encoding
from kiln.tir.inline import LARGEST_TREE, Expanded, TooLarge, expand, guarded, loads, weights
from kiln.tir.op_names import op_name
from kiln.tir.stored import Table
from kiln.tir.symbols import NO_RANGES, SymbolRanges

Load = Callable[[list[Expr]], Expr]

# Functions whose results are worth storing rather than computing twice.
_COSTLY = ("exp", "tanh", "erf", "sigmoid", "log", "pow", "sqrt", "rsqrt", "sin", "cos")


class NotSimple(Exception):  # noqa: N818 - not an error: the caller has a fallback
    """Raised for a PrimFunc that is not made of nests with one store each; it is compiled unchanged."""


@dataclass(frozen=True)
class Nest:
    """A loop nest: buffer[store] = value for all `axes`; accumulates from `init` along `reduced` axes."""

    buffer: Any
    axes: list[Any]
    reduced: list[Any]
    store: list[Expr]
    value: Expr
    init: Expr | None

    @property
    def extents(self) -> list[Extent]:
        """The extents of `axes`."""
        return [extent(axis.dom.extent) for axis in self.axes]


def replace(expr: Expr, variables: Mapping[Any, Expr], loads: Mapping[Any, Load]) -> Expr:
    """`expr` with `variables` replaced by expressions, and loads of the buffers in `loads` replaced.

    The function in `loads` gets the indices of a load and returns the expression that replaces the load.
    """

    def on_variable(variable: Any) -> Any:
        return variables.get(variable, variable)

    def on_load(load: TensorLoad) -> Any:
        function = loads.get(load.source)
        return load if function is None else function(list(load.indices))

    return structural_map(expr, ((tirx.Var, on_variable), (TensorLoad, on_load)))


class Fused:
    """The nests of a PrimFunc in order. Raises NotSimple if the PrimFunc is not made of such nests.

    `ranges`: of the variables in the shapes of its buffers.
    """

    def __init__(self, func: tirx.PrimFunc, ranges: SymbolRanges = NO_RANGES) -> None:
        self.func, self.ranges = func, ranges
        self.params = list(func.params)
        root = func.body
        if not isinstance(root, s_tir.SBlockRealize):
            raise NotSimple("no root block")
        body = root.block.body
        statements = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
        self.nests = [_read_nest(statement) for statement in statements]
        self.by_buffer: dict[Any, Nest] = {}
        for nest in self.nests:
            if nest.buffer in self.by_buffer:
                raise NotSimple(f"{nest.buffer.name} is written twice")
            self.by_buffer[nest.buffer] = nest
        self.outputs = [param for param in self.params if param in self.by_buffer]
        # Offsets of tensors inside their parents (lower/views/in_place_padding.py), by parameter.
        self.origins: dict[Any, tuple[int, ...]] = {}
        # Of int8 constants, a limit of their magnitudes (kernels/cpu/gemm_int8.py).
        self.magnitudes: dict[Any, int] = {}
        # Of int16 constants, the pairs of products whose sum fits 32 bits (kernels/cpu/gemm_pairs.py).
        self.together: dict[Any, int] = {}
        # Forms in which constant parameters may be stored, by parameter.
        self.encodings: dict[Any, Encoding] = {}
        # How constant parameters are stored that kernels read as they are, by parameter.
        self.tables: dict[Any, Table] = {}
        # Cache of `expanded`. Each entry holds its nest too, so that the id in the key is not reused.
        self._expanded: dict[Any, tuple[Nest, Expanded]] = {}

    def value(self, nest: Nest, bound: Mapping[Any, Expr], stop: Mapping[Any, Load]) -> Expr:
        """The value that `nest` stores (or adds), with its axes replaced by `bound`.

        Loads of the buffers in `stop` are replaced by what the functions in `stop` return; loads of all other
        nests are expanded in full. Raises NotSimple if the expression becomes too large.
        """
        try:
            expanded = self.expanded(nest, list(stop), share=False)
        except TooLarge:
            raise NotSimple(f"{nest.buffer.name} is made of too many values") from None
        return replace(expanded.value, bound, stop)

    def expanded(self, nest: Nest, stored: Iterable[Any], share: bool = True) -> Expanded:
        """The element of `nest` as a function of its axes, of parameters and of the buffers in `stored`.

        If the expression is large and `share` is set, each value that is read more than once becomes a step.
        Raises TooLarge.
        """
        stop = frozenset(buffer for buffer in stored if buffer in self.by_buffer) | {nest.buffer}
        key = (id(nest), stop, share)
        if key not in self._expanded:
            inner = {buffer: other for buffer, other in self.by_buffer.items() if buffer not in stop}
            large = weights(self.nests, stop)[nest.buffer] > LARGEST_TREE
            self._expanded[key] = nest, expand(inner, self._bound, nest.value, share and large)
        return self._expanded[key][1]

    def _bound(self, nest: Nest, indices: Sequence[Expr]) -> Expr:
        """The value that `nest` stores at `indices`; NotSimple for reductions and computed positions."""
        if nest.reduced:
            raise NotSimple(f"{nest.buffer.name} is a reduction inside an expression")
        if not nest.store:  # a scalar, which TVM computes in a loop of extent 1
            return replace(nest.value, {axis.var: tirx.IntImm("int64", 0) for axis in nest.axes}, {})
        bound = {}
        for axis, position, index in zip(nest.axes, nest.store, indices, strict=True):
            if position is not axis.var and not tvm_ffi.structural_equal(position, axis.var):
                raise NotSimple(f"{nest.buffer.name} is stored at a computed position")
            bound[axis.var] = index
        return replace(nest.value, bound, {})

    def inputs(self, nest: Nest, stored: Sequence[Any]) -> list[Any]:
        """The buffers that computing `nest` reads, in order of first use.

        Buffers in `stored` are read; buffers of other nests are expanded into the values that they are made
        of.
        """
        sources = dict.fromkeys(load.source for load in self.expanded(nest, stored).reads())
        return [buffer for buffer in sources if not buffer.same_as(nest.buffer)]

    def same_index(
        self, nest: Nest, stored: Sequence[Any], buffers: Sequence[tirx.Buffer]
    ) -> tuple[int, ...]:
        """Positions in `buffers` of the buffers that the output of `nest` may overwrite.

        These are the buffers with the output's shape and element size that `nest` reads at no other index
        than the one that it stores.
        """
        width = tvm.DataType(str(nest.buffer.dtype)).bits
        elsewhere: list[Any] = []
        for load in self.expanded(nest, stored).reads():
            same_indices = all(
                tvm_ffi.structural_equal(a, b) for a, b in zip(load.indices, nest.store, strict=False)
            )
            if not same_indices or len(load.indices) != len(nest.store):
                elsewhere.append(load.source)
        shape = list(nest.buffer.shape)
        return tuple(
            position
            for position, buffer in enumerate(buffers)
            if not nest.reduced
            and not buffer.same_as(nest.buffer)
            and self.ranges.same_shape(list(buffer.shape), shape)
            and tvm.DataType(str(buffer.dtype)).bits == width
            and not any(buffer.same_as(other) for other in elsewhere)
        )

    def epilogue(self, anchor: Nest) -> Nest:
        """The last nest that can be computed from each element of `anchor` as soon as that element is known.

        That nest has the anchor's shape, reads no other element of it (as a slice of the anchor does that the
        anchor is divided by), and is not a large expression; no other nest reads a buffer of `anchor` or of a
        nest between the two, and none of these buffers is an output. Returns `anchor` if there is none.
        """
        position = self.nests.index(anchor)
        size = weights(self.nests, {anchor.buffer})
        for end in range(len(self.nests) - 1, position, -1):
            last = self.nests[end]
            if last.reduced or not self.ranges.same_shape(last.extents, anchor.extents):
                continue
            if size[last.buffer] > LARGEST_TREE:
                continue
            between = [n.buffer for n in self.nests[position:end] if n.buffer in self.params]
            inner = {nest.buffer for nest in self.nests[position:end]}
            later = [n for n in self.nests if n is not last and n not in self.nests[position:end]]
            read_later = any(read in inner for nest in later for read in _reads(nest.value))
            if not between and not read_later and self._reads_one_element(last, anchor):
                return last
        return anchor

    def _reads_one_element(self, last: Nest, anchor: Nest) -> bool:
        """Whether each element of `last` reads of `anchor` none but the element at its own indices."""
        try:
            read = self.expanded(last, [anchor.buffer]).reads()
        except (NotSimple, TooLarge):
            return True  # another reduction between the two: callers look for it
        own = {axis.var: other.var for axis, other in zip(anchor.axes, last.axes, strict=True)}
        here = [replace(index, own, {}) for index in anchor.store]
        places = {
            axis.var: (0, self.ranges.greatest(size) - 1)
            for axis, size in zip(last.axes, last.extents, strict=True)
        }
        ranges = SymbolRanges({**self.ranges.ranges, **places})
        return not here or all(
            ranges.same_shape(list(load.indices), here) for load in read if load.source.same_as(anchor.buffer)
        )

    def materialised(self) -> list[Nest]:
        """The nests that must be computed and stored, in order.

        These are outputs, reductions, costly values that are read more than once, and nests that would make
        an expression too large.
        """
        reads: dict[Any, int] = {}
        for nest in self.nests:
            for buffer in _reads(nest.value):
                reads[buffer] = reads.get(buffer, 0) + (2 if nest.reduced else 1)
        kept_buffers = {
            nest.buffer
            for nest in self.nests
            if nest.buffer in self.params
            or nest.reduced
            or (reads.get(nest.buffer, 0) > 1 and _is_costly(nest.value))
        }
        twice = {nest.buffer for nest in self.nests if reads.get(nest.buffer, 0) > 1}
        for more in (self._unshareable(kept_buffers), twice, set(self.by_buffer)):
            kept_buffers |= more
            if self._fits(kept_buffers):
                break
        return [nest for nest in self.nests if nest.buffer in kept_buffers]

    def _unshareable(self, stored_nests: Set[Any]) -> set[Any]:
        """Buffers of large values that are read under a condition or at several indices.

        No register can hold such a value for all of its reads.
        """
        stored, unshareable = set(stored_nests), set()
        size: dict[Any, int] = {}
        for nest in self.nests:
            read = loads(nest.value)
            for buffer in {load.source for load in read} - stored:
                if size.get(buffer, 0) <= LARGEST_TREE:
                    continue
                indices = {
                    tvm_ffi.StructuralKey(list(load.indices)) for load in read if load.source.same_as(buffer)
                }
                if len(indices) > 1 or any(buffer in _reads(branch) for branch in guarded(nest.value)):
                    unshareable.add(buffer)
            stored |= unshareable
            size[nest.buffer] = 1 + sum(
                size.get(load.source, 0) for load in read if load.source not in stored
            )
        return unshareable

    def _fits(self, kept: Set[Any]) -> bool:
        """Whether every nest in `kept` has an expression that is not too large, if just `kept` is stored."""
        try:
            for nest in self.nests:
                if nest.buffer in kept:
                    self.expanded(nest, kept)
        except TooLarge:
            return False
        return True


def _reads(expr: Expr) -> list[Any]:
    return [load.source for load in loads(expr)]


def _is_costly(expr: Expr) -> bool:
    costly = []

    def visit(call: Any) -> None:
        if op_name(call) in _COSTLY:
            costly.append(call)

    structural_walk(expr, ((Call, visit),))
    return bool(costly)


def _read_nest(statement: tirx.Stmt) -> Nest:
    while isinstance(statement, tirx.For):
        statement = statement.body
    if not isinstance(statement, s_tir.SBlockRealize):
        raise NotSimple(f"a nest ends in {type(statement).__name__}")
    block = statement.block
    store = block.body
    if not isinstance(store, tirx.BufferStore) or block.alloc_buffers:
        raise NotSimple(f"block {block.name_hint} does not store one value")
    reduced = [axis for axis in block.iter_vars if axis.iter_type == tirx.IterVar.CommReduce]
    axes = [axis for axis in block.iter_vars if axis.iter_type != tirx.IterVar.CommReduce]
    init = None
    if block.init is not None:
        if not isinstance(block.init, tirx.BufferStore):
            raise NotSimple(f"block {block.name_hint} starts from more than one value")
        init = block.init.value
    elif reduced:
        raise NotSimple(f"block {block.name_hint} accumulates without a start")
    return Nest(store.buffer, axes, reduced, list(store.indices), store.value, init)
