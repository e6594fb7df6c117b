"""Makes variable tensors of TFLite's recurrent operators inputs and outputs of the graph.

LiteRT keeps the state of an LSTM, an RNN or an SVDF in tensors that the file marks as variable: zeros before
the first run, and then the values after the run before. In the rewritten file the operator takes the state as
an input of the graph, and has the next state as further outputs.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from kiln.frontend.tflite.files import Kinds, indices, packed, text_of, unpacked
from kiln.frontend.tflite.variables import Opened, Variable

# By operator, the inputs that are its state.
STATES: dict[str, tuple[int, ...]] = {
    "BIDIRECTIONAL_SEQUENCE_LSTM": (35, 36, 37, 38),
    "BIDIRECTIONAL_SEQUENCE_RNN": (4, 8),
    "LSTM": (18, 19),
    "RNN": (4,),
    "SVDF": (4,),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": (18, 19),
    "UNIDIRECTIONAL_SEQUENCE_RNN": (4,),
}
BASIC_STATES = (1, 4)  # of an LSTM with 5 inputs


def states_of(kind: str, inputs: int) -> tuple[int, ...]:
    """The inputs of an operator with `inputs` inputs that are its state."""
    return BASIC_STATES if kind == "LSTM" and inputs == 5 else STATES.get(kind, ())


def with_states(path: Path, opened: Opened) -> Opened:
    """The file with the states of its recurrent operators as last inputs and outputs of its graph.

    Raises KilnError for a state that is not a variable tensor of one operator.
    """
    schema, model = unpacked(path, opened.content)
    kinds, graph = Kinds(schema, model), model.subgraphs[0]
    variables, used = list(opened.variables), set(indices(graph.inputs))
    for op in graph.operators:
        kind, op_inputs = kinds.of(op), indices(op.inputs)
        for position in states_of(kind, len(op_inputs)):
            index = op_inputs[position] if position < len(op_inputs) else -1
            tensor = graph.tensors[index] if index >= 0 else None
            if tensor is None or not tensor.isVariable or index in used:
                problem = "left out" if tensor is None else "shared or not variable"
                raise kinds.refusal(
                    path, graph, op,
                    f"input {position}, its state, is {problem}, allowed: a variable tensor of its own, as "
                    "LiteRT demands",
                )  # fmt: skip
            used.add(index)
            following = copy.copy(tensor)
            tensor.isVariable = following.isVariable = False
            tensor.buffer = following.buffer = 0
            word = text_of(tensor.name)
            following.name = f"{word}/next"
            op.outputs = [*indices(op.outputs), len(graph.tensors)]
            graph.inputs = [*indices(graph.inputs), index]
            graph.outputs = [*indices(graph.outputs), len(graph.tensors)]
            graph.tensors.append(following)
            variables.append(Variable(word, _first(schema, tensor)))
    model.signatureDefs = None  # they list the inputs as they were
    return Opened(packed(model), variables)


def _first(schema: Any, tensor: Any) -> int:
    """The value with which LiteRT fills a variable tensor: 0.0, which is the zero point of int8."""
    quantisation = tensor.quantization
    if tensor.type != schema.TensorType.INT8 or quantisation is None or quantisation.zeroPoint is None:
        return 0
    return int(quantisation.zeroPoint[0]) if len(quantisation.zeroPoint) else 0
