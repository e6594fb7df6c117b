"""Numbers in model files that no library may be left to compute with: refused by name, at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ai_edge_litert import schema_py_generated as schema
from kiln.config.dims import Segment
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.options import DimRange, ImportOptions
from tflite_files import Tensor, write

HEADER = '<ir_version: 8, opset_import: ["" : {opset}]>\n'
IMAGE = "float[1,4,4,4] x"


def refused(path: Path, text: str, opset: int = 21) -> str:
    """The error that importing a graph raises, without the name of the file."""
    model = onnx.parser.parse_model(HEADER.format(opset=opset) + text)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(KilnError) as caught:
        import_model(path, ImportOptions("m"))
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message
    return message.removeprefix(f"{path}: ")


def constants(**values: list[int]) -> str:
    return " ".join(f"{name} = Constant<value_ints={value}>()" for name, value in values.items())


NUMBERS = [
    ("Conv<strides=[0,0]>(x, w)", "strides' is 0, allowed: 1..2147483647"),
    ("Conv<dilations=[1,-1]>(x, w)", "dilations' is -1, allowed: 1..2147483647"),
    ("Conv<group=0>(x, w)", "group' is 0, allowed: 1.."),
    ("Conv<pads=[-9,0,0,0]>(x, w)", "pads' is -9, allowed: 0.."),
    ("Conv<pads=[4611686018427387904,0,0,0]>(x, w)", "pads' is 4611686018427387904, allowed: 0.."),
    ("Conv<strides=[1,1,1]>(x, w)", "strides has incorrect size"),
    ("ConvTranspose<strides=[0,1]>(x, w)", "strides' is 0, allowed: 1.."),
    ("ConvTranspose<output_padding=[-1,0]>(x, w)", "output_padding' is -1, allowed: 0.."),
    ("MaxPool<kernel_shape=[2,2],strides=[0,0]>(x)", "strides' is 0, allowed: 1.."),
    ("AveragePool<kernel_shape=[0,0]>(x)", "kernel_shape' is 0, allowed: 1.."),
    ("LpPool<kernel_shape=[2,2],p=0>(x)", "'p' is 0, allowed: 1.."),
    ("LpNormalization<p=3>(x)", "'p' is 3, allowed: 1..2"),
    ("LRN<size=0>(x)", "size' is 0, allowed: 1.."),
    ("DepthToSpace<blocksize=0>(x)", "blocksize' is 0, allowed: 1.."),
    ('DepthToSpace<blocksize=2,mode="DRC">(x)', "mode' is 'DRC', allowed: DCR, CRD"),
    ("SpaceToDepth<blocksize=-2>(x)", "blocksize' is -2, allowed: 1.."),
    ("GroupNormalization<num_groups=0>(x, s, s)", "num_groups' is 0, allowed: 1.."),
    (
        "LayerNormalization<axis=12>(x, s)",
        "LayerNormalization (node LayerNormalization_0): its attribute 'axis' is 12, allowed: -",
    ),
    ("Split<axis=1,num_outputs=0>(x)", "num_outputs' is 0, allowed: 1.."),
    ("Softmax<axis=9>(x)", "Softmax (node with output y) cannot be computed"),
    ("Concat<axis=-77>(x, x)", "axis' is -77, allowed: -64..63"),
    ("Transpose<perm=[0,1,2,5]>(x)", "Transpose (node with output y) cannot be computed"),
    ("Transpose<perm=[0,0,0,0]>(x)", "Transpose (node with output y) cannot be computed"),
    ("Cast<to=99>(x)", "to' is 99, allowed: 1..28"),
    ('Resize<mode="cubist">(x, , f)', "mode' is 'cubist', allowed: nearest, linear, cubic"),
    ("TopK(x, nine)", "TopK (node with output y) cannot be computed"),
    ("TopK(x, minus)", "negative size"),
    ("Tile(x, negative)", "Tile (node with output y) cannot be computed"),
    ("CumSum(x, nine)", "its axis is 9, allowed: -4..3"),
    ("Gather<axis=1>(x, nine)", "it selects index 9 on axis 1 of size 4, allowed: -4..3"),
    ("GatherElements<axis=1>(x, elements)", "it selects index -9 on axis 1 of size 4, allowed: -4..3"),
    ("Resize(x, , negatives)", "its result 'y' has a negative size: [1, 4, -4, 4]"),
]


@pytest.mark.parametrize(("call", "told"), NUMBERS)
def test_attributes_and_amounts_out_of_range(tmp_path: Path, call: str, told: str) -> None:
    values = constants(nine=[9], minus=[-9], negative=[1, 1, 1, -3])
    scalar = "sum = ReduceSum<keepdims=0>(x) "
    floats = "negatives = Constant<value_floats=[1.0,1.0,-1.0,1.0]>() f = Constant<value_floats=[1.0]>() "
    elements = "elements = Constant<value = int64[1,1,1,1] {-9}>() "
    outputs = "y, z" if call.startswith(("Split", "TopK")) else "y"
    text = (
        f"g ({IMAGE}, float[4,4,3,3] w, float[4] s) => (float[a,b,c,d] y) "
        f"{{ {values} {scalar} {floats} {elements} {outputs} = {call} }}"
    )
    assert told in refused(tmp_path / "m.onnx", text)


def test_the_range_holds_in_functions_and_in_branches(tmp_path: Path) -> None:
    pool = "MaxPool<kernel_shape=[2,2],strides=[0,2]>"
    branches = f"""then_branch = t () => (float[1,4,2,2] a) {{ a = {pool}(x) }},
        else_branch = e () => (float[1,4,2,2] b) {{ b = {pool}(x) }}"""
    message = refused(
        tmp_path / "m.onnx", f"g ({IMAGE}, bool c) => (float[1,4,2,2] y) {{ y = If (c) <{branches}> }}"
    )
    assert "MaxPool (node with output " in message and "attribute 'strides' is 0" in message
    text = f"""<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g ({IMAGE}) => (float[1,4,2,2] y) {{ y = own.pool(x) }}
        <opset_import: ["" : 17], domain: "own"> pool (x) => (y) {{ y = {pool}(x) }}"""
    path = tmp_path / "function.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    with pytest.raises(KilnError, match=r"MaxPool .* attribute 'strides' is 0"):
        import_model(path, ImportOptions("m"))


@pytest.mark.parametrize(
    ("graph", "told"),
    [
        (
            "(float[2147483648,8] x) => (float[2147483648,8] y) { y = Relu(x) }",
            "input 'x' of [2147483648, 8]",
        ),
        ("(float[1,4] x) => (float[a,b] y) { y = Expand(x, s) }", "has 18446744073709551616 elements"),
        ("(float[1,4] x) => (float[a,b] y) { y = Tile(x, s) }", "has 73786976294838206464 elements"),
        ("(float[1,4] x) => (float[a,b] y) { y = Pad(x, p) }", "Integer overflow"),
    ],
)
def test_more_elements_than_a_tensor_may_have(tmp_path: Path, graph: str, told: str) -> None:
    amounts = constants(s=[4611686018427387904, 4], p=[3, 4611686018427387904, 3, 4611686018427387904])
    assert told in refused(tmp_path / "m.onnx", "g " + graph.replace("{", "{ " + amounts))


def test_more_elements_at_the_greatest_size_of_a_dimension(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    text = "g (float[n,4096] x) => (float[a,b] y) { t = Transpose(x) y = MatMul(x, t) }"
    path.write_bytes(onnx.parser.parse_model(HEADER.format(opset=17) + text).SerializeToString())
    options = {
        most: ImportOptions(
            "m",
            dims={"n": DimRange("n", 1, most)},
            bucket={"n": Segment(strategy="dynamic", min=1, max=most, multiple=1)},
        )
        for most in (40_000, 100_000, 1 << 62)
    }
    import_model(path, options[40_000])
    with pytest.raises(
        KilnError, match=r"MatMul node .* has 10000000000 elements, allowed: at most 2147483647"
    ):
        import_model(path, options[100_000])
    with pytest.raises(KilnError, match=r"input 'x' of \[4611686018427387904, 4096\] has"):
        import_model(path, options[1 << 62])


def test_functions_are_written_out(tmp_path: Path) -> None:
    def model(functions: str) -> Path:
        text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
            g (float[1,4] x) => (float[1,4] y) { y = own.f0(x) } """
        path = tmp_path / "m.onnx"
        head = '<opset_import: ["" : 17, "own" : 1], domain: "own">'
        path.write_bytes(onnx.parser.parse_model(text + functions.replace("fn", head)).SerializeToString())
        return path

    path = model("fn f0 (x) => (y) { a = own.Relu(x) y = own.Relu(a) } fn Relu (x) => (y) { y = Exp(x) }")
    script = import_model(path, ImportOptions("m"))[0].script()
    assert script.count("R.exp(") == 2 and "relu" not in script
    with pytest.raises(KilnError, match=r"the function 'f[01]' calls itself"):
        import_model(
            model("fn f0 (x) => (y) { y = own.f1(x) } fn f1 (x) => (y) { y = own.f0(x) }"), ImportOptions("m")
        )
    twice = [f"fn f{n} (x) => (y) {{ a = own.f{n + 1}(x) y = own.f{n + 1}(a) }} " for n in range(40)]
    path = model("".join(twice) + "fn f40 (x) => (y) { y = Relu(x) }")
    with pytest.raises(KilnError, match=r"make 1\.1e[+]12 nodes, allowed: at most 131072"):
        import_model(path, ImportOptions("m"))


