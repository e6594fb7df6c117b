"""Op info: name, kind and attributes of every operator, before and after fusion."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kiln.config import load_target
from kiln.errors import KilnError
from kiln.kernels.operators.legalize import RULES
from kiln.lower.pipeline import Lowering, lower
from kiln.opinfo import attach
from relaxed import calls, const, module
from tvm import relax, te, tirx
from tvm.tirx import PrimFunc

op = relax.op


def described(mod: Any) -> list[dict[str, Any]]:
    """The op info of each PrimFunc after legalisation, with its kind."""
    mod = attach.legalize_with_info(RULES, ["relax.reshape"])(mod)
    mod = relax.transform.AnnotateTIROpPattern()(mod)
    groups = attach.of_functions(attach.annotate(mod))
    made = [call for call in calls(mod) if call.op.name == "relax.call_tir"]
    order = [call.args[0].name_hint for call in made]
    return [entry for name in order for entry in groups[name]]


IMAGE = (1, 8, 8, 4)
HWIO = np.ones((3, 3, 4, 6))

# name → (body on an image, operator's name, kind, some of its attributes)
OPERATORS: dict[str, tuple[Callable[[Any], Any], str, str, dict[str, Any]]] = {
    "conv2d": (
        lambda x: op.nn.conv2d(x, const(HWIO), strides=[2, 1], padding=[1, 0, 2, 1], dilation=[1, 2],
                               data_layout="NHWC", kernel_layout="HWIO"),
        "nn.conv2d", "out_elementwise_fusable",
        {"strides": [2, 1], "padding": [1, 0, 2, 1], "dilation": [1, 2], "groups": 1, "data_layout": "NHWC",
         "kernel_layout": "HWIO"},
    ),
    "depthwise": (
        lambda x: op.nn.conv2d(x, const(np.ones((3, 3, 1, 4))), groups=4, data_layout="NHWC",
                               kernel_layout="HWIO"),
        "nn.conv2d", "out_elementwise_fusable", {"groups": 4},
    ),
    "matmul": (
        lambda x: op.matmul(x, const(np.ones((4, 5)))), "matmul", "out_elementwise_fusable",
        {"a_layout": "ABMK", "b_layout": "KN", "out_layout": "ABMN"},
    ),
    "max_pool": (
        lambda x: op.nn.max_pool2d(x, [3, 2], [2, 1], [1, 0, 1, 0], layout="NHWC"),
        "nn.max_pool2d", "out_elementwise_fusable",
        {"pool_size": [3, 2], "strides": [2, 1], "padding": [1, 0, 1, 0], "layout": "NHWC",
         "ceil_mode": False},
    ),
    "avg_pool": (
        lambda x: op.nn.avg_pool2d(x, 2, count_include_pad=True, layout="NHWC"),
        "nn.avg_pool2d", "out_elementwise_fusable", {"pool_size": [2, 2], "count_include_pad": True},
    ),
    "softmax": (lambda x: op.nn.softmax(x, 2), "nn.softmax", "out_elementwise_fusable", {"axis": 2}),
    "layer_norm": (
        lambda x: op.nn.layer_norm(x, const(np.ones(4)), const(np.ones(4)), axes=[-1], epsilon=0.5),
        "nn.layer_norm", "out_elementwise_fusable", {"axes": [-1], "epsilon": 0.5},
    ),
    "strided_slice": (
        lambda x: op.strided_slice(x, [1], [2], [7], [3]), "strided_slice", "injective",
        {"axes": [1], "begin": [2], "end": [7], "strides": [3]},
    ),
    "concat": (lambda x: op.concat([x, x], 3), "concat", "injective", {"axis": 3}),
    "split": (lambda x: op.split(x, 2, 3)[0], "split", "injective", {"axis": 3, "indices_or_sections": 2}),
    "pad": (
        lambda x: op.nn.pad(x, [0, 0, 1, 2, 3, 4, 0, 0], "constant", 0.25),
        "nn.pad", "injective", {"pad_width": [0, 0, 1, 2, 3, 4, 0, 0], "pad_value": 0.25},
    ),
    "transpose": (
        lambda x: op.permute_dims(x, [0, 3, 1, 2]), "permute_dims", "injective", {"axes": [0, 3, 1, 2]},
    ),
    "mean": (lambda x: op.mean(x, [1, 2], True), "mean", "reduction", {"axis": [1, 2], "keepdims": True}),
    "sum": (lambda x: op.sum(x, [3]), "sum", "reduction", {"axis": [3], "keepdims": False}),
    "relu": (op.nn.relu, "nn.relu", "elementwise", {}),
    "add": (lambda x: op.add(x, const(np.ones(4))), "add", "broadcast",
        {"broadcast_axes": [[0, 1, 2, 3], [3]]}),
    "resize": (
        lambda x: op.image.resize2d(x, [16, 16], layout="NHWC", method="linear"),
        "image.resize2d", "injective", {"layout": "NHWC", "method": "linear", "size": [16, 16]},
    ),
    "quantize": (
        lambda x: op.quantize(x, const(0.5), const(3, "int8"), axis=-1, out_dtype="int8"),
        "quantize", "elementwise", {"axis": -1},
    ),
    "take": (
        lambda x: op.take(x, const([1, 2], "int64"), axis=1), "take", "*", {"axis": 1},
    ),
    "cumsum": (lambda x: op.cumsum(x, 1), "cumsum", "opaque", {"axis": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_operator(name: str) -> None:
    body, called, kind, attrs = OPERATORS[name]
    (output,) = described(module([(IMAGE, "float32")], body))
    assert output["name"] == called
    assert kind in ("*", output["kind"])
    assert output["kind"] in attach.KINDS.values()
    for key, value in attrs.items():
        assert output["attrs"][key] == value, key
    assert output["out_dtype"] == ("int8" if name == "quantize" else "" if name == "split" else "float32")
    json.dumps(output)


def test_fusion_concatenates_in_order_of_execution() -> None:
    def body(x: Any, residual: Any) -> Any:
        y = op.nn.conv2d(x, const(HWIO), padding=1, data_layout="NHWC", kernel_layout="HWIO")
        y = op.nn.relu(op.add(op.add(y, const(np.ones(6))), residual))
        return op.nn.softmax(op.mean(y, [1, 2]))

    mod = module([(IMAGE, "float32"), ((1, 8, 8, 6), "float32")], body)
    steps = lower(mod, Lowering("m", load_target("x86_64").for_variant("v3"), "none"))
    convolution = next(kernel for kernel in steps.kernels if kernel.family == "conv2d")
    assert [entry.name for entry in convolution.ops] == ["nn.conv2d", "add", "add", "nn.relu"]
    assert convolution.ops[0].kind == "out_elementwise_fusable"
    # padding has become an op of its own, and the convolution's attributes say so
    assert convolution.ops[0].attrs["padding"] == [0, 0, 0, 0]
    assert any(kernel.ops[0].name == "nn.pad" for kernel in steps.kernels)
    labels = [step.label for step in steps.steps]
    assert "conv2d+add+add+relu" in labels
    assert all(kernel.ops for kernel in steps.kernels)
    assert convolution.flops == 2 * 8 * 8 * 6 * 9 * 4


def test_a_function_that_no_operator_made_has_none() -> None:
    assert attach.of(PrimFunc([], tirx.Evaluate(tirx.const(0)))) == []


def test_refusals_are_one_line() -> None:
    error = RuntimeError('\n  File "x.cc", line 3\nCheck failed: a == b\nmore\n')
    ops = [{"name": "nn.conv2d"}, {"name": "add"}, {"name": "add"}]
    assert attach.refusal(ops, error).startswith(
        "operator 'nn.conv2d + add' cannot be compiled: Check failed: a == b; that is a fault of Kiln: the "
        "command reduce cuts out the part that fails"
    )
    foreseen = attach.refusal(ops, ValueError("it needs fmodf"))
    assert foreseen == "operator 'nn.conv2d + add' cannot be compiled: it needs fmodf"
    assert "RuntimeError" in attach.refusal([], RuntimeError(""))
    unknown = RuntimeError('Unknown intrinsic Op(name="tirx.erf")')
    assert attach.refusal([{"name": "erf"}], unknown).endswith(
        "the function erf has no code for this type; cast its operands to float32"
    )


@pytest.mark.parametrize(
    ("compute", "found"),
    [
        (lambda x: te.compute(x.shape, lambda i, j: tirx.Cast("int32", x(i, j)), name="other"), '"int32"'),
        (lambda x: te.compute([2, 4], lambda i, j: x(i, j), name="other"), "2, 4"),
        (lambda x: te.compute([2], lambda i: x(i, 0), name="other"), r"\(2,\)"),
    ],
    ids=["type", "size", "axes"],
)
def test_a_function_that_makes_another_type_than_its_operator_is_refused(compute: Any, found: str) -> None:
    mod = module([((2, 3), "float32")], lambda x: op.abs(x))
    rules = {"relax.abs": lambda builder, call: builder.call_te(compute, call.args[0])}
    with pytest.raises(KilnError, match=f"operator 'abs' cannot be compiled: its function makes .*{found}"):
        attach.legalize_with_info(rules, [])(mod)
