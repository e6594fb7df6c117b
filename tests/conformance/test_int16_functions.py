"""LOGISTIC and TANH of int16 are LiteRT's for every input."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from kiln.emit.objects import compile_object
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions
from kiln.golden.reference import open_reference
from kiln.graph.pipeline import simplify
from kiln.lower.pipeline import lower
from tflite_files import Node, Tensor, write_graph

from .lowered import loaded, runnable_alone
from .programs import execute

# Powers of two that LiteRT multiplies by as they are, others that it does not, and scales between them.
SCALES = (2**-12, 2**-11, 2**-13, 2**-10, 10 / 2**15, 1e-5, 0.0123, 0.3, 2.5)
FUNCTIONS = (schema.BuiltinOperator.LOGISTIC, schema.BuiltinOperator.TANH)


def test_every_input_at_many_scales(tmp_path: Path) -> None:
    levels = np.arange(-(2**15), 2**15).astype(np.int16)
    tensors = [Tensor(f"x{n}", [levels.size], "int16", scale=scale) for n, scale in enumerate(SCALES)]
    nodes = []
    for code, x in product(FUNCTIONS, range(len(SCALES))):
        nodes.append(Node(code, None, [x], [len(tensors)]))
        tensors.append(Tensor(f"y{len(nodes)}", [levels.size], "int16", scale=2**-15))
    outputs = range(len(SCALES), len(tensors))
    path = write_graph(tmp_path / "m.tflite", tensors, nodes, range(len(SCALES)), outputs)
    target = runnable_alone("x86_64")
    module, _ = import_model(path, ImportOptions("m"))
    steps = lower(simplify(module), "m", target, "pthread")
    compile_object(steps.functions, target, tmp_path / "m.o")
    library = loaded(tmp_path / "m.o")
    inputs = [levels] * len(SCALES)
    wanted = open_reference(path, "builtin_ref").run(inputs)
    for ours, theirs in zip(execute(steps, library, inputs), wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)
