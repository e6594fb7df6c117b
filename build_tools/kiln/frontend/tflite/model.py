"""Import of a TFLite file: checks it, binds dynamic sizes, converts it to Relax.

The layout stays NHWC. Quantised operators become float operators between dequantize and quantize.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tflite
from tvm.relax.frontend.tflite import tflite_frontend

from kiln.config.sizes import show
from kiln.errors import KilnError
from kiln.file_kinds import refuse_other
from kiln.frontend.counted.sizes import with_counted
from kiln.frontend.importer import Imported, finish, read_model, result_types
from kiln.frontend.interface import Port
from kiln.frontend.options import ImportOptions, bind_shape, unnamed
from kiln.frontend.quiet import convert_quietly
from kiln.frontend.state import STATES, StatePort
from kiln.frontend.symbols import Symbols
from kiln.frontend.tflite.attributes import check_graph
from kiln.frontend.tflite.control import CONTROL, OWN, VARIABLES, Unrolling, has_loops
from kiln.frontend.tflite.files import DAMAGED, names_operators
from kiln.frontend.tflite.narrow import has_narrow, without_narrow
from kiln.frontend.tflite.scalar_shapes import lacks_shapes, with_shapes
from kiln.frontend.tflite.signatures import check_one
from kiln.frontend.tflite.sized_file import SizedFile, opened_of, stateful_of
from kiln.frontend.tflite.sparse import without_sparsity
from kiln.frontend.tflite.unique_names import with_unique_names
from kiln.frontend.tflite.variables import Opened

_IDENTIFIER = b"TFL3"


def load(path: Path, options: ImportOptions) -> Imported:
    """Import a TFLite file. Raises KilnError as documented at `kiln.frontend.importer.import_model`."""
    model_read = read(path)
    check_one(path, model_read)
    content, has_control = _plain(path, model_read)
    if not has_control:
        return _load(path, options, Opened(with_unique_names(path, content)))
    short: Opened | None = None
    with contextlib.suppress(KilnError):
        short = opened_of(path, content, Unrolling.SHORT)
    unrollings = [Unrolling.SHORT, Unrolling.ALL]
    if short is None or has_loops(short.content):
        # LiteRT computes the sizes of unrolled iterations, and cannot run a file with loops of the plan.
        unrollings.insert(0, Unrolling.NONE)
    error: KilnError | None = None
    for unrolling in unrollings:
        try:
            file = short if short and unrolling is Unrolling.SHORT else opened_of(path, content, unrolling)
            return _load(path, options, file, content, unrolling)
        except KilnError as raised:  # such as for a value that grows from iteration to iteration
            error = raised
    assert error is not None
    raise error


def _load(
    path: Path,
    options: ImportOptions,
    rewritten: Opened,
    source: bytes | None = None,
    unrolling: Unrolling = Unrolling.NONE,
) -> Imported:
    """Import `rewritten`, a file without control flow; `source`, `unrolling`: as of a `SizedFile`."""
    stateful = stateful_of(path, rewritten)
    model = tflite.Model.GetRootAsModel(stateful.content, 0)
    graph = model.Subgraphs(0)
    ports = [_port(path, graph, index) for index in graph.InputsAsNumpy()]
    shapes = _input_shapes(path, graph, ports, options)
    inputs = [replace(port, shape=shape) for port, shape in zip(ports, shapes, strict=True)]
    symbols = Symbols(options.bucket, options.bounds)
    dynamic = {dim: segment for dim, segment in (options.bucket or {}).items() if segment.size is None}
    if len(dynamic) > 1:
        raise KilnError(
            f"{path}: {', '.join(dynamic)}: one dimension of a TFLite file can be dynamic, "
            "the others need one size"
        )

    sized = SizedFile(path, rewritten, stateful, shapes, options, symbols, source, unrolling)
    try:
        with symbols.missing.named_together(path):
            module = convert_quietly(sized.convert)
    except KilnError as error:
        text = str(error)
        raise KilnError(text if text.startswith(str(path)) else f"{path}: {text}") from error
    module = with_counted(module, symbols)
    module = finish(module, "tflite", len(inputs), sized.nodes, symbols)
    declared = [_port(path, graph, index) for index in graph.OutputsAsNumpy()]
    outputs = [
        Port(port.name, dtype, shape, None, port.quant)
        for port, (dtype, shape) in zip(declared, result_types(module, symbols), strict=True)
    ]
    count = len(stateful.variables)
    if not count:
        return Imported(module, inputs, outputs, counted=symbols.all_counted())
    states = [
        StatePort(variable.name, port.dtype, tuple(int(str(size)) for size in port.shape), variable.initial)
        for variable, port in zip(stateful.variables, inputs[-count:], strict=True)
    ]
    module["main"] = module["main"].with_attr(STATES, count)
    return Imported(module, inputs[:-count], outputs[:-count], states, counted=symbols.all_counted())


def _plain(path: Path, model: tflite.Model) -> tuple[bytes, bool]:
    """The file with shapes and dense constants of 8 bits or more, and whether it has control flow or state.

    Shapes: also of scalars, for which a file may have no list of sizes.
    """
    content = path.read_bytes()
    if lacks_shapes(model):
        content = with_shapes(path, content)
    if _has_sparsity(model):
        content = without_sparsity(path, content)
    if has_narrow(model):
        content = without_narrow(path, content)
    return content, names_operators(model, {*CONTROL, *VARIABLES})


def _has_sparsity(model: tflite.Model) -> bool:
    graphs = [model.Subgraphs(number) for number in range(model.SubgraphsLength())]
    return any(
        graph.Tensors(index).Sparsity() is not None
        for graph in graphs
        for index in range(graph.TensorsLength())
    )


def read(path: Path) -> tflite.Model:
    """Parse and check a TFLite file. Raises KilnError when it is empty, truncated, text or not TFLite."""
    content = read_model(path)
    refuse_other(path, content, "a TFLite model")
    if content[4:8] != _IDENTIFIER:
        raise KilnError(
            f"{path}: not a TFLite model: bytes 4..7 are {content[4:8]!r}, expected {_IDENTIFIER!r}"
        )
    try:
        model = tflite.Model.GetRootAsModel(content, 0)
        for number in range(model.SubgraphsLength()):
            check_graph(path, model, model.Subgraphs(number))
        _read_everything(model)
        codes = (model.OperatorCodes(index).CustomCode() for index in range(model.OperatorCodesLength()))
        reserved = {(code or b"").decode(errors="replace") for code in codes} & set(OWN)
    except DAMAGED as error:
        raise KilnError(f"{path}: not a complete TFLite model: truncated or damaged") from error
    if reserved:
        raise KilnError(f"{path}: custom operator '{min(reserved)}': the name is Kiln's own, choose another")
    return model


def _read_everything(model: Any) -> None:
    """Read every table of the file, so that damage is detected here and not in the middle of the import."""
    sizes = []
    for index in range(model.BuffersLength()):
        buffer = model.Buffers(index)
        data = buffer.DataAsNumpy()
        sizes.append(0 if isinstance(data, int) else data.size)
    if model.SubgraphsLength() < 1:
        raise ValueError("no graph")
    for number in range(model.SubgraphsLength()):
        graph = model.Subgraphs(number)
        for index in range(graph.TensorsLength()):
            tensor = graph.Tensors(index)
            (tensor.Name() or b"").decode()
            shape, held = tensor.ShapeAsNumpy(), sizes[tensor.Buffer()]
            if held and not isinstance(shape, int) and tensor.Sparsity() is None:
                bytes_needed = _ITEM_BYTES.get(tensor.Type(), 0) * int(np.prod(shape, dtype=np.int64))
                if bytes_needed > held:
                    raise ValueError("a tensor is larger than its buffer")
        for index in range(graph.OperatorsLength()):
            operator = graph.Operators(index)
            model.OperatorCodes(operator.OpcodeIndex()).BuiltinCode()
            operator.InputsAsNumpy(), operator.OutputsAsNumpy()
    for number in range(model.SignatureDefsLength()):
        model.SignatureDefs(number).SignatureKey(), model.SignatureDefs(number).SubgraphIndex()


_DTYPES = {
    tflite.TensorType.FLOAT32: "float32",
    tflite.TensorType.FLOAT16: "float16",
    tflite.TensorType.INT8: "int8",
    tflite.TensorType.UINT8: "uint8",
    tflite.TensorType.INT16: "int16",
    tflite.TensorType.INT32: "int32",
    tflite.TensorType.INT64: "int64",
    tflite.TensorType.UINT32: "uint32",
    tflite.TensorType.BOOL: "bool",
}
_ITEM_BYTES = {code: np.dtype(name).itemsize for code, name in _DTYPES.items()}


def _port(path: Path, graph: Any, index: int) -> Port:
    """The description of tensor `index`. Raises KilnError for an element type that is not supported."""
    tensor = graph.Tensors(index)
    name = tflite_frontend.get_tensor_name(graph, index)
    dtype = _DTYPES.get(tensor.Type())
    if dtype is None:
        names = {code: word.lower() for word, code in vars(tflite.TensorType).items() if word.isupper()}
        raise KilnError(
            f"{path}: tensor '{name}' is of type {names.get(tensor.Type(), tensor.Type())}, allowed: "
            f"{', '.join(_DTYPES.values())}"
        )
    shape = tensor.ShapeAsNumpy()
    sizes = () if isinstance(shape, int) else tuple(int(size) for size in shape)
    quant = tensor.Quantization()
    pair = None
    if quant is not None and quant.ScaleLength() == 1:
        pair = (float(quant.Scale(0)), int(quant.ZeroPoint(0)) if quant.ZeroPointLength() else 0)
    return Port(name, dtype, sizes, "NHWC" if len(sizes) == 4 else None, pair)


def _input_shapes(
    path: Path, graph: Any, inputs: list[Port], options: ImportOptions
) -> list[tuple[int | str, ...]]:
    """The shape of every input. The options may only change axes that the file marks as dynamic.

    Raises KilnError for an input in the options that the model does not have, and as `bind_shape`.
    """
    options.check_inputs(path, [port.name for port in inputs])
    shapes = []
    for port, index in zip(inputs, graph.InputsAsNumpy(), strict=True):
        signature = graph.Tensors(index).ShapeSignatureAsNumpy()
        marks = [1] * len(port.shape) if isinstance(signature, int) else list(signature)
        is_configured = port.name in options.shapes
        declared = tuple(
            None if mark < 0 and (is_configured or unnamed(port.name, axis) in options.dims) else size
            for axis, (size, mark) in enumerate(zip(port.shape, marks, strict=True))
        )
        shape = bind_shape(str(path), port.name, declared, options)
        for axis, size in enumerate(shape):
            if not isinstance(size, (int, str)):
                raise KilnError(
                    f"{path}: inputs.{port.name}.shape: axis {axis} is {show(size)}; a TFLite file allows "
                    "sizes and names of dimensions, no expressions of them"
                )
        shapes.append(shape)
    return shapes
