"""Axes of inputs that are expressions of dimensions, as exporters write them or as the YAML says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from kiln.config.boxes import Box
from kiln.config.dims import Segment
from kiln.config.sizes import parse
from kiln.config.slice_records import ImportConfig
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.options import from_config
from onnx import parser

DECODER = """<ir_version: 9, opset_import: ["" : 18]>
decoder (float[batch, {mask}] mask, float[batch, past, 4] cache, float[batch, 1, 4] x)
    => (float[batch, n, 4] new, float[batch, 4] y) <int64[1] one = {{1}}, int64[1] two = {{2}}> {{
  new = Concat<axis=1>(cache, x)
  weights = Unsqueeze(mask, two)
  masked = Mul(new, weights)
  y = ReduceSum<keepdims=0>(masked, one)
}}"""
RANGES = {"batch": (1, 2), "past": (0, 9)}


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("past + 1", ["+", "past", 1]),
        ("1 + past", ["+", "past", 1]),
        ("-1 + past", None),
        ("past + -1", None),
        ("8*h", ["*", "h", 8]),
        ("2*seq - 1", ["-", ["*", "seq", 2], 1]),
        ("min(seq, 64) // 2", ["//", ["min", "seq", 64], 2]),
        ("2*3", 6),
        ("a.b", None), ("a / 2", None), ("n // 0", None), ("f(n)", None), ("n if n else 1", None), ("", None),
        ("n" + " + n" * 500, None), ("(" * 300, None), ("'x'", None), ("True", None), ("2**9", None),
    ],
)  # fmt: skip
def test_text(text: str, expression: Any) -> None:
    if expression is None:
        with pytest.raises(ValueError, match="a size, a dimension's name, or an expression such as"):
            parse(text)
    else:
        assert parse(text) == expression


def imported(path: Path, written: str = '"past + 1"', ranges: Any = None, **shapes: Any) -> list[list[Any]]:
    """The shapes of the inputs of a decoder step, imported for all sizes."""
    onnx.save(parser.parse_model(DECODER.format(mask=written)), path)
    ranges = RANGES if ranges is None else ranges
    config = {
        "name": "m",
        "dims": {name: {"min": low, "max": high} for name, (low, high) in ranges.items()},
        "inputs": {name: {"shape": shape} for name, shape in shapes.items()},
    }
    parts = {
        name: Segment(strategy="dynamic", min=low, max=high, multiple=1)
        for name, (low, high) in ranges.items()
    }
    _, interface = import_model(
        path, from_config(ImportConfig.model_validate(config), Box(name="b", dims=parts))
    )
    return [port.shape for port in interface.inputs]


def test_the_exporters_expression_is_taken(tmp_path: Path) -> None:
    expected = [["batch", ["+", "past", 1]], ["batch", "past", 4], ["batch", 1, 4]]
    assert imported(tmp_path / "net.onnx") == expected
    assert imported(tmp_path / "net.onnx", "n", mask=["batch", ["+", "past", 1]]) == expected


@pytest.mark.parametrize(
    ("mask", "ranges", "told"),
    [
        ('"past + b"', RANGES, "input 'mask' axis 1 ('b') is dynamic and has no range; give a range with"),
        ('"past - 4"', RANGES, "input 'mask' axis 1 of size past - 4 is -4 for the least sizes"),
        ('"8*h"', {**RANGES, "h": (1, 2)}, "dims.h: no axis is of this size itself; input 'mask' is (b"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path: Path, mask: str, ranges: Any, told: str) -> None:
    with pytest.raises(KilnError) as error:
        imported(tmp_path / "net.onnx", mask, ranges)
    assert told in str(error.value)


def test_an_expression_that_contradicts_the_graph_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(KilnError) as error:
        imported(tmp_path / "net.onnx", '"past + 2"')
    assert "\n" not in str(error.value)
