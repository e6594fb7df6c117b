"""Casts of bfloat16, 8-bit floats and integers of few bits: every code, around every rounding limit."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from kiln.config.data import RandomInput
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions
from kiln.golden.inputs import make_set
from kiln.golden.reference import open_reference
from onnx import TensorProto, helper

from .programs import Program

FLOATS = ("BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT4E2M1")
INTEGERS = ("INT4", "UINT4", "INT2", "UINT2")


def numbers() -> np.ndarray:
    """Every number of the 8-bit types, the numbers in the middle of two, and their neighbours; and others."""
    names = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn")
    codes = np.arange(256, dtype="uint8")
    with np.errstate(invalid="ignore"):
        exact = np.concatenate([(codes & (15 if name[5] == "4" else 255)).view(getattr(ml_dtypes, name))
                                .astype("float32") for name in names])  # fmt: skip
    exact = np.unique(exact[np.isfinite(exact)])
    middle = (exact[1:] + exact[:-1]) / 2
    near = np.concatenate([exact, middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)])
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e9, -1e9, 1e-30, 57344.1, 3.3e38, 464.0, 480.0]
    noise = np.random.default_rng(0).normal(size=500) * 10.0 ** np.random.default_rng(1).integers(-5, 6, 500)
    return np.concatenate([near, special, noise]).astype("float32")


def value(name: str, kind: int, size: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, [size])


def write(path: Path, nodes: list, inputs: list, outputs: list) -> Path:
    opsets = [helper.make_opsetid("", 25)]
    model = helper.make_model(helper.make_graph(nodes, "g", inputs, outputs), opset_imports=opsets)
    onnx.save(model, path)
    return path


def same(got: np.ndarray, want: np.ndarray) -> bool:
    """Whether stored numbers are equal; NaN is any code of it."""
    if want.dtype.kind == "f":
        return bool(np.array_equal(got, want, equal_nan=True))
    return bool((got == want).all())


def test_casts_of_every_code_and_around_every_limit(tmp_path: Path) -> None:
    x = numbers()
    finite = x[np.abs(x) < 1e6]
    nodes, inputs, outputs = [], [value("x", TensorProto.FLOAT, x.size)], []
    inputs.append(value("whole", TensorProto.FLOAT, finite.size))
    given, wanted = [x, finite], []
    for name in (*FLOATS, *INTEGERS):
        kind = getattr(TensorProto, name)
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        is_integer = name in INTEGERS
        for saturate in (1, 0) if name.startswith("FLOAT8") else (1,):
            made = f"{name}_{saturate}"
            extra = {"saturate": saturate} if name.startswith("FLOAT8") else {}
            nodes.append(helper.make_node("Cast", ["whole" if is_integer else "x"], [made], to=kind, **extra))
            outputs.append(value(made, kind, finite.size if is_integer else x.size))
            with np.errstate(all="ignore"):
                if is_integer:
                    wanted.append(
                        finite.astype("int32").astype(dtype).astype("int8" if name[0] == "I" else "uint8")
                    )
                    continue
                clipped = x
                if extra and saturate:
                    info = ml_dtypes.finfo(dtype)
                    clipped = np.clip(x, float(info.min), float(info.max))
                wanted.append(clipped.astype(dtype).view("uint16" if name == "BFLOAT16" else "uint8"))
        if name != "BFLOAT16" and not is_integer:
            bits = ml_dtypes.finfo(dtype).bits
            codes = np.arange(1 << bits, dtype="uint8")
            given.append(codes)
            inputs.append(value(f"codes_{name}", kind, codes.size))
            outputs.append(value(f"decoded_{name}", TensorProto.FLOAT, codes.size))
            nodes.append(
                helper.make_node("Cast", [f"codes_{name}"], [f"decoded_{name}"], to=TensorProto.FLOAT)
            )
            wanted.append(codes.view(dtype).astype("float32"))
    program = Program(write(tmp_path / "m.onnx", nodes, inputs, outputs), optimise=True)
    for output, got, want in zip(outputs, program.run(given), wanted, strict=True):
        assert got.dtype == want.dtype, output.name
        odd = ~np.isnan(x) if want.dtype.kind == "u" and want.size == x.size else slice(None)
        assert same(got[odd], want[odd]), f"{output.name}: {got[odd][got[odd] != want[odd]]}"
        if want.size == x.size and "FLOAT4" not in output.name:  # NaN stays NaN, with any sign
            mask = np.isnan(x)
            dtype = helper.tensor_dtype_to_np_dtype(output.type.tensor_type.elem_type)
            if want.dtype.kind == "u":
                assert np.isnan(got[mask].view(dtype).astype("float32")).all(), output.name


def test_ports_say_what_they_store_and_the_reference_takes_them(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["n"], ["b"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("Cast", ["c"], ["y"], to=TensorProto.BFLOAT16),
    ]
    inputs = [value("x", TensorProto.FLOAT8E4M3FN, 64), value("n", TensorProto.INT4, 64)]
    path = write(tmp_path / "m.onnx", nodes, inputs, [value("y", TensorProto.BFLOAT16, 64)])
    _, interface = import_model(path, ImportOptions("m"))
    ports = [*interface.inputs, *interface.outputs]
    assert [(port.dtype, port.element) for port in ports] == [
        ("uint8", "float8e4m3fn"), ("int8", "int4"), ("uint16", "bfloat16")
    ]  # fmt: skip
    given = make_set(RandomInput(kind="random", seed=1), interface.inputs, None)
    assert set(np.unique(given[1])) == set(range(-8, 8))
    reference = open_reference(path).run(given)
    assert (Program(path, optimise=True).run(given)[0] == reference[0]).all()


def test_sums_of_16_bits_are_rounded_where_they_become_another_type(tmp_path: Path) -> None:
    kinds = {"bfloat16": TensorProto.BFLOAT16, "float16": TensorProto.FLOAT16}
    nodes, inputs, outputs, wanted, given = [], [], [], [], []
    for name, kind in kinds.items():
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        x = np.arange(1000, 1256, dtype="float32").astype(dtype)
        nodes.append(helper.make_node("Add", [name, name], [f"{name}_sum"]))
        nodes.append(helper.make_node("Add", [f"{name}_sum", f"{name}_one"], [f"{name}_more"]))
        given += [x, np.full(256, 1, dtype)]
        inputs += [value(name, kind, 256), value(f"{name}_one", kind, 256)]
        for to in ("DOUBLE", "INT32"):
            number = getattr(TensorProto, to)
            nodes.append(helper.make_node("Cast", [f"{name}_more"], [f"{name}_{to}"], to=number))
            outputs.append(value(f"{name}_{to}", number, 256))
            wanted.append((x + x + dtype.type(1)).astype(helper.tensor_dtype_to_np_dtype(number)))
        nodes.append(helper.make_node("Cast", ["f"], [f"{name}_f"], to=kind))
        nodes.append(helper.make_node("Cast", [f"{name}_f"], [f"{name}_back"], to=TensorProto.FLOAT))
        outputs.append(value(f"{name}_back", TensorProto.FLOAT, 256))
        wanted.append(numbers()[:256].astype(dtype).astype("float32"))
    # From one 16-bit type to the other, and back.
    nodes.append(helper.make_node("Cast", ["float16"], ["across"], to=TensorProto.BFLOAT16))
    for name, kind in (("float", TensorProto.FLOAT), ("float16", TensorProto.FLOAT16)):
        nodes.append(helper.make_node("Cast", ["across"], [f"across_{name}"], to=kind))
        outputs.append(value(f"across_{name}", kind, 256))
        wanted.append(given[2].astype(ml_dtypes.bfloat16).astype(helper.tensor_dtype_to_np_dtype(kind)))
    inputs += [value("f", TensorProto.FLOAT, 256), value("d", TensorProto.DOUBLE, 2)]
    nodes.append(helper.make_node("Cast", ["d"], ["d16"], to=TensorProto.FLOAT16))
    nodes.append(helper.make_node("Cast", ["d16"], ["d64"], to=TensorProto.DOUBLE))
    outputs.append(value("d64", TensorProto.DOUBLE, 2))
    beside = 1 + 2.0**-11 + np.array([2.0**-40, -(2.0**-40)])  # in float32 the number between two float16
    wanted.append(beside.astype("float16").astype("float64"))
    given = [array.view("uint16") if array.dtype == ml_dtypes.bfloat16 else array for array in given]
    program = Program(write(tmp_path / "m.onnx", nodes, inputs, outputs), optimise=True)
    for got, want in zip(program.run([*given, numbers()[:256], beside]), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def test_arithmetic_on_codes_is_refused(tmp_path: Path) -> None:
    kind = TensorProto.FLOAT8E5M2
    inputs = [value("x", kind, 4)]
    moved = helper.make_node("Transpose", ["x"], ["z"])
    import_model(write(tmp_path / "a.onnx", [moved], inputs, [value("z", kind, 4)]), ImportOptions("m"))
    path = write(
        tmp_path / "m.onnx",
        [helper.make_node("IsNaN", ["x"], ["z"], "some")],
        inputs,
        [value("z", TensorProto.BOOL, 4)],
    )
    with pytest.raises(KilnError, match=r"IsNaN \(node some\): tensor 'x' is of type float8e5m2, allowed"):
        import_model(path, ImportOptions("m"))


def test_types_after_a_quantizer_of_another_domain_come_from_its_zero_point(tmp_path: Path) -> None:
    """ONNX Runtime's quantiser writes com.microsoft's operators, after which ONNX infers no type."""
    scale = helper.make_tensor("scale", TensorProto.FLOAT, [], [0.125])
    zero = helper.make_tensor("zero", TensorProto.INT4, [], [-2])
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [8, 8])
    parameters = ["scale", "zero"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *parameters], ["q"], domain="com.microsoft"),
        helper.make_node("Reshape", ["q", "shape"], ["r"]),
        helper.make_node("Transpose", ["r"], ["t"]),
        helper.make_node("DequantizeLinear", ["t", *parameters], ["y"], domain="com.microsoft"),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 8])
    inputs = [value("x", TensorProto.FLOAT, 64)]
    graph = helper.make_graph(nodes, "g", inputs, [output], [scale, zero, shape])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    x = np.random.default_rng(3).uniform(-1.5, 1.5, 64).astype("float32")
    levels = np.clip(np.rint(x / 0.125) - 2, -8, 7)
    expected = ((levels + 2) * 0.125).astype("float32").reshape(8, 8).T
    assert (Program(path, optimise=True).run([x])[0] == expected).all()
