"""Rows of quantised tables whose zero points are floats: looked up as levels, and dequantised then.

PT2E quantises the tables of embeddings in this way. ONNX's zero points are integers, so the whole table would
be computed in advance, and stored in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln.frontend.torch.library import graphs_of
from kiln.frontend.torch.quantised import levels_library

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node


def with_dequantised_rows(program: ExportedProgram) -> ExportedProgram:
    """`program`, changed in place, in which such tables are dequantised after rows are looked up."""
    import torch

    for graph in graphs_of(program):
        nodes = graph.find_nodes(op="call_function", target=torch.ops.aten.embedding.default)
        for node in nodes:
            table: Any = node.args[0]
            if _has_float_zeros(table):
                _dequantise_rows(node)
                if not table.users:
                    graph.erase_node(table)
        graph.owning_module.recompile()
    return program


def _has_float_zeros(table: Any) -> bool:
    """Whether a node dequantises rows with zero points that are floats."""
    if table.target is not levels_library().dequantize_per_channel.default:
        return False
    zeros, axis = table.args[2:4]
    return axis == 0 and zeros is not None and bool(zeros.meta["val"].dtype.is_floating_point)


def _dequantise_rows(node: Node) -> None:
    """Replace a node that looks up rows of a dequantised table by rows of its levels, dequantised."""
    import torch

    aten = torch.ops.aten
    table: Any = node.args[0]
    levels, scales, zeros = table.args[:3]
    dtype = table.kwargs.get("out_dtype") or torch.float32

    def call(target: Any, *arguments: Any, **keywords: Any) -> Node:
        values = [value.meta["val"] if isinstance(value, torch.fx.Node) else value for value in arguments]
        made = node.graph.call_function(target, arguments, keywords)
        made.meta["val"] = target(*values, **keywords)
        return made

    with node.graph.inserting_before(node):
        rows = call(aten.embedding.default, levels, node.args[1])
        scale, zero = (
            call(aten.embedding.default, call(aten.unsqueeze.default, each, 1), node.args[1])
            for each in (scales, zeros)
        )
        difference = call(aten.sub.Tensor, call(aten._to_copy.default, rows, dtype=torch.float32), zero)
        result = call(aten._to_copy.default, call(aten.mul.Tensor, difference, scale), dtype=dtype)
    node.replace_all_uses_with(result)
    node.graph.erase_node(node)
