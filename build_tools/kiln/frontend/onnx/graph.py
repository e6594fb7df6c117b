"""Converts an ONNX graph to Relax: TVM's importer, extended by Kiln's converters and shape evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import helper, numpy_helper
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from kiln.errors import KilnError
from kiln.extents import Extent, shape_of
from kiln.frontend.importer import operators, tensor_type
from kiln.frontend.onnx import ops, order, required_sizes, structure
from kiln.frontend.onnx.attributes import describe, name_in_errors
from kiln.frontend.onnx.body import INNER_OPSET, Body, Expansion
from kiln.frontend.onnx.body_scope import BodyScope
from kiln.frontend.onnx.broadcast import aligned
from kiln.frontend.onnx.control import weights_of
from kiln.frontend.onnx.expansions import expansion_of
from kiln.frontend.onnx.guards import Attributes, Inputs, Types, check_numbers, check_read
from kiln.frontend.onnx.misfits import UnknownSizesError, has_rule, reason, size_fault, types_of
from kiln.frontend.onnx.node import Node, as_tensor
from kiln.frontend.onnx.own_nodes import convert_own, has_converter, is_own
from kiln.frontend.onnx.refusals import draws, refuse
from kiln.frontend.onnx.schema_functions import body_of, has_body
from kiln.frontend.onnx.sequences import Sequences
from kiln.frontend.onnx.shapes import MOST_ELEMENTS, evaluate
from kiln.frontend.onnx.value import Value, array_of, from_array, from_items
from kiln.frontend.symbols import Symbols
from kiln.onnx_domains import domain_of, is_onnx, versions_of
from kiln.operators.registry import LoadedOperator

_NODES_NAMED = 3  # nodes recorded per operator, for errors


class Importer(onnx_frontend.ONNXGraphImporter):  # type: ignore[misc]  # tvm is untyped
    """Converts one ONNX graph.

    path: model file, for errors. shapes: by input, sizes and expressions of the variables of `symbols`.
    nodes: receives, by Relax operator, the nodes converted to it. every_node: whether all nodes are
    recorded, or at most three per operator. own: the user's operators.
    """

    def __init__(
        self,
        path: Path,
        shapes: Mapping[str, list[Extent]],
        symbols: Symbols,
        nodes: dict[str, list[str]],
        every_node: bool = False,
        opsets: Sequence[onnx.OperatorSetIdProto] = (),
        own: Mapping[tuple[str, str], LoadedOperator] | None = None,
    ) -> None:
        super().__init__(dict(shapes), None, keep_params_in_input=False, sanitize=True)
        self.opset: int = 0  # from_onnx sets it
        self._path = path
        self._symbols = symbols
        self._nodes_of = nodes
        self._every_node = every_node
        self._seen: set[Any] = set()  # calls that are already recorded in `nodes`
        self._values: dict[str, Value] = {}
        self.sequences: Sequences = {}
        self._own = own or {}
        self._opsets = list(opsets)
        self._versions = versions_of(opsets)
        self._types = Types(onnx.GraphProto())
        self._nested = False  # whether the node belongs to a graph nested in another node
        self._read: set[str] = set()  # tensors that a node or the caller reads

    def _parse_graph_input(self, graph: onnx.GraphProto) -> None:
        super()._parse_graph_input(graph)
        divided = self._symbols.divided()
        if divided:  # a tensor's shape defines a variable only if an axis is the variable itself
            self._inputs["kiln_sizes"] = relax.Var("kiln_sizes", relax.ShapeType(divided))

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        nodes = [node for node in graph.node if not self._converts(node)]
        unknown = [node for node in nodes if draws(node) or not self._has_body(node)]
        refuse(self._path, unknown)

    def _converts(self, node: onnx.NodeProto) -> bool:
        """Whether the user, Kiln or TVM has a converter for the operator."""
        return self._own_operator(node) is not None or has_converter(node.domain, node.op_type)

    def _own_operator(self, node: onnx.NodeProto) -> LoadedOperator | None:
        """The user's operator that computes `node`; None for a node of another operator."""
        return self._own.get((node.domain, node.op_type)) if is_own(node) else None

    def _construct_nodes(self, graph: onnx.GraphProto) -> None:
        self._types = Types(graph)
        self._learn(graph)
        self._read.update(output.name for output in graph.output)
        for node in graph.node:
            self._read.update(order.reads(node))
        for node in graph.node:
            self._add(node)
        for output in graph.output:
            self._tensor(output.name)

    def _learn(self, graph: onnx.GraphProto, of_shape: bool = False) -> None:
        """Record the values of short weights; in nested graphs, nothing else computes with constants."""
        for weight in graph.initializer:
            if int(np.prod(weight.dims)) <= MOST_ELEMENTS:
                self._values[weight.name] = from_array(numpy_helper.to_array(weight), of_shape)

    def _tensor(self, name: str) -> Any:
        """The tensor `name` as a Relax expression, built from its value if there is no expression yet."""
        if name in self.sequences:
            raise ValueError(f"'{name}' is a sequence or an optional value, allowed: a tensor")
        if name not in self._nodes and name in self._values:
            self._nodes[name] = self.bb.normalize(as_tensor(self._values[name]))
        return self._nodes[name]

    def _add(self, node: onnx.NodeProto) -> None:
        """Convert one node, or evaluate it if it depends on shapes alone. KilnErrors name the node."""
        try:
            with self._symbols.missing.inside(describe(node)):
                if structure.convert(self, node):
                    return
                if not is_onnx(node) or not self._compute(node):
                    self._convert_or_inline(node, node)
        except KilnError:
            raise
        except Exception as error:  # of any type: the node is not supported
            why = f"{describe(node)}: {self._reason(error, node)}"
            raise KilnError(f"{self._path}: operators that cannot be imported: {why}") from error

    def _reason(self, error: Exception, node: onnx.NodeProto) -> str:
        """Why `node` cannot be converted, in terms of its inputs."""
        return reason(error, node, self._types_of(node), self._versions.get(domain_of(node), 1))

    def _types_of(self, node: onnx.NodeProto) -> dict[str, tuple[str, list[int | str]]]:
        """The types of the inputs of `node`, as far as they are tensors of one type and shape."""

        def find(name: str) -> tuple[str, list[int | str]] | None:
            sizes, value = self._sizes_of(name), self._values.get(name)
            if sizes is None:
                return None
            dtype = self._nodes[name].ty.dtype if value is None else value.dtype
            return str(dtype), [n if isinstance(n, int) else self._symbols.shown(n) for n in sizes]

        return types_of(node.input, find)

    def _sizes_of(self, name: str) -> list[Extent] | None:
        """The sizes of tensor `name`; None where they are not known."""
        value = self._values.get(name)
        if value is not None:
            return list(value.items.shape)
        tensor: Any = self._nodes.get(name)
        return None if getattr(getattr(tensor, "ty", None), "shape", None) is None else shape_of(tensor)

    def _expand(self, node: onnx.NodeProto, expansion: Expansion) -> None:
        """Convert a node by its expansion. Raises ValueError for a missing output and an unread attribute."""
        body = Body(BodyScope(self, node), node)
        outer, self.opset = self.opset, INNER_OPSET
        try:
            results = body.finish(expansion(body))
        finally:
            self.opset = outer
        for name, result in zip(node.output, results, strict=False):
            if name and result is not None:
                self._types.check(name, self._tensor(result))
                self._nodes[name] = self._tensor(result)
                self._values.pop(name, None)
                if result in self._values:
                    self._values[name] = self._values[result]

    def _graph(self, graph: onnx.GraphProto) -> None:
        """Convert a graph nested in a node, whose inputs are bound and whose names are its own."""
        for name, value in weights_of(graph).items():
            self._nodes[name] = relax.const(value, str(value.dtype))  # without a type int64 becomes int32
        self._check_for_unsupported_ops(graph)
        self._learn(graph, of_shape=True)
        self._read.update(output.name for output in graph.output)
        for node in graph.node:
            self._read.update(order.reads(node))
        outer, self._nested = self._nested, True
        counted_before = dict(self._symbols.found)
        for node in graph.node:
            self._add(node)
        self._nested, self._symbols.found = outer, counted_before

    def _compute(self, node: onnx.NodeProto, in_body: bool = False) -> bool:
        """Evaluate the node at build time if possible, and record its value; returns whether it was possible.

        in_body: whether the node is in the body of a function, where constants are shapes and axes, too.
        """
        if node.op_type == "Constant":
            array = array_of(node)
            self._nodes[node.output[0]] = relax.const(array, str(array.dtype))
            if array.size <= MOST_ELEMENTS:
                self._values[node.output[0]] = from_array(array, of_shape=in_body or self._nested)
            return True
        if node.op_type in ("Shape", "Size"):
            self._values[node.output[0]] = self._measure(node)
            return True
        names = [name for name in node.input if name]
        if not all(name in self._values for name in names):
            return False
        inputs = [self._values[name] if name else None for name in node.input]
        value = evaluate(node, inputs, self.opset, self._symbols, self._nested)
        if value is None:
            return False
        self._values[node.output[0]] = value
        return True

    def _measure(self, node: onnx.NodeProto) -> Value:
        """The value of a Shape or Size node."""
        value = self._values.get(node.input[0])
        shape = list(value.items.shape) if value else shape_of(self._tensor(node.input[0]))
        if node.op_type == "Size":
            product = from_items([self._symbols.product(shape)])
            return Value(product.items.reshape(()), "int64")
        limits = {attribute.name: attribute.i for attribute in node.attribute}
        return from_items(shape[limits.get("start", 0) : limits.get("end", len(shape))])

    def _has_body(self, node: onnx.NodeProto) -> bool:
        """Whether ONNX defines the operator of `node`, in the opset of the file, as a function."""
        return has_body(node, self._versions.get(domain_of(node), 1))

    def _convert_or_inline(self, node: onnx.NodeProto, origin: onnx.NodeProto) -> None:
        """Convert one node; where that fails, the nodes of its body, if ONNX defines it as a function.

        `origin`: the node of the file that contains `node` in its function body, or `node` itself.
        """
        failure: Exception | None = None
        user_operator = self._own_operator(node)
        if user_operator is not None:
            inputs = [self._tensor(name) if name else None for name in node.input]
            results = convert_own(node, user_operator, inputs, self.bb, self._symbols)
            for result in results:
                bound = self.bb.lookup_binding(result)
                self._note(result if bound is None else bound, origin)
            self._assign(node, relax.Tuple(results))
            return
        required_sizes.check(node, self._sizes_of, self._symbols)
        if self._converts(node):
            try:
                expansion = expansion_of(node.domain, node.op_type)
                if expansion is None:
                    self._convert(node, origin)
                else:
                    self._expand(node, expansion)
                return
            except Exception as error:  # TVM raises exceptions of many types
                failure = error
        if not self._has_body(node):
            raise failure or ValueError(f"{node.op_type}: there is no conversion of this operator")
        outer = self._symbols.inside
        try:
            self._symbols.inside = outer or node.output[0]
            self._inline(node, origin, self._opsets)
        except Exception as error:
            if failure is not None and not isinstance(failure, tvm.error.OpNotImplemented):
                raise failure from None
            raise ValueError(f"in its function body, {self._reason(error, node)}") from error
        finally:
            self._symbols.inside = outer

    def _inline(self, node: onnx.NodeProto, origin: onnx.NodeProto, opsets: Sequence[Any]) -> None:
        """Convert the nodes of the body of `node`. Raises ValueError if there is none for its types."""
        types = {}
        for name in filter(None, node.input):
            value = self._values.get(name)
            shape = list(value.items.shape) if value else shape_of(self._tensor(name))
            dtype = value.dtype if value else str(self._tensor(name).ty.dtype)
            types[name] = helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape
        nodes = body_of(node, types, opsets)
        if not nodes:
            raise ValueError("its function body does not exist for its types and its opset")
        for inner in nodes:
            self._read.update(order.reads(inner))
        for inner in nodes:
            try:
                if structure.convert(self, inner):
                    continue
                if is_own(inner) or not self._compute(inner, in_body=True):
                    self._convert_or_inline(inner, origin)
            except KilnError:
                raise
            except Exception as error:
                raise ValueError(f"{inner.op_type}: {self._reason(error, inner)}") from error
        for name in node.output:
            if name in self._nodes:
                self._types.check(name, self._nodes[name])

    def _convert(self, node: onnx.NodeProto, origin: onnx.NodeProto | None = None) -> None:
        """Convert one node by Kiln's converter, or by TVM's where Kiln has none or leaves the node to TVM.

        `origin`: the node of the file whose expansion or function body contains `node`.
        """
        wrong = size_fault(node, self._types_of(node)) if has_rule(node) else ""
        if wrong:
            raise ValueError(wrong)
        attributes = Attributes(self._parse_attr(node.attribute))
        attributes["tvm_custom"] = {"name": node.name, "num_outputs": len(node.output)}
        converter = ops.OVERRIDES.get(node.op_type)
        inputs = None
        tensors = aligned(node, self._tensor, self._symbols, self.bb)
        view = (attributes, self._values, tensors, self._symbols, self.bb, self.opset, list(node.output))
        view_of_node = Node(node.op_type, node.input, *view)
        expression = None if converter is None else converter(view_of_node)
        if expression is None:
            check_numbers(view_of_node)
            inputs = Inputs([view_of_node.tensor(index) for index in range(len(node.input))])
            expression = self._convert_operator(node.op_type, inputs, attributes, self.opset)
        check_read(node, attributes, inputs, self.opset)
        self._note(expression, origin or node)
        expression = self.bb.normalize(expression)
        self._assign(node, expression)

    def _note(self, expression: Any, node: onnx.NodeProto) -> None:
        """Record `node` as the origin of the operators in `expression`."""
        for name in operators(expression, self._seen):
            origins = self._nodes_of.setdefault(name, [])
            if self._every_node or len(origins) < _NODES_NAMED:
                origins.append(f"{node.op_type} node {name_in_errors(node)}")

    def _assign(self, node: onnx.NodeProto, expression: Any) -> None:
        """Bind the outputs of `node` to the results of `expression`.

        Raises ValueError for a shape that is not known at build time, and for another type than ONNX infers.
        A missing output is an error only where something reads it.
        """
        results = [expression]
        if isinstance(expression, relax.Tuple):
            results = list(expression.fields)
        elif isinstance(expression.ty, relax.TupleType):
            count = len(expression.ty.fields)
            results = [self.bb.emit(relax.TupleGetItem(expression, index)) for index in range(count)]
        named = [(name, result) for name, result in zip(node.output, results, strict=False) if name]
        missing = [name for name in node.output[len(results) :] if name in self._read]
        if missing:
            raise ValueError(f"its output '{missing[0]}' is not supported")
        for name, result in named:
            try:
                tensor_type(result.ty, "its result", self._symbols)
            except KilnError as error:
                raise UnknownSizesError(str(error)) from None
            self._types.check(name, result, node.op_type)
        for name, result in named:
            self._nodes[name] = result
            self._values.pop(name, None)
