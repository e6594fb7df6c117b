"""Resizing of a TFLite file to another fixed size, by LiteRT."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kiln.errors import KilnError
from kiln.frontend.quiet import quiet_stderr
from kiln.frontend.tflite.files import elements_of, packed
from kiln.frontend.tflite.known_values import with_known_values
from kiln.frontend.tflite.window_sizes import check_windows


def resized(content: bytes, shapes: Sequence[Sequence[int]], known: bool = False) -> bytes:
    """The file `content` with its inputs, in order, resized to `shapes`.

    known: whether tensors whose values are known become constants (known_values.py).
    Raises KilnError if LiteRT cannot resize or run the graph.
    """
    from ai_edge_litert import schema_py_generated as schema
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    try:
        with quiet_stderr():
            reader = Interpreter(
                model_content=content,
                num_threads=1,
                experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
                experimental_preserve_all_tensors=True,
            )
            for entry, shape in zip(reader.get_input_details(), shapes, strict=True):
                reader.resize_tensor_input(entry["index"], list(shape))
            reader.allocate_tensors()
            check_windows(schema, content, reader)
            for entry in reader.get_input_details():  # LiteRT leaves in them what the memory held
                reader.set_tensor(entry["index"], np.zeros(entry["shape"], entry["dtype"]))
            reader.invoke()  # shapes that the graph computes are known only after a run
            shapes_of_graphs = [
                {entry["index"]: entry["shape"] for entry in reader.get_tensor_details(number)}
                for number in range(reader.num_subgraphs())
            ]
    except (RuntimeError, ValueError) as error:
        shapes_text = ", ".join(str(list(shape)) for shape in shapes)
        reason = " ".join(str(error).split())
        raise KilnError(f"LiteRT cannot resize the graph to inputs of {shapes_text}: {reason}") from error
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    for number, (graph, shape_of) in enumerate(zip(model.subgraphs, shapes_of_graphs, strict=True)):
        for index, tensor in enumerate(graph.tensors):
            data = model.buffers[tensor.buffer].data
            if index in shape_of and (data is None or len(data) == 0):
                tensor.shape = [int(size) for size in shape_of[index]]
                if number == 0:  # in others, a size may differ from iteration to iteration
                    tensor.shapeSignature = None
    if known:
        with_known_values(schema, model, lambda index: elements_of(reader, index))
    return packed(model)
