"""Sizes that a run counts: their bounds, what is refused, and the order of steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.config import load_target
from kiln.config.boxes import Box, BoxList
from kiln.config.dims import Segment
from kiln.config.interface import CountedDimension, Dimension
from kiln.config.model import Tensor
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.merge import merge
from kiln.frontend.options import ImportOptions, from_config
from kiln.graph.pipeline import simplify
from kiln.lower.pipeline import Lowering, lower
from kiln.specialize.conditions import Equals
from kiln.specialize.padding.analysis import NotProvenError
from kiln.specialize.padding.fills import proven_fills
from kiln.specialize.special_case import special_cases
from symbolic import configuration, dynamic, write

NON_ZERO = "g (float[4,6] x) => (int64[2,n] y) { y = NonZero(x) }"
OPEN = (
    "g (float[b,6] x) => (float[n] y) { i = NonZero(x) t = Transpose<perm = [1, 0]>(i) y = GatherND(x, t) }"
)
RANGE = "g (int64 a, int64 b, int64 s) => (int64[n] y) { y = Range(a, b, s) }"
RANGES = (
    "g (int64 a, int64 b, int64 s) => (int64[n,m] y) "
    "{ i = Range(a, b, s) j = Range(b, a, s) axis = Constant<value = int64[1] {1}>() k = Unsqueeze(i, axis) "
    "y = Add(k, j) }"
)


def counted(path: Path, text: str, bounds: dict[str, int] | None = None, **weights: Any) -> list[Any]:
    """The counted sizes of a graph without dimensions."""
    _, interface = import_model(
        write(path / "m.onnx", text, **weights), ImportOptions("m", bounds=bounds or {})
    )
    return [(one.name, one.tensor, one.bound) for one in interface.counted]


def test_bounds_that_follow_from_the_graph(tmp_path: Path) -> None:
    assert counted(tmp_path, NON_ZERO) == [("n_y", "y", 24)]
    boxes = "g (float[2,9,4] x, float[2,3,9] s) => (int64[n,3] y) { y = NonMaxSuppression(x, s, most) }"
    assert counted(tmp_path, boxes, most=np.array([4])) == [("n_y", "y", 24)]
    assert counted(tmp_path, boxes, most=np.array([100])) == [("n_y", "y", 54)]


@pytest.mark.parametrize("ends", ["Identity(c)", "Less(i, zero)"])
@pytest.mark.parametrize("trips", [1, 2])
def test_rows_of_a_loop_whose_first_condition_is_data(trips: int, ends: str, tmp_path: Path) -> None:
    """The first iteration, too, gives a row only if it runs, also where the body ends the loop after it."""
    text = f"""g (float[2] x, bool go) => (float[n,2] y) <int64 zero = {{0}}> {{
        last, y = Loop(trips, go, x) <body = b (int64 i, bool c, float[2] v) =>
            (bool d, float[2] w, float[2] r) {{ d = {ends} w = Add(v, v) r = Neg(w) }}> }}"""
    assert counted(tmp_path, text, trips=np.array(trips)) == [("n_y", "y", trips)]


def test_bounds_of_the_user(tmp_path: Path) -> None:
    assert counted(tmp_path, NON_ZERO, {"y": 7}) == [("n_y", "y", 7)]
    assert counted(tmp_path, NON_ZERO, {"y": 700}) == [("n_y", "y", 24)]
    assert counted(tmp_path, RANGE, {"y": 700}) == [("n_y", "y", 700)]


@pytest.mark.parametrize(
    ("text", "bounds", "parts"),
    [
        (RANGE, {}, ["Range (node", "no limit follows", "'bounds: {y: N}'"]),
        (RANGES, {}, ["Range (node Range_0), Range (node Range_1)", "'bounds: {i: N, j: N}'"]),
        (RANGES, {"i": 9}, ["imported: Range (node Range_1)", "'bounds: {j: N}'"]),
        (RANGE, {"y": 1 << 30}, ["may have 1073741824 elements", "at most 268435456", "'bounds: {y: N}'"]),
        (NON_ZERO, {"z": 3}, ["bounds.z: no tensor of this name", "allowed: y"]),
        (
            "g (float[1,9,4] x, float[1,3,9] s) => (int64[n,3] y) { y = NonMaxSuppression(x, s) }",
            {},
            ["NonMaxSuppression", "max_output_boxes_per_class is 0 or left out", "allowed: 1 and more"],
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, bounds: dict[str, int], parts: list[str]) -> None:
    with pytest.raises(KilnError) as raised:
        counted(tmp_path, text, bounds)
    message = str(raised.value)
    assert "\n" not in message and all(part in message for part in parts), message


def test_a_gpu_counts_nothing(tmp_path: Path) -> None:
    module, _ = import_model(write(tmp_path / "m.onnx", NON_ZERO), ImportOptions("m"))
    with pytest.raises(KilnError, match="tensor 'y': its size is counted in the run, which needs a CPU"):
        lower(simplify(module), Lowering("m", load_target("cuda"), "none"))


def test_padding_of_what_is_counted_is_not_proven(tmp_path: Path) -> None:
    dims = {"b": (1, 8)}
    module, interface = import_model(
        write(tmp_path / "m.onnx", OPEN), from_config(configuration(dims), dynamic(dims))
    )
    with pytest.raises(NotProvenError, match="operator non_zero: Kiln has no rule"):
        proven_fills(module, ["b"], interface, {"x": Tensor()})


def test_special_cases_are_refused(tmp_path: Path) -> None:
    dims = {"b": (1, 8)}
    path = write(tmp_path / "m.onnx", OPEN)
    module, _ = import_model(path, from_config(configuration(dims), dynamic(dims)))
    with pytest.raises(KilnError, match="operator 'non_zero' is imported as code"):
        special_cases(module, [Equals("b", 2)])


def test_bounds_of_buckets_are_merged(tmp_path: Path) -> None:
    dims = {"b": (1, 4)}
    path, config = write(tmp_path / "m.onnx", OPEN), configuration(dims)
    one = Segment(strategy="exact", min=1, max=1, multiple=1, size=1)
    boxes = [Box(name="b1", dims={"b": one}), dynamic(dims)]
    interfaces = [import_model(path, from_config(config, box))[1] for box in boxes]
    buckets = BoxList(dims=[Dimension(name="b", min=1, max=4)], buckets=boxes)
    merged = merge(interfaces, buckets, config)
    assert merged.counted == [CountedDimension(name="n_i", tensor="i", bound=["*", "b", 6])]
    assert merged.outputs[0].shape == ["n_i"]


def test_a_size_is_counted_before_it_is_given(tmp_path: Path) -> None:
    text = """g (float[4,6] x) => (float[k] line, int64[2,n] y) {
      y = NonZero(x) s = Shape(y) c = Gather(s, last) line = Expand(half, c) }"""
    path = write(tmp_path / "m.onnx", text, last=np.array([1]), half=np.float32([0.5]))
    module, _ = import_model(path, ImportOptions("m"))
    target = load_target("x86_64")
    steps = lower(simplify(module), Lowering("m", target.for_variant(target.base), "none")).steps
    count = next(at for at, step in enumerate(steps) if step.counts is not None)
    given = [at for at, step in enumerate(steps) if "n_y" in step.dims]
    assert given and min(given) > count
