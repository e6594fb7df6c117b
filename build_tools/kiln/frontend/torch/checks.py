"""Programs without PyTorch's checks of values, which raise exceptions in a run and have no place in ONNX."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from kiln.frontend.torch.library import graphs_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Graph


def without_checks(program: ExportedProgram) -> ExportedProgram:
    """`program`, an ExportedProgram, without checks of values; changed in place.

    Checks that matrices could be inverted, and conditions on values (torch._check_tensor_all,
    torch._assert_async), with what computes these alone. Conditions on sizes stay, which PyTorch needs.
    """
    import torch

    for graph in graphs_of(program):
        _leave_out(torch, graph)
        graph.owning_module.recompile()
    return program


def _leave_out(torch: ModuleType, graph: Graph) -> None:
    """Erase the checks of values of one graph, and take the forms of operators that make none."""
    aten = torch.ops.aten
    for node in graph.find_nodes(op="call_function", target=aten.linalg_lu_factor.default):
        node.target = aten.linalg_lu_factor_ex.default  # has a third result, of no use
    for target in (
        aten._linalg_check_errors.default,
        aten._assert_async.default,
        aten._assert_async.msg,
        aten._functional_assert_async.msg,
    ):
        for node in graph.find_nodes(op="call_function", target=target):
            if not node.users:
                _erase(graph, [node])
    for node in graph.find_nodes(op="call_function", target=aten.item.default):
        value = node.args[0].meta.get("val")
        if isinstance(value, torch.Tensor) and value.dtype == torch.bool:
            only_checked = _only_checked(torch, node)
            if only_checked is not None:
                _erase(graph, only_checked)


def _only_checked(torch: ModuleType, node: Any) -> list[Any] | None:
    """The nodes that use `node`, and itself, users first; None where one is more than a check of it."""
    checks: dict[Any, None] = {}
    stack = [node]
    while stack:
        one = stack.pop()
        scalar = isinstance(one.meta.get("val"), (int, float, torch.SymBool, torch.SymInt, torch.SymFloat))
        if one.op != "call_function" or not (scalar or one.target is torch.ops.aten._assert_scalar.default):
            return None
        checks.pop(one, None)
        checks[one] = None
        stack += list(one.users)
    return list(reversed(checks))


def _erase(graph: Graph, nodes: list[Any]) -> None:
    """Erase nodes, each after its users, and then those of their operands that no other node reads."""
    while nodes:
        node = nodes.pop(0)
        if node.users or node.op != "call_function":
            continue
        read = list(node.all_input_nodes)
        graph.erase_node(node)
        nodes += [one for one in read if one not in nodes]
