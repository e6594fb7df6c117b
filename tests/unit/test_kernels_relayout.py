"""Layouts of functions that exist: same values, attributes that say what is true then, or the old layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from kiln.graph.bindings import operator
from kiln.kernels import opinfo
from kiln.kernels.axes import Layout
from kiln.kernels.legalize import RULES
from kiln.kernels.opmatch import Convolution, MatrixProduct, read_product
from kiln.kernels.relayout import relayout
from relaxed import const, module, run_by_tvm
from tvm import relax, te, tirx
from tvm.tirx import PrimFunc

op = relax.op
RNG = np.random.default_rng(5)
IMAGE = (1, 6, 5, 8)
HWIO = RNG.normal(size=(3, 3, 8, 8))
DEPTHWISE = RNG.normal(size=(3, 3, 1, 8))
VECTOR = RNG.normal(size=8)

WANTED = {
    "planes": ("NCHW", "OIHW"),
    "blocks": ("NCHW4c", "OIHW4i4o"),
    "mixed": ("NWHC", "OHWI", "NCHW"),
    "depthwise": ("NCHW4c", "OIHW4o"),
}


def lowered(arguments: Any, body: Any, fused: bool) -> Any:
    mod = opinfo.legalize_with_info(RULES, [])(module(arguments, body))
    mod = opinfo.annotate(relax.transform.AnnotateTIROpPattern()(mod))
    return opinfo.fuse_tir(relax.transform.FuseOps(2)(mod)) if fused else mod


def listed(mod: Any) -> list[Any]:
    """Op info of the calls of `main`, in order."""
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    made = [b.value for b in bindings if operator(b.value) == "relax.call_tir"]
    return [entry for call in made for entry in opinfo.of(mod[call.args[0]])]


def choose(**wanted: Sequence[str]) -> Any:
    return lambda entry: wanted.get(entry["name"].replace("nn.", ""))


def same(before: Any, modules: Sequence[Any], arguments: Any) -> None:
    """That modules compute what `before` computes."""
    inputs = [RNG.normal(size=shape).astype(dtype) for shape, dtype in arguments]
    expected = run_by_tvm(before, inputs)
    for after in modules:
        relax.analysis.well_formed(after)
        for one, other in zip(run_by_tvm(after, inputs), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


def conv(x: Any, weights: Any = HWIO) -> Any:
    groups = 1 if weights.shape[2] > 1 else 8
    return op.nn.conv2d(
        x, const(weights), strides=[2, 1], padding=[1, 0, 1, 2], groups=groups, data_layout="NHWC",
        kernel_layout="HWIO",
    )  # fmt: skip


# name → (what follows a convolution, the operator, its attributes in NCHW, in NCHW4c; None: kept as it was)
FOLLOWERS: dict[str, tuple[Any, str, Any, Any]] = {
    "relu": (op.nn.relu, "nn.relu", {}, {}),
    "bias": (
        lambda y: op.add(y, const(VECTOR)), "add",
        {"broadcast_axes": [[0, 1, 2, 3], [1]]}, {"broadcast_axes": [[0, 1, 2, 3, 4], [1, 4]]},
    ),
    "scale": (
        lambda y: op.multiply(const(VECTOR.reshape(1, 1, 8)), y), "multiply",
        {"broadcast_axes": [[1, 2, 3], [0, 1, 2, 3]]}, {"broadcast_axes": [[1, 2, 3, 4], [0, 1, 2, 3, 4]]},
    ),
    "max_pool": (
        lambda y: op.nn.max_pool2d(y, [2, 3], [1, 2], [1, 0, 0, 1], layout="NHWC"), "nn.max_pool2d",
        {"layout": "NCHW", "out_layout": "NCHW", "pool_size": [2, 3], "strides": [1, 2]},
        {"layout": "NCHW4c", "out_layout": "NCHW4c", "padding": [1, 0, 0, 1]},
    ),
    "avg_pool": (
        lambda y: op.nn.avg_pool2d(y, 2, padding=1, layout="NHWC"), "nn.avg_pool2d",
        {"layout": "NCHW", "out_layout": "NCHW"}, {"layout": "NCHW4c", "out_layout": "NCHW4c"},
    ),
    "global_pool": (
        lambda y: op.nn.adaptive_avg_pool2d(y, 1, layout="NHWC"), "nn.adaptive_avg_pool2d",
        {"layout": "NCHW", "out_layout": "NCHW"}, {"layout": "NCHW4c", "out_layout": "NCHW4c"},
    ),
    "resize": (
        lambda y: op.image.resize2d(y, [7, 4], layout="NHWC", method="linear"), "image.resize2d",
        {"layout": "NCHW", "size": [7, 4]}, {"layout": "NCHW4c"},
    ),
    "softmax": (lambda y: op.nn.softmax(y, -1), "nn.softmax", {"axis": 1}, None),
    "softmax_rows": (lambda y: op.nn.softmax(y, 1), "nn.softmax", {"axis": 2}, {"axis": 2}),
    "layer_norm": (
        lambda y: op.nn.layer_norm(y, const(VECTOR), const(VECTOR), axes=[-1]), "nn.layer_norm",
        {"axes": [1]}, None,
    ),
    "strided_slice": (
        lambda y: op.strided_slice(y, [2, 1], [1, 0], [5, 3], [2, 1]), "strided_slice",
        {"axes": [3, 2], "begin": [1, 0], "end": [5, 3], "strides": [2, 1]}, {"axes": [3, 2]},
    ),
    "slice_channels": (
        lambda y: op.strided_slice(y, [3], [1], [7], [2]), "strided_slice", {"axes": [1]}, None,
    ),
    "concat": (lambda y: op.concat([y, op.nn.relu(y)], 3), "concat", {"axis": 1}, None),
    "concat_rows": (lambda y: op.concat([y, op.nn.relu(y)], 1), "concat", {"axis": 2}, {"axis": 2}),
    "pad": (
        lambda y: op.nn.pad(y, [0, 0, 1, 2, 3, 4, 0, 0], "constant", 0.5), "nn.pad",
        {"pad_width": [0, 0, 0, 0, 1, 2, 3, 4]}, {"pad_width": [0, 0, 0, 0, 1, 2, 3, 4, 0, 0]},
    ),
    "pad_channels": (
        lambda y: op.nn.pad(y, [0, 0, 0, 0, 0, 0, 1, 2], "constant", 0.5), "nn.pad",
        {"pad_width": [0, 0, 1, 2, 0, 0, 0, 0]}, None,
    ),
    "transpose": (lambda y: op.permute_dims(y, [0, 3, 2, 1]), "permute_dims", {"axes": [0, 1, 3, 2]}, None),
    "sum": (lambda y: op.sum(y, [3]), "sum", {"axis": [1]}, {"axis": [1, 4]}),
    "mean": (lambda y: op.mean(y, [1, 2]), "mean", {"axis": [2, 3]}, {"axis": [2, 3]}),
    "max": (lambda y: op.max(y, [1, -1], True), "max", {"axis": [2, 1], "keepdims": True}, None),
    "all": (lambda y: op.sum(y), "sum", {"axis": None}, {"axis": None}),
    "variance": (lambda y: op.variance(y, [2]), "variance", {"axis": [3]}, {"axis": [3]}),
    "cumsum": (lambda y: op.cumsum(y, 1), "cumsum", None, None),  # no loop nests
    "take": (lambda y: op.take(y, const([1, 0], "int64"), axis=3), "take", None, None),  # no rule
    "reshape": (lambda y: op.reshape(y, [2, 60]), "reshape", None, None),
}  # fmt: skip


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", FOLLOWERS)
def test_behind_a_convolution(name: str, fused: bool) -> None:
    follow, called, planes, blocks = FOLLOWERS[name]
    arguments = [(IMAGE, "float32")]
    before = lowered(arguments, lambda x: op.nn.relu(follow(conv(x))), fused)
    old = next(entry["attrs"] for entry in listed(before) if entry["name"] == called)
    made = []
    for wanted, expected in ((WANTED["planes"], planes), (WANTED["blocks"], blocks)):
        after = relayout(choose(conv2d=wanted))(before)
        entries = listed(after)
        assert any(e["attrs"].get("data_layout") == wanted[0] for e in entries) or (
            fused and expected is None
        )
        found = [entry["attrs"] for entry in entries if entry["name"] == called]
        assert {**old, **(expected or {})} in found
        made.append(after)
    same(before, made, arguments)


RESIDUAL = [(IMAGE, "float32"), ((1, 3, 5, 8), "float32")]


@pytest.mark.parametrize("name", WANTED)
def test_a_fused_function_keeps_its_list_in_order(name: str) -> None:
    weights = DEPTHWISE if name == "depthwise" else HWIO

    def body(x: Any, residual: Any) -> Any:
        return op.nn.relu(op.add(op.add(conv(x, weights), const(VECTOR)), residual))

    before = lowered(RESIDUAL, body, True)
    wanted = WANTED[name] if name != "depthwise" else ("NCHW4c", "OIHW4o")
    after = relayout(choose(conv2d=wanted))(before)
    same(before, [after], RESIDUAL)
    (func,) = (f for _, f in after.functions_items() if isinstance(f, PrimFunc) and len(opinfo.of(f)) > 1)
    assert [entry["name"] for entry in opinfo.of(func)] == ["nn.conv2d", "add", "add", "nn.relu"]
    kinds = [entry["kind"] for entry in opinfo.of(func)]
    assert kinds == ["out_elementwise_fusable", "broadcast", "elementwise", "elementwise"]
    product = read_product(func)
    assert product is not None
    groups = 8 if name == "depthwise" else 1
    layouts = (*wanted, wanted[0])[:3]
    assert product.attrs == Convolution((2, 1), (1, 0, 1, 2), (1, 1), groups, *layouts)
    shapes = [[int(size) for size in tensor.shape] for tensor in opinfo.tensors(func)]
    assert int(np.prod(shapes[product.bias or 0])) == 8 and product.activation == "nn.relu"
    assert shapes[product.residual or 0] == shapes[product.output]
    # Weights are moved at build time: what is copied at run time are the image and the residual.
    copies = [e["name"] for e in listed(after) if e["name"] in ("layout_transform", "permute_dims")]
    assert len(copies) == 3


def test_nothing_is_copied_between_functions_that_agree() -> None:
    arguments = [(IMAGE, "float32")]

    def body(x: Any) -> Any:
        y = op.nn.relu(conv(x))
        return op.add(conv(op.nn.max_pool2d(y, 2, layout="NHWC")), const(1.0))

    before = lowered(arguments, body, False)
    after = relayout(choose(conv2d=WANTED["blocks"]))(before)
    same(before, [after], arguments)
    names = [entry["name"] for entry in listed(after)]
    inside = ["nn.conv2d", "nn.relu", "nn.max_pool2d", "nn.conv2d", "add"]
    assert names == ["layout_transform", *inside, "layout_transform"]


def test_products() -> None:
    arguments = [((2, 5, 7), "float32"), ((7, 8), "float32")]

    def body(a: Any, b: Any) -> Any:
        return op.nn.softmax(op.add(op.matmul(a, b), const(VECTOR)), -1)

    before = lowered(arguments, body, True)
    after = relayout(choose(matmul=("AKM", "NK", "ANM")))(before)
    same(before, [after], arguments)
    products = [read_product(f) for _, f in after.functions_items() if isinstance(f, PrimFunc)]
    (found,) = (product for product in products if product is not None)
    assert found.attrs == MatrixProduct("AKM", "NK", "ANM") and found.bias == 2
    (softmax,) = (entry for entry in listed(after) if entry["name"] == "nn.softmax")
    assert softmax["attrs"]["axis"] == 1


def test_a_part_that_does_not_divide_leaves_the_operator_alone() -> None:
    arguments = [(IMAGE, "float32")]
    before = lowered(arguments, lambda x: op.nn.relu(conv(x)), True)
    after = relayout(choose(conv2d=("NCHW3c", "OIHW3i")))(before)
    assert [e["attrs"] for e in listed(after)] == [e["attrs"] for e in listed(before)]
    for wrong in (("NCHWX", "OIHW"), ("NCH", "OIHW"), ("NCHW4c4c", "OIHW"), ("nchw", "OIHW")):
        assert len(listed(relayout(choose(conv2d=wrong))(before))) == 2


def test_functions_that_no_operator_made() -> None:
    """Their kind is known by analysis; a name that is an operator's gives them no rule."""
    sizes = [tirx.IntImm("int64", size) for size in IMAGE]
    data = te.placeholder(sizes, "float32", "data")
    # Not what relu does: each element of a row has its column added.
    code = te.compute(sizes, lambda n, h, w, c: data[n, h, w, c] + w.astype("float32"), name="out")
    foreign = te.create_prim_func([data, code])
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(IMAGE, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            weights = const(HWIO)
            y = builder.emit(op.nn.conv2d(x, weights, padding=1, data_layout="NHWC", kernel_layout="HWIO"))
            function = builder.add_func(foreign.without_attr("global_symbol"), "relu")
            z = builder.emit(relax.call_tir(function, [y], relax.TensorType(IMAGE, "float32")))
            out = builder.emit_output(op.nn.relu(z))
        builder.emit_func_output(out)
    mod = opinfo.legalize_with_info(RULES, [])(builder.get())
    mod = opinfo.annotate(relax.transform.AnnotateTIROpPattern()(mod))
    (entry,) = (entry for entry in listed(mod) if entry["name"].startswith("tir."))
    assert entry["name"] == "tir.relu" and entry["kind"] == "elementwise"
    assert entry["args"] == [{"param": 0}] and entry["out_dtype"] == "float32"
    fused = opinfo.fuse_tir(relax.transform.FuseOps(2)(mod))
    assert [e["name"] for e in listed(fused)] == ["nn.conv2d", "tir.relu", "nn.relu"]
    after = [relayout(choose(conv2d=WANTED["planes"]))(one) for one in (mod, fused)]
    assert [e["name"] for e in listed(after[0])] == [
        "permute_dims", "nn.conv2d", "permute_dims", "tir.relu", "nn.relu",
    ]  # fmt: skip
    same(mod, after, [(IMAGE, "float32")])


def test_open_sizes() -> None:
    batch = tirx.Var("n", "int64")
    mod = module([((batch, 6, 5, 8), "float32")], lambda x: op.mean(op.nn.relu(conv(x)), [1, 2]))
    mod = opinfo.legalize_with_info(RULES, [])(mod)
    mod = opinfo.annotate(relax.transform.AnnotateTIROpPattern()(mod))
    after = relayout(choose(conv2d=WANTED["blocks"]))(mod)
    assert [e["attrs"]["axis"] for e in listed(after) if e["name"] == "mean"] == [[2, 3]]
    same(mod, [after], [((3, 6, 5, 8), "float32")])


def test_layouts_of_values() -> None:
    value = RNG.normal(size=(2, 3, 4, 8))
    layout = Layout.parse("NHWC", "CNHW4c", value.shape)
    assert layout is not None and layout.shape(value.shape) == [2, 2, 3, 4, 4]
    moved = layout.apply(value)
    for index in np.ndindex(*moved.shape):
        c, n, h, w, part = index
        assert moved[index] == value[n, h, w, 4 * c + part]
    assert layout.name("NHWC") == "CNHW4c" and layout.places(3) == [0, 4] and layout.places(-2) == [3]
    assert Layout.parse("NHWC", "NCHW3c", value.shape) is None
