"""Faults of TVM 0.27 that kernels and graph passes work around: a test that fails says one is gone.

When one fails, remove the workaround that its docstring names, and the test.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from kiln.tir.builder import int64
from relaxed import const, module, operators, run_by_tvm
from tvm import relax, sym, tirx

op = relax.op


def test_adding_and_taking_away_a_float_is_simplified() -> None:
    """tir/vector_expr.py, round_small and round_even: the second constant is written as bits."""
    x = tirx.Var("x", "float32")
    big = tirx.FloatImm("float32", 12582912.0)
    assert sym.Analyzer().simplify((x + big) - big).same_as(x)


def test_bound_variables_are_written_out_at_every_use() -> None:
    """tir/abi.py lowers functions after the last simplification; tir/vector_expr.py binds by registers."""
    size = []
    for depth in (4, 8):
        data = tirx.decl_buffer([1], "float32", "data")
        out = tirx.decl_buffer([1], "float32", "out")
        value: Any = tirx.BufferLoad(data, [int64(0)])
        statements = []
        for index in range(depth):
            bound = tirx.Var(f"y{index}", "float32")
            statements.append(tirx.Bind(bound, value * value + value))
            value = bound
        statements.append(tirx.BufferStore(out, value * value, [int64(0)]))
        func = tirx.PrimFunc([data, out], tirx.SeqStmt(statements))
        func = tvm.s_tir.transform.StmtSimplify()(tvm.IRModule({"main": func}))["main"]
        size.append(len(func.script(show_meta=False)))
    assert size[1] > 20 * size[0]


def test_loops_from_a_variable_are_moved_to_zero_by_its_old_value() -> None:
    """tir/abi.py replaces bound variables after CanonicalizeLoop: the first index would be 0, not 3."""
    out = tirx.decl_buffer([8], "int64", "out")
    outer, inner = (tirx.Var(name, "int64") for name in ("outer", "inner"))
    store = tirx.BufferStore(out, inner, [inner])
    nest = tirx.For(inner, outer, int64(1), tirx.ForKind.SERIAL, store)
    loops = tirx.For(outer, int64(3), int64(2), tirx.ForKind.SERIAL, nest)
    func = tirx.PrimFunc([out], loops)
    moved = tvm.s_tir.transform.CanonicalizeLoop()(tvm.IRModule({"main": func}))["main"]
    (index,) = moved.body.body.body.indices
    first = {moved.body.loop_var: int64(0), moved.body.body.loop_var: int64(0)}
    at_start = tvm_ffi.structural_map(index, ((tirx.Var, lambda variable: first.get(variable, variable)),))
    assert int(sym.Analyzer().simplify(at_start)) == 0


def test_bindings_stay_after_their_variables_are_replaced() -> None:
    """tir/inline_bindings.py replaces the variables itself, and leaves no binding."""
    data = tirx.decl_buffer([8], "int64", "data")
    count, twice = (tirx.Var(name, "int64") for name in ("count", "twice"))
    store = tirx.BufferStore(data, twice, [int64(0)])
    func = tirx.PrimFunc([data, count], tirx.SeqStmt([tirx.Bind(twice, count * int64(2)), store]))
    simple = tvm.s_tir.transform.StmtSimplify()(tvm.IRModule({"main": func}))["main"].body
    assert isinstance(simple.seq[0], tirx.Bind) and not simple.seq[1].value.same_as(twice)


def test_vectors_of_indices_are_divided_rounding_down() -> None:
    """tir/truncated_division.py: 1 / 2, -1 / 2 and -3 / 2, rounded towards zero, are not 0, -1 and -2."""
    one, step, two = (tirx.IntImm("int32", value) for value in (1, -2, 2))
    quotients = tirx.Div(tirx.Ramp(one, step, 3), tirx.Broadcast(two, 3))
    wrong = tirx.Ramp(tirx.IntImm("int32", 0), tirx.IntImm("int32", -1), 3)
    assert tvm_ffi.structural_equal(sym.Analyzer().simplify(quotients), wrong)


def test_an_exception_out_of_structural_map_damages_the_heap() -> None:
    """kiln/callbacks.py keeps exceptions of callbacks until TVM's function has returned."""
    program = """
import tvm_ffi
from tvm import tirx
a, b = tirx.Var("a", "int64"), tirx.Var("b", "int64")
def fail(_):
    raise ValueError
for _ in range(1000):
    try:
        tvm_ffi.structural_map((a + b) * a, ((tirx.Var, lambda v: tirx.Var("z", "int64")), (tirx.Mul, fail)))
    except ValueError:
        pass
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode < 0, done.stderr


def test_an_exception_through_cpp_loses_its_class() -> None:
    """kiln/callbacks.py registers the classes that passes and mutators raise."""

    class OwnError(Exception):
        pass

    def fail(_: Any) -> None:
        raise OwnError

    with pytest.raises(RuntimeError):
        relax.analysis.post_order_visit(relax.const(1.0), fail)


def test_clip_has_no_layout_rule() -> None:
    """graph/clip.py and graph/layout.py: TVM's ConvertLayout puts transposes around relax.clip."""
    weights = const(np.ones((4, 4, 3, 3)))

    def body(x: Any) -> Any:
        y = op.clip(op.nn.conv2d(x, weights, padding=1), 0, 6)
        return op.nn.conv2d(y, weights, padding=1)

    mod = module([((1, 4, 8, 8), "float32")], body)
    mod = relax.transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "HWIO"]})(
        relax.transform.Normalize()(mod)
    )
    between = operators(mod)
    first = between.index("nn.conv2d")
    assert "permute_dims" in between[first : between.index("nn.conv2d", first + 1)]


def test_a_scatter_takes_indices_to_be_as_long_as_the_data() -> None:
    """graph/constants.py leaves such a scatter of constants to Kiln's own rule."""
    data, ones = const(np.zeros((1, 2, 2))), const(np.ones((1, 2, 1)))
    places = const(np.zeros((1, 2, 1)), "int64")
    mod = module([((1,), "float32")], lambda x: op.add(op.scatter_elements(data, places, ones, axis=0), x))
    [got] = run_by_tvm(mod, [np.zeros(1, "f4")])
    assert got.tolist() == [[[1.0, 1.0], [0.0, 0.0]]], "columns of ones were to be written"


def test_an_rms_norm_over_all_axes_cannot_be_lowered() -> None:
    """graph/norms.py and frontend/onnx/ops.py put an axis before those that are normalised."""
    mod = module([((8,), "float32")], lambda x: op.nn.rms_norm(x, const(np.ones(8, "f4")), [-1], 1e-5))
    with pytest.raises(tvm.error.InternalError, match="Tensor dimension mismatch in read"):
        relax.transform.LegalizeOps()(mod)
