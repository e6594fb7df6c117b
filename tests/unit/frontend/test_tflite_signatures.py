"""Signatures of TFLite files: one is chosen by the key `cut`, and several without a choice are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tflite
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from kiln.config import load_model
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions
from kiln.frontend.tflite.signatures import with_signature
from kiln.golden.reference import open_reference
from symbolic import runner
from tflite_graphs import TfliteFile

BUILTIN = schema.BuiltinOperator
X = np.float32([1, -2, 3])


def two(path: Path) -> Path:
    """`grow`: x + 1, of graph 0; `pick`, of graph 1: x * 2 where c, else x - 5, in graphs 3 and 2."""
    options = schema.IfOptionsT()
    options.thenSubgraphIndex, options.elseSubgraphIndex = 3, 2
    file = TfliteFile()

    def binary(code: int, table: object, number: float) -> None:
        file.graph(
            [("x", "float32", [3]), ("k", "float32", np.full(3, number)), ("y", "float32", [3])],
            [(code, table, [0, 1], [2])], [0], [2],
        )  # fmt: skip

    binary(BUILTIN.ADD, schema.AddOptionsT(), 1)
    file.graph(
        [("x", "float32", [3]), ("c", "bool", []), ("y", "float32", [3])],
        [(BUILTIN.IF, options, [1, 0], [2])],
        [0, 1], [2],
    )  # fmt: skip
    binary(BUILTIN.SUB, schema.SubOptionsT(), 5)
    binary(BUILTIN.MUL, schema.MulOptionsT(), 2)
    file.model.signatureDefs = []
    for number, name in enumerate(("grow", "pick")):
        one = schema.SignatureDefT()
        one.signatureKey, one.subgraphIndex = name, number
        graph = file.model.subgraphs[number]
        one.inputs, one.outputs = [], []
        for maps, tensors in ((one.inputs, graph.inputs), (one.outputs, graph.outputs)):
            for index in tensors:
                entry = schema.TensorMapT()
                entry.name, entry.tensorIndex = graph.tensors[index].name, index
                maps.append(entry)
        file.model.signatureDefs.append(one)
    return file.write(path)


def test_signatures_outside_of_the_file(tmp_path: Path) -> None:
    path = two(tmp_path / "two.tflite")
    content = bytearray(path.read_bytes())
    table = tflite.Model.GetRootAsModel(content, 0)._tab
    at = table.Pos + table.Offset(18)  # the field signature_defs
    content[at : at + 4] = (1 << 30).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(KilnError, match="not a complete TFLite model: truncated or damaged"):
        import_model(path, ImportOptions("m"))


def test_several_signatures_are_refused_by_name(tmp_path: Path) -> None:
    path = two(tmp_path / "two.tflite")
    with pytest.raises(KilnError, match=r"2 signatures: grow, pick; .* 'cut: {signature: grow}'"):
        import_model(path, ImportOptions("m"))


@pytest.mark.parametrize("taken", [True, False])
def test_a_chosen_signature_is_what_litert_runs(tmp_path: Path, taken: bool) -> None:
    """A chosen signature computes the same as in LiteRT; graphs of other signatures are removed."""
    path = two(tmp_path / "two.tflite")
    part = tmp_path / "part.tflite"
    part.write_bytes(with_signature(path, path.read_bytes(), "pick"))
    c = np.array(taken)
    want = Interpreter(str(path)).get_signature_runner("pick")(x=X, c=c)["y"]
    np.testing.assert_array_equal(want, X * 2 if taken else X - 5)
    np.testing.assert_array_equal(open_reference(part).run([X, c])[0], want)
    [got] = runner(import_model(part, ImportOptions("m"))[0])([X, c], {})
    np.testing.assert_array_equal(got, want)
    assert len(schema.ModelT.InitFromPackedBuf(part.read_bytes(), 0).subgraphs) == 3


def test_a_name_that_the_file_lacks(tmp_path: Path) -> None:
    path = two(tmp_path / "two.tflite")
    with pytest.raises(KilnError, match=r"cut.signature: the file has no signature 'grwo'; .*'grow'"):
        with_signature(path, path.read_bytes(), "grwo")


@pytest.mark.parametrize(
    ("source", "cut", "told"),
    [
        ("net.tflite", "{inputs: [a]}", "key 'cut.inputs': for ONNX files and PyTorch models only"),
        ("net.tflite", "{}", "key 'cut': of a TFLite file, choose a signature"),
        ("net.onnx", "{signature: a}", "key 'cut.signature': for TFLite files only"),
    ],
)
def test_the_key_fits_the_format(tmp_path: Path, source: str, cut: str, told: str) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(f"source: {{kind: file, path: {source}}}\ncut: {cut}\n", encoding="utf-8")
    with pytest.raises(KilnError, match=told):
        load_model(path)
