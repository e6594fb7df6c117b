"""Kernels read nothing before the first and after the last element of an input, whatever a condition says.

The kernels run in a process of their own: a read outside of fenced memory ends it. ONNX's node tests run so.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.tir.op_names import op_name
from symbolic import Dims, write
from tvm import tirx

from .fenced import Fenced
from .programs import Program, execute

# Rows of three and four elements are shorter than a vector; a value that is used twice is computed once.
GRAPHS: dict[str, tuple[str, Dims]] = {
    "pad rows": (
        "g (float[8,3] x) => (float[12,3] y) { p = Constant <value = int64[4] {2, 0, 2, 0}> () "
        "y = Pad(x, p) }",
        {},
    ),
    "pad columns": (
        "g (float[16,2] x) => (float[16,5] y) { p = Constant <value = int64[4] {0, 1, 0, 2}> () "
        "y = Pad(x, p) }",
        {},
    ),
    "concat of short rows": (
        "g (float[8,3] x, float[8,3] z) => (float[16,3] y) { y = Concat <axis = 0> (x, z) }",
        {},
    ),
    "concat of dynamic sizes": (
        "g (float[n,4] x, float[8,4] z) => (float[m,4] y) { y = Concat <axis = 0> (x, z) }",
        {"n": (1, 64)},
    ),
    "a function of padded values": (
        "g (float[3,5] x) => (float[5,7] y) { p = Constant <value = int64[4] {1, 1, 1, 1}> () "
        "e = Exp(x) s = Mul(e, e) y = Pad(s, p) }",
        {},
    ),
    "slices joined": (
        "g (float[n,3] x) => (float[k,3] y) { a = Constant <value = int64[1] {0}> () "
        "b = Constant <value = int64[1] {1}> () s = Slice(x, a, b, a) y = Concat <axis = 0> (s, x, s) }",
        {"n": (1, 40)},
    ),
}


def run_apart(program: Program, inputs: list[Any], dims: Mapping[str, int], at_end: bool) -> int:
    """The status of a process that runs `program` with fenced inputs: 0, or the signal that ended it."""
    child = os.fork()
    if child == 0:
        try:
            execute(program.steps, program.library, inputs, dims, lambda size: Fenced(size, at_end))
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


@pytest.mark.parametrize("name", GRAPHS)
def test_inputs_end_where_they_end(tmp_path: Path, name: str) -> None:
    text, dims = GRAPHS[name]
    program = Program(write(tmp_path / "m.onnx", text), dims)
    tensors = {tensor.name: tensor for tensor in program.steps.record().tensors}
    for size in (1, 2, 3, 7, 8, 33) if dims else (0,):
        chosen = dict.fromkeys(dims, size)
        inputs = [
            np.ones([chosen.get(axis, axis) for axis in tensors[given].shape], "float32")
            for given in program.steps.inputs
        ]
        for at_end in (True, False):
            assert run_apart(program, inputs, chosen, at_end) == 0, f"n = {size}, at_end = {at_end}"


def test_the_fence_ends_a_process_that_reads_outside(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        ctypes.string_at(Fenced(10, True).pointer, 11)
        os._exit(0)
    assert os.waitpid(child, 0)[1] != 0


def test_names_of_operators_have_no_dialect() -> None:
    """TVM 0.27 has some operators of TIR in another dialect than the rest."""
    x = tirx.Var("x", "float32")
    named = {
        op_name(call) for call in (tirx.if_then_else(x > x, x, x), tirx.ceil(x), tirx.log2(x), tirx.exp(x))
    }
    assert named == {"if_then_else", "ceil", "log2", "exp"}
