"""Marks of integer and float steps, and `quantised: strict`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kiln.config import load_target
from kiln.errors import KilnError
from kiln.graph.pipeline import simplify
from kiln.lower.arithmetic import mark, require_integers, require_quantised
from kiln.lower.pipeline import Lowering, lower
from relaxed import const, module
from tvm import relax

op = relax.op


def _real(x: Any) -> Any:
    return op.dequantize(x, const(0.5), const(3, "int8"), out_dtype="float32")


def _levels(x: Any) -> Any:
    return op.quantize(x, const(0.25), const(0, "int8"), out_dtype="int8")


def _steps(body: Any, dtype: str = "int8") -> Any:
    mod = simplify(module([((1, 4, 4, 8), dtype)], body))
    return mark(lower(mod, Lowering("m", load_target("x86_64").for_variant("v3"), "none")))


def test_rescaling_in_registers_is_of_integers() -> None:
    steps = _steps(lambda x: _levels(op.add(_real(x), op.sigmoid(_real(x)))))
    assert {step.arithmetic for step in steps.steps} == {"integer"}
    require_integers(steps, "m")


def test_floats_in_registers_count_where_a_library_computes_them() -> None:
    body = module([((4, 8), "int8")] * 2, lambda x, y: _levels(op.divide(_real(x), _real(y))))
    steps = lower(simplify(body), Lowering("m", load_target("cortex_m0plus"), "none"))
    assert {step.arithmetic for step in mark(steps).steps} == {"integer"}
    message = r"\(dequantize.*divide.*floats in registers, .*no instructions for, in the file: Div node 'd'\)"
    with pytest.raises(KilnError, match=message):
        require_integers(mark(steps, has_floats=False), "m", {"divide": ["Div node 'd'"]})


def _float_between(x: Any) -> Any:
    weights = const(np.random.default_rng(0).normal(size=(1, 1, 8, 8)).astype("f4"))
    layer = op.nn.conv2d(_real(_levels(x)), weights, data_layout="NHWC", kernel_layout="HWIO")
    return op.exp(_real(_levels(layer)))


def test_floats_at_the_ends_are_not_between() -> None:
    marks = [step.arithmetic for step in _steps(_float_between, "float32").steps]
    assert marks[0] == marks[-1] == "float"
    assert "between" in marks


def test_strict_names_the_steps_between() -> None:
    message = r"^m: quantised: strict: \d of \d steps compute on floats .*conv2d.*float32 \(1, 4, 4, 8\)"
    with pytest.raises(KilnError, match=message) as error:
        require_integers(_steps(_float_between, "float32"), "m")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        (["Conv node 'stem'"], r", in the file: Conv node 'stem'\)"),
        (
            ["Conv node 'a'", "Conv node 'b'"],
            r", of such operators the file's first are: Conv .*'a', Conv .*'b'\)",
        ),
    ],
)
def test_strict_names_the_nodes_of_the_file(nodes: list[str], told: str) -> None:
    steps = _steps(_float_between, "float32")
    with pytest.raises(KilnError, match=told):
        require_integers(steps, "m", {"nn.conv2d": nodes, "quantize": ["QuantizeLinear node 'q'"]})


def test_strict_asks_for_a_quantised_model() -> None:
    require_quantised(True, "m")
    with pytest.raises(KilnError, match=r"^m: quantised: strict: the model has no quantised tensor"):
        require_quantised(False, "m")


def test_models_of_floats_have_no_marks() -> None:
    assert {step.arithmetic for step in _steps(op.exp, "float32").steps} == {None}
