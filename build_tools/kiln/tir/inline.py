"""The element that a loop nest stores, with the nests that it reads inlined into the expression.

If a value that is read twice is inlined at both reads, the expression doubles; a chain of such values makes
it exponential. So nests are traversed as a graph: an *instance* is a nest at some indices, and is expanded
once, however often it is read. Small expressions are inlined in full, since LLVM shares their equal
subexpressions; in larger expressions each instance that is read more than once becomes a step, which kernels
compute into a register before the element. Expressions that would grow deep are cut into steps too.

An instance that is read only under a condition (the border of a padded tensor) does not become a step: its
indices may be outside the tensor where the condition does not hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr, TensorLoad

from kiln.callbacks import structural_map, structural_walk
from kiln.tir.op_names import op_name

# Most nests in an expression that is inlined in full.
LARGEST_TREE = 128
# Most nests in one step of a larger expression.
_DEEPEST = 32
# Most instances of one element, and most nests in one expression; more raise TooLarge.
_MOST = 1024


class TooLarge(Exception):  # noqa: N818 - not an error: the caller stores some of the nests
    """Raised for an element with too many instances, or with too large an expression."""


@dataclass(frozen=True)
class SharedValue:
    """A shared value; later steps and the element read it as `buffer`[0]. The buffer becomes a register."""

    buffer: Any
    value: Expr


@dataclass(frozen=True)
class Expanded:
    """The element of a nest: compute `steps` in order, then `value`, a function of the nest's axes."""

    steps: list[SharedValue]
    value: Expr

    @property
    def expressions(self) -> list[Expr]:
        """The values of the steps, then the element."""
        return [*(step.value for step in self.steps), self.value]

    def reads(self) -> list[Any]:
        """The loads of tensors in memory (not of steps), in the order of `expressions`."""
        own_buffers = {step.buffer for step in self.steps}
        return [load for expr in self.expressions for load in loads(expr) if load.source not in own_buffers]


@dataclass
class _Instance:
    """A nest at some indices."""

    nest: Any
    indices: list[Expr]
    uses: int = 0
    free: bool = False  # at least one read is not under a condition
    value: Expr = None  # the expression that replaces a read
    size: int = 0  # nests in `value`


def loads(expr: Expr) -> list[Any]:
    """The loads in an expression; a load inside an index comes before the load with that index."""
    nodes: list[Any] = []
    structural_walk(expr, ((TensorLoad, nodes.append),))
    return nodes


def guarded(expr: Expr) -> list[Expr]:
    """The subexpressions that are computed only under a condition.

    The operands of a Select count too: TVM makes a branch of a Select with an operand that might read outside
    of a tensor.
    """
    branches: list[Expr] = []

    def on_call(call: Call) -> None:
        if op_name(call) == "if_then_else":
            branches.extend(call.args[1:])

    def on_select(select: Any) -> None:
        branches.extend([select.true_value, select.false_value])

    structural_walk(expr, ((Call, on_call), (tirx.Select, on_select)))
    return branches


class _Expansion:
    """The instances that one element needs. `nests`: the nests to inline, by buffer, in order."""

    def __init__(self, nests: Mapping[Any, Any], bind: Any) -> None:
        self.nests, self.bind = nests, bind
        self.order = {buffer: number for number, buffer in enumerate(nests)}
        self.instances: list[dict[Any, _Instance]] = [{} for _ in nests]  # per nest, by indices

    def note(self, expr: Expr, free: bool) -> None:
        """Count the reads of instances in `expr`; `free`: `expr` itself is not under a condition."""
        inside = [id_of(load) for branch in guarded(expr) for load in self._outermost(branch)]
        for load in self._outermost(expr):
            instance = self._instance(load)
            instance.uses += 1
            instance.free = instance.free or (free and id_of(load) not in inside)

    def _outermost(self, expr: Expr) -> list[Any]:
        """The loads of nests to inline in `expr`, without loads inside the indices of such loads."""
        outermost: list[Any] = []

        def visit(load: TensorLoad) -> Any:
            if load.source not in self.nests:
                return tvm_ffi.WalkResult.ADVANCE
            outermost.append(load)
            return tvm_ffi.WalkResult.SKIP

        structural_walk(expr, ((TensorLoad, visit),), order="pre")
        return outermost

    def _instance(self, load: TensorLoad) -> _Instance:
        instances = self.instances[self.order[load.source]]
        key = tvm_ffi.StructuralKey(list(load.indices))
        if key not in instances:
            instances[key] = _Instance(self.nests[load.source], list(load.indices))
        return instances[key]

    def follow(self, value: Expr) -> None:
        """Find all instances that `value` needs, from last to first nest, since nests read earlier nests."""
        self.note(value, free=True)
        count = 0
        for instances in reversed(self.instances):
            for instance in instances.values():
                count += 1
                if count > _MOST:
                    raise TooLarge
                instance.value = self.bind(instance.nest, instance.indices)
                self.note(instance.value, instance.free)

    def written(self, value: Expr) -> tuple[Expr, int]:
        """`value` with its instances replaced by their expressions, and its number of nests."""
        size = 1

        def on_load(load: TensorLoad) -> Any:
            nonlocal size
            if load.source not in self.nests:
                return load
            instance = self._instance(load)
            size += instance.size
            if size > _MOST:
                raise TooLarge
            return instance.value

        return structural_map(value, ((TensorLoad, on_load),), order="pre"), size

    def expand(self, value: Expr, share: bool) -> Expanded:
        """The expansion of the element `value`; with `share`, shared and large instances become steps."""
        self.follow(value)
        steps: list[SharedValue] = []
        for instances in self.instances:
            for instance in instances.values():
                inlined, instance.size = self.written(instance.value)
                instance.value = inlined
                worthwhile = instance.uses > 1 or instance.size > _DEEPEST
                if share and instance.free and worthwhile and not _is_leaf(inlined):
                    buffer = tirx.decl_buffer([1], str(instance.nest.buffer.dtype), f"shared{len(steps)}")
                    steps.append(SharedValue(buffer, inlined))
                    instance.value, instance.size = tirx.BufferLoad(buffer, [tirx.IntImm("int64", 0)]), 0
        return Expanded(steps, self.written(value)[0])


def id_of(node: Any) -> int:
    """The address of a TVM node: two Python objects may stand for one node."""
    return int(node.__chandle__())


def _is_leaf(expr: Expr) -> bool:
    return isinstance(expr, TensorLoad | tirx.IntImm | tirx.FloatImm)


def expand(nests: Mapping[Any, Any], bind: Any, value: Expr, share: bool) -> Expanded:
    """The element `value` with `nests` (by buffer, in order) inlined.

    `bind(nest, indices)` returns the value that a nest stores at some indices. With `share`, values that are
    read more than once become steps. Raises TooLarge.
    """
    return _Expansion(nests, bind).expand(value, share)


def weights(nests: Sequence[Any], stored: Any) -> dict[Any, int]:
    """Number of nests in the fully inlined element of each nest, by buffer; `stored` are not inlined."""
    counts: dict[Any, int] = {}
    for nest in nests:
        read = [load.source for load in loads(nest.value)]
        counts[nest.buffer] = 1 + sum(counts.get(buffer, 0) for buffer in read if buffer not in stored)
    return counts
