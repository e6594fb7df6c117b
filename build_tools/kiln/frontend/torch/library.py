"""PyTorch, imported when a model needs it; it is an optional dependency of Kiln."""

from __future__ import annotations

import contextlib
import importlib
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.errors import KilnError
from kiln.frontend.quiet import quiet_output
from kiln.frontend.torch.groups import define_fallback
from kiln.frontend.torch.quantised import LIBRARY, load_operators
from kiln.frontend.torch.structures import add_unknown
from kiln.sources.torch_archive import PACKAGES

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def load_torch(needed_by: str) -> Any:
    """The module torch. Raises KilnError with the command that installs it, and what it is `needed_by`."""
    try:
        with quiet_output(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import onnxscript  # noqa: F401
            import torch
            import torch.export
    except ImportError as error:
        install = f"{sys.executable} -m pip install torch onnxscript"
        if error.name in PACKAGES and isinstance(error, ModuleNotFoundError):
            raise KilnError(
                f"{needed_by}: PyTorch models need the package {error.name}; install it with: {install}"
            ) from None
        raise KilnError(
            f"{needed_by}: PyTorch is installed and cannot be imported: {reason(error)}; "
            f"install it again, in an environment without other packages: {install}"
        ) from error
    torch.set_num_threads(1)
    return torch


def graphs_of(program: ExportedProgram) -> list[Any]:
    """The graphs of an ExportedProgram: its own, and those of all branches and bodies of its control flow."""
    import torch

    modules = program.graph_module.modules()
    return [module.graph for module in modules if isinstance(module, torch.fx.GraphModule)]


def open_archive(path: Path) -> Any:
    """The ExportedProgram of an archive. Raises KilnError where PyTorch cannot load it."""
    torch = load_torch(str(path))
    while True:
        try:
            with quiet_torch():
                program = torch.export.load(str(path))
            break
        except Exception as error:  # PyTorch raises exceptions of many types
            cause = _logged_reason(path) or error
            operator = _MISSING_OPERATOR.search(str(cause))
            if add_unknown(cause) or (operator and _add_operator(operator[1], operator[2])):
                continue
            message = reason(cause)
            if operator:
                message = (
                    f"it calls the operator {operator[1]}::{operator[2]} of another library; export "
                    "the module with PyTorch's own operators in its place"
                )
            if isinstance(cause, ModuleNotFoundError) and cause.name == "torchao":  # classes of its weights
                message = f"it needs torchao, which quantised it: {sys.executable} -m pip install torchao"
            if "attribute" in message:  # a dataclass, say, of the program that saved it
                message += (
                    "; give it tensors, tuples and dicts, or build it from a function, model=module:function"
                )
            raise KilnError(f"{path}: PyTorch {torch.__version__} cannot load it: {message}") from error
    _drop_derived_ranges(program)
    return program


_MISSING_OPERATOR = re.compile(r"failed to resolve torch\.ops\.(\w+)\.(\w+)")


def _add_operator(library: str, name: str) -> bool:
    """Register an operator that PyTorch itself does not have; returns whether it was registered."""
    if (library, name) == ("transformers", "grouped_mm_fallback"):
        return define_fallback()
    if library == LIBRARY:
        return not hasattr(getattr(sys.modules["torch"].ops, library), name) and load_operators()
    if library != "torchvision" or library in sys.modules:
        return False
    try:
        importlib.import_module(library)
    except Exception:  # its binary fails in several ways next to another PyTorch
        return False
    return True


def _logged_reason(path: Path) -> Exception | None:
    """The reason why an archive cannot be loaded, which torch.export.load only logs; None: it logged none."""
    try:
        from torch.export.pt2_archive._package import load_pt2

        with quiet_torch():
            load_pt2(str(path))
    except ImportError:  # a private interface of PyTorch
        return None
    except Exception as error:
        return error
    return None


def _drop_derived_ranges(program: ExportedProgram) -> None:
    """Remove the ranges of expressions such as 2*s0: PyTorch 2.13 restores them, and then fails."""
    for node in program.graph.find_nodes(op="placeholder"):
        environment = getattr(getattr(node.meta.get("val"), "fake_mode", None), "shape_env", None)
        ranges: dict[Any, Any] = getattr(environment, "var_to_range", {})
        for key in [key for key in ranges if not getattr(key, "is_Symbol", False)]:
            del ranges[key]


@contextlib.contextmanager
def quiet_torch() -> Iterator[None]:
    """Discard PyTorch's logs, warnings and prints inside the block; errors are reported by exceptions."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with quiet_output(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


_NOISE = re.compile(r"\x1b\[[0-9;]*m|For more information, run with TORCH_LOGS=\S+|\(unhinted: [^)]*\)\. ?")
_CODE_LINE = re.compile(r"\((\S+\.py:\d+) in \w+\)")
_CALL = re.compile(r'The following call raised this error: File "([^"]+)", line (\d+)')


def reason(error: BaseException, limit: int = 300) -> str:
    """The message of an exception of PyTorch in one line: the beginning of the innermost cause."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    message = " ".join(_NOISE.sub("", str(cause)).split())
    if type(cause).__name__ == "GuardOnDataDependentSymNode":
        call, code_line = _CALL.search(message), _CODE_LINE.search(message)
        where = f" ({call[1]}:{call[2]})" if call else f" ({code_line[1]})" if code_line else ""
        return f"a branch or a shape depends on the values of a tensor{where}; use torch.where or torch.cond"
    if type(cause).__name__ == "DataDependentOutputException":  # its message is the operator alone
        return (
            f"{message} makes a Python number or a condition of the values of a tensor; compute with tensors "
            "in its place, such as by torch.where, or leave it out where it is a check"
        )
    if type(cause).__name__ in ("DynamicOutputShapeException", "PendingUnbackedSymbolNotFound"):
        # The message is the operator, or tells of symbols that the user's module does not have.
        what = message if "." in message.split(" ")[0] else "an operator"
        return (
            f"the shape of a result of {what} depends on the values of a tensor, which torch.export cannot "
            "follow; compute with masks or with torch.index_select in its place, or leave this part out"
        )
    violated = _sizes_violated(str(cause))
    text = violated or f"{type(cause).__name__}: {message}" if message else type(cause).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"


_VIOLATED = re.compile(r"Constraints violated \((.*?)\)!")
_SUGGESTED = re.compile(r"^Suggested fixes:\n((?: +\S.*\n?)+)", re.MULTILINE)
_VIOLATION = re.compile(r"^ +- (.*)$", re.MULTILINE)
_RANGE = re.compile(r"Not all values of (\w+) = .* the generated guard (\d+) <= \S+ and \S+ <= (\d+)\.?")
_SIZE = re.compile(r"L\['(\w+)'\]\.size\(\)\[(\d+)\]")
_FIXED = re.compile(r"your code specialized it to be a constant \((\d+)\)")


def is_violated(error: BaseException) -> bool:
    """Whether torch.export cannot tell that a module takes all sizes of its dynamic shapes."""
    return _VIOLATED.search(str(error)) is not None


def is_fixed(error: BaseException) -> bool:
    """Whether a module computes with the size of the example inputs alone, by a message of torch.export."""
    return _FIXED.search(str(error)) is not None


def _sizes_violated(message: str) -> str:
    """Summary of a message of torch.export on dynamic shapes that a module does not take, suggestion first.

    Empty for another message.
    """
    names = _VIOLATED.search(message)
    if names is None:
        return ""
    violations = [_SIZE.sub(r"\1.shape[\2]", text) for text in _VIOLATION.findall(message)]
    fixed = next((found[1] for found in map(_FIXED.search, violations) if found), "")
    suggested = _SUGGESTED.search(message)
    ranges = [found for found in map(_RANGE.fullmatch, violations) if found]
    parts = [f"the module does not take all sizes of {names[1]}"]
    if fixed == "1":
        return f"{parts[0]}; a size of 1 in the example inputs is a constant to it: give them 2 or more"
    fixed = fixed or next((one[2] for one in ranges if one[2] == one[3]), "")
    if fixed:
        return (
            f"{parts[0]}; it computes with {fixed}, the size of the example inputs, alone: len, "
            "float and math.sqrt, for instance, make constants of sizes"
        )
    if ranges and len(ranges) == len(violations):
        return f"{parts[0]}, allowed: {', '.join(f'{one[1]} in {one[2]}..{one[3]}' for one in ranges)}"
    if suggested:
        parts.append(f"PyTorch suggests {', '.join(line.strip() for line in suggested[1].splitlines())}")
    return "; ".join([*parts, *violations])
