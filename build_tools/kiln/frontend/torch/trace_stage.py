"""trace: stage that calls a user's Python function and exports the PyTorch module that it returns.

The function returns `module, inputs` or `module, inputs, dynamic_shapes`, the arguments of
torch.export.export: inputs is a tuple of tensors or a dict of keyword arguments. It may also return an
ExportedProgram. Only this stage runs Python code of the user, in a process of its own.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kiln.errors import KilnError
from kiln.files import atomic_write
from kiln.frontend.torch.dynamic_arguments import dynamic_arguments
from kiln.frontend.torch.example_sizes import widened, with_specs
from kiln.frontend.torch.kept_buffers import merge_constants
from kiln.frontend.torch.library import is_violated, load_torch, quiet_torch, reason
from kiln.frontend.torch.proven_sizes import export_proven
from kiln.frontend.torch.recurrent import any_length
from kiln.frontend.torch.rounded_sizes import without_rounding
from kiln.frontend.torch.structures import plain_structures
from kiln.sources.torch_archive import NAMES
from kiln.stages.model import TraceStage

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_WANTED = "module, inputs or module, inputs, dynamic_shapes"


def run(args: TraceStage) -> None:
    """Write the archive, unless it is there with the same content. Raises KilnError as `trace` does."""
    content = trace(args.function)
    if not (args.out.is_file() and args.out.read_bytes() == content):
        atomic_write(args.out, content)


def trace(name: str) -> bytes:
    """The archive of what the function `name` returns.

    Raises KilnError, one line, for a function that cannot be imported, that fails or returns something else,
    and for a module that torch.export cannot export.
    """
    torch = load_torch(name)
    returned = _call(name, find_function(name))
    if isinstance(returned, torch.export.ExportedProgram):
        return _saved(name, torch, returned, {})
    if not isinstance(returned, (tuple, list)) or len(returned) not in (2, 3):
        raise KilnError(f"{name}: returned {_shown(returned)}, expected: {_WANTED}")
    module, inputs, shapes = (*returned, None)[:3]
    return export(name, module, inputs, shapes)


def evaluate(module: Any) -> None:
    """Put a module and its parts in evaluation mode; parts that torch.export has made have one mode alone."""
    try:
        module.eval()
    except NotImplementedError:
        for part in module.modules():
            part.training = False


def export(name: str, module: Any, inputs: Any, shapes: Any = None) -> bytes:
    """The archive of a module, exported for example inputs; `name`: how errors call it."""
    torch = load_torch(name)
    if not isinstance(module, torch.nn.Module):
        raise KilnError(f"{name}: returned {_shown(module)} first, expected: a torch.nn.Module")
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, (tuple, list, dict)):
        raise KilnError(
            f"{name}: returned {_shown(inputs)} as inputs, expected: a tuple or a dict of tensors"
        )
    positional, keywords = ((), dict(inputs)) if isinstance(inputs, dict) else (tuple(inputs), {})
    evaluate(module)
    signature = inspect.signature(module.forward)

    def bound(given: Any) -> Mapping[str, Any]:
        return signature.bind(*given[0], **given[1]).arguments

    try:
        arguments = bound((positional, keywords))
    except TypeError as error:
        raise KilnError(f"{name}: the inputs do not fit the module's forward: {error}") from error
    try:
        with quiet_torch(), torch.no_grad(), any_length(), _without_value_checks(torch), dynamic_arguments():
            given = widened(torch, (positional, keywords), bound, shapes)
            program = _exported(torch, module, given, shapes)
    except Exception as error:  # PyTorch raises exceptions of many types
        raise KilnError(f"{name}: torch.export cannot export the module: {reason(error)}") from error
    return _saved(name, torch, program, _dim_names(torch, program, arguments, shapes))


def _exported(torch: ModuleType, module: Any, given: tuple[Any, Any], shapes: Any) -> Any:
    """The ExportedProgram of a module; also where PyTorch cannot tell that its conditions on sizes hold."""
    try:
        return torch.export.export(module, *given, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        program = export_proven(torch, module, given, shapes, error) if is_violated(error) else None
        if program is None:
            raise
        return program


@contextlib.contextmanager
def _without_value_checks(torch: ModuleType) -> Iterator[None]:
    """Leave out, inside the block, branches of PyTorch's modules on values of tensors.

    Those are the checks of torch.distributions, and the search of torch.nn.Transformer for causal masks: a
    layer that is not told of one adds the mask, with the same result.
    """
    from torch.nn.modules import transformer

    kind = torch.distributions.Distribution
    checked, search = kind._validate_args, getattr(transformer, "_detect_is_causal_mask", None)
    kind.set_default_validate_args(False)
    if search is not None:  # a private function of PyTorch
        transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: is_causal is True
    try:
        yield
    finally:
        kind.set_default_validate_args(checked)
        if search is not None:
            transformer._detect_is_causal_mask = search


def saved(name: str, program: ExportedProgram) -> bytes:
    """The archive of an ExportedProgram; `name`: how errors call it."""
    return _saved(name, load_torch(name), program, {})


def find_function(name: str) -> Any:
    """The function `package.module:function`, with the current folder first among those that are searched."""
    module_name, _, function_name = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise KilnError(
                f"{name}: no module '{error.name}' in the current folder or in PYTHONPATH"
            ) from None
        raise KilnError(f"{name}: cannot import {module_name}: {_place(error)}") from error
    except (Exception, SystemExit) as error:
        raise KilnError(f"{name}: cannot import {module_name}: {_place(error)}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        functions = [
            key for key, value in vars(module).items() if inspect.isfunction(value) and key[0] != "_"
        ]
        raise KilnError(
            f"{name}: {module_name} has no function '{function_name}', it has: "
            f"{', '.join(functions) or 'none'}"
        )
    return function


def _call(name: str, function: Any) -> Any:
    """Call the user's function; returns its result.

    Raises KilnError where the function needs arguments, raises an exception or ends Python.
    """
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise KilnError(f"{name}: the function is called without arguments: {error}") from None
    try:
        with quiet_torch():
            return function()
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise KilnError(f"{name}: the function failed: {_place(error)}") from error


def _place(error: BaseException) -> str:
    """The type and message of an exception, with the file and line that raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"
    return f"{reason(error)}{where}"


