"""Operands whose type PyTorch changes while it computes, made explicit before the export.

PyTorch's exporter makes types explicit, too, but fails at a number as the first operand that changes the type
of a tensor (1.0 - mask, 7 // counts), at floor divisions of integers by such numbers, and at copysign with a
number. It computes softmax in the type of its operand where another one is asked for, and leaves the types of
a power, of tensors that are stacked, and of sums in einsum, as they are. It also fails at
remainders and powers with a dynamic size as the number, which becomes a tensor here. Of the operators on bits
it lacks shifts of two tensors that a program writes as `a << b`, fails where the types of the operands
differ, and computes `mask & 1` as a truth value: all become operators of two tensors of the result's type. It
fails at a clamp of floats by an integer and a float, or by a dynamic size: the limits become floats, or
tensors. It knows the types of mul, div and gt, and not those of their other names multiply, divide and
greater, which become the former.
"""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kiln.frontend.torch.library import graphs_of
from kiln.frontend.torch.present import aten as own_operators

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Graph, Node


def with_explicit_types(program: ExportedProgram) -> ExportedProgram:
    """`program`, an ExportedProgram, with casts before these operators; changed in place."""
    import torch

    aten = own_operators()
    subtractions = {aten.rsub.Scalar, aten.rsub.Tensor, aten.sub.Tensor, aten.sub.Scalar}
    divisions = {
        aten.floor_divide.Scalar: aten.floor_divide.default,
        aten.floor_divide.default: aten.floor_divide.default,
        aten.copysign.Scalar: aten.copysign.Tensor,
    }
    of_numbers, of_bits, first_names = _of_numbers(aten), _of_bits(aten), _first_names(aten)
    powers = {aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar}
    curves = {aten.softmax.int, aten.log_softmax.int, aten.square.default}
    for node in [node for graph in graphs_of(program) for node in graph.nodes]:
        graph = node.graph
        if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        node.target = first_names.get(node.target, node.target)
        with graph.inserting_before(node):
            if node.target in of_numbers and any(_is_size(torch, operand) for operand in node.args[:2]):
                operands = [_tensor(torch, graph, operand, node) for operand in node.args[:2]]
                node.target, node.args = of_numbers[node.target], tuple(operands)
            if node.target in of_bits:
                operands = [_tensor(torch, graph, operand, node) for operand in node.args[:2]]
                node.target, node.args = of_bits[node.target], tuple(operands)
            if node.target in subtractions | curves | powers:
                node.args = (_cast(torch, graph, node.args[0], node), *node.args[1:])
            if node.target in subtractions | powers:
                node.args = (node.args[0], _cast(torch, graph, node.args[1], node), *node.args[2:])
            if node.target is aten.clamp.default and node.meta["val"].is_floating_point():
                _clamp_by_floats(torch, graph, node)
            if node.target in divisions:
                operands = [_tensor(torch, graph, operand, node) for operand in node.args[:2]]
                node.target, node.args = divisions[node.target], tuple(operands)
            for operator, place in ((aten.stack.default, 0), (aten.einsum.default, 1)):
                if node.target is operator:
                    parts = [_cast(torch, graph, part, node) for part in node.args[place]]
                    node.args = (*node.args[:place], parts, *node.args[place + 1 :])
    for graph in graphs_of(program):
        graph.owning_module.recompile()
    return program


def _of_numbers(aten: Any) -> dict[Any, Any]:
    """The operators of two tensors, by the operator of a tensor and a number."""
    tables: dict[Any, tuple[Any, ...]] = {
        aten.remainder.Tensor: (aten.remainder.Scalar, aten.remainder.Scalar_Tensor),
        aten.pow.Tensor_Tensor: (aten.pow.Tensor_Scalar, aten.pow.Scalar),
    }
    return {single: pair for pair, singles in tables.items() for single in singles}


def _first_names(aten: Any) -> dict[Any, Any]:
    """Operators by the same ones of another name: PyTorch has two for some."""
    names = {"divide": "div", "true_divide": "div", "multiply": "mul", "subtract": "sub"}
    names |= {"greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne"}
    names |= {"arctan2": "atan2", "clip": "clamp"}
    made = {}
    for name, first in names.items():
        packet, known = getattr(aten, name), getattr(aten, first)
        for overload in ("Tensor", "Scalar", "Tensor_mode", "Scalar_mode", "default"):
            if hasattr(packet, overload) and hasattr(known, overload):
                made[getattr(packet, overload)] = getattr(known, overload)
    return made


def _of_bits(aten: Any) -> dict[Any, Any]:
    """By bitwise or logical operator, its overload for two tensors, which the exporter supports."""
    made, overloads = {}, ("Tensor", "Scalar", "Tensor_Scalar", "Scalar_Tensor")
    for name, written in (
        ("bitwise_left_shift", "__lshift__"),
        ("bitwise_right_shift", "__rshift__"),
        ("bitwise_and", "__and__"),
        ("bitwise_or", "__or__"),
        ("bitwise_xor", "__xor__"),
    ):
        exported = getattr(aten, name)
        for packet, overload in itertools.product((exported, getattr(aten, written)), overloads):
            if hasattr(packet, overload):
                made[getattr(packet, overload)] = exported.Tensor
    return made


def _is_size(torch: ModuleType, operand: Any) -> bool:
    """Whether an operand is a number that depends on dynamic sizes."""
    value = operand.meta.get("val") if isinstance(operand, torch.fx.Node) else None
    return isinstance(value, (torch.SymInt, torch.SymFloat))


def _clamp_by_floats(torch: ModuleType, graph: Graph, node: Node) -> None:
    """Make the limits of a clamp floats, or tensors of the result's type if one of them is a size."""
    x, *limits = node.args
    limits += [node.kwargs.get(name) for name in ("min", "max")[len(limits) :]]
    if any(_is_size(torch, limit) for limit in limits):
        node.target = torch.ops.aten.clamp.Tensor
        limits = [None if limit is None else _tensor(torch, graph, limit, node) for limit in limits]
    node.args = (
        _cast(torch, graph, x, node),
        *(float(limit) if isinstance(limit, int) else limit for limit in limits),
    )
    node.kwargs = {}


def _cast(torch: ModuleType, graph: Any, operand: Any, node: Node) -> Any:
    """An operand of `node`, cast to the type of the node's result; a number is not changed."""
    value = operand.meta.get("val") if isinstance(operand, torch.fx.Node) else None
    kind = node.meta["val"].dtype
    if not isinstance(value, torch.Tensor) or value.dtype == kind or value.is_complex() or kind.is_complex:
        return operand
    return _call(graph, torch.ops.aten._to_copy.default, (operand,), {"dtype": kind}, value.to(kind))


def _tensor(torch: ModuleType, graph: Any, operand: Any, node: Node) -> Any:
    """An operand of `node` as a tensor of the type of its result."""
    if isinstance(operand, torch.fx.Node) and not _is_size(torch, operand):
        return _cast(torch, graph, operand, node)
    options = {"dtype": node.meta["val"].dtype}
    value = node.meta["val"].new_empty(())
    return _call(graph, torch.ops.aten.full.default, ([], operand), options, value)


def _call(graph: Graph, target: Any, args: tuple[Any, ...], keywords: dict[str, Any], value: Any) -> Any:
    replacement = graph.call_function(target, args, keywords)
    replacement.meta["val"] = value
    return replacement
