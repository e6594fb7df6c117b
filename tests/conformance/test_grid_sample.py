"""GridSample of many channels, which is computed with channels last, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from .text_graphs import CompiledGraphs, TextGraph

FORMS = [
    ("linear", "zeros", 0), ("linear", "border", 1), ("linear", "reflection", 0),
    ("nearest", "zeros", 1), ("nearest", "reflection", 1), ("cubic", "zeros", 0),
]  # fmt: skip
NODES = "\n".join(
    f'y{number} = GridSample<mode = "{mode}", padding_mode = "{outside}", align_corners = {aligned}>(x, grid)'
    for number, (mode, outside, aligned) in enumerate(FORMS)
)
RESULTS = ", ".join(f"float[2,9,4,3] y{number}" for number in range(len(FORMS)))
GRAPHS = {
    "every_form": TextGraph(
        f"g (float[2,9,5,7] x, float[2,4,3,2] grid) => ({RESULTS}) {{ {NODES} }}", opset=20
    ),
    "open": TextGraph(
        "g (float[n,8,h,7] x, float[n,r,3,2] grid) => (float[n,8,r,3] y) { y = GridSample(x, grid) }",
        dims={"n": (1, 2), "h": (2, 6), "r": (1, 5)},
        opset=20,
    ),
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> CompiledGraphs:
    return CompiledGraphs(tmp_path_factory.mktemp("grids"), GRAPHS)


def test_modes_and_padding(built: CompiledGraphs) -> None:
    rng = np.random.default_rng(1)
    x, grid = rng.normal(size=(2, 9, 5, 7)), rng.uniform(-1.6, 1.6, (2, 4, 3, 2))
    built.check("every_form", x.astype("float32"), grid.astype("float32"), absolute=1e-5)


def test_dynamic_sizes(built: CompiledGraphs) -> None:
    rng = np.random.default_rng(2)
    for batch, height, rows in ((1, 2, 5), (2, 6, 1), (2, 5, 4)):
        x, grid = rng.normal(size=(batch, 8, height, 7)), rng.uniform(-1.6, 1.6, (batch, rows, 3, 2))
        built.check("open", x.astype("float32"), grid.astype("float32"), n=batch, h=height, r=rows)
