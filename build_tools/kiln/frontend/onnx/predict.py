"""Predicts the memory and operations for folding an ONNX graph's constants, before a library folds them.

A file of a few hundred bytes can define huge constants: a ConstantOfShape of 2**36 elements, or thirty
Concats that each double the previous one. ONNX's own shape inference and onnxsim compute them without a
limit. Therefore the graph is walked once with the type of every tensor and the value of every short constant,
and a node whose constant exceeds the limits is refused by name. The limits count bytes and operations, not
seconds, so that a build gives the same result on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from kiln.errors import KilnError
from kiln.frontend.importer import one_line
from kiln.frontend.onnx.amounts import check_axes_and_indices
from kiln.frontend.onnx.attributes import describe, graphs
from kiln.frontend.onnx.branch_faults import chosen_by
from kiln.frontend.onnx.misfits import dtype_name, inputs_text, meaning_of, size_fault, type_fault, types_of
from kiln.frontend.onnx.tensor_sizes import bytes_of, elements_of, placeholder, sizes_of, tensor_bytes
from kiln.frontend.onnx.types import is_typed
from kiln.frontend.options import MOST_ELEMENTS
from kiln.frontend.quiet import quiet_stderr
from kiln.onnx_domains import domain_of, versions_of

# Limit of one folded constant, or the bytes of all weights as floats where these are more.
LEAST_BYTES = 32 << 20
_MOST_TIMES = 16  # limit of all folded constants together, in multiples of the limit of one
MOST_OPERATIONS = 1 << 38  # limit of all folded nodes together
_MOST_TRACKED = 1024  # limit of elements of a constant whose value is tracked, such as a shape
_MOST_OF_SHAPES = 1 << 16  # limit of elements of a tensor that is computed from dynamic shapes

# Operators whose result's shape depends on the value of an input, and is unknown if the value is unknown.
_GENERATOR_NAMES = """
    AffineGrid BlackmanWindow CenterCropPad Col2Im ConstantOfShape DFT Expand HammingWindow HannWindow
    MaxUnpool MelWeightMatrix OneHot Pad RandomNormal RandomUniform Range Resize STFT Tile Upsample
"""
_GENERATORS = frozenset(_GENERATOR_NAMES.split())
# Operators whose result has at most as many rows as their inputs have elements, and often fewer.
_COUNTED = frozenset(("Compress", "NonZero", "Unique"))
# Never folded: operators with random results, and the operators that mark a quantised tensor.
_NEVER_FOLDED_NAMES = """
    Bernoulli DequantizeLinear DynamicQuantizeLinear Multinomial QuantizeLinear RandomNormal RandomNormalLike
    RandomUniform RandomUniformLike
