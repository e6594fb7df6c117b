"""Programs that compute with complex numbers, as programs of real ones.

PyTorch's exporter to ONNX has few operators for complex numbers. Here each operator with complex operands
becomes operators on the pairs of torch.view_as_real, whose last axis, of size 2, is the real and the
imaginary part. What is left is views, and the operators of the FFT, which the exporter has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kiln.errors import KilnError
from kiln.frontend.torch.complex_curves import curves
from kiln.frontend.torch.complex_functions import functions
from kiln.frontend.torch.complex_moves import moves
from kiln.frontend.torch.library import graphs_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

Rules = Mapping[Any, Callable[..., Any]]  # by operator of PyTorch

_ROUNDS = 6  # rounds of replacement: PyTorch writes composite operators by others, which may be composite too
_KEPT = ("stft", "istft", "view_as_real", "view_as_complex", "complex", "polar")


def without_complex(program: ExportedProgram) -> ExportedProgram:
    """`program`, an ExportedProgram, with operators on pairs in place of those on complex numbers.

    The program itself where it has no complex numbers. Operators without a rule are left as they are. Raises
    KilnError for complex numbers of 16-bit floats, which ONNX lacks.
    """
    import torch

    for node in [node for graph in graphs_of(program) for node in graph.nodes]:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.dtype == torch.complex32:
            raise KilnError(
                f"complex numbers of 16-bit floats (torch.complex32) at {node.name}; make them of float32, "
                "with x.float() before it"
            )
    known = {**moves(), **functions(), **curves()}
    for _ in range(_ROUNDS):
        table = _table(torch, program, known)
        if not table:
            break
        try:
            program = program.run_decompositions(table)
        except Exception:  # PyTorch cannot trace some programs again; the exporter may know their operators
            break
    return program


def _table(
    torch: ModuleType, program: ExportedProgram, known: Mapping[Any, Callable[..., Any]]
) -> dict[Any, Callable[..., Any]]:
    """The operators that are to be replaced in `program`; empty where nothing is left to do."""
    calls = [node for graph in graphs_of(program) for node in graph.nodes if node.op == "call_function"]
    targets = {node.target for node in calls if _is_complex(torch, node)}
    unconverted = {
        target for target in targets if isinstance(target, torch._ops.OpOverload) and not _kept(target)
    }
    others = torch._decomp.get_decompositions(sorted(unconverted - set(known), key=str))
    table: dict[Any, Callable[..., Any]] = {}
    for target in unconverted:
        composite = target._can_decompose()  # an operator that PyTorch itself writes by others
        if target in known:
            table[target] = _rule(torch, target, known[target], composite)
        elif composite:
            table[target] = _own(torch, target)
        elif target in others:
            table[target] = others[target]
    if table:  # what these become is replaced in the same round
        rest = {target for target in known if target not in table and not target._can_decompose()}
        table |= {target: _rule(torch, target, known[target], False) for target in rest}
    return table


def _kept(target: Any) -> bool:
    """Whether the exporter has an operator.

    Those of torch.fft do not count: they pad complex numbers, which it cannot.
    """
    name = target._schema.name.removeprefix("aten::")
    return name.startswith("_fft_") or name.removeprefix("_") in _KEPT


def _own(torch: ModuleType, target: Any) -> Callable[..., Any]:
    """PyTorch's own definition of a composite operator, whatever replaces the operator meanwhile."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return lambda *arguments, **keywords: target._op_dk(key, *arguments, **keywords)


def _rule(torch: ModuleType, target: Any, rule: Callable[..., Any], composite: bool) -> Callable[..., Any]:
    """A rule that applies `rule` to complex operands or results, and PyTorch's own definition to others."""
    own = _own(torch, target) if composite else lambda *_, **__: NotImplemented

    def applied(*arguments: Any, **keywords: Any) -> Any:
        leaves = torch.utils._pytree.tree_leaves((arguments, keywords))
        chosen = rule if any(_complex_leaf(torch, leaf) for leaf in leaves) else own
        return chosen(*arguments, **keywords)

    return applied


def _complex_leaf(torch: ModuleType, leaf: Any) -> bool:
    if isinstance(leaf, torch.dtype):
        return bool(leaf.is_complex)
    return isinstance(leaf, complex) or (isinstance(leaf, torch.Tensor) and leaf.is_complex())


def _is_complex(torch: ModuleType, node: Node) -> bool:
    """Whether an operand or a result of a node is complex."""
    nodes = [node, *node.all_input_nodes]
    values = torch.utils._pytree.tree_leaves([item.meta.get("val") for item in nodes])
    return any(isinstance(value, torch.Tensor) and value.is_complex() for value in values)