def nested(depth: int) -> str:
    text = f"a{depth} = Relu(x)"
    for level in reversed(range(depth)):
        inner = level + 1
        text = (
            f"a{level} = If (c) <then_branch = g{level} () => (float[1,4] a{inner}) {{ {text} }}, "
            f"else_branch = h{level} () => (float[1,4] b{inner}) {{ b{inner} = Exp(x) }}>"
        )
    return f"g (float[1,4] x) => (float[1,4] a0) {{ c = Constant<value = bool {{1}}>() {text} }}"


def test_graphs_inside_graphs(tmp_path: Path) -> None:
    assert "If (node with output a12): its graph is nested 13 deep" in refused(
        tmp_path / "m.onnx", nested(20)
    )
    path = tmp_path / "few.onnx"
    path.write_bytes(onnx.parser.parse_model(HEADER.format(opset=17) + nested(12)).SerializeToString())
    module, _ = import_model(path, ImportOptions("m"))
    assert "R.nn.relu(x" in module.script() and "R.exp" not in module.script()


def test_a_constant_whose_bytes_do_not_go_with_its_shape(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        HEADER.format(opset=17) + "g (float[1,4] x) => (float[1,4] y) { y = Add(x, w) }"
    )
    weight = onnx.numpy_helper.from_array(np.ones((1, 4), np.float32), "w")
    model.graph.initializer.append(weight)
    path = tmp_path / "m.onnx"
    for dims, message in (
        ([1, 5], "is too small for the declared shape"),
        ([-1, 4], "not a valid ONNX model"),
    ):
        model.graph.initializer[0].dims[:] = dims
        path.write_bytes(model.SerializeToString())
        with pytest.raises(KilnError, match=message):
            import_model(path, ImportOptions("m"))