def _saved(name: str, torch: ModuleType, program: ExportedProgram, names: Mapping[str, str]) -> bytes:
    import io

    buffer = io.BytesIO()
    extra = {NAMES: json.dumps({"dims": names}, sort_keys=True)}
    try:
        with quiet_torch():
            plain_structures(program)
            merge_constants(program)
            without_rounding(program)
            torch.export.save(program, buffer, extra_files=extra)
    except KilnError as error:
        raise KilnError(f"{name}: {error}") from error
    except Exception as error:  # PyTorch raises exceptions of many types
        raise KilnError(f"{name}: torch.export cannot save the program: {reason(error)}") from error
    return buffer.getvalue()


def _dim_names(
    torch: ModuleType, program: ExportedProgram, arguments: Mapping[str, Any], shapes: Any
) -> dict[str, str]:
    """The names of the torch.export.Dim that the symbols of the program stand for, by symbol."""
    values = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
    tensors = [values[name] for name in program.graph_signature.user_inputs if isinstance(name, str)]
    leaves = [spec for _, spec in with_specs(torch, arguments, shapes)]
    names: dict[str, str] = {}
    if len(tensors) != len(leaves):
        return names
    for tensor, spec in zip(tensors, leaves, strict=True):
        axes = spec.items() if isinstance(spec, dict) else enumerate(spec or ())
        for axis, dim in axes:
            node = getattr(tensor.shape[axis], "node", None)
            symbols = sorted(map(str, node.expr.free_symbols)) if node is not None else []
            name = getattr(getattr(dim, "root", dim), "__name__", None)
            if len(symbols) == 1 and name:
                names.setdefault(symbols[0], name)
    return names


def _shown(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
