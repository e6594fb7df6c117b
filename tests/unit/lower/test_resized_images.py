"""ResizedImages: interpolations of dynamic sizes are fused with the conversions around them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kiln.config import load_target
from kiln.graph.pipeline import simplify
from kiln.lower.arithmetic import mark
from kiln.lower.pipeline import Lowering, lower
from relaxed import const, module
from tvm import relax, tirx

op = relax.op


@pytest.mark.parametrize("mode", ["half_pixel", "align_corners"])
def test_a_quantised_image_of_any_size_is_interpolated_without_a_copy_in_floats(mode: str) -> None:
    height, width = (tirx.Var(name, "int64") for name in "hw")
    grid = const(0.5), const(3, "int8")

    def body(x: Any) -> Any:
        real = op.dequantize(x, *grid, axis=3, out_dtype="float32")
        size = relax.ShapeExpr([height * 2, width * 2])
        larger = op.image.resize2d(
            real, size, layout="NHWC", method="linear", coordinate_transformation_mode=mode
        )
        return op.quantize(larger, *grid, axis=3, out_dtype="int8")

    mod = module([((1, height, width, 16), "int8")], body)
    dims = {name: {"dim": name, "divide": 1, "min": 4, "max": 40} for name in "hw"}
    mod.update_func(mod.get_global_var("main"), mod["main"].with_attr("kiln.dims", json.dumps(dims)))
    target = load_target("x86_64")
    steps = mark(lower(mod, Lowering("m", target.for_variant(target.base), "none"))).steps
    assert [(step.label, step.arithmetic) for step in steps] == [
        ("dequantize+image.resize2d+quantize", "integer")
    ]


def test_integers_are_transposed_around_an_image_with_channels_first() -> None:
    grid = const(0.5), const(3, "int8")

    def body(x: Any) -> Any:
        real = op.dequantize(x, *grid, axis=1, out_dtype="float32")
        larger = op.image.resize2d(real, (14, 18), layout="NCHW", method="linear")
        return op.quantize(larger, *grid, axis=1, out_dtype="int8")

    target = load_target("x86_64")
    lowering = Lowering("m", target.for_variant(target.base), "none")
    steps = mark(lower(simplify(module([((1, 16, 7, 9), "int8")], body)), lowering)).steps
    assert [(step.label, step.arithmetic) for step in steps] == [
        ("permute_dims", "integer"),
        ("dequantize+image.resize2d+quantize", "integer"),
        ("permute_dims", "integer"),
    ]
