"""Variants of a quantised PyTorch program: steps between levels, embeddings and other parameters moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kiln.arrays import Array
from kiln.frontend.torch.quantised import rounds
from kiln.golden.moved_values import nudged, perturbed

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule


def with_scales_times(program: ExportedProgram, factor: float) -> GraphModule:
    """The module of `program` with its constant scales of activations multiplied by `factor`."""
    module: GraphModule = program.module()
    for node in module.graph.nodes:
        if rounds(node.target):
            node.args = tuple(value * factor if isinstance(value, float) else value for value in node.args)
    module.recompile()
    return module


def moved_parameters(module: GraphModule, generator: np.random.Generator) -> dict[str, Any]:
    """The float32 parameters of `module` by name, moved.

    Embeddings move by one of 255 levels of their range, others by TIE_CHANGE, each element up or down.
    """
    import torch

    lookups = module.graph.find_nodes(op="call_function", target=torch.ops.aten.embedding.default)
    tables = {node.args[0].target for node in lookups if node.args[0].op == "get_attr"}

    def moved(name: str, value: Array) -> Array:
        return perturbed(value, None, generator) if name in tables else nudged(value, generator)

    return {
        name: torch.from_numpy(moved(name, value.detach().numpy()))
        for name, value in (*module.named_parameters(), *module.named_buffers())
        # Not of classes of torchao, which hold integers.
        if type(value) in (torch.Tensor, torch.nn.Parameter) and value.dtype == torch.float32
    }
