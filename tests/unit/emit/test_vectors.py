"""Whether a kernel's loops work on vectors, read from LLVM's text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.config import load_target
from kiln.emit.objects import compile_object
from kiln.emit.simd_check import Loops, read_loops, scalar_kernels
from kiln.lower.pipeline import Lowering, lower
from plans import plan_of
from relaxed import const, module
from tvm import relax

op = relax.op

SCALAR = """
define void @f(ptr %x, ptr %y) {
entry:
  br label %loop

loop:                                             ; preds = %loop, %entry
  %i = phi i32 [ 0, %entry ], [ %next, %loop ]
  %a = load float, ptr %x, align 4
  store float %a, ptr %y, align 4
  %next = add i32 %i, 1
  %end = icmp eq i32 %next, 9
  br i1 %end, label %out, label %loop

out:
  ret void
}

define void @g() {
  ret void
}
"""


def test_a_loop_of_single_numbers() -> None:
    assert read_loops(SCALAR, "f") == Loops(1, 0)
    assert read_loops(SCALAR, "f").scalar
    assert read_loops(SCALAR, "g") == Loops(0, 0)
    assert not read_loops(SCALAR, "g").scalar
    with pytest.raises(KeyError):
        read_loops(SCALAR, "h")


def test_a_loop_of_vectors() -> None:
    whole = SCALAR.replace("load float,", "load <8 x float>,").replace("store float", "store <8 x float>")
    assert read_loops(whole, "f") == Loops(1, 1)
    # A factor for each vector, as in a matrix product.
    assert read_loops(SCALAR.replace("store float", "store <8 x float>"), "f") == Loops(1, 1)
    # Eight elements that are gathered one by one.
    load = "  %a = load float, ptr %x, align 4\n"
    gathered = SCALAR.replace(load, 9 * load).replace("store float", "store <8 x float>")
    assert read_loops(gathered, "f") == Loops(1, 0)


def test_elements_that_fill_vectors_are_no_scalar_loads() -> None:
    """A tile of nine rows and one vector of columns loads nine elements for eight of the other factor."""
    product = """  %w = load <8 x float>, ptr %y, align 4
"""
    for row in range(9):
        product += f"""  %a{row} = load float, ptr %x, align 4
  %first{row} = insertelement <8 x float> poison, float %a{row}, i64 0
  %all{row} = shufflevector <8 x float> %first{row}, <8 x float> poison, <8 x i32> zeroinitializer
"""
    moved = """  %a = load float, ptr %x, align 4
  store float %a, ptr %y, align 4
"""
    assert read_loops(SCALAR.replace(moved, product), "f") == Loops(1, 1)
    # Each element is used once more, or is the first of a vector that other elements complete.
    again = product + "".join(f"  store float %a{row}, ptr %y, align 4\n" for row in range(9))
    assert read_loops(SCALAR.replace(moved, again), "f") == Loops(1, 0)
    gathered = product.replace("zeroinitializer", "<i32 0, i32 8, i32 1, i32 9, i32 2, i32 3, i32 4, i32 5>")
    assert read_loops(SCALAR.replace(moved, gathered), "f") == Loops(1, 0)


def test_only_innermost_loops_count() -> None:
    outer = """  %b = load float, ptr %x, align 4
  br label %loop"""
    text = SCALAR.replace("  br label %loop", "  br label %outer\n\nouter:\n" + outer, 1)
    text = text.replace(
        "out:\n  ret void", "out:\n  br i1 %end, label %outer, label %done\n\ndone:\n  ret void"
    )
    assert read_loops(text, "f") == Loops(1, 0)


def test_steps_count_from_a_size_on() -> None:
    arena = {"at": "arena", "offset": 0}
    steps = [
        {"kernel": "slow", "label": "", "args": [{**arena, "bytes": 64}, {"at": "dim", "expr": "n"}]},
        {"kernel": "slow_too", "label": "", "args": [{**arena, "bytes": 4}, {**arena, "bytes": 800}]},
        {"kernel": "fast", "label": "", "args": [{**arena, "bytes": 9999}]},
    ]
    plan = plan_of(buckets=[{"steps": steps}])
    slow, fast = {"loops": 1, "vectorised": 0}, {"loops": 2, "vectorised": 1}
    vectors = {"slow": slow, "slow_too": slow, "fast": fast}
    assert scalar_kernels(plan, vectors, 0) == {"slow", "slow_too"}
    assert scalar_kernels(plan, vectors, 65) == {"slow_too"}
    assert scalar_kernels(plan, vectors, 801) == set()


# What has been scalar once: pictures of three planes, one channel after a transpose, sums of short rows.
CASES: dict[str, tuple[tuple[int, ...], Any]] = {
    "planes": ((1, 3, 64, 64), lambda x: op.permute_dims(x, [0, 2, 3, 1])),
    "phases": ((1, 40, 40, 2, 2, 1), lambda x: op.sigmoid(op.permute_dims(x, [0, 1, 3, 2, 4, 5]))),
    "one_channel": ((4, 508, 1, 512), lambda x: op.permute_dims(x, [0, 3, 1, 2])),
    "sums": ((64, 512), lambda x: op.sum(x, 1)),
    "padded": ((1, 64, 64, 3), lambda x: op.nn.pad(x, [0, 0, 1, 1, 1, 1, 0, 0])),
    "running_sums": ((64, 64, 64), lambda x: op.cumsum(x, 2)),
    "embedding": ((64, 64), lambda x: op.take(const(np.ones((99, 64))), op.astype(x, "int64"), 0)),
}


@pytest.mark.parametrize("target", ["x86_64", "aarch64"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.slow
def test_kernels_work_on_vectors(name: str, target: str, tmp_path: Path) -> None:
    shape, body = CASES[name]
    described = load_target(target)
    steps = lower(module([(shape, "float32")], body), Lowering("m", described, described.threads))
    ir = compile_object(steps.functions, described, tmp_path / "kernels.o")
    assert {symbol: read_loops(ir, symbol).scalar for symbol in steps.functions} == dict.fromkeys(
        steps.functions, False
    )
