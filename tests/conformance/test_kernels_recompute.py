"""Large constants that a formula describes: computed where they are read, to the last bit, and not stored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.config import load_target
from kiln.params.formulas import ONCE
from tvm import relax

from .lowered import Array, Compiled, const, module, runnable

op = relax.op
RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((32, 512)).astype("float32")
KERNEL = RNG.standard_normal((3, 3, 8, 16)).astype("float32")
FILL = np.full((64, 512), 3.5, "float32")
GRID = np.arange(64 * 512, dtype="float32").reshape(64, 512)
FRACTIONS = np.arange(512, dtype="float32") * np.float32(0.1)
ROW = RNG.standard_normal((1, 512)).astype("float32")
PIXEL = RNG.standard_normal((1, 1, 14, 16)).astype("float32")
RANGE = np.arange(4096, dtype="int64")
LOWEST = np.full((64, 512), -np.inf, "float32")


def compiled(inputs: Mapping[str, Array], body: Any, folder: Path) -> Compiled:
    mod = module([(value.shape, str(value.dtype)) for value in inputs.values()], body)
    mod["main"] = mod["main"].with_attr("num_input", len(inputs))
    return Compiled(mod, runnable("host"), folder).load()


def test_every_reader_computes_what_it_needs(tmp_path: Path) -> None:
    inputs: dict[str, Array] = {
        "x": RNG.standard_normal((64, 512)).astype("float32"),
        "narrow": RNG.standard_normal((64, 32)).astype("float32"),
        "image": RNG.standard_normal((1, 16, 16, 8)).astype("float32"),
        "index": np.arange(0, 64, 4, dtype="int64"),
        "whole": np.arange(4096, dtype="int64")[::-1].copy(),
    }

    def body(x: Any, narrow: Any, image: Any, index: Any, whole: Any) -> list[Any]:
        wide = np.broadcast_to(ROW, (64, 512))
        residual = np.broadcast_to(PIXEL, (1, 14, 14, 16))
        convolution = op.nn.conv2d(image, const(KERNEL), data_layout="NHWC", kernel_layout="HWIO")
        return [
            op.add(op.matmul(narrow, const(WEIGHT)), const(FILL)),
            op.nn.relu(op.add(op.matmul(narrow, const(WEIGHT)), const(wide))),
            op.add(convolution, const(residual)),
            op.concat([op.maximum(x, const(LOWEST)), const(GRID)], 1),
            op.take(const(GRID), index, 0),
            op.scatter_nd(const(FILL), op.expand_dims(index, 1), op.strided_slice(x, [0], [0], [16])),
            op.multiply(op.add(whole, const(RANGE, "int64")), const(RANGE, "int64")),
            op.sum(op.multiply(x, const(GRID)), 1),
            op.multiply(x, const(np.broadcast_to(FRACTIONS, (64, 512)))),
            const(GRID),
        ]

    built = compiled(inputs, body, tmp_path)
    got = built.run(list(inputs.values()))
    x, narrow, index, whole = (inputs[name] for name in ("x", "narrow", "index", "whole"))
    scattered = FILL.copy()
    scattered[index] = x[:16]
    expected = {
        0: narrow @ WEIGHT + FILL,
        1: np.maximum(narrow @ WEIGHT + ROW, 0),
        3: np.concatenate([x, GRID], 1),
        4: GRID[index],
        5: scattered,
        6: (whole + RANGE) * RANGE,
        8: x * FRACTIONS,
        9: GRID,
    }
    for output, value in expected.items():
        exact = output > 1
        np.testing.assert_allclose(got[output], value, rtol=0 if exact else 1e-4, atol=0 if exact else 1e-4)
    np.testing.assert_allclose(got[7], (x * GRID).sum(1), rtol=1e-4, atol=10)
    # What is left: the weights, packed, and one of each of the elements that repeat themselves.
    left = {name: value.nbytes for name, value in built.result.params.items()}
    once = sorted(size for name, size in left.items() if name.endswith(f".{ONCE}"))
    assert once == sorted([ROW.nbytes, PIXEL.nbytes])
    assert sum(left.values()) <= WEIGHT.nbytes * 2 + KERNEL.nbytes * 2 + sum(once)


def test_weights_and_small_constants_stay_parameters(tmp_path: Path) -> None:
    weights = RNG.standard_normal((32, 512)).astype("float32")  # 8 or 16 bits cannot hold them
    small = np.full((512,), 2.5, "float32")
    inputs: dict[str, Array] = {"x": RNG.standard_normal((4, 32)).astype("float32")}
    built = compiled(inputs, lambda x: op.add(op.matmul(x, const(weights)), const(small)), tmp_path)
    assert sum(value.nbytes for value in built.result.params.values()) >= weights.nbytes + small.nbytes
    (got,) = built.run(list(inputs.values()))
    np.testing.assert_allclose(got, inputs["x"] @ weights + small, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", ["armv7", "cuda"])
def test_other_targets_store_no_more(target: str) -> None:
    from kiln.lower.pipeline import Lowering, lower

    mod = module([((64, 512), "float32")], lambda x: op.multiply(op.add(x, const(FILL)), const(GRID)))
    mod["main"] = mod["main"].with_attr("num_input", 1)
    assert not lower(mod, Lowering("m", load_target(target), "none")).params
