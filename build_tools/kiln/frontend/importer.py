"""Imports a model file of any format into a Relax module and its interface.

To add a format, add a module with a function `load` and an entry in FORMATS.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import tvm

from kiln.callbacks import post_order_visit
from kiln.config.interface import CountedDimension, Interface
from kiln.config.sizes import SizeExpr
from kiln.config.state import KeptValue
from kiln.errors import KilnError
from kiln.frontend import state
from kiln.frontend.free_sizes import bind_sizes
from kiln.frontend.interface import Port, check_declared, described
from kiln.frontend.options import MOST_ELEMENTS, ImportOptions
from kiln.frontend.symbols import Counted, Symbols

# File suffix → module with `load(path: Path, options: ImportOptions) -> Imported`, imported when it is used.
FORMATS = {
    ".onnx": "kiln.frontend.onnx.model",
    ".tflite": "kiln.frontend.tflite.model",
}


@dataclass(frozen=True)
class Imported:
    """An imported model: a Relax module and the descriptions of its inputs, outputs and kept values.

    `states`: the values that the file itself keeps. `declared_state`: those among `inputs` and `outputs`, by
    input, as under the key `state` of a model's YAML file.

    The only public function is `main`. Its parameters are the model's inputs, weights are relax constants,
    and it returns one tensor, or a tuple of tensors in the order of `outputs`; the values of `states` follow
    the inputs, and the outputs. Layouts and types of inputs
    and outputs are as in the file. Attributes of `main`:

    - num_input: number of inputs, those of `states` included.
    - kiln.source_format: "onnx" or "tflite": the framework whose arithmetic the quantised operators must
      reproduce (see kiln.frontend.tflite.ops).
    - kiln.nodes: JSON, by Relax operator, the nodes of the file that were converted to it, for errors.
    - kiln.dims: JSON, by variable, its dimension, divisor and range (see kiln.frontend.symbols).

    Variables that stand for a dimension's size divided by its multiple cannot be defined by a tensor's shape:
    a last parameter `kiln_sizes` of type R.Shape defines them. It also defines the variables of `counted`,
    the sizes that a step of the run counts (kiln.frontend.counted).
    """

    module: tvm.IRModule
    inputs: list[Port]
    outputs: list[Port]
    states: list[state.StatePort] = field(default_factory=list)
    declared_state: Mapping[str, KeptValue] = field(default_factory=dict)
    counted: list[Counted] = field(default_factory=list)


def import_model(path: str | Path, options: ImportOptions) -> tuple[tvm.IRModule, Interface]:
    """Import the model file `path`; returns the module and its interface.

    Raises KilnError, with a message of one line, for a file that is missing, damaged or of an unknown format,
    for a dimension without a size, for a dimension that no input has, and for operators that cannot be
    imported (the message names all of them, each with a node).
    """
    path = Path(path)
    format_of = path.suffix.lower()
    loader = FORMATS.get(format_of)
    if loader is None:
        raise KilnError(f"{path}: unknown model format '{path.suffix}', allowed: {', '.join(FORMATS)}")
    try:
        loaded: Imported = importlib.import_module(loader).load(path, options)
        check_declared(options, loaded.inputs, loaded.outputs)
        options = replace(options, state={**loaded.declared_state, **options.state})
        imported = _with_state(loaded, options)
    except KilnError as error:
        text = str(error)
        raise KilnError(text if str(path) in text else f"{path}: {text}") from error
    may_be_empty = format_of == ".onnx" or any(
        segment.size == 0 for segment in (options.bucket or {}).values()
    )
    for what, ports in (("input", imported.inputs), ("output", imported.outputs)):
        for port in ports:
            if 0 in port.shape and not may_be_empty:
                axis = port.shape.index(0)
                raise KilnError(
                    f"{path}: {what} '{port.name}' axis {axis} is 0, allowed: 1 and more, or a dimension of "
                    "'dims' with min: 0"
                )
    for dim in options.dims:
        if dim not in options.used:
            input_names = ", ".join(f"'{port.name}'" for port in imported.inputs)
            raise KilnError(
                f"{path}: dims.{dim}: no axis of an input is of this size; inputs: {input_names}; "
                f"name it with 'inputs: {{…: {{shape: [{dim}, …]}}}}'"
            )
    states = [port.record() for port in imported.states]
    counted = [CountedDimension(**asdict(counted_size)) for counted_size in imported.counted]
    return imported.module, described(options, imported.inputs, imported.outputs, states, counted)


def _with_state(imported: Imported, options: ImportOptions) -> Imported:
    """The model with the inputs and outputs of the key `state` as kept values. Raises KilnError as `kept`."""
    if not options.state:
        return imported
    if imported.states:
        names = ", ".join(port.name for port in imported.states)
        raise KilnError(f"state: the file keeps state itself ({names}): leave the key out")
    states = state.kept(imported.inputs, imported.outputs, options)
    return replace(
        imported,
        module=state.states_last(imported.module, states),
        inputs=state.without(imported.inputs, [port.input for port in states]),
        outputs=state.without(imported.outputs, [port.output for port in states]),
        states=states,
    )


def read_model(path: Path) -> bytes:
    """The bytes of a model file. Raises KilnError when it is missing, a folder, unreadable or empty."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise KilnError(f"{path}: no such model file") from None
    except OSError as error:
        raise KilnError(f"{path}: cannot read: {error.strerror}") from error
    if not content:
        raise KilnError(f"{path}: the model file is empty")
    return content


