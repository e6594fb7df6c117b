"""Groups of operators for a GPU that become kernels."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from kiln.config import load_target
from kiln.lower.pipeline import Lowering, lower
from kiln.lower.schema import SizeArgument
from kiln.lower.steps import Steps
from relaxed import const, module
from tvm import relax, tirx

op = relax.op


def _lowered(mod: Any) -> Steps:
    return lower(mod, Lowering("m", load_target("cuda_sm90"), "none"))


def test_a_size_that_no_shape_of_a_kernel_has_is_an_argument() -> None:
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType([n, 3], "float32"))
    builder = relax.BlockBuilder()
    dims = {"n": {"dim": "n", "divide": 1, "min": 1, "max": 9}}
    with builder.function("main", [x], attrs={"num_input": 1, "kiln.dims": json.dumps(dims)}):
        with builder.dataflow():
            rows = builder.emit(op.arange(n * 3, n * 3 + 1, 1, "int64"))  # the number of elements
            result = builder.emit_output(op.reshape(rows, []))
        builder.emit_func_output(result)
    (step,) = _lowered(builder.get()).steps
    assert SizeArgument(dim="n") in step.args


def test_a_scatter_at_one_place_is_not_fused_with_what_makes_the_place() -> None:
    def body(x: Any, places: Any) -> Any:
        positive = op.where(
            op.less(places, relax.const(0, "int64")), op.add(places, relax.const(5, "int64")), places
        )
        return op.scatter_nd(x, positive, const(np.ones(1)), "mul")

    steps = _lowered(module([((5,), "float32"), ((1, 1), "int64")], body)).steps
    assert len(steps) == 2
