"""The view of the importer that the body of an expansion has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
from tvm import relax

from kiln.frontend.onnx.expansions import expansion_of
from kiln.frontend.onnx.value import Value


class BodyScope:
    """The importer for the body of `origin`, a node of the file; implements kiln.frontend.onnx.body.Scope."""

    def __init__(self, importer: Any, origin: onnx.NodeProto) -> None:
        self._importer = importer
        self._origin = origin
        self.symbols = importer._symbols

    def expression(self, name: str) -> Any:
        """The tensor `name` as a Relax expression."""
        return self._importer._tensor(name)

    def value(self, name: str) -> Value | None:
        """The value of tensor `name`, if it is known before the model runs."""
        value: Value | None = self._importer._values.get(name)
        return value

    def bind(self, name: str, expression: Any) -> None:
        """Give `expression` the tensor name `name`, and record `origin` as the node that it comes from."""
        self._importer._note(expression, self._origin)
        # TVM's converters do not accept a field of a tuple as a tensor, unless it is bound to a variable.
        is_part = isinstance(expression, relax.TupleGetItem)
        bound = self._importer.bb.emit if is_part else self._importer.bb.normalize
        self._importer._nodes[name] = bound(expression)

    def emit_te(self, compute: Callable[..., Any], *tensors: Any, hint: str) -> Any:
        """The result of the tensor expression `compute` of `tensors`; its kernel is named `hint`."""
        return self._importer.bb.emit_te(compute, *tensors, primfunc_name_hint=hint)

    def reads(self, name: str) -> bool:
        """Whether a node or the caller reads the tensor `name`."""
        return bool(name in self._importer._read)

    def convert(self, node: onnx.NodeProto) -> None:
        """Convert a node of the body."""
        if self._importer._compute(node):
            return
        self._importer._read.update(node.output)
        expansion = expansion_of(node.domain, node.op_type)
        if expansion is None:
            self._importer._convert(node, self._origin)
        else:
            self._importer._expand(node, expansion)
