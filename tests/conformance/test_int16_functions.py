"""Functions of int16 are LiteRT's: of one operand for every input, SOFTMAX and sums for drawn operands."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from kiln.emit.objects import compile_object
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions
from kiln.golden.reference import open_reference
from kiln.graph.pipeline import simplify
from kiln.lower.pipeline import Lowering, lower
from tflite_files import Node, Tensor, write_graph

from .lowered import loaded, runnable_alone
from .programs import execute
from .tflite_operators.files import options_of

# Powers of two that LiteRT multiplies by as they are, others that it does not, and scales between them.
SCALES = (2**-12, 2**-11, 2**-13, 2**-10, 10 / 2**15, 1e-5, 0.0123, 0.3, 2.5)
# Lengths, scales and betas: factors below and above 1, and sums of 15 to 24 bits.
LINES = (
    (1, 2**-12, 1.0),
    (2, 1e-5, 1.0),
    (11, 2**-12, 0.3),
    (300, 0.1, 1.0),
    (300, 1e-5, 0.3),
    (300, 2**-13, 1.0),
)
FUNCTIONS = (schema.BuiltinOperator.LOGISTIC, schema.BuiltinOperator.TANH)

kinds = schema.BuiltinOperator
# Scales of an input and a result: equal, to fewer and to more levels, and exp(x) beyond float32.
PAIRS = ((2**-12, 2**-12), (0.0123, 0.03), (1e-5, 3e-6), (0.3, 0.001))
OF_ONE: tuple[tuple[int, str, dict[str, Any]], ...] = (
    (kinds.ABS, "", {}),
    (kinds.EXP, "", {}),
    (kinds.GELU, "GeluOptions", {}),
    (kinds.GELU, "GeluOptions", {"approximate": True}),
    (kinds.LEAKY_RELU, "LeakyReluOptions", {"alpha": 0.3}),
    (kinds.LEAKY_RELU, "LeakyReluOptions", {"alpha": -1.7}),
    (kinds.LOG, "", {}),
    (kinds.QUANTIZE, "", {}),
    (kinds.RELU, "", {}),
    (kinds.RELU6, "", {}),
    (kinds.RSQRT, "", {}),
)
OF_TWO: tuple[tuple[int, str, dict[str, Any]], ...] = (
    (kinds.ADD, "AddOptions", {"potScaleInt16": False, "fusedActivationFunction": 3}),
    (kinds.SUB, "SubOptions", {"potScaleInt16": False}),
    (kinds.MUL, "MulOptions", {}),
    (kinds.DIV, "DivOptions", {}),
)


def test_every_input_at_many_scales(tmp_path: Path) -> None:
    levels = np.arange(-(2**15), 2**15).astype(np.int16)
    tensors = [Tensor(f"x{n}", [levels.size], "int16", scale=scale) for n, scale in enumerate(SCALES)]
    nodes = []
    for code, x in product(FUNCTIONS, range(len(SCALES))):
        nodes.append(Node(code, None, [x], [len(tensors)]))
        tensors.append(Tensor(f"y{len(nodes)}", [levels.size], "int16", scale=2**-15))
    assert check(tmp_path, tensors, nodes, [levels] * len(SCALES)) == len(nodes)


def test_every_input_of_functions_with_any_result(tmp_path: Path) -> None:
    levels = np.arange(-(2**15), 2**15).astype(np.int16)
    inputs = [levels, np.maximum(levels, 0)]
    for number, (scale, unit) in enumerate(PAIRS):
        tensors = [Tensor(f"x{n}", [levels.size], "int16", scale=scale) for n in range(2)]
        nodes = []
        for code, table, fields in OF_ONE:
            source = int(code == kinds.RSQRT)  # LiteRT refuses negative inputs
            nodes.append(Node(code, options_of(table, fields), [source], [len(tensors)]))
            tensors.append(Tensor(f"y{len(nodes)}", [levels.size], "int16", scale=unit))
        assert check(tmp_path, tensors, nodes, inputs, f"m{number}") == len(nodes)  # stores nothing between


@pytest.mark.heavy
def test_every_level_of_8_bits_to_other_scales(tmp_path: Path) -> None:
    """QUANTIZE rounds twice with ratios below 1/2, and shifts to the left with those above 1."""
    random, tensors, nodes, inputs = np.random.default_rng(0), [], [], []
    pairs = [*product(("int8", "uint8"), ("int8", "uint8", "int16"))]
    ratios = [
        2.0**-1,
        2.0**-2,
        2.0**-7,
        3 / 8,
        13 / 26.5,
        0.4999,
        0.5001,
        1 / 3,
        0.97,
        1.0,
        1.5,
        2.0,
        63.7,
        200.5,
        1e6,
    ]
    for dtype, kind in pairs:
        limits, others = np.iinfo(dtype), np.iinfo(kind)
        for ratio in (*ratios, *random.uniform(0.01, 0.5, 12)):
            unit = float(np.float32(random.uniform(0.001, 1)))
            zero = int(random.integers(limits.min, limits.max + 1))
            other = 0 if kind == "int16" else int(random.integers(others.min, others.max + 1))
            inputs.append(np.arange(limits.min, limits.max + 1).astype(dtype))
            tensors.append(Tensor(f"x{len(inputs)}", [256], dtype, ratio * unit, zero))
            nodes.append(Node(kinds.QUANTIZE, None, [len(nodes)], [kind, unit, other]))
    for number, node in enumerate(nodes):
        kind, unit, other = node.outputs
        node.outputs = [len(tensors)]
        tensors.append(Tensor(f"y{number}", [256], kind, unit, other))
    check(tmp_path, tensors, nodes, inputs)


def test_two_operands(tmp_path: Path) -> None:
    random, tensors, nodes, inputs = np.random.default_rng(0), [], [], []
    for shape, scale in (((60, 200), 0.0005), ((200,), 0.0003)):
        inputs.append(random.integers(2**11, 2**15, shape).astype(np.int16))
        inputs[-1] *= random.choice(np.array([-1, 1], np.int16), shape)
        tensors.append(Tensor(f"x{len(inputs)}", shape, "int16", scale=scale))
    for code, table, fields in OF_TWO:
        nodes.append(Node(code, options_of(table, fields), [0, 1], [len(tensors)]))
        unit = 0.005 if code == kinds.MUL else 0.0007
        tensors.append(Tensor(f"y{len(nodes)}", [60, 200], "int16", scale=unit))
    check(tmp_path, tensors, nodes, inputs)


def test_lines_of_a_softmax(tmp_path: Path) -> None:
    random, tensors, nodes, inputs = np.random.default_rng(0), [], [], []
    for length, scale, beta in LINES:
        inputs.append(random.integers(-(2**15), 2**15, (40, length)).astype(np.int16))
        inputs[-1][0] = -(2**15)  # all equal
        inputs[-1][1, 0] = 2**15 - 1
        tensors.append(Tensor(f"x{len(inputs)}", [40, length], "int16", scale=scale))
        options = schema.SoftmaxOptionsT()
        options.beta = beta
        nodes.append(Node(schema.BuiltinOperator.SOFTMAX, options, [len(nodes)], []))
    for number, node in enumerate(nodes):
        node.outputs = [len(tensors)]
        tensors.append(Tensor(f"y{number}", tensors[number].shape, "int16", scale=2**-15))
    check(tmp_path, tensors, nodes, inputs)


def check(
    folder: Path, tensors: Sequence[Tensor], nodes: Sequence[Node], inputs: Sequence[Any], name: str = "m"
) -> int:
    """The number of steps of a graph, whose first tensors are the inputs and whose others are outputs.

    Fails unless its results are LiteRT's.
    """
    outputs = range(len(inputs), len(tensors))
    path = write_graph(folder / f"{name}.tflite", tensors, nodes, range(len(inputs)), outputs)
    target = runnable_alone("x86_64")
    module, _ = import_model(path, ImportOptions(name))
    steps = lower(simplify(module), Lowering(name, target, "pthread"))
    compile_object(steps.functions, target, folder / f"{name}.o")
    library = loaded(folder / f"{name}.o")
    expected = open_reference(path, "builtin_ref").run(inputs)
    for ours, theirs in zip(execute(steps, library, inputs), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    return len(steps.steps)
