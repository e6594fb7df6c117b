"""Whether PyTorch's exporter kept the dynamic sizes of a program.

Some operators are converted by branches of Python on sizes: the exporter then takes the branch of the example
that the program was exported with, for all sizes, and says nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.errors import KilnError

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_MOST_TRIED = 64  # sizes of a range for which a condition is tried, and the greatest one


def dynamic_axes(program: ExportedProgram) -> dict[str, list[int]]:
    """The axes of dynamic size of the tensors that an ExportedProgram is given, by the tensor's name.

    To be asked before the program is converted: sizes that a conversion fixes are fixed in the program, too.
    """
    return {
        name: [axis for axis, size in enumerate(tensor.shape) if not _is_fixed(size)]
        for name, tensor in _inputs(program).items()
    }


def check_elements(path: Path, program: ExportedProgram) -> None:
    """Raise KilnError if an input of an ExportedProgram has an axis of size 0: in ONNX, 0 is an open size."""
    own = program.graph_signature.user_inputs
    for name, tensor in _inputs(program).items():
        sizes = list(tensor.shape)
        if name in own and any(isinstance(size, int) and size == 0 for size in sizes):
            raise KilnError(
                f"{path}: input '{name}' has no elements, its shape is {sizes}; export the module "
                "with example inputs that have elements, or without this input"
            )


def widen_pairs(program: ExportedProgram) -> None:
    """Let sizes of at most 2 of an ExportedProgram be 3, while it is converted.

    PyTorch's tracing assumes that dynamic sizes are neither 0 nor 1, so that a range up to 2 is the size 2
    alone: the first operator that asks fixes it.
    """
    modes = [getattr(value, "fake_mode", None) for value in _inputs(program).values()]
    environments = [mode.shape_env for mode in modes if mode is not None and mode.shape_env is not None]
    for ranges in (program.range_constraints, *(environment.var_to_range for environment in environments)):
        for symbol, limits in list(ranges.items()):
            if limits.is_int and limits.upper == 2 and limits.lower < 2:
                ranges[symbol] = type(limits)(limits.lower, 3)


def check_sizes(path: Path, axes: dict[str, list[int]], exported: Any) -> None:
    """Raise KilnError if the ExportedProgram `exported` holds for some sizes of these `axes` only.

    `axes`: those of the program, see `dynamic_axes`. `exported`: what the exporter made of it before it
    converted the operators, or None.
    """
    if exported is None:
        return
    tensors = _inputs(exported)
    conditions: list[Any] = []
    for name in axes.keys() & tensors.keys():
        tensor = tensors[name]
        conditions = conditions or _conditions(tensor)
        for axis in axes[name]:
            size = tensor.shape[axis]
            if _is_fixed(size):
                raise KilnError(
                    f"{path}: PyTorch's exporter fixed axis {axis} of input '{name}' at {size}: an operator "
                    "is converted for one size alone; export the program with a fixed size, or without it"
                )
    for condition, symbol, least, greatest in conditions:
        tried = [*range(least, min(greatest, least + _MOST_TRIED)), greatest]
        wrong = next((size for size in tried if condition.subs(symbol, size) == False), None)  # noqa: E712
        if wrong is not None:
            raise KilnError(
                f"{path}: PyTorch's exporter converted an operator for sizes with {condition}, and {symbol} "
                f"may be {wrong}; export the program with a fixed size"
            )


def _is_fixed(size: Any) -> bool:
    """Whether a size, an int or PyTorch's SymInt, is one number."""
    return isinstance(size, int) or size.node.maybe_as_int() is not None


def _inputs(program: ExportedProgram) -> dict[str, Any]:
    """The tensors that a program is given, by name."""
    values = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
    return {name: value for name, value in values.items() if hasattr(value, "shape")}


def _conditions(tensor: Any) -> list[tuple[Any, Any, int, int]]:
    """Equations of one size that a trace relied on, with that size's symbol and range."""
    environment: Any = getattr(getattr(tensor, "fake_mode", None), "shape_env", None)
    fixed = []
    for guard in getattr(environment, "guards", []):
        symbols = list(guard.expr.free_symbols)
        if getattr(guard.expr, "rel_op", "") != "==" or len(symbols) != 1:
            continue
        limits = environment.var_to_range.get(symbols[0])
        if limits is not None and limits.is_int:
            least = int(limits.lower)
            is_bounded = bool(limits.upper < 1 << 40)
            greatest = int(limits.upper) if is_bounded else least + _MOST_TRIED
            fixed.append((guard.expr, symbols[0], least, greatest))
    return fixed
