"""Resizes of integers with dynamic sizes to the nearest neighbours: those of ONNX Runtime, without floats."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnxruntime as ort
from kiln.config import load_target
from kiln.emit.object_symbols import symbols
from kiln.emit.objects import compile_object
from kiln.emit.run_time_library import computes_floats
from kiln.graph.pipeline import simplify
from kiln.lower.fixed_point import fixed_point
from kiln.lower.pipeline import Lowering, lower
from symbolic import imported, runner, write

ROUNDINGS = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
SCALES = (0.375, 1.5, 2)
DIMS = {"h": (8, 24, 8), "w": (8, 24, 8)}


def _model(folder: Path) -> Path:
    """A model of one Resize of an image for each scale, coordinates and rounding."""
    nodes, results, scales = [], [], {}
    cases = itertools.product(SCALES, ("asymmetric", "half_pixel"), ROUNDINGS)
    for number, (scale, coordinates, rounding) in enumerate(cases):
        scales[f"s{number}"] = np.array([1, 1, scale, scale], "float32")
        results.append(f"int8[1,2,h{number},w{number}] y{number}")
        nodes.append(
            f'y{number} = Resize<mode = "nearest", coordinate_transformation_mode = "{coordinates}", '
            f'nearest_mode = "{rounding}">(x, , s{number})'
        )
    text = f"g (int8[1,2,h,w] x) => ({', '.join(results)}) {{ {' '.join(nodes)} }}"
    return write(folder / "m.onnx", text, **scales)


def test_nearest_neighbours_of_dynamic_sizes(tmp_path: Path) -> None:
    path = _model(tmp_path)
    module = simplify(imported(path, DIMS)[0])
    run, reference = runner(fixed_point(module)), ort.InferenceSession(path)
    for height, width in ((8, 24), (16, 8)):
        x = np.random.default_rng(height).integers(-128, 128, (1, 2, height, width)).astype("int8")
        results = zip(run([x], {"h": height, "w": width}), reference.run(None, {"x": x}), strict=True)
        for number, (ours, theirs) in enumerate(results):
            np.testing.assert_array_equal(ours, theirs, str(number))
    steps = lower(module, Lowering("m", load_target("cortex_m0plus"), "none"))
    compile_object(steps.functions, load_target("cortex_m0plus"), tmp_path / "m.o")
    called = [symbol.name for symbol in symbols((tmp_path / "m.o").read_bytes()) if not symbol.defined]
    assert called
    assert [name for name in called if computes_floats(name)] == []
