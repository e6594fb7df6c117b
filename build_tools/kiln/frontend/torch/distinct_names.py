"""Names of tensors in a file of PyTorch's exporter, each for one tensor.

The exporter names a result after its node and a weight after its parameter, so a buffer called `zeros` has
the name of the result of torch.zeros, and constants cannot be folded.
"""

from __future__ import annotations

from itertools import count
from typing import Any


def with_distinct_names(model: Any) -> None:
    """Rename, in place, results of nodes of an onnx_ir.Model that have the name of a weight or an input."""
    taken = {*model.graph.initializers, *(value.name for value in model.graph.inputs)}
    results = [value for node in model.graph.all_nodes() for value in node.outputs]
    names = taken | {value.name for value in results}
    for value in results:
        if value.name in taken:
            value.name = next(name for number in count(1) if (name := f"{value.name}_{number}") not in names)
            names.add(value.name)
