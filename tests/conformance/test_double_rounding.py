"""float64 rounded to integers on processors with and without an instruction for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kiln.config.library import load_variant
from kiln.emit.objects import compile_all
from kiln.lower.pipeline import Lowering, lower
from tvm import relax

from .emulated import memory_of, opened
from .lowered import module
from .programs import execute

op = relax.op


@pytest.mark.parametrize("name", ["x86_64", "armv7"])
def test_doubles_are_rounded(name: str, tmp_path: Path) -> None:
    least = [0.0, 0.5, 1.0, 1.5, 2.5, 1e-300, 2.0**31 + 0.5, 2.0**51 + 0.5, 2.0**52 - 0.5, 2.0**53, 1e300]
    near = [np.nextafter(value, side) for value in least for side in (-np.inf, np.inf)]
    x = np.array([*least, *near, np.inf, np.nan])
    x = np.concatenate([x, -x])

    def body(value: relax.Var) -> list[relax.Expr]:
        return [op.floor(value), op.ceil(value), op.trunc(value), op.round(value)]

    target = load_variant(name)
    steps = lower(module([(x.shape, "float64")], body), Lowering("m", target, "none"))
    path = tmp_path / "m.o"
    compile_all(steps.functions, target, path, "m", steps.kernels)
    with opened(target, path, [steps], tmp_path) as library:
        outputs = execute(steps, library, [x], of_tensors=memory_of(library))
    for ours, theirs in zip(outputs, [np.floor(x), np.ceil(x), np.trunc(x), np.rint(x)], strict=True):
        np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(np.signbit(ours), np.signbit(theirs))