"""
_NEVER_FOLDED = frozenset(_NEVER_FOLDED_NAMES.split())
# Operators that ONNX 1.23's reference implementation computes otherwise than they are specified: pools with
# unequal pads on the two sides of an axis have other sizes.
_MISCOMPUTED = frozenset(("AveragePool", "LpPool", "MaxPool"))


class Prediction:
    """Types and short constants of a graph's tensors, and the remaining limits for folding.

    types: by name, TypeProto of each tensor whose type ONNX infers.
    values: by name, constants of at most 1024 elements, also constants computed from fixed shapes.
    """

    def __init__(self, path: Path, model: onnx.ModelProto) -> None:
        self._path = path
        self._opsets = list(model.opset_import)
        self._versions = versions_of(self._opsets)
        self._ir_version = model.ir_version
        weights = sum(map(_bytes_as_floats, _stored(path, model)))
        self._most_bytes = max(LEAST_BYTES, weights)
        self._remaining_bytes = _MOST_TIMES * self._most_bytes
        self._remaining_operations = MOST_OPERATIONS
        self.types: dict[str, Any] = {}
        self.values: dict[str, onnx.TensorProto] = {}
        self._constant: set[str] = {""}
        self._of_shapes: set[str] = {""}  # computed from constants and shapes, possibly dynamic ones

    def walk(self, graph: onnx.GraphProto) -> None:
        """Predict all nodes of `graph`. Raises KilnError for a node beyond a limit or with wrong types."""
        for value in graph.input:
            self._forget(value.name)
            if is_typed(value.type):  # those of a loop's body need no type
                self.types[value.name] = value.type
        for weight in graph.initializer:
            self._set_constant(weight.name, weight)
        for node in graph.node:
            inner = self._graphs_of(node)
            for graph_inside in inner:
                with chosen_by(graph, node) if len(inner) > 1 else nullcontext():
                    self.walk(graph_inside)
            if inner:
                self._set_branch_types(node, inner)
            else:
                self._predict_node(node)

    def _graphs_of(self, node: onnx.NodeProto) -> list[onnx.GraphProto]:
        """The graphs nested in a node; of an If with a known condition, the branch that is taken."""
        inner = {attribute.name: attribute.g for attribute in node.attribute if attribute.HasField("g")}
        condition = self.values.get(node.input[0]) if node.op_type == "If" and node.input else None
        if condition is None:
            return list(inner.values())
        name = "then_branch" if numpy_helper.to_array(condition).reshape(-1)[:1].any() else "else_branch"
        return [inner[name]] if name in inner else []

    def is_constant(self, node: onnx.NodeProto) -> bool:
        """Whether the results of `node`, visited by `walk`, are known before the model runs."""
        return all(name in self._constant for name in node.output)

    def _forget(self, name: str) -> None:
        """Remove all facts about `name`, as two branches may use one name for different tensors."""
        self._constant.discard(name)
        self._of_shapes.discard(name)
        self.types.pop(name, None)
        self.values.pop(name, None)

    def _set_constant(self, name: str, tensor: onnx.TensorProto) -> None:
        """Record that tensor `name` is the constant `tensor`."""
        self._constant.add(name)
        self._of_shapes.add(name)
        self.types[name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        if math.prod(tensor.dims) <= _MOST_TRACKED and tensor.data_type != onnx.TensorProto.STRING:
            self.values[name] = onnx.TensorProto.FromString(tensor.SerializeToString())
            self.values[name].name = name

    def _predict_node(self, node: onnx.NodeProto) -> None:
        """Predict the results of one node that has no nested graph."""
        types = self._infer(node)
        for name in filter(None, node.output):
            self._forget(name)
        shape = sizes_of(self.types.get(node.input[0])) if node.input else None
        if shape is not None:
            try:
                check_axes_and_indices(node, shape, self.values)
            except ValueError as error:
                raise KilnError(f"{self._path}: {describe(node)}: {error}") from error
        for name in filter(None, node.output):
            if name in types:
                self._check_tensor(node, name, types[name])
                self.types[name] = types[name]
        shape_only = node.op_type in ("Shape", "Size")
        if node.op_type in _NEVER_FOLDED:
            return
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            self._set_constant(node.output[0], node.attribute[0].t)
            return
        sizes = [elements_of(self.types.get(name)) for name in node.input if name]
        if all(name in self._constant for name in node.input) or (shape_only and None not in sizes):
            self._constant.update(node.output)
            self._check_constant(node)
            self._evaluate(node)
        if shape_only or all(name in self._of_shapes for name in node.input):
            self._of_shapes.update(node.output)
            self._check_computed_from_shapes(node)

    def _infer(self, node: onnx.NodeProto) -> Mapping[str, Any]:
        """The types of a node's results, as far as ONNX infers them. Raises KilnError for a type error."""
        if not all(name in self.types for name in node.input if name):
            return {}
        domain = domain_of(node)
        if not onnx.defs.has(node.op_type, domain):  # an operator of ONNX Runtime's
            return {}
        try:
            schema = onnx.defs.get_schema(node.op_type, self._versions.get(domain, 1), domain)
            types = {name: self.types[name] for name in node.input if name}
            values = {name: self.values[name] for name in node.input if name in self.values}
            inferred: Mapping[str, Any] = onnx.shape_inference.infer_node_outputs(
                schema, node, types, values, opset_imports=self._opsets, ir_version=self._ir_version
            )
        except Exception as error:  # ONNX raises exception types of its own
            text = (
                one_line(error).removeprefix("[ShapeInferenceError] ").removeprefix("[TypeInferenceError] ")
            )
            raise KilnError(
                f"{self._path}: {describe(node)} cannot be computed: {self._fault_of(node, text)}"
            ) from error
        return inferred

    def _fault_of(self, node: onnx.NodeProto, text: str) -> str:
        """The fault of the inputs of a node, in words; ONNX has refused the node with the message `text`."""

        def find(name: str) -> tuple[str, list[int | str]] | None:
            kind, sizes = self.types.get(name), sizes_of(self.types.get(name))
            return None if kind is None or sizes is None else (dtype_name(kind.tensor_type.elem_type), sizes)

        types = types_of(node.input, find)
        version = self._versions.get(domain_of(node), 1)
        fault = size_fault(node, types) or type_fault(node, types, version)
        return fault or f"{meaning_of(text) or text}; it has: {inputs_text(node, types)}"

    def _set_branch_types(self, node: onnx.NodeProto, graphs: list[onnx.GraphProto]) -> None:
        """Set the types of an If's results where both branches have the same type."""
        if node.op_type != "If":
            return
        for name, *inner in zip(node.output, *(graph.output for graph in graphs), strict=False):
            types = [self.types.get(branch_value.name) for branch_value in inner]
            if types[0] is not None and all(branch_value == types[0] for branch_value in types):
                self.types[name] = types[0]

    def _check_tensor(self, node: onnx.NodeProto, name: str, kind: Any) -> None:
        """Raise KilnError if result `name` of type `kind` has a negative size or too many elements."""
        shape = sizes_of(kind)
        if shape is None:
            return
        if any(isinstance(size, int) and size < 0 for size in shape):
            raise KilnError(
                f"{self._path}: {describe(node)}: its result '{name}' has a negative size: {shape}"
            )
        elements = elements_of(kind)
        if elements is not None and elements > MOST_ELEMENTS:
            raise KilnError(
                f"{self._path}: {describe(node)}: its result '{name}' of {shape} has {elements} elements, "
                f"allowed: at most {MOST_ELEMENTS} in one tensor"
            )

    def _check_computed_from_shapes(self, node: onnx.NodeProto) -> None:
        """Raise KilnError if `node` computes a large tensor from dynamic shapes.

        ONNX's shape inference stores every element of such a tensor, known or not.
        """
        elements = [elements_of(self.types.get(name)) for name in node.output if name not in self._constant]
        if any(count is not None and count > _MOST_OF_SHAPES for count in elements):
            raise KilnError(
                f"{self._path}: {describe(node)}: computes {max(filter(None, elements))} elements from "
                f"shapes that are not fixed, allowed: at most {_MOST_OF_SHAPES}"
            )

    def _check_constant(self, node: onnx.NodeProto) -> None:
        """Subtract the bytes and operations of folding `node` from the limits. Raises KilnError below 0."""
        input_sizes = [tensor_bytes(self.types.get(name)) for name in node.input if name]
        result_sizes = [tensor_bytes(self.types.get(name)) for name in node.output if name]
        if None in result_sizes and node.op_type in _GENERATORS:
            raise KilnError(
                f"{self._path}: {describe(node)}: a constant whose size is not known before it is computed"
            )
        known_bytes = sum(filter(None, input_sizes))
        size = sum(
            16 * known_bytes if result_bytes is None else result_bytes for result_bytes in result_sizes
        )
        if size > self._most_bytes or size > self._remaining_bytes:
            raise KilnError(
                f"{self._path}: {describe(node)}: a constant of {size} bytes, allowed: at most "
                f"{self._most_bytes} bytes in one constant that the graph computes and "
                f"{_MOST_TIMES * self._most_bytes} in all of them"
            )
        self._remaining_bytes -= size
        self._remaining_operations -= self._operations(node) + known_bytes + size
        if self._remaining_operations < 0:
            raise KilnError(
                f"{self._path}: {describe(node)}: the constants that the graph computes take more than "
                f"{MOST_OPERATIONS} operations up to here; compute them before the model is exported"
            )

    def _operations(self, node: onnx.NodeProto) -> int:
        """The number of multiplications of a node, for operators whose cost exceeds their bytes; else 0."""
        shapes = [sizes_of(self.types.get(name)) or [] for name in node.input if name]
        numbers = [[size for size in shape if isinstance(size, int)] for shape in shapes]
        makes = sum(filter(None, (elements_of(self.types.get(name)) for name in node.output if name)))
        if "MatMul" in node.op_type or node.op_type == "Gemm":
            return makes * max((max(shape, default=1) for shape in numbers), default=1)
        if "Conv" in node.op_type or node.op_type in ("GRU", "LSTM", "RNN"):
            return max(makes, math.prod(numbers[0])) * math.prod(numbers[1][1:])
        if node.op_type == "Einsum":
            return _einsum_products(node, numbers)
        return 0

    def _evaluate(self, node: onnx.NodeProto) -> None:
        """Record the value of a short constant, if ONNX's reference implementation can compute it."""
        counts = [elements_of(self.types.get(name)) for name in node.output]
        if node.op_type in _MISCOMPUTED:
            return
        if len(node.output) != 1 or (counts[0] is None and node.op_type not in _COUNTED):
            return
        if counts[0] is not None and counts[0] > _MOST_TRACKED:
            return
        if node.op_type in ("Shape", "Size"):
            sizes = sizes_of(self.types.get(node.input[0]))
            if sizes is None or any(isinstance(size, str) for size in sizes):
                return
            feeds = {node.input[0]: placeholder(sizes)}
        elif all(name in self.values for name in node.input if name):
            feeds = {name: numpy_helper.to_array(self.values[name]) for name in node.input if name}
        else:
            return
        if node.op_type == "CumSum" and feeds[node.input[1]].size == 1:
            # ONNX Runtime accepts an axis of one element, as PyTorch writes it; the reference has none of it.
            feeds = {**feeds, node.input[1]: feeds[node.input[1]].reshape(())}
        empty = [helper.make_empty_tensor_value_info(name) for name in (*feeds, node.output[0])]
        model = helper.make_model(
            helper.make_graph([node], "node", empty[:-1], empty[-1:]), opset_imports=self._opsets
        )
        try:
            with quiet_stderr():
                [result] = ReferenceEvaluator(model).run(None, feeds)
            if counts[0] not in (None, result.size):
                return  # not what ONNX infers
            value = numpy_helper.from_array(result, node.output[0])
            self.values[node.output[0]] = value
            self.types[node.output[0]] = helper.make_tensor_type_proto(value.data_type, value.dims)
        except Exception:  # the reference implementation has gaps: the value stays unknown
            return


