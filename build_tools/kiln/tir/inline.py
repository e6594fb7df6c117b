"""The element that a loop nest stores, with the nests that it reads written into the expression.

Written out at every use, a value that is read twice doubles the expression, and a chain of such values makes
it exponential. So nests are followed as a graph: an *instance* is a nest at some indices, and is expanded
once, however often it is read. Small expressions are written out in full, since LLVM shares what is equal in
them; in larger ones each instance that is read more than once becomes a step, which kernels compute into a
register before the element. Expressions that would grow deep are cut into steps too.

An instance that is read only under a condition (the border of a padded tensor) is not a step: its indices may
lie outside the tensor where the condition does not hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, TensorLoad

from kiln.callbacks import structural_map, structural_walk

Expr = Any

# Nests in one expression that is written out in full.
LARGEST_TREE = 128
# Nests in one step of a larger one.
_DEEPEST = 32
# Instances of one element, and nests in one expression: more is refused.
_MOST = 1024


class TooLarge(Exception):  # noqa: N818 - not an error: the caller stores some of the nests
    """An element has too many instances, or one that must be written out in full is too large."""


@dataclass(frozen=True)
class Step:
    """A value that later steps and the element read as `buffer`[0], a buffer that stands for a register."""

    buffer: Any
    value: Expr


@dataclass(frozen=True)
class Expanded:
    """`value`: the element of a nest, over the axes of the nest, after `steps` in their order."""

    steps: list[Step]
    value: Expr

    @property
    def expressions(self) -> list[Expr]:
        """The steps' values and the element."""
        return [*(step.value for step in self.steps), self.value]

    def reads(self) -> list[Any]:
        """The loads of tensors in memory, in the order of the expressions."""
        own = {step.buffer for step in self.steps}
        return [load for expr in self.expressions for load in loads(expr) if load.source not in own]


@dataclass
class _Instance:
    nest: Any
    indices: list[Expr]
    uses: int = 0
    free: bool = False  # read where no condition guards the read
    value: Expr = None
    size: int = 0


def loads(expr: Expr) -> list[Any]:
    """The loads of an expression, those in indices before the load that they belong to."""
    found: list[Any] = []
    structural_walk(expr, ((TensorLoad, found.append),))
    return found


def guarded(expr: Expr) -> list[Expr]:
    """The parts of an expression that are computed only under a condition.

    Those of a Select are among them: TVM makes a branch of it where a part might read outside of a tensor.
    """
    found: list[Expr] = []

    def on_call(call: Any) -> None:
        if getattr(call.op, "name", "").removeprefix("tirx.") == "if_then_else":
            found.extend(call.args[1:])

    def on_select(select: Any) -> None:
        found.extend([select.true_value, select.false_value])

    structural_walk(expr, ((Call, on_call), (tirx.Select, on_select)))
    return found


class _Expansion:
    """The instances that one element needs. `nests`: those that are written in, by buffer, in order."""

    def __init__(self, nests: Mapping[Any, Any], bind: Any) -> None:
        self.nests, self.bind = nests, bind
        self.order = {buffer: number for number, buffer in enumerate(nests)}
        self.found: list[dict[Any, _Instance]] = [{} for _ in nests]

    def note(self, expr: Expr, free: bool) -> None:
        """Count the instances that `expr` reads."""
        inside = [id_of(load) for part in guarded(expr) for load in self._outermost(part)]
        for load in self._outermost(expr):
            instance = self._instance(load)
            instance.uses += 1
            instance.free = instance.free or (free and id_of(load) not in inside)

    def _outermost(self, expr: Expr) -> list[Any]:
        found: list[Any] = []

        def visit(load: Any) -> Any:
            if load.source not in self.nests:
                return tvm_ffi.WalkResult.ADVANCE
            found.append(load)
            return tvm_ffi.WalkResult.SKIP

        structural_walk(expr, ((TensorLoad, visit),), order="pre")
        return found

    def _instance(self, load: Any) -> _Instance:
        known = self.found[self.order[load.source]]
        key = tvm_ffi.StructuralKey(list(load.indices))
        if key not in known:
            known[key] = _Instance(self.nests[load.source], list(load.indices))
        return known[key]

    def follow(self, value: Expr) -> None:
        """Find all instances that `value` needs, from the last nest to the first: readers come later."""
        self.note(value, free=True)
        count = 0
        for known in reversed(self.found):
            for instance in known.values():
                count += 1
                if count > _MOST:
                    raise TooLarge
                instance.value = self.bind(instance.nest, instance.indices)
                self.note(instance.value, instance.free)

    def written(self, value: Expr) -> tuple[Expr, int]:
        """`value` with what its instances have become, and how many nests it holds."""
        size = 1

        def on_load(load: Any) -> Any:
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
        """The element `value`; with `share` in steps."""
        self.follow(value)
        steps: list[Step] = []
        for known in self.found:
            for instance in known.values():
                made, instance.size = self.written(instance.value)
                instance.value = made
                again = instance.uses > 1 or instance.size > _DEEPEST
                if share and instance.free and again and not _is_leaf(made):
                    buffer = tirx.decl_buffer([1], str(instance.nest.buffer.dtype), f"shared{len(steps)}")
                    steps.append(Step(buffer, made))
                    instance.value, instance.size = tirx.BufferLoad(buffer, [tirx.IntImm("int64", 0)]), 0
        return Expanded(steps, self.written(value)[0])


def id_of(node: Any) -> int:
    """The address of a node: two Python objects may stand for one."""
    return int(node.__chandle__())


def _is_leaf(expr: Expr) -> bool:
    return isinstance(expr, TensorLoad | tirx.IntImm | tirx.FloatImm)


def expand(nests: Mapping[Any, Any], bind: Any, value: Expr, share: bool) -> Expanded:
    """The element `value` with the `nests` written in, which are given by buffer, in order.

    `bind`(nest, indices) is what a nest stores at some indices. Raises TooLarge.
    """
    return _Expansion(nests, bind).expand(value, share)


def weights(nests: Sequence[Any], stored: Any) -> dict[Any, int]:
    """By buffer how many nests its element holds when written out in full; nothing of what is in `stored`."""
    found: dict[Any, int] = {}
    for nest in nests:
        read = [load.source for load in loads(nest.value)]
        found[nest.buffer] = 1 + sum(found.get(buffer, 0) for buffer in read if buffer not in stored)
    return found
