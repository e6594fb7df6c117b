"""Parts of a TFLite file's graphs: operators that outputs depend on, and functions that compute outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kiln.errors import KilnError
from kiln.frontend.quiet import quiet_stderr
from kiln.frontend.tflite.files import elements_of, indices, packed


def inputs_of(graph: Any, outputs: set[int]) -> set[int]:
    """Positions of the inputs from which a graph computes its outputs at positions `outputs`."""
    _, needed = _needed(graph, {indices(graph.outputs)[position] for position in outputs})
    return {position for position, index in enumerate(indices(graph.inputs)) if index in needed}


def _needed(graph: Any, results: set[int]) -> tuple[list[Any], set[int]]:
    """The operators of a graph that compute `results`, in order, and the tensors that they read or write."""
    needed, operators = set(results), []
    for op in reversed(graph.operators):
        if needed & set(indices(op.outputs)):
            needed |= set(indices(op.inputs))
            operators.append(op)
    return operators[::-1], needed


def runner_of_graph(
    schema: Any, model: Any, number: int, positions: set[int], fail: Callable[[str], KilnError]
) -> Any:
    """A function that runs graph `number` in LiteRT: from known inputs to outputs, by position.

    positions: of the outputs. Operators that they do not depend on are left out: these may fail with the
    zeros that stand for unknown inputs. fail: returns the error with a text.
    """
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    shortened = schema.ModelT.InitFromPackedBuf(packed(model), 0)
    graph = shortened.subgraphs[number]
    outputs = [indices(graph.outputs)[position] for position in sorted(positions)]
    graph.operators, read = _needed(graph, set(outputs))
    graph.outputs = outputs
    shortened.subgraphs = [graph, *shortened.subgraphs[1:]]
    shortened.signatureDefs = None
    kinds = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    try:
        with quiet_stderr():
            reader = Interpreter(
                model_content=packed(shortened), num_threads=1, experimental_op_resolver_type=kinds
            )
            reader.allocate_tensors()
    except (RuntimeError, ValueError) as error:
        raise fail(f"LiteRT cannot run its graph: {' '.join(str(error).split())}") from error

    def run(values: dict[int, npt.NDArray[Any]]) -> dict[int, npt.NDArray[Any]]:
        input_indices = indices(graph.inputs)
        for entry in reader.get_input_details():
            if entry["index"] not in read:  # it may be a resource, which no array can be set to
                continue
            value = values.get(input_indices.index(entry["index"]))
            zeros = np.zeros(entry["shape"], entry["dtype"])
            reader.set_tensor(entry["index"], zeros if value is None else value.reshape(entry["shape"]))
        try:
            with quiet_stderr():
                reader.invoke()
        except RuntimeError as error:
            text = " ".join(str(error).split())
            raise fail(f"LiteRT cannot run its graph: {text}") from error
        pairs = zip(sorted(positions), outputs, strict=True)
        return {position: np.array(elements_of(reader, index)) for position, index in pairs}

    return run
