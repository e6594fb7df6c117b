"""Einsum of every form against ONNX Runtime, with fixed and with dynamic sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tvm
from kiln.config.dims import Segment
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.options import DimRange, ImportOptions
from kiln.graph.pipeline import simplify
from onnx import TensorProto, helper, load, save
from relaxed import virtual_machine

from .many_nodes import ManyNodes
from .test_onnx_ops import normal

SIZES = {"b": 2, "h": 3, "i": 4, "j": 5, "k": 6, "l": 7}
# Each with the letters of its operands; those in capitals are constants, of the same sizes.
EQUATIONS = [
    "bhik,bhjk->bhij", "bhij,bhjk->bihk", "bik,KL->bil", "KL,bik->bli", "bihk,bjhk->bhij", "ik,jk", "ijk->ki",
    "bi,bi->b", "bi,bi->bi", "i,j->ij", "bijk,jkl->bil", "bl,bijl,bk->bijk", "ijk->", "i,i->", "bhj,HLJ->bl",
    "ijk,kl,LH->ijh", "b...k,k...->...b", "...ij->...", "...ik,...kj", "ij,ik->i", "ik,jl->ij", "ii->i",
    "iib->bi",
]  # fmt: skip
# With the sizes of the operands: ellipses of different ranks, axes of size 1 that repeat, and diagonals.
BROADCAST: list[tuple[str, list[list[int]]]] = [
    ("...ij,...jk->...ik", [[2, 3, 4, 5], [3, 5, 6]]), ("...ij,...jk->...ik", [[4, 5], [2, 1, 5, 6]]),
    ("...ij,...jk", [[2, 1, 4, 5], [3, 5, 6]]), ("i...,...->i...", [[4, 2, 3], []]),
    ("i...j,j...->...i", [[4, 2, 1, 5], [5, 3]]), ("...ii->...i", [[2, 3, 4, 4]]), ("...ii", [[2, 3, 4, 4]]),
    ("i...i->...", [[4, 2, 4]]), ("i...i,...->...i", [[4, 1, 2, 4], [3, 1]]),
    ("iij,jk->ik", [[4, 4, 5], [5, 6]]),
    ("iii->", [[3, 3, 3]]), ("iji,...j->...ij", [[4, 5, 4], [2, 3, 5]]), ("ij,ij->i", [[4, 1], [4, 5]]),
    ("bij,bjk->bik", [[1, 4, 5], [2, 5, 6]]), ("...,...", [[3, 1], [2, 1, 4]]), (",ij->ji", [[], [4, 5]]),
]  # fmt: skip


def model_of(path: Path, dynamic: bool) -> dict[str, Any]:
    """A file with every equation; returns its inputs."""
    nodes, inputs, weights, outputs, values = [], [], [], [], {}
    for number, text in enumerate(EQUATIONS):
        names = []
        for index, term in enumerate(text.partition("->")[0].split(",")):
            letters = term.replace("...", "bh")
            shape = [SIZES[letter.lower()] for letter in letters]
            name = f"x{number}_{index}"
            names.append(name)
            if letters.isupper():
                weights.append(helper.make_tensor(name, TensorProto.FLOAT, shape, normal(*shape).flatten()))
                continue
            values[name] = normal(*shape) * np.float32(0.3 + 0.1 * index)
            sizes = [
                letter if dynamic and letter in "bi" else size
                for letter, size in zip(letters, shape, strict=True)
            ]
            inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes))
        nodes.append(helper.make_node("Einsum", names, [f"y{number}"], equation=text.lower()))
        outputs.append(helper.make_empty_tensor_value_info(f"y{number}"))
        outputs[-1].type.tensor_type.elem_type = TensorProto.FLOAT
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return values


def compare(path: Path, options: ImportOptions, values: dict[str, Any], opaque: int) -> None:
    """Compare the import, simplified, with ONNX Runtime; `opaque`: how many equations take a diagonal."""
    module, _ = import_model(path, options)
    assert module.script().count("R.call_tir(") == opaque
    machine = virtual_machine(simplify(module))
    outputs = machine["main"](*[tvm.runtime.tensor(value) for value in values.values()])
    expected = onnxruntime.InferenceSession(str(path)).run(None, values)
    for text, ours, theirs in zip(EQUATIONS, outputs, expected, strict=True):
        assert ours.shape == theirs.shape, text
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-4, atol=1e-4, err_msg=text)


def test_of_fixed_sizes(tmp_path: Path) -> None:
    values = model_of(tmp_path / "m.onnx", dynamic=False)
    compare(tmp_path / "m.onnx", ImportOptions("m"), values, opaque=2)


def test_of_dynamic_sizes(tmp_path: Path) -> None:
    """TVM's own conversion writes sizes as the maximum of equal sizes, which its fusion then rejects."""
    values = model_of(tmp_path / "m.onnx", dynamic=True)
    dims = {name: DimRange(name, 1, 8) for name in ("b", "i")}
    segment = Segment(strategy="dynamic", min=1, max=8, multiple=1)
    options = ImportOptions("m", dims=dims, bucket=dict.fromkeys(dims, segment))
    compare(tmp_path / "m.onnx", options, values, opaque=2)


def test_ellipses_that_broadcast_and_diagonals(tmp_path: Path) -> None:
    """NumPy is the reference: ONNX Runtime refuses ellipses of different ranks."""
    many = ManyNodes(17)
    for number, (text, shapes) in enumerate(BROADCAST):
        many.add(f"e{number}", "Einsum", *(many.normal(*shape) for shape in shapes), equation=text)
    path = many.save(tmp_path / "m.onnx", typed=False)
    model = load(path)
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    save(model, path)
    machine = virtual_machine(import_model(path, ImportOptions("m"))[0])
    outputs = machine["main"](*[tvm.runtime.tensor(value) for value in many.inputs.values()])
    values = iter(many.inputs.values())
    for (text, shapes), ours in zip(BROADCAST, outputs, strict=True):
        expected = np.einsum(text, *(next(values) for _ in shapes))
        assert ours.shape == expected.shape, text
        np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-4, atol=1e-4, err_msg=text)


def test_equations_that_do_not_fit(tmp_path: Path) -> None:
    for text, shapes, words in (
        ("...ij,...jk->...ik", [[2, 4, 5], [3, 5, 6]], "the ellipsis have sizes 2 and 3"),
        ("ii->i", [[3, 4]], "label 'i' have sizes 3 and 4"),
    ):
        many = ManyNodes(17)
        many.add("e", "Einsum", *(many.normal(*shape) for shape in shapes), equation=text)
        with pytest.raises(KilnError, match=words):
            import_model(many.save(tmp_path / "m.onnx", typed=False), ImportOptions("m"))
