"""Names, layouts and sizes of what goes in and out."""

from __future__ import annotations

import pytest
from kiln.config.slice_records import ImportConfig
from kiln.errors import KilnError
from kiln.frontend.interface import Port, c_names, described
from kiln.frontend.options import ImportOptions, bind_shape, from_config


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("input_1", "input_1"),
        ("Input.IDs", "input_ids"),
        ("save_infer_model/scale_0.tmp_1", "save_infer_model_scale_0_tmp_1"),
        ("serving_default:0", "serving_default_0"),
        ("495", "input_495"),
        ("", "input_0"),
        ("日本", "input_0"),
        ("int", "int_"),
        ("Class", "class_"),
        ("session", "session_"),
        ("__reserved", "reserved"),
        ("kiln_session", "input_kiln_session"),
        ("Kiln/run:0", "input_kiln_run_0"),
    ],
)
def test_c_name(name: str, expected: str) -> None:
    assert c_names([name], "input", set()) == [expected]


def test_c_names_are_unique_over_inputs_and_outputs() -> None:
    taken: set[str] = set()
    assert c_names(["x.1", "x/1", "x_1", "x_1_2"], "input", taken) == ["x_1", "x_1_2", "x_1_3", "x_1_2_2"]
    assert c_names(["x_1"], "output", taken) == ["x_1_4"]


def test_configured_layout_wins_over_the_file_s() -> None:
    configured = options(inputs={"x": {"layout": "NHWC"}}, outputs={"y": {"layout": "NC"}})
    ports = [Port("x", "float32", (1, 2, 3, 4), "NCHW")], [Port("y", "int8", (1, 5), quant=(0.5, -3))]
    found = described(configured, *ports).model_dump()
    assert found["inputs"][0]["layout"] == "NHWC"
    assert found["inputs"][0]["quant"] is None
    assert found["outputs"][0] == {
        "name": "y",
        "c_name": "y",
        "dtype": "int8",
        "shape": [1, 5],
        "layout": "NC",
        "quant": {"scale": 0.5, "zero_point": -3},
        "element": None,
    }


def options(**config: object) -> ImportOptions:
    return from_config(ImportConfig.model_validate({"name": "m", **config}))


def test_sizes_come_from_the_file_the_shape_or_a_dim() -> None:
    dims = {"batch": {"min": 4, "max": 4, "multiple": 2}}
    assert bind_shape("f", "x", (2, 3), options()) == (2, 3)
    assert bind_shape("f", "x", (None, 3), options(inputs={"x": {"shape": [2, 3]}})) == (2, 3)
    assert bind_shape("f", "x", ("batch", 3), options(dims=dims)) == (4, 3)
    assert bind_shape("f", "x", (None, 3), options(dims=dims, inputs={"x": {"shape": ["batch", 3]}})) == (
        4,
        3,
    )
    assert bind_shape("f", "x", None, options(inputs={"x": {"shape": [7]}})) == (7,)
    assert bind_shape("f", "x", (), options()) == ()


@pytest.mark.parametrize(
    ("declared", "config", "parts"),
    [
        (
            ("n", 3),
            {},
            ["'x' axis 0 ('n')", "no range", "inputs: {x: {shape: […]}}", "dims: {n: {min: 1, max: 8}}"],
        ),
        ((None, 3), {}, ["'x' axis 0 is dynamic", "inputs: {x: {shape: […]}}"]),
        (None, {}, ["'x' has no shape", "inputs: {x: {shape: […]}}"]),
        ((1, 3), {"inputs": {"x": {"shape": [1, 4]}}}, ["axis 1 is 3 in the file", "is 4"]),
        ((1, 3), {"inputs": {"x": {"shape": [1]}}}, ["has 2 axes", "gives 1"]),
        (("n",), {"dims": {"n": {"min": 1, "max": 8}}}, ["ranges over 1..8", "only one size", "dims.n"]),
        (("n",), {"dims": {"n": {"min": 3, "max": 3, "multiple": 2}}}, ["dims.n: 3 is not a multiple of 2"]),
    ],
)
def test_a_size_that_cannot_be_known(declared: object, config: dict[str, object], parts: list[str]) -> None:
    with pytest.raises(KilnError) as caught:
        bind_shape("file.onnx", "x", declared, options(**config))  # type: ignore[arg-type]
    for part in ["file.onnx", *parts]:
        assert part in str(caught.value)
