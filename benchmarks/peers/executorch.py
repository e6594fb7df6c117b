"""ExecuTorch: exported by PyTorch and lowered to its XNNPACK delegate, as its guide to CPUs recommends.

It reads no ONNX files: the graph becomes a PyTorch module first, by onnx2torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import Array, Interface, Run

DISTRIBUTIONS = ("executorch", "torch", "onnx2torch", "onnxsim")
SOURCES = ("onnx",)
# A program that is deployed has no PyTorch in it; its Python interface does, and cannot do without.
RUNTIME = "/site-packages/executorch/"


def convert(source: Path, interface: Interface, folder: Path) -> Path:
    """The .pte file. What follows from constant shapes is computed before, as export cannot follow it."""
    import onnxsim
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from onnx2torch import convert as to_torch

    _add_normalisation()
    shapes = {tensor["name"]: tensor["shape"] for tensor in interface["inputs"]}
    simple, _ = onnxsim.simplify(str(source), overwrite_input_shapes=shapes)
    module = to_torch(simple).eval()
    given = tuple(
        torch.from_numpy(np.fromfile(tensor["file"], tensor["dtype"]).reshape(tensor["shape"]))
        for tensor in interface["inputs"]
    )
    exported = torch.export.export(module, given, strict=False)
    edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    made = folder / "model.pte"
    made.write_bytes(edge.to_executorch().buffer)
    return made


def _add_normalisation() -> None:
    """LpNormalization, which onnx2torch 1.5.15 does not know."""
    import torch
    from onnx2torch.node_converters.registry import add_converter
    from onnx2torch.utils.common import OperationConverterResult, onnx_mapping_from_node

    class Normalise(torch.nn.Module):  # type: ignore[misc]  # torch is not there when types are checked
        def __init__(self, axis: int, p: int) -> None:
            super().__init__()
            self.axis, self.p = axis, p

        def forward(self, value: Any) -> Any:
            return torch.nn.functional.normalize(value, p=float(self.p), dim=self.axis)

    @add_converter(operation_type="LpNormalization", version=1)  # type: ignore[untyped-decorator]
    def _(node: Any, graph: Any) -> Any:
        module = Normalise(node.attributes.get("axis", -1), node.attributes.get("p", 2))
        return OperationConverterResult(module, onnx_mapping_from_node(node))


def load(file: Path, interface: Interface, inputs: Sequence[Array], threads: int) -> Run:
    """The program's method `forward`, with tensors that share the inputs' memory."""
    import torch
    from executorch.extension.pybindings import portable_lib
    from executorch.runtime import Runtime

    portable_lib._unsafe_reset_threadpool(threads)
    method = Runtime.get().load_program(file).load_method("forward")
    given = [torch.from_numpy(np.ascontiguousarray(value)) for value in inputs]

    def run() -> list[Any]:
        return [output.numpy() for output in method.execute(given)]

    return run
