"""The importer as the body of an expansion sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
from tvm import relax

from kiln.frontend.onnx.expansions import expansion_of
from kiln.frontend.onnx.value import Value


class BodyScope:
    """The importer as the body of `origin`, a node of the file, sees it (kiln.frontend.onnx.body.Scope)."""

    def __init__(self, importer: Any, origin: onnx.NodeProto) -> None:
        self._importer = importer
        self._origin = origin
        self.symbols = importer._symbols

    def expression(self, name: str) -> Any:
        """The tensor of a name."""
        return self._importer._tensor(name)

    def value(self, name: str) -> Value | None:
        """The value of a name, if it is known before the model runs."""
        found: Value | None = self._importer._values.get(name)
        return found

    def bind(self, name: str, expression: Any) -> None:
        """Make `name` a tensor."""
        self._importer._note(expression, self._origin)
        # The converters take a part of a tuple for no tensor, unless it is bound to a variable.
        is_part = isinstance(expression, relax.TupleGetItem)
        bound = self._importer.bb.emit if is_part else self._importer.bb.normalize
        self._importer._nodes[name] = bound(expression)

    def emit_te(self, compute: Callable[..., Any], *tensors: Any, hint: str) -> Any:
        """The result of a tensor expression."""
        return self._importer.bb.emit_te(compute, *tensors, primfunc_name_hint=hint)

    def reads(self, name: str) -> bool:
        """Whether anything reads a tensor."""
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