def _einsum_products(node: onnx.NodeProto, shapes: Sequence[Sequence[int]]) -> int:
    """Multiplications of an Einsum: the product of the sizes of all labels.

    The product of all axes of all operands where labels and axes do not match, or the equation has "...".
    """
    equation = next(
        (
            attribute.s.decode(errors="replace")
            for attribute in node.attribute
            if attribute.name == "equation"
        ),
        "",
    )
    terms = [[*term.strip()] for term in equation.split("->")[0].replace(" ", "").split(",")]
    if [len(term) for term in terms] != [len(shape) for shape in shapes] or "." in equation:
        return math.prod(size for shape in shapes for size in shape)
    return math.prod(
        {
            label: size
            for term, shape in zip(terms, shapes, strict=True)
            for label, size in zip(term, shape, strict=True)
        }.values()
    )


def _stored(path: Path, model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """The tensors stored in the file: weights, and tensor attributes of nodes such as Constant."""
    for graph in graphs(path, model):
        yield from graph.initializer
        for node in graph.node:
            yield from (attribute.t for attribute in node.attribute if attribute.HasField("t"))


def _bytes_as_floats(weight: onnx.TensorProto) -> int:
    """The bytes of a stored tensor once a graph has unpacked it and converted it to float32.

    An element of at most 8 bits counts as four floats, since a byte may hold four weights of 2 bits.
    """
    stored = bytes_of(weight.dims, weight.data_type)
    elements = int(math.prod(weight.dims))
    return max(stored, 4 * elements if stored > elements else 16 * elements)
