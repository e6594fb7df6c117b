"""No attribute, input or result of an ONNX node is ignored; functions are converted by their bodies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from kiln.config.dims import Segment
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.onnx.guards import Attributes, Inputs, Types, check_read
from kiln.frontend.options import DimRange, ImportOptions
from relaxed import virtual_machine
from tvm import relax

from .test_onnx_ops import check, normal, write


def node(text: str) -> onnx.NodeProto:
    """The only node of a graph in textual form."""
    header = '<ir_version: 8, opset_import: ["" : 20]> g (float[4] x, float[4] y) => (float[4] z) '
    return onnx.parser.parse_model(f"{header} {{ {text} }}").graph.node[0]


def test_an_unread_attribute_is_named() -> None:
    guarded_node = node("z = Elu<alpha = 2.0>(x)")
    with pytest.raises(ValueError, match=r"attribute 'alpha' is 2.0, which is not supported, allowed: 1.0"):
        check_read(guarded_node, Attributes({"alpha": 2.0}), None, 20)
    read = Attributes({"alpha": 2.0})
    read.copy().get("alpha")
    check_read(guarded_node, read, None, 20)
    check_read(node("z = Elu<alpha = 1.0>(x)"), Attributes({"alpha": 1.0}), None, 20)


def test_an_unread_input_is_named() -> None:
    guarded_node = node("z = Add(x, y)")
    given = Inputs([object(), object()])
    assert given[0] is not None and given[7] is None
    with pytest.raises(ValueError, match=r"its input 1 \('y'\) is not supported"):
        check_read(guarded_node, Attributes({}), given, 20)
    list(given)
    check_read(guarded_node, Attributes({}), given, 20)


@pytest.mark.parametrize(
    ("dtype", "shape", "reason"),
    [
        ("float32", [2, 3], None),
        ("int32", [2, 3], "its result 'z' is int32 by its conversion, but float32 by ONNX"),
        ("float32", [2], r"shape \[2\] by its conversion, but \[2, 3\] by ONNX"),
        ("float32", [2, 4], r"shape \[2, 4\] by its conversion, but \[2, 3\] by ONNX"),
    ],
)
def test_results_have_the_type_that_onnx_infers(dtype: str, shape: list[int], reason: str | None) -> None:
    kind = onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [2, 3])
    types = Types(onnx.GraphProto(value_info=[kind]))
    result = relax.Var("z", relax.TensorType(shape, dtype))
    if reason is None:
        types.check("z", result)
        types.check("unknown", result)
    else:
        with pytest.raises(ValueError, match=reason):
            types.check("z", result)


def test_numbers_that_are_not_known(tmp_path: Path) -> None:
    """An input that only the run knows is named, with the way round."""
    text = "g (float[1,4,2] x, int64 n) => (float[1,4,2] y) { y = DFT(x, , n) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 20]> {text}')
    onnx.save(model, str(tmp_path / "net.onnx"))
    with pytest.raises(
        KilnError, match="its input 'n' is not known before the model runs: make it a constant"
    ):
        import_model(tmp_path / "net.onnx", ImportOptions("net"))


@pytest.mark.parametrize(
    ("made", "count", "said"),
    [
        ("TopK(x, n)", "Div(s, two)", None),
        ("TopK<sorted = 0>(x, two)", "Div(s, two)", None),
        ("TopK(x, n)", "Mul(s, two)", "its k exceeds the number of elements with m = 2"),
        ("Split<axis = 1>(x, n)", "Div(s, two)", r"parts of .* do not fill axis 1, of m, with m = \d"),
        ("Split<axis = 1>(x, n)", "Mul(s, two)", r"parts of .* do not fill axis 1, of m, with m = 2"),
    ],
)
def test_numbers_that_depend_on_sizes(made: str, count: str, said: str | None, tmp_path: Path) -> None:
    sizes = f"s = Shape<start = 1, end = 2>(x) two = Constant<value_ints = [2]>() half = {count}"
    last = "n = Concat<axis = 0>(half, half)" if made.startswith("Split") else "n = Identity(half)"
    text = f"float[2,m] x) => (float[2,k] y, {'float' if made[0] == 'S' else 'int64'}[2,k] z) "
    graph = f"g ({text} {{ {sizes} {last} y, z = {made} }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 20]> {graph}')
    onnx.save(model, str(tmp_path / "net.onnx"))
    options = ImportOptions(
        "net",
        dims={"m": DimRange("m", 2, 16)},
        bucket={"m": Segment(strategy="dynamic", min=2, max=16, multiple=1)},
    )
    if said is None:
        import_model(tmp_path / "net.onnx", options)
        return
    with pytest.raises(KilnError, match=said):
        import_model(tmp_path / "net.onnx", options)


def test_a_function_is_converted_by_its_body(tmp_path: Path) -> None:
    """ONNX defines the second and third result of LayerNormalization and CenterCropPad by functions."""
    text = """g (float[2,3,8] x, float[3,8] s) => (
      float[2,3,8] y, float[2,1,1] m, float[2,1,1] d, float[2,5,4] c) {
      y, m, d = LayerNormalization<axis = 1, epsilon = 0.01>(x, s)
      c = CenterCropPad<axes = [1, -1]>(x, size)
    }"""
    check(write(tmp_path / "m.onnx", text, 18, size=np.array([5, 4])), normal(2, 3, 8), normal(3, 8))


def test_an_operator_of_another_domain_is_not_mistaken(tmp_path: Path) -> None:
    """ai.onnx Attention is not com.microsoft's, whose converter TVM has under the same name."""
    text = "g (float[1,2,3,8] q) => (float[1,2,3,8] y) { y = Attention(q, q, q) }"
    path = write(tmp_path / "m.onnx", text, 23)
    got = run(path, normal(1, 2, 3, 8))
    x = normal(1, 2, 3, 8).astype("f8")
    scores = np.exp(x @ x.swapaxes(-1, -2) / np.sqrt(8))
    np.testing.assert_allclose(got, scores / scores.sum(-1, keepdims=True) @ x, rtol=1e-4, atol=1e-4)


def run(path: Path, *inputs: Any) -> Any:
    """The first result of the import, compiled on the host."""
    import tvm

    module, _ = import_model(path, ImportOptions("m"))
    machine = virtual_machine(module)
    return machine["main"](*[tvm.runtime.tensor(value) for value in inputs]).numpy()


def test_the_reason_within_a_body_is_told(tmp_path: Path) -> None:
    text = "g (float[3] x) => (float[3] y) { y = Bernoulli(x) }"
    with pytest.raises(KilnError) as caught:
        import_model(write(tmp_path / "m.onnx", text), ImportOptions("m"))
    assert "Bernoulli" in str(caught.value) and "\n" not in str(caught.value)