@pytest.mark.parametrize(
    ("kind", "values"), [("STRING", [b"a", b"b", b"c", b"d"]), ("COMPLEX64", [1, 2, 3, 4])]
)
def test_constants_of_types_that_no_kernel_computes(tmp_path: Path, kind: str, values: list[Any]) -> None:
    """Of no concern where no node reads them."""
    model = onnx.parser.parse_model(
        HEADER.format(opset=21) + "g (float[4] x) => (float[4] y) { y = Relu(x) }"
    )
    number = getattr(onnx.TensorProto, kind)
    model.graph.initializer.append(onnx.helper.make_tensor("s", number, [4], values))
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    import_model(path, ImportOptions("m"))


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("strideH", 0, "(MAX_POOL_2D): option 'StrideH' is 0, allowed: 1.."),
        ("filterWidth", -1, "option 'FilterWidth' is -1, allowed: 1.."),
        ("padding", 7, "option 'Padding' is 7, allowed: 0..1"),
        ("fusedActivationFunction", 99, "option 'FusedActivationFunction' is 99, allowed: 0..5"),
    ],
)
def test_tflite_options_out_of_range(tmp_path: Path, option: str, value: int, told: str) -> None:
    options: Any = schema.Pool2DOptionsT()
    options.strideH = options.strideW = options.filterHeight = options.filterWidth = 2
    setattr(options, option, value)
    tensors = [Tensor("x", (1, 4, 4, 1)), Tensor("y", (1, 2, 2, 1))]
    path = write(tmp_path / "m.tflite", tensors, schema.BuiltinOperator.MAX_POOL_2D, options, [0], [1])
    with pytest.raises(KilnError) as caught:
        import_model(path, ImportOptions("m"))
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("tensor", "inputs", "told"),
    [
        (Tensor("x", (1 << 30, 1 << 30)), [0], "tensor 'x' of [1073741824, 1073741824], allowed"),
        (Tensor("x", (1, -4)), [0], "tensor 'x' of [1, -4], allowed"),
        (Tensor("x", (1, 4), "int8", float("nan")), [0], "tensor 'x' has a scale of nan, allowed"),
    ],
)
def test_tflite_tensors_out_of_range(tmp_path: Path, tensor: Tensor, inputs: list[int], told: str) -> None:
    tensors = [tensor, Tensor("y", (1, 4))]
    path = write(tmp_path / "m.tflite", tensors, schema.BuiltinOperator.RELU, None, inputs, [1])
    with pytest.raises(KilnError) as caught:
        import_model(path, ImportOptions("m"))
    assert told in str(caught.value)