# TVM's messages print the whole record of an operator in place of its name.
_DUMPED_OPERATOR = re.compile(r'ir\.Op\(span=.*?name="(?:relax\.)?([\w.]+)".*?support_level=\d+\)')


def one_line(error: BaseException, limit: int = 240) -> str:
    """The first non-empty line of a library's exception, else its type; at most `limit` characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = _DUMPED_OPERATOR.sub(r"\1", lines[0]) if lines else type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"


def operators(expression: Any, visited_before: set[Any] | None = None) -> list[str]:
    """The names of the operators in an expression, without the prefix `relax.`, in order.

    `visited_before`: calls to leave out, such as those of earlier expressions; it gets the other calls.
    """
    names: list[str] = []
    visited = set() if visited_before is None else visited_before

    def visit(expr: Any) -> None:
        if isinstance(expr, tvm.relax.Call) and isinstance(expr.op, tvm.ir.Op) and expr not in visited:
            visited.add(expr)
            names.append(str(expr.op.name).removeprefix("relax."))

    post_order_visit(expression, visit)
    return names


def finish(
    module: tvm.IRModule,
    source_format: str,
    num_input: int,
    nodes: Mapping[str, Sequence[str]] | None = None,
    symbols: Symbols | None = None,
) -> tvm.IRModule:
    """Set the attributes of `main` that later stages read (see `Imported`), and remove dead code.

    Also removes the copies of parameters that TVM's importers attach. Raises KilnError as `check_elements`.
    """
    main = module["main"].without_attr("params") if "params" in module["main"].attrs else module["main"]
    origins = json.dumps(nodes or {}, sort_keys=True)
    attributes = {
        "num_input": num_input,
        "kiln.source_format": source_format,
        "kiln.nodes": origins,
        "kiln.dims": (symbols or Symbols()).describe(),
    }
    module["main"] = main.with_attrs(attributes)
    module = tvm.relax.transform.ConvertToDataflow(1)(module)
    module = bind_sizes(tvm.relax.transform.DeadCodeElimination(["main"])(module))
    tvm.relax.analysis.well_formed(module)
    check_elements(module, nodes or {}, symbols or Symbols())
    return module


def check_elements(module: tvm.IRModule, nodes: Mapping[str, Sequence[str]], symbols: Symbols) -> None:
    """Raise KilnError for a tensor of `main` that can have more than MOST_ELEMENTS elements.

    `nodes`: by Relax operator, the nodes of the file that were converted to it.
    """
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            shape = getattr(binding.var.ty, "shape", None)
            if not isinstance(shape, tvm.relax.ShapeExpr):
                continue
            elements = symbols.greatest(shape.values, above=MOST_ELEMENTS)
            if elements is not None:
                names = [name for op in operators(binding.value) for name in nodes.get(op, [op])]
                raise KilnError(
                    f"{' or '.join(names) or 'a constant'}: its result has {elements} elements, allowed: at "
                    f"most {MOST_ELEMENTS} in one tensor"
                )


def result_types(
    module: tvm.IRModule, symbols: Symbols | None = None
) -> list[tuple[str, tuple[SizeExpr, ...]]]:
    """(dtype, shape) of each output of main. Raises KilnError when a size is not known at build time."""
    result = module["main"].ret_ty
    fields = list(result.fields) if isinstance(result, tvm.relax.TupleType) else [result]
    return [tensor_type(field, f"output {index}", symbols or Symbols()) for index, field in enumerate(fields)]


def tensor_type(ty: Any, what: str, symbols: Symbols) -> tuple[str, tuple[SizeExpr, ...]]:
    """(dtype, shape) of a tensor type, the shape as size expressions of the dimensions (kiln.config.sizes).

    Raises KilnError naming `what` when a size is neither a number nor an expression.
    """
    shape = getattr(ty, "shape", None)
    unknown = f"{what} has sizes that are not known before the model runs"
    if shape is None:
        raise KilnError(unknown)
    try:
        return str(ty.dtype), tuple(symbols.size(size) for size in shape)
    except ValueError as error:
        raise KilnError(unknown) from error
