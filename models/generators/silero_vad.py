"""Silero VAD at 16 kHz with its state as input and output: one of two networks in the published ONNX file.

The file `silero_vad_op18_ifless.onnx` of silero-vad has the sampling rate as an input, which selects one of
two networks. Here the rate is 16000: the network is selected in advance, and the other one is removed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from kiln.errors import KilnError
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

_RATE = 16000


def generate(seed: int, weights: Path | None) -> bytes:
    """The ONNX file: input (batch, samples) and state (2, batch, 128), output (batch, 1) and stateN.

    `weights`: the published file; `seed` unused.
    """
    if weights is None:
        raise KilnError("generator silero_vad: needs 'weights', the published ONNX file")
    model = onnx.load(weights)
    graph = model.graph
    choice = graph.node[-1]
    rates = [value for value in graph.input if value.name == "sr"]
    if choice.op_type != "If" or len(rates) != 1:
        raise KilnError(f"generator silero_vad: {weights} is not silero_vad_op18_ifless.onnx of silero-vad")
    taken = "then_branch" if _holds(model, choice.input[0]) else "else_branch"
    branch = next(item.g for item in choice.attribute if item.name == taken)
    names = {inner.name: outer for inner, outer in zip(branch.output, choice.output, strict=True)}
    nodes = []
    for node in branch.node:
        kept = onnx.NodeProto()
        kept.CopyFrom(node)
        kept.output[:] = [names.get(name, name) for name in node.output]
        nodes.append(kept)
    used = {name for node in nodes for name in node.input}
    constants = [tensor for tensor in (*graph.initializer, *branch.initializer) if tensor.name in used]
    made = onnx.helper.make_graph(
        nodes,
        "silero_vad_16k",
        [value for value in graph.input if value.name != "sr"],
        list(graph.output),
        constants,
    )
    result = onnx.helper.make_model(made, opset_imports=list(model.opset_import), producer_name="kiln")
    result.ir_version = model.ir_version
    onnx.checker.check_model(result)
    return bytes(result.SerializeToString(deterministic=True))


def _holds(model: onnx.ModelProto, condition: str) -> bool:
    """Value of the condition `condition` at a sampling rate of 16 kHz."""
    rate = numpy_helper.from_array(np.array(_RATE, np.int64), "sr")
    nodes = [node for node in model.graph.node if node.op_type != "If"]
    used = {name for node in nodes for name in node.input}
    graph = onnx.helper.make_graph(
        nodes,
        "condition",
        [],
        [onnx.helper.make_empty_tensor_value_info(condition)],
        [rate, *(tensor for tensor in model.graph.initializer if tensor.name in used)],
    )
    evaluator = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=list(model.opset_import)))
    return bool(np.asarray(evaluator.run(None, {})[0]).item())
