"""Products of sequences that loops compute a part at a time: the same results from less memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions
from kiln.graph.pipeline import simplify
from kiln.lower.pipeline import Lowering, lower
from kiln.lower.recurrent_steps import in_steps
from kiln.lower.steps import Steps
from symbolic import imported, write

from .lowered import loaded, runnable_alone
from .programs import compile_unoptimised, execute
from .tflite_recurrent_cases import BATCH, UNITS, one_lstm

STEPS = 24  # 24 * 80 numbers of a product have more than 1024 bytes
LAYERS = {
    "float_time_first": one_lstm("UNIDIRECTIONAL_SEQUENCE_LSTM", "f", "float32", STEPS, True, cell_clip=1.5),
    "float_peephole": one_lstm(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", "p", "float32", STEPS, False, peephole=True, coupled=True,
        cell_clip=1.5,
    ),
    "integer": one_lstm("UNIDIRECTIONAL_SEQUENCE_LSTM", "i", "integer", STEPS, False),
    "integer_time_first": one_lstm("UNIDIRECTIONAL_SEQUENCE_LSTM", "j", "integer", STEPS, True),
}  # fmt: skip


def lowered(module: Any, name: str, saving: bool) -> Steps:
    module = simplify(module)
    module = in_steps(module) if saving else module
    return lower(module, Lowering(name, runnable_alone("x86_64"), "pthread"))


def assert_same(pairs: Sequence[tuple[Steps, Steps]], inputs: Sequence[Sequence[Any]], folder: Path) -> None:
    """All steps in one program: equal results; the first of a pair has fewer elements in memory."""
    functions = {name: value for pair in pairs for steps in pair for name, value in steps.functions.items()}
    compile_unoptimised(functions, folder / "all.o")
    library = loaded(folder / "all.o")
    for (saving, plain), given in zip(pairs, inputs, strict=True):
        for ours, theirs in zip(execute(saving, library, given), execute(plain, library, given), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        assert elements(saving) < elements(plain)


def elements(steps: Steps) -> int:
    """Elements of all tensors of the arena."""
    kinds = (tensor for tensor in steps.tensors.values() if tensor.kind == "activation" and not tensor.alias)
    return sum(int(np.prod(tensor.shape)) for tensor in kinds)


@pytest.mark.heavy
def test_lstms_of_tflite(tmp_path: Path) -> None:
    pairs, inputs = [], []
    for name, case in LAYERS.items():
        module, interface = import_model(case.write(tmp_path), ImportOptions("m"))
        pairs.append((lowered(module, f"{name}_a", True), lowered(module, f"{name}_b", False)))
        states = [np.full(state.shape, state.initial or 0, state.dtype) for state in interface.states]
        inputs.append([*case.draw(0), *states])
        assert elements(pairs[-1][1]) > STEPS * BATCH * 3 * UNITS > elements(pairs[-1][0])
    assert_same(pairs, inputs, tmp_path)


# Kind, steps, batch, and attributes: parts of four steps and of one, all directions, initial states; layers
# whose results of all steps nothing reads, and short ones.
RECURRENT = [
    ("LSTM", 20, 2, {}),
    ("LSTM", 23, 1, {"direction": "reverse"}),
    ("GRU", 28, 1, {"direction": "reverse", "linear_before_reset": 1}),
    ("GRU", 33, 2, {}),
    ("RNN", 60, 1, {}),
    ("RNN", 10, 1, {}),
    ("LSTM", 20, 2, {"direction": "bidirectional"}),
    ("GRU", 23, 1, {"direction": "bidirectional", "linear_before_reset": 1}),
    ("LSTM", 12, 1, {"direction": "reverse", "unread": True}),
    ("GRU", 20, 2, {"direction": "bidirectional", "unread": True}),
]
HIDDEN = 40


def recurrent(
    kind: str, steps: int, batch: int, attributes: dict[str, Any], path: Path
) -> tuple[Path, list[Any]]:
    rng, gates = np.random.default_rng(7), {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    attributes, sides = dict(attributes), 1 + (attributes.get("direction") == "bidirectional")
    results = ["last"] if attributes.pop("unread", False) else ["y", "last"]
    columns = gates * HIDDEN
    sizes = {"w": (sides, columns, 6), "r": (sides, columns, HIDDEN), "b": (sides, 2 * columns)}
    constants = [
        onnx.numpy_helper.from_array(rng.normal(size=size).astype("f4") / 6, name)
        for name, size in sizes.items()
    ]
    shapes = {"x": (steps, batch, 6), "h": (sides, batch, HIDDEN)}
    ports = [onnx.helper.make_tensor_value_info(name, 1, size) for name, size in shapes.items()]
    outputs = [onnx.helper.make_tensor_value_info(name, 1, None) for name in results]
    inputs = ["x", "w", "r", "b", "", "h"]
    names = ["y" if "y" in results else "", "last"]
    node = onnx.helper.make_node(kind, inputs, names, hidden_size=HIDDEN, **attributes)
    graph = onnx.helper.make_graph([node], "g", ports, outputs, constants)
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path, [rng.normal(size=size).astype("f4") for size in shapes.values()]


def test_recurrent_layers(tmp_path: Path) -> None:
    pairs, inputs = [], []
    for number, (kind, steps, batch, attributes) in enumerate(RECURRENT):
        path, given = recurrent(kind, steps, batch, attributes, tmp_path / f"{number}.onnx")
        module, _ = imported(path, {})
        pairs.append((lowered(module, f"a{number}", True), lowered(module, f"b{number}", False)))
        inputs.append(given)
    assert_same(pairs, inputs, tmp_path)


# A product that another operator reads too, rows by a computed index, and a product with fewer columns.
KEPT = {
    "other reader": ("Add(p, p)", "Gather(p, i)", 64),
    "computed index": ("Neg(x)", "Gather(p, j)", 64),
    "fewer bytes": ("Neg(x)", "Gather(p, i)", 3),
}


@pytest.mark.parametrize("name", KEPT)
def test_other_products_are_computed_before_the_loop(name: str, tmp_path: Path) -> None:
    other, row, columns = KEPT[name]
    text = f"""
    g (float[90,5] x, float[90,5] y, int64 trips) => (float[{columns}] last, float[m,k] o)
    <bool yes = {{1}}, float[{columns}] zeros = {{{",".join(["0"] * columns)}}},
     float[5,{columns}] w = {{{",".join(["0.5"] * (5 * columns))}}}> {{
      z = Add(x, y)
      p = MatMul(z, w)
      o = {other}
      last = Loop(trips, yes, zeros) <body = l (int64 i, bool c, float[{columns}] v)
        => (bool d, float[{columns}] u) {{ d = Identity(c)  j = Mul(i, i)  r = {row}  u = Add(v, r) }}>
    }}
    """
    module = simplify(imported(write(tmp_path / "m.onnx", text), {})[0])
    steps = lowered(module, "m", True).steps
    products = [index for index, step in enumerate(steps) if "matmul" in step.label]
    begins = [index for index, step in enumerate(steps) if step.loop is not None]
    assert max(products) < min(begins)
