"""ExecuTorch: exported by PyTorch and lowered to its XNNPACK delegate, as its guide to CPUs recommends.

It reads no ONNX files: the graph becomes a PyTorch module first, by onnx2torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import Array, Interface, Run

DISTRIBUTIONS = ("executorch", "torch", "onnx2torch", "onnxsim", "onnx")
SOURCES = ("onnx",)
# A program that is deployed has no PyTorch in it; its Python interface does, and cannot do without.
RUNTIME = "/site-packages/executorch/"


def convert(source: Path, interface: Interface, folder: Path) -> Path:
    """The .pte file. What follows from constant shapes is computed before, as export cannot follow it."""
    import onnx
    import onnxsim
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from onnx2torch import convert as to_torch

    _add_normalisation()
    shapes = {tensor["name"]: tensor["shape"] for tensor in interface["inputs"]}
    simple, _ = onnxsim.simplify(onnx.load(str(source)), overwrite_input_shapes=shapes)
    _prepare(simple)
    module = to_torch(simple).eval()
    _bind_constants(module)
    example = tuple(
        torch.from_numpy(np.fromfile(tensor["file"], tensor["dtype"]).reshape(tensor["shape"]))
        for tensor in interface["inputs"]
    )
    exported = torch.export.export(module, example, strict=False)
    edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    program = folder / "model.pte"
    program.write_bytes(edge.to_executorch().buffer)
    return program


def _prepare(model: Any) -> None:
    """Constants as initializers, where onnx2torch looks for weights; names of nodes that Python takes."""
    import onnx

    graph, kept = model.graph, []
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            tensor = onnx.TensorProto()
            tensor.CopyFrom(node.attribute[0].t)
            tensor.name = node.output[0]
            graph.initializer.append(tensor)
        else:
            kept.append(node)
    del graph.node[:]
    graph.node.extend(kept)
    for number, node in enumerate(graph.node):
        node.name = f"step{number}_{node.op_type}"  # it becomes a member: `class` could not


def _bind_constants(module: Any) -> None:
    """Shapes, indices and scales that are constants become numbers in the program.

    onnx2torch's modules read them out of tensors while they run, which export cannot follow.
    """
    import torch

    for value in (*module.parameters(), *module.buffers()):  # a stride of 0 would be refused
        value.data = value.data.clone(memory_format=torch.contiguous_format)
    graph, call = module.graph, module.graph.call_function

    def numbers(node: Any, at: int) -> Any:
        """The input's elements; None where it is absent, empty or no constant."""
        given: Any = node.args[at] if at < len(node.args) else None
        if getattr(given, "op", None) != "get_attr":
            return None
        value = module
        for part in str(given.target).split("."):
            value = getattr(value, part)
        return value.tolist() or (0 if value.ndim == 0 else None)

    for node in [node for node in graph.nodes if node.op == "call_module"]:
        made = module.get_submodule(node.target)
        second, third, fourth = (numbers(node, at) for at in (1, 2, 3))
        value = node.args[0] if node.args else None
        with graph.inserting_before(node):
            match type(made).__name__:
                case "OnnxReshape" if second:
                    sizes = [
                        graph.call_method("size", (value, axis)) if size == 0 else size
                        for axis, size in enumerate(second)
                    ]
                    new = call(torch.reshape, (value, tuple(sizes)))
                case "OnnxResize" if third or fourth:
                    how = {
                        "size": fourth[2:] if fourth else None,
                        "scale_factor": third[2:] if third else None,
                        "mode": {"nearest": "nearest", "linear": "bilinear"}[made.onnx_mode],
                        "align_corners": made.align_corners,
                    }
                    new = call(torch.nn.functional.interpolate, (value,), how)
                case "OnnxGather" if isinstance(second, int):
                    new = call(torch.select, (value, made._axis, second))
                case "OnnxSlice" if second and third:
                    new = value
                    axes, steps = fourth or range(len(second)), numbers(node, 4) or [1] * len(second)
                    for begin, end, axis, step in zip(second, third, axes, steps, strict=True):
                        new = call(torch.ops.aten.slice.Tensor, (new, axis, begin, end, step))
                case _:
                    continue
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    graph.eliminate_dead_code()
    module.recompile()


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
    tensors = [torch.from_numpy(np.ascontiguousarray(value)) for value in inputs]

    def run() -> list[Any]:
        return [output.numpy() for output in method.execute(tensors)]

    return run
