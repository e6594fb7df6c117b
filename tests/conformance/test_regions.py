"""RoiAlign: means of sampling points in regions, against ONNX Runtime, in one compiled program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from kiln.golden.reference import open_reference
from kiln.graph.pipeline import simplify
from symbolic import imported, write

from .lowered import Compiled, runnable

_NODES = {
    "plain": "output_height = 2, output_width = 3, sampling_ratio = 2",
    "scaled": "output_height = 3, output_width = 2, sampling_ratio = 3, spatial_scale = 0.5",
    "legacy": "output_height = 2, output_width = 2, sampling_ratio = 1, coordinate_transformation_mode = "
    '"output_half_pixel"',
    "adaptive": "output_height = 2, output_width = 2, sampling_ratio = 0",
    "greatest": 'output_height = 2, output_width = 2, sampling_ratio = 0, mode = "max"',
}


def test_means_of_regions(tmp_path: Path) -> None:
    """Regions inside, across and outside the edges, tiny and with swapped corners, of both images."""
    results = ", ".join(f"float[?,?,?,?] {name}" for name in _NODES)
    body = " ".join(f"{name} = RoiAlign<{attributes}>(x, r, b)" for name, attributes in _NODES.items())
    text = f"g (float[2,3,8,9] x, float[7,4] r, int64[7] b) => ({results}) {{ {body} }}"
    path = write(tmp_path / "m.onnx", text, opset=16)
    mod, _ = imported(path, {})
    compiled = Compiled(simplify(mod), runnable("x86_64_v2"), tmp_path).load()
    corners = [[0, 0, 7, 7], [1.3, 2.2, 6.7, 5.1], [-3, -2, 4, 4], [5, 3, 14, 12], [20, 20, 30, 30]]
    corners += [[2.5, 2.5, 2.7, 2.6], [6, 6, 2, 3]]
    given = [
        np.random.default_rng(1).standard_normal((2, 3, 8, 9)).astype(np.float32),
        np.array(corners, np.float32),
        np.array([0, 1, 0, 1, 0, 1, 0], np.int64),
    ]
    for name, found, expected in zip(
        _NODES, compiled.separate(given), open_reference(path).run(given), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=name)
        if name in ("adaptive", "greatest"):  # without points: 0, not the memory's contents before, -2.9e-16
            assert not found[-1].any(), name
