"""Archives of torch.export are read without PyTorch; what cannot be built is refused in one line."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from kiln.config import load_model
from kiln.config.sizes import evaluate
from kiln.errors import KilnError
from kiln.frontend.torch import trace_stage
from kiln.frontend.torch.library import load_torch, reason
from kiln.golden.reference import open_reference
from kiln.sources.torch_archive import read_archive
from kiln.sources.torch_dims import fill

PROGRAM = "models/model.json"


def symbol(name: str) -> str:
    return f"Symbol('{name}', positive=True, integer=True)"


def write(
    path: Path,
    inputs: dict[str, Sequence[int | str]],
    ranges: dict[str, tuple[int, int | None]],
    member: str = PROGRAM,
    **names: str,
) -> Path:
    """An archive of torch.export without weights: sizes of inputs as SymPy expressions, ranges of symbols."""
    sizes = {
        name: {
            "sizes": [{"as_int": s} if isinstance(s, int) else {"as_expr": {"expr_str": s}} for s in shape]
        }
        for name, shape in inputs.items()
    }
    specs: list[Any] = [{"parameter": {"arg": {"name": "p_w"}, "parameter_name": "w"}}]
    specs += [{"user_input": {"arg": {"as_tensor": {"name": name}}}} for name in inputs]
    program = {
        "graph_module": {"graph": {"tensor_values": sizes}, "signature": {"input_specs": specs}},
        "range_constraints": {key: {"min_val": low, "max_val": high} for key, (low, high) in ranges.items()},
    }
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"net/{member}", json.dumps(program))
        if names:
            archive.writestr("net/extra/kiln.json", json.dumps({"dims": names}))
    return path


def test_symbols_of_one_name_are_one_dimension(tmp_path: Path) -> None:
    path = write(
        tmp_path / "net.pt2",
        {"x": [symbol("s0"), 3], "y": [f"Mul(Integer(2), {symbol('s1')})", symbol("s2")]},
        {"s0": (1, 8), "s1": (2, None), "s2": (1, 4)},
        s0="batch",
        s1="batch",
    )
    archive = read_archive(path)
    assert archive.inputs == {"x": ("s0", 3), "y": (["*", "s0", 2], "s2")}
    assert archive.ranges == {"s0": (2, 8), "s2": (1, 4)}


@pytest.mark.parametrize("member", [PROGRAM, "serialized_exported_program.json"])
def test_sizes_are_expressions_of_symbols(tmp_path: Path, member: str) -> None:
    path = write(
        tmp_path / "net.pt2",
        {
            "x": [symbol("s0"), 3, f"Mul(Integer(2), {symbol('s1')})"],
            "y": [f"Add({symbol('s0')}, Integer(-1))", "4*s1"],
        },
        {"s0": (1, 8), "s1": (2, None), "2*s1": (4, None)},
        member,
    )
    archive = read_archive(path)
    assert archive.inputs == {"x": ("s0", 3, ["*", "s1", 2]), "y": (["-", "s0", 1], ["*", "s1", 4])}
    assert archive.ranges == {"s0": (1, 8), "s1": (2, None)}


def test_dimensions_are_called_as_the_yaml_the_export_or_the_axis_says(tmp_path: Path) -> None:
    shapes: dict[str, Sequence[int | str]] = {"x": ["s0", 3, "s1"], "mask": ["s0", "s2"]}
    ranges: dict[str, tuple[int, int | None]] = {"s0": (0, 8), "s1": (2, 64), "s2": (1, 5)}
    archive = read_archive(write(tmp_path / "net.pt2", shapes, ranges, s1="Height"))
    filled, missing = fill(Path("net.pt2"), archive, {}, {})
    assert filled == {"x": ["x_0", 3, "height"], "mask": ["x_0", "mask_1"]}
    assert missing == {"x_0": (1, 8, 1), "height": (2, 64, 1), "mask_1": (1, 5, 1)}
    filled, missing = fill(Path("net.pt2"), archive, {"x": ["batch", 3, 32]}, {"batch": (2, 4, 1)})
    assert filled == {"x": ["batch", 3, 32], "mask": ["batch", "mask_1"]}
    assert missing == {"mask_1": (1, 5, 1)}


def test_a_multiple_of_a_symbol_becomes_a_dimension(tmp_path: Path) -> None:
    inputs: dict[str, Sequence[int | str]] = {"x": ["8*s1", "8*s1 + s0"], "y": ["s0", "4*s1 - 1"]}
    archive = read_archive(write(tmp_path / "net.pt2", inputs, {"s0": (1, 4), "s1": (1, 5)}))
    filled, missing = fill(Path("net.pt2"), archive, {}, {})
    assert missing == {"x_0": (8, 40, 8), "y_0": (1, 4, 1)}
    assert filled["x"][0] == "x_0"
    at = {"x_0": 24, "y_0": 3}
    assert [[evaluate(size, at) for size in shape] for shape in filled.values()] == [[24, 27], [3, 11]]
    with pytest.raises(KilnError, match=r"dims.h.multiple: 4, allowed: multiples of 8"):
        fill(Path("net.pt2"), archive, {"x": ["h", ["+", "h", "n"]]}, {"h": (8, 16, 4), "n": (1, 2, 1)})


@pytest.mark.parametrize(
    ("shapes", "ranges", "told"),
    [
        ({"z": [1]}, {}, "net.pt2: inputs.z: the model has no such input; known: x, mask"),
        ({"x": [1, 3]}, {}, "input 'x' has 3 axes, but inputs.x.shape gives 2"),
        ({"x": [9, 3, 4]}, {}, "size 9 is outside of 1..8, the range of its export"),
        ({"x": ["b", 3, 4]}, {"b": (1, 9, 1)}, "dims.b: 1..9 is wider than 1..8, the range of its export"),
        (
            {"x": ["b", 3, 4], "mask": ["c"]},
            {"b": (1, 2, 1), "c": (1, 2, 1)},
            "inputs.mask.shape: axis 0 is c, but an axis that is always of the same size is b",
        ),
        (
            {},
            {},
            "dimension 'x_2' (input 'x' axis 2) has no greatest size; give it with 'dims: {x_2: {min: 2, max",
        ),
    ],
)
def test_dimensions_that_do_not_fit_are_refused(
    tmp_path: Path, shapes: dict[str, list[Any]], ranges: dict[str, tuple[int, int, int]], told: str
) -> None:
    path = write(
        tmp_path / "net.pt2", {"x": ["s0", 3, "s1"], "mask": ["s0"]}, {"s0": (1, 8), "s1": (2, None)}
    )
    with pytest.raises(KilnError) as error:
        fill(Path("net.pt2"), read_archive(path), shapes, ranges)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"text", "net.pt2: not an archive of torch.export: the file is plain text"),
        ({"net/data.pkl": "x"}, "the file is a Python pickle, such as torch.save writes, without a graph"),
        ({f"net/{PROGRAM}": "{"}, "not an archive of torch.export"),
        ({f"net/{PROGRAM}": "{}"}, "in an unknown format (KeyError: 'graph_module')"),
        ({f"net/{PROGRAM}": "[" * 100_000}, "not an archive of torch.export"),
    ],
)
def test_damaged_archives(tmp_path: Path, content: Any, told: str) -> None:
    path = tmp_path / "net.pt2"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in content.items():
                archive.writestr(name, text)
    with pytest.raises(KilnError) as error:
        read_archive(path)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_sizes_that_are_no_size_expressions_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "net.pt2", {"x": ["Pow(Symbol('s0'), Integer(2))"]}, {"s0": (1, 8)})
    with pytest.raises(KilnError, match=r"unknown format \(ValueError: the size Pow"):
        read_archive(path)


@pytest.mark.parametrize("port", ["input", "output"])
def test_complex_numbers_are_refused_with_the_way_round(tmp_path: Path, port: str) -> None:
    path = write(tmp_path / "net.pt2", {"z": [3]}, {})
    with zipfile.ZipFile(path) as archive:
        program = json.loads(archive.read(f"net/{PROGRAM}"))
    tensors, signature = (
        program["graph_module"]["graph"]["tensor_values"],
        program["graph_module"]["signature"],
    )
    tensors["w"] = {**tensors["z"], "dtype": 10}
    signature["output_specs"] = [{"user_output": {"arg": {"as_tensor": {"name": "w"}}}}]
    if port == "input":
        tensors["z"]["dtype"] = 10
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"net/{PROGRAM}", json.dumps(program))
    name = "input 'z'" if port == "input" else "an output"
    with pytest.raises(KilnError, match=f"{name} has complex numbers; .* torch.view_as_real"):
        read_archive(path)


def test_a_number_that_varies_is_no_input(tmp_path: Path) -> None:
    path = write(tmp_path / "net.pt2", {"x": [1]}, {})
    with zipfile.ZipFile(path) as archive:
        program = json.loads(archive.read(f"net/{PROGRAM}"))
    program["graph_module"]["signature"]["input_specs"].append(
        {"user_input": {"arg": {"as_sym_int": {"as_name": "n"}}}}
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"net/{PROGRAM}", json.dumps(program))
    with pytest.raises(KilnError, match="input 1 is a number that varies"):
        read_archive(path)


def test_models_are_found_by_function() -> None:
    model = load_model("nets.vision:Small_Net")
    assert (model.name, model.format, model.source.kind) == ("small_net", "pt2", "python")
    assert model.source.function == "nets.vision:Small_Net"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("nets:", "nets:function"), ("./nets/vision.py:f", "nets.vision:f"), (":f", "nets.vision:small"),
        ("nets:f:g", "nets.vision:small"), ("nets.1:f", "nets.vision:small"),
    ],
)  # fmt: skip
def test_names_that_are_no_function(name: str, meant: str) -> None:
    expected = rf"^model '{name}': a PyTorch model is package\.module:function, such as '{meant}'$"
    with pytest.raises(KilnError, match=expected):
        load_model(name)


def test_a_function_in_a_yaml_file(tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text("source: {kind: python, function: nets:small}\n", encoding="utf-8")
    assert load_model(path).format == "pt2"
    path.write_text("source: {kind: python, function: 'os;x'}\n", encoding="utf-8")
    with pytest.raises(KilnError, match=r"package.module:function expected, got 'os;x'"):
        load_model(path)


def test_without_pytorch_one_line_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(KilnError) as error:
        load_torch("net.pt2")
    assert str(error.value) == (
        f"net.pt2: PyTorch models need the package onnxscript; install it with: "
        f"{sys.executable} -m pip install torch onnxscript"
    )
    path = write(tmp_path / "net.pt2", {"x": [1]}, {})
    with pytest.raises(KilnError, match="PyTorch models need"):
        open_reference(path)
    with pytest.raises(KilnError, match=r"'onnxruntime' cannot run it, allowed: auto, torch"):
        open_reference(path, "onnxruntime")


@pytest.mark.parametrize(
    ("text", "function", "told"),
    [
        (None, "absent_nets:f", "no module 'absent_nets' in the current folder or in PYTHONPATH"),
        (
            "import absent_package",
            "f",
            "cannot import {}: ModuleNotFoundError: No module named 'absent_package'",
        ),
        ("def f(:", "f", "cannot import {}: SyntaxError"),
        ("def g(): pass", "f", "{} has no function 'f', it has: g"),
        ("1 / 0", "f", "cannot import {}: ZeroDivisionError: division by zero"),
    ],
)
def test_functions_that_cannot_be_imported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    text: str | None,
    function: str,
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    module = f"nets_of_{request.node.callspec.indices['text']}"
    name = function if text is None else f"{module}:{function}"
    if text is not None:
        (tmp_path / f"{module}.py").write_text(text, encoding="utf-8")
    with pytest.raises(KilnError) as error:
        trace_stage.find_function(name)
    assert told.format(module) in str(error.value)


def test_reasons_are_one_line() -> None:
    try:
        try:
            raise ValueError("\x1b[96mfirst\nsecond" + "x" * 400)
        except ValueError as error:
            raise RuntimeError("outer") from error
    except RuntimeError as error:
        assert reason(error).startswith("ValueError: first second")
        assert len(reason(error)) == 300


@pytest.mark.parametrize(
    ("violations", "suggested", "expected"),
    [
        (
            ["Not all values of h = L['x'].size()[2] in the specified range 4 <= h <= 50 satisfy the "
             "generated guard (2*(L['x'].size()[2] // 2)) == L['x'].size()[2]."],
            ["_h = Dim('_h', max=25)", "h = 2*_h"],
            "the module does not take all sizes of h; PyTorch suggests _h = Dim('_h', max=25), h = 2*_h; "
            "Not all values of h = x.shape[2] in the specified range 4 <= h <= 50 satisfy the generated "
            "guard (2*(x.shape[2] // 2)) == x.shape[2].",
        ),
        (
            ["You marked h as dynamic but your code specialized it to be a constant (1). If you're using …"],
            ["h = 1"],
            "the module does not take all sizes of h; a size of 1 in the example inputs is a constant to it: "
            "give them 2 or more",
        ),
        (
            ["You marked h as dynamic but your code specialized it to be a constant (8). If you're using …"],
            ["h = 8"],
            "the module does not take all sizes of h; it computes with 8, the size of the example inputs, "
            "alone: len, float and math.sqrt, for instance, make constants of sizes",
        ),
        (
            [
                "Not all values of n = L['x'].size()[0] in the specified range 2 <= n <= 7 satisfy the "
                "generated guard 4 <= L['x'].size()[0] and L['x'].size()[0] <= 4"
            ],
            ["n = 4"],
            "the module does not take all sizes of h; it computes with 4, the size of the example inputs, "
            "alone: len, float and math.sqrt, for instance, make constants of sizes",
        ),
        (
            [
                "Not all values of n = L['x'].size()[1] in the specified range 9 <= n <= 80 satisfy the "
                "generated guard 12 <= L['x'].size()[1] and L['x'].size()[1] <= 80"
            ],
            ["_n = Dim('_n', min=4, max=21)", "n = 3*_n"],
            "the module does not take all sizes of h, allowed: n in 12..80",
        ),
        (["first", "second"], [], "the module does not take all sizes of h; first; second"),
    ],
    ids=["suggested", "one", "fixed", "single", "range", "none"],
)  # fmt: skip
def test_sizes_that_a_module_does_not_take(
    violations: list[str], suggested: list[str], expected: str
) -> None:
    lines = ['Constraints violated (h)! For more information, run with TORCH_LOGS="+dynamic".']
    lines += [f"  - {text}" for text in violations]
    lines += ["Suggested fixes:", *(f"  {text}" for text in suggested)] if suggested else []
    assert reason(ValueError("\n".join([*lines, "", "The error above occurred when …"]))) == expected
