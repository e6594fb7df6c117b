"""Exports of modules whose conditions on sizes hold for all sizes, where PyTorch cannot tell.

torch.export proves each condition on a dynamic size that a module depends on, for the whole range, and gives
up at remainders: `1 % (1 + n // 128) != 0`, of a spectrogram of n samples. It can also write the conditions
into the program. Where these are all that it asks for, they are tried here for every size of the ranges.

PyTorch also asks for conditions that the module does not have: an operator that broadcasts or copies is
traced for an axis of one element, or for an axis of more. A convolution whose result has n // 32 rows is then
refused for 32 rows of n. The option `backed_size_oblivious` takes the general case without a condition: the
results have the same values for one element, too, except for a squeeze, which removes an axis of one.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kiln.frontend.torch.library import is_fixed, is_violated

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_MOST_TRIED = 1 << 20  # combinations of sizes for which one condition is tried


def export_proven(
    torch: ModuleType, module: Any, given: tuple[Any, Any], shapes: Any, error: BaseException
) -> Any | None:
    """The ExportedProgram of `module`, or None where a condition is not known to hold for all sizes.

    error: PyTorch's reason to refuse the sizes. Raises PyTorch's exception where it refuses sizes for another
    reason than these conditions.
    """
    refused: Exception | None = None
    ways: list[contextlib.AbstractContextManager[bool]] = [contextlib.nullcontext(False)]
    if not is_fixed(error):
        ways.insert(0, _general_sizes())
    for way in ways:
        with way as is_general:
            try:
                program = torch.export.export(
                    module,
                    *given,
                    dynamic_shapes=shapes,
                    strict=False,
                    prefer_deferred_runtime_asserts_over_guards=True,
                )
            except Exception as reason:  # PyTorch raises exceptions of many types
                refused = reason if is_violated(reason) else refused
                continue
        if _hold(torch, program) and not (is_general and _may_squeeze(torch, program)):
            return program
    if refused is not None:
        raise refused
    return None  # the exception of the export without these options tells more


@contextlib.contextmanager
def _general_sizes() -> Iterator[bool]:
    """Inside the block, PyTorch takes dynamic sizes for more than 1; the value: whether it has the option."""
    try:
        from torch.fx.experimental import _config as options

        change: Any = options.patch(backed_size_oblivious=True)
    except Exception:  # a private option, which older versions lack
        yield False
        return
    with change:
        yield True


def _may_squeeze(torch: ModuleType, program: ExportedProgram) -> bool:
    """Whether a squeeze of the program meets an axis that has one element for some of the sizes only."""
    squeezes = torch.ops.aten.squeeze
    targets = (squeezes.default, squeezes.dim, squeezes.dims)
    modules = [part for part in program.graph_module.modules() if hasattr(part, "graph")]
    for node in (node for part in modules for node in part.graph.nodes if node.target in targets):
        sizes = node.args[0].meta["val"].shape
        axes = node.args[1] if len(node.args) > 1 else range(len(sizes))
        for size in (sizes[axis] for axis in ([axes] if isinstance(axes, int) else axes)):
            if isinstance(size, torch.SymInt) and not _holds(size.node.expr > 1, program.range_constraints):
                return True
    return False


def _hold(torch: ModuleType, program: ExportedProgram) -> bool:
    """Whether all conditions of the program on sizes of its inputs hold for all these sizes."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    ranges = program.range_constraints
    return all(
        _holds(assertion.expr, ranges)
        for environment in _environments(torch, program)
        for assertions in environment.deferred_runtime_asserts.values()
        for assertion in assertions
        if not free_unbacked_symbols(assertion.expr)  # sizes in the data: checked in no export
    )


def _environments(torch: ModuleType, program: ExportedProgram) -> list[Any]:
    """The environments of the symbols of a program: one, unless it has no symbols."""
    values = [node.meta.get("val") for node in program.graph.nodes]
    modes = {id(value.fake_mode): value.fake_mode for value in values if hasattr(value, "fake_mode")}
    return [mode.shape_env for mode in modes.values() if mode.shape_env is not None]


def _holds(condition: Any, ranges: Any) -> bool:
    """Whether a condition holds for all sizes in `ranges`, from 1 up; False where that cannot be tried."""
    symbols = sorted(condition.free_symbols, key=str)
    limits = [ranges.get(symbol) for symbol in symbols]
    if any(limit is None or not limit.upper.is_Integer for limit in limits):
        return False
    spans = [range(max(1, int(limit.lower)), int(limit.upper) + 1) for limit in limits]
    if math.prod(map(len, spans)) > _MOST_TRIED:
        return False
    try:
        from torch.utils._sympy.printers import PythonPrinter

        code = f"lambda {', '.join(map(str, symbols))}: {PythonPrinter().doprint(condition)}"
        holds = eval(code, {"math": math})
        return all(holds(*sizes) for sizes in itertools.product(*spans))
    except Exception:  # a private interface of PyTorch, a function without a name there, a division by 0
        return False
