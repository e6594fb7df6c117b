"""Readers of a dequantised tensor: which read its integers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from kiln.config import load_target
from kiln.graph.pipeline import simplify
from kiln.lower.pipeline import Lowering, lower
from relaxed import const, module
from tvm import relax, tirx

op = relax.op


def _real(x: Any) -> Any:
    return op.dequantize(x, const(0.5), const(3, "int8"), out_dtype="float32")


def _levels(x: Any) -> Any:
    return op.quantize(x, const(0.25), const(0, "int8"), out_dtype="int8")


def _read(body: Any, shapes: list[tuple[int, ...]]) -> dict[str, set[str]]:
    """The types of the tensors that each step reads, by the step's label."""
    mod = simplify(module([(shape, "int8") for shape in shapes], body))
    steps = lower(mod, Lowering("m", load_target("x86_64").for_variant("v3"), "none"))
    return {
        step.label: {steps.tensors[n].dtype for n in step.tensors if n not in step.writes}
        for step in steps.steps
    }


def test_a_residual_sum_reads_the_integers_that_a_normalisation_dequantises() -> None:
    scale, shift = const(np.ones(16)), const(np.zeros(16))

    def body(x: Any, y: Any) -> list[Any]:
        real = _real(x)
        return [_levels(op.nn.layer_norm(real, scale, shift, -1)), _levels(op.add(real, _real(y)))]

    read = _read(body, [(4, 16), (4, 16)])
    assert read["dequantize+dequantize+add+quantize"] == {"int8"}
    assert set(read) == {"dequantize+dequantize+add+quantize", "dequantize+layer_norm+quantize"}


def test_normalisations_and_softmax_read_levels() -> None:
    """Also after transposes that undo one another, and of equal layers, which share a function."""

    def body(x: Any, y: Any, z: Any, w: Any) -> list[Any]:
        around = op.permute_dims(op.permute_dims(y, [1, 0]), [1, 0])
        norm = op.nn.layer_norm(_real(around), const(np.ones(16)), const(np.zeros(16)), -1)
        equal = [_levels(op.nn.softmax(_real(data), -1)) for data in (x, z)]
        return [*equal, _levels(norm), op.nn.log_softmax(_real(w), -1)]

    read = _read(body, [(4, 16)] * 4)
    softmax = {label: kinds for label, kinds in read.items() if "softmax" in label}
    assert softmax == {"dequantize+softmax+quantize": {"int8"}, "dequantize+log_softmax": {"int8"}}
    (norm,) = (kinds for label, kinds in read.items() if "layer_norm" in label)
    assert "int8" in norm and "dequantize" not in read


def _softmax(x: Any) -> list[Any]:
    return [_levels(op.nn.softmax(_real(x), -1))]


def _two_functions(x: Any) -> list[Any]:
    """The second reads the levels of the first: one table has the values of both."""
    return [_levels(op.sigmoid(_real(_levels(op.tanh(_real(x))))))]


@pytest.mark.parametrize("body", [_softmax, _two_functions])
def test_levels_of_dynamic_sizes(body: Any) -> None:
    """The number of rows may be a dimension, or an expression of one."""
    n = tirx.Var("n", "int64")
    for rows in (n, n * 3):
        mod = module([([rows, 16], "int8")], body)
        dims = json.dumps({"n": {"dim": "n", "divide": 1, "min": 1, "max": 9}})
        mod.update_func(mod.get_global_var("main"), mod["main"].with_attr("kiln.dims", dims))
        steps = lower(mod, Lowering("m", load_target("x86_64").for_variant("v3"), "none")).steps
        assert len(steps) == 1 and steps[0].label != "dequantize"


def _sum_and_product(x: Any, y: Any, z: Any) -> list[Any]:
    real = _real(x)
    return [_levels(op.add(real, _real(y))), _levels(op.multiply(real, _real(z)))]


def test_a_sum_and_a_product_read_integers() -> None:
    assert set().union(*_read(_sum_and_product, [(4, 16)] * 3).values()) == {"int8"}


def test_a_tensor_that_is_broadcast_is_dequantised_once() -> None:
    assert "dequantize" in _read(_sum_and_product, [(1, 16), (4, 16), (4, 16)])
