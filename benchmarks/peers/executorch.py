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
