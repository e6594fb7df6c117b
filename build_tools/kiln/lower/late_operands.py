"""Order the graph so that a fused group begins with its convolution, product or reduction.

Fusion keeps the order of the operators. In tanh(b) + matmul(x, w) tanh may come first in the graph; the fused
group would begin with it, and no kernel family, which all read the first operator of a group, would take the
product. Here such an operand moves after the product, to just before the operator that reads both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from kiln.frontend import added_operators, loops
from kiln.graph.bindings import operator, variables
from kiln.lower.views.in_place_padding import OPAQUE

# Values of op_pattern (TVM's OpPatternKind).
_BROADCAST = 1  # up to here: an element of the result is computed from one element of each operand
_INJECTIVE = 2  # up to here: no reduction
_REDUCTION = 3  # fusion ends a group with it
_PRODUCT = 4  # convolutions and products: elementwise operators after it can be in its group
_ANCHORS = (_REDUCTION, _PRODUCT)


@dataclass(frozen=True)
class _GraphNode:
    """A binding: its op_pattern, positions of the bindings it reads, number of loop marks up to it, type."""

    pattern: int
    operands: list[int]
    segment: int
    type: Any = None


def late_operands(mod: tvm.IRModule) -> tvm.IRModule:
    """Move late operands to their readers; runs after AnnotateTIROpPattern and before fusion."""
    main = mod["main"]
    blocks = [
        relax.DataflowBlock(_ordered(mod, list(block.bindings)))
        if isinstance(block, relax.DataflowBlock)
        else block
        for block in main.body.blocks
    ]
    body = relax.SeqExpr(blocks, main.body.body)
    changed = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    mod.update_func(mod.get_global_var("main"), changed)
    return mod


def _ordered(mod: tvm.IRModule, bindings: Sequence[Any]) -> list[Any]:
    """The bindings in order, but each late one just before the first binding that reads it."""
    nodes = _nodes(mod, bindings)
    late = _late_bindings(nodes)
    order: dict[int, None] = {}
    for index in range(len(nodes)):
        stack = [] if index in late else [index]
        while stack:
            missing = [at for at in nodes[stack[-1]].operands if at in late and at not in order]
            if missing:
                stack.extend(missing)
            else:
                order.setdefault(stack.pop())
    return [bindings[at] for at in order]


def _nodes(mod: tvm.IRModule, bindings: Sequence[Any]) -> list[_GraphNode]:
    """A node for each binding, at the same position."""
    position = {binding.var: at for at, binding in enumerate(bindings)}
    nodes, segment = [], 0
    for binding in bindings:
        segment += added_operators.name_of(binding.value) in (loops.BEGIN, loops.END)
        operands = [position[var] for var in variables(binding.value) if var in position]
        called = operator(binding.value) == "relax.call_tir"
        pattern = int(mod[binding.value.args[0]].attrs["op_pattern"]) if called else OPAQUE
        nodes.append(_GraphNode(pattern, operands, segment, binding.var.ty))
    return nodes


def _late_bindings(nodes: Sequence[_GraphNode]) -> set[int]:
    """Positions of the bindings to move; none moves into a loop, where it would run in each iteration.

    What is computed from a product stays, as it may be part of that product's group. What is computed from a
    reduction, such as a scale from a maximum, moves. So does one of several parts of a product, such as a
    gate: to TVM a part that begins with the first element is elementwise, but fusion ends the group before.
    """
    anchor = [-1] * len(nodes)  # the last anchor from which a binding's elements are computed, or -1
    finishes = [False] * len(nodes)  # whether a binding's elements are computed from those of a product
    readers = _readers(nodes)
    for at, node in enumerate(nodes):
        if node.pattern in _ANCHORS:
            anchor[at] = at
            finishes[at] = node.pattern == _PRODUCT
        elif node.pattern <= _BROADCAST:
            anchor[at] = max((anchor[read] for read in node.operands), default=-1)
            finishes[at] = any(
                finishes[read] and (len(readers[read]) == 1 or _same_shape(node, nodes[read]))
                for read in node.operands
            )
    joined = [-1] * len(nodes)  # the last anchor whose elements are combined with those of a binding, or -1
    for at in reversed(range(len(nodes))):
        for reader in readers[at]:
            node = nodes[reader]
            if node.segment == nodes[at].segment and node.pattern <= _INJECTIVE:
                joined[at] = max(joined[at], joined[reader], anchor[reader])
    return {
        at
        for at, node in enumerate(nodes)
        if node.pattern <= _INJECTIVE and not finishes[at] and joined[at] > at
    }


def _readers(nodes: Sequence[_GraphNode]) -> list[list[int]]:
    """The positions of the bindings that read each binding."""
    readers: list[list[int]] = [[] for _ in nodes]
    for at, node in enumerate(nodes):
        for read in node.operands:
            readers[read].append(at)
    return readers


def _same_shape(node: _GraphNode, other: _GraphNode) -> bool:
    """Whether the results of two bindings are tensors of one shape."""
    shapes = [getattr(one.type, "shape", None) for one in (node, other)]
    return None not in shapes and tvm_ffi.structural_equal(*shapes)
