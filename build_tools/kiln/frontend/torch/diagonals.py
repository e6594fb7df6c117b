"""Replaces in-place writes to the diagonal of a matrix by torch.where with a mask.

PyTorch's exporter fails at `x.diagonal().add_(1)`, `diagonal_scatter` and `fill_diagonal_`: it writes them by
views of the result.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from kiln.frontend.torch.library import graphs_of
from kiln.frontend.torch.present import aten as own_operators

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Graph, Node


def without_diagonal_writes(program: ExportedProgram) -> ExportedProgram:
    """`program`, an ExportedProgram, with torch.where in place of writes to diagonals.

    The program itself where it has none.
    """
    import torch

    aten = torch.ops.aten
    calls = [node for graph in graphs_of(program) for node in graph.nodes if node.op == "call_function"]
    targets = {node.target for node in calls}
    fills = [node for node in calls if node.target is aten.fill_diagonal_.default]
    for node in fills:
        _fill(torch, node.graph, node)
        node.graph.owning_module.recompile()
    changes = any(
        isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable for target in targets
    )
    views = aten.diagonal.default in targets and changes
    if not views and aten.diagonal_scatter.default not in targets:
        return program
    try:
        return program.run_decompositions({aten.diagonal_scatter.default: diagonal_scatter})
    except Exception:  # PyTorch cannot trace some programs again; the exporter says what it does not know
        return program


def diagonal_scatter(x: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """aten::diagonal_scatter: x with the diagonals of the axes dim1 and dim2 taken from src [..., k]."""
    import torch

    matrices = x.movedim((dim1, dim2), (-2, -1))
    rows, columns = (torch.arange(size, device=x.device) for size in matrices.shape[-2:])
    on_it = columns[None] - rows[:, None] == offset
    place = (rows + min(offset, 0)).clamp(0, src.shape[-1] - 1)
    replaced = torch.where(on_it, src.index_select(-1, place).unsqueeze(-1).to(x.dtype), matrices)
    return replaced.movedim((-2, -1), (dim1, dim2))


def _fill(torch: ModuleType, graph: Graph, node: Node) -> None:
    """Replace fill_diagonal_ of a matrix by a copy of its masked fill; with `wrap` it is left unchanged."""
    value = node.args[0].meta.get("val")
    if len(node.args) > 2 or node.kwargs or not isinstance(value, torch.Tensor) or value.dim() != 2:
        return
    rows, columns = value.shape
    if not isinstance(rows, int) or not isinstance(columns, int):
        return
    aten = own_operators()
    with graph.inserting_before(node):
        ones = graph.call_function(aten.eye.m, (rows, columns), {"dtype": torch.bool, "device": value.device})
        filled = graph.call_function(aten.masked_fill.Scalar, (node.args[0], ones, node.args[1]))
    node.target, node.args = aten.copy_.default, (node.args[0], filled)
