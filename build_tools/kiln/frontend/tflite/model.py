"""Import of a TFLite file: checks it, binds dynamic sizes, converts it to Relax.

The layout stays NHWC. Quantised operators become float operators between dequantize and quantize.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tflite
from tvm.relax.frontend.tflite import tflite_frontend

from kiln.config.dims import Segment
from kiln.config.sizes import show
from kiln.errors import KilnError
from kiln.file_kinds import refuse_other
from kiln.frontend.counted.sizes import with_counted
from kiln.frontend.importer import Imported, finish, one_line, read_model, result_types
from kiln.frontend.interface import Port
from kiln.frontend.options import ImportOptions, bind_shape
from kiln.frontend.quiet import convert_quietly
from kiln.frontend.state import STATES, StatePort
from kiln.frontend.symbols import Symbols
from kiln.frontend.tflite.attributes import check_graph
from kiln.frontend.tflite.control import CONTROL, OWN, VARIABLES, without_control_flow
from kiln.frontend.tflite.converter_tables import INTEGER_CONVERTERS
from kiln.frontend.tflite.files import names_operators
from kiln.frontend.tflite.known_values import has_known_values
from kiln.frontend.tflite.narrow import has_narrow, without_narrow
from kiln.frontend.tflite.operands import Compute
from kiln.frontend.tflite.ops import Converter, ShapeError
from kiln.frontend.tflite.own_nodes import check_fixed
from kiln.frontend.tflite.signatures import check_one
from kiln.frontend.tflite.sizes import OperatorOfSizeError, for_all_sizes, resized
from kiln.frontend.tflite.sparse import without_sparsity
from kiln.frontend.tflite.state_tensors import STATES as RECURRENT
from kiln.frontend.tflite.state_tensors import with_states
from kiln.frontend.tflite.unfitting_sizes import asking_for_sizes
from kiln.frontend.tflite.unique_names import with_unique_names
from kiln.frontend.tflite.variables import Opened, opened

_IDENTIFIER = b"TFL3"
# Exceptions of the flatbuffers reader for an offset or a length that points outside the file.
_DAMAGED = (
    struct.error,
    IndexError,
    ValueError,
    TypeError,
    OverflowError,
    AssertionError,
    UnicodeDecodeError,
)


@dataclass(frozen=True)
class _SizedFile:
    """A file whose inputs get `shapes`; stateful, stateless: with and without recurrent states as inputs.

    nodes: receives, by Relax operator, the first operators of the file that were converted to it.
    """

    path: Path
    stateless: Opened
    stateful: Opened
    shapes: Sequence[Sequence[int | str]]
    options: ImportOptions
    symbols: Symbols
    nodes: dict[str, list[str]] = field(default_factory=dict)

    def convert(self) -> Any:
        """The module, for all sizes of the dynamic dimension if there is one. Raises KilnError."""
        model = tflite.Model.GetRootAsModel(self.stateless.content, 0)
        reads_sizes = has_known_values(model)
        dynamic = {
            dim: segment for dim, segment in (self.options.bucket or {}).items() if segment.size is None
        }
        if not dynamic:
            return self._convert_at(0, reads_sizes, self.symbols, {})
        [(dim, segment)] = dynamic.items()
        try:  # with sizes that are computed in the run
            return self._for_all_sizes(dim, segment, False)
        except KilnError:
            if not reads_sizes:
                raise
            return self._for_all_sizes(dim, segment, True)

    def _for_all_sizes(self, dim: str, segment: Segment, sizes_known: bool) -> Any:
        """The module for all sizes; operators whose integer form is made for one size are in floats.

        Where it is not known which operator that is, all are in floats.
        """
        in_floats: set[str] = set()
        in_integers: set[str] = set()  # operators whose integer form made a function

        def at(size: int) -> tuple[Any, dict[str, Compute]]:
            computes: dict[str, Compute] = {}
            try:
                return self._convert_at(size, sizes_known, None, computes, in_floats), computes
            finally:
                in_integers.update({made.operator for made in computes.values()} & INTEGER_CONVERTERS.keys())

        while True:
            try:
                return for_all_sizes(at, dim, segment, self.symbols, self.stateless.content)
            except KilnError as error:
                left = in_integers - in_floats
                if not left:
                    raise
                operator = error.operator if isinstance(error, OperatorOfSizeError) else ""
                in_floats |= {operator} if operator in left else left

    def _convert_at(
        self,
        size: int,
        sizes_known: bool,
        symbols: Symbols | None,
        computes: dict[str, Compute],
        in_floats: Collection[str] = (),
    ) -> Any:
        """The module with the dynamic dimension fixed to `size`.

        sizes_known: whether arithmetic on sizes is done here, where LiteRT can run the file. computes,
        in_floats: see `Converter`.
        """
        converter = partial(Converter, self.path, symbols, self.nodes, computes, in_floats)
        model = tflite.Model.GetRootAsModel(self.stateful.content, 0)
        graph = model.Subgraphs(0)
        input_shapes = [[self.options.size(entry) or size for entry in shape] for shape in self.shapes]
        shapes_in_file = [_port(self.path, graph, index).shape for index in graph.InputsAsNumpy()]
        is_same_shape = input_shapes == [list(shape) for shape in shapes_in_file]
        if is_same_shape and not sizes_known:
            try:
                return _convert(self.path, model, converter)
            except ShapeError:  # converters write 1 for a size that they do not know, and LiteRT reads none
                if symbols is not None and symbols.all_counted():
                    raise
        if not is_same_shape:
            check_fixed(self.path, model)
        # LiteRT knows the inputs that are not states of recurrent operators.
        own_inputs = len(shapes_in_file) - len(self.stateful.variables) + len(self.stateless.variables)
        try:
            content = resized(self.stateless.content, input_shapes[:own_inputs], sizes_known)
        except KilnError:
            if not is_same_shape:
                raise
            return asking_for_sizes(graph, lambda: _convert(self.path, model, converter))
        resized_file = _stateful(self.path, Opened(content, self.stateless.variables))
        model = tflite.Model.GetRootAsModel(resized_file.content, 0)
        return _convert(self.path, model, converter)


def load(path: Path, options: ImportOptions) -> Imported:
    """Import a TFLite file. Raises KilnError as documented at `kiln.frontend.importer.import_model`."""
    model_read = read(path)
    check_one(path, model_read)
    rewritten = _rewritten(path, model_read)
    stateful = _stateful(path, rewritten)
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

    sized = _SizedFile(path, rewritten, stateful, shapes, options, symbols)
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


def _rewritten(path: Path, model: tflite.Model) -> Opened:
    """The file with dense constants and unique names, and without control flow and resource variables."""
    content = path.read_bytes()
    if _has_sparsity(model):
        content = without_sparsity(path, content)
    if has_narrow(model):
        content = without_narrow(path, content)
    try:
        if not names_operators(model, {*CONTROL, *VARIABLES}):
            return Opened(with_unique_names(path, content))
        return opened(path, with_unique_names(path, without_control_flow(path, content)))
    except _DAMAGED as error:
        raise KilnError(f"{path}: a graph of its control flow is damaged: {one_line(error)}") from error


def _stateful(path: Path, file: Opened) -> Opened:
    """The file with the state of its recurrent operators as inputs and outputs."""
    model = tflite.Model.GetRootAsModel(file.content, 0)
    return with_states(path, file) if names_operators(model, RECURRENT) else file


def _has_sparsity(model: tflite.Model) -> bool:
    graphs = [model.Subgraphs(number) for number in range(model.SubgraphsLength())]
    return any(
        graph.Tensors(index).Sparsity() is not None
        for graph in graphs
        for index in range(graph.TensorsLength())
    )


def _convert(path: Path, model: Any, converter: Callable[..., Converter]) -> Any:
    try:
        return tflite_frontend.from_tflite(model, op_converter=converter)
    except KilnError:
        raise
    except Exception as error:  # converters raise every kind of exception
        raise KilnError(f"{path}: cannot import the TFLite graph: {one_line(error)}") from error


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
    except _DAMAGED as error:
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
            None if is_configured and mark < 0 else size for size, mark in zip(port.shape, marks, strict=True)
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
