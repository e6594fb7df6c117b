"""The two names of ONNX's own domain, and the versions that files state, several or none."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from kiln.errors import KilnError
from kiln.frontend.onnx.model import read
from kiln.onnx_domains import opset_of, versions_of
from onnx import helper

# In a nested graph and in a function, too, where the parser takes no domain with a dot.
TEXT = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
g (bool c, float[2] x) => (float[2] y) {
  a = own.half(x)
  y = If(c) <then_branch = t () => (float[2] p) { p = Relu(a) }, else_branch = e () => (float[2] q) { q = Abs(a) }>
}
<opset_import: ["" : 17], domain: "own"> half (x) => (z) { two = Constant<value = float {2}>() z = Div(x, two) }
"""  # noqa: E501


def stated(*entries: tuple[str, int]) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.opset_import.extend(helper.make_opsetid(*entry) for entry in entries)
    return model


def test_the_version_of_a_file_is_found_under_both_names() -> None:
    assert opset_of(stated(("com.microsoft", 1), ("", 17))) == 17
    assert opset_of(stated(("ai.onnx", 11), ("ai.onnx.ml", 3))) == 11
    assert opset_of(stated(("ai.onnx", 13), ("", 14))) == opset_of(stated(("", 14), ("ai.onnx", 13))) == 14
    assert versions_of(stated(("ai.onnx", 13), ("", 14), ("own", 2)).opset_import) == {"": 14, "own": 2}


def test_the_version_of_a_file_that_states_none() -> None:
    assert opset_of(stated()) == 1  # before version 3 of the format
    assert opset_of(stated(("ai.onnx.ml", 3))) == onnx.defs.onnx_opset_version()


@pytest.mark.parametrize("imported", ["", "ai.onnx"])
@pytest.mark.parametrize("named", ["", "ai.onnx"])
def test_files_may_use_either_name(tmp_path: Path, imported: str, named: str) -> None:
    """ONNX's checker refuses nodes of ai.onnx, as of a domain that it does not know."""
    model = onnx.parser.parse_model(TEXT)
    (function,) = model.functions
    branches = [attribute.g.node for attribute in model.graph.node[1].attribute]
    for node in (*function.node, *(node for nodes in branches for node in nodes), model.graph.node[1]):
        node.domain = named
    for owner in (model, function):
        owner.opset_import[0].domain = imported
    onnx.save(model, tmp_path / "m.onnx")
    found = read(tmp_path / "m.onnx")
    assert [node.op_type for node in found.graph.node] == ["Constant", "Div", "If"]
    assert {node.domain for node in found.graph.node} == {""}
    assert [entry.domain for entry in found.opset_import if entry.domain != "own"] == [""]


def test_a_file_without_versions_is_refused(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 2, opset_import: ["" : 1]> g (float[2] x) => (y) { y = Relu(x) }'
    )
    del model.opset_import[:]
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(
        KilnError, match=r"m\.onnx: it states no operator set \(opset_import\).*export the model"
    ):
        read(tmp_path / "m.onnx")
