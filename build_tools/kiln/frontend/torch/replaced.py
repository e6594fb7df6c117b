"""Programs in which operators that PyTorch's exporter would convert wrongly are composed of others.

Some conversions are wrong for some arguments alone: numbers that are dynamic sizes, numbers of float64, and
tensors without axes. A `Replacement` says for which, and what computes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln.errors import KilnError
from kiln.frontend.torch.library import graphs_of, reason
from kiln.frontend.torch.present import aten as own_operators
from kiln.frontend.torch.present import present

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

# Of an operator and the values among its arguments: whether the exporter would convert the call wrongly.
Applies = Callable[[Any, Sequence[Any]], bool]


@dataclass(frozen=True)
class Replacement:
    """Functions by operator, with its arguments, for the calls to which `applies` applies."""

    applies: Applies
    rules: Callable[[Any], Mapping[Any, Callable[..., Any]]]


def replaced(program: ExportedProgram, *replacements: Replacement) -> ExportedProgram:
    """`program`, an ExportedProgram, after all `replacements`; the program itself where none applies.

    Raises KilnError with the operators where PyTorch cannot trace the program again: the exporter would
    convert them to something else.
    """
    import torch

    leaves_of = torch.utils._pytree.tree_leaves

    def applies(node: Node, replacement: Replacement) -> bool:
        leaves = leaves_of((node.args, node.kwargs))
        values = [leaf.meta.get("val") if isinstance(leaf, torch.fx.Node) else leaf for leaf in leaves]
        return replacement.applies(node.target, values)

    def guarded(target: Any, rule: Callable[..., Any], replacement: Replacement) -> Callable[..., Any]:
        def applied(*arguments: Any, **keywords: Any) -> Any:
            leaves = leaves_of((arguments, keywords))
            return rule(*arguments, **keywords) if replacement.applies(target, leaves) else NotImplemented

        return applied

    for replacement in replacements:
        rules = present(replacement.rules(own_operators()))
        found = {
            node.target
            for graph in graphs_of(program)
            for node in graph.nodes
            if node.op == "call_function" and node.target in rules and applies(node, replacement)
        }
        if not found:
            continue
        table = {target: guarded(target, rules[target], replacement) for target in found}
        try:
            program = program.run_decompositions(table)
        except KilnError:
            raise
        except Exception as error:  # PyTorch raises exceptions of many types
            names = ", ".join(sorted(str(target) for target in found))
            raise KilnError(
                f"PyTorch cannot trace the program again, without {names}, which its exporter would convert "
                f"wrongly here: {reason(error)}"
            ) from error
    return program
