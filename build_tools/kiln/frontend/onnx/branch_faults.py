"""Faults in branches of an ONNX If: a branch that never runs may not suit the given sizes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import onnx

from kiln.errors import KilnError
from kiln.frontend.onnx.attributes import describe
from kiln.frontend.onnx.order import needed_by

_WAY = "with a fixed value only one of its branches is built: 'cut: {constants: {"


@contextmanager
def chosen_by(graph: onnx.GraphProto, node: onnx.NodeProto) -> Iterator[None]:
    """Add to a KilnError raised here, in a branch of `node`, how to build one of its branches only.

    `node`: an If of `graph`. Nothing is added where its condition depends on no input of `graph`.
    """
    try:
        yield
    except KilnError as error:
        weights = {tensor.name for tensor in graph.initializer}
        needed = needed_by(graph, set(), {node.input[0]}) - weights
        inputs = [value.name for value in graph.input if value.name in needed]
        if not inputs or _WAY in str(error):
            raise
        values = ", ".join(f"{name}: …" for name in inputs)
        raise KilnError(
            f"{error}; {describe(node)} chooses by {', '.join(inputs)}: {_WAY}{values}}}}}'"
        ) from error
