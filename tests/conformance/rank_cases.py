"""Small ONNX graphs on operands of rank 0 to 5, axes of one element: an operator or a short chain each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from kiln.golden.reference import open_reference
from onnx import TensorProto
from symbolic import HEADER, Array

# Every rank; then tensors large enough for vectors, tiles and several tasks, and a short last axis.
SHAPES = [(2, 3, 1, 4, 2)[:rank] for rank in range(6)]
LARGE = [(64, 80), (2, 3, 33, 48)]
REST = [(2,), (2, 3), (2, 3, 1), (2, 3, 1, 4), (67,), (70, 3)]
OPSET = 17


@dataclass(frozen=True)
class Case:
    """The nodes of a graph in ONNX's text form, its inputs (type and shape) and outputs by name."""

    name: str
    text: str
    inputs: dict[str, tuple[str, tuple[int, ...]]]
    weights: dict[str, Array] = field(default_factory=dict)
    outputs: tuple[str, ...] = ("y",)


F = "float"
TYPES = {"float": TensorProto.FLOAT, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}
Shape = tuple[int, ...]


def cases(rest: bool = False) -> Iterator[Case]:
    """The cases of the gate, or, with `rest`, the cases that differ from them only in ranks and sizes."""
    for shape in REST if rest else [shape for shape in SHAPES if shape not in REST]:
        yield from _elementwise(shape)
        yield from _reductions(shape)
        if shape in SHAPES:
            yield from _movement(shape)
    if not rest:
        for shape in LARGE:
            yield from _elementwise(shape)
            yield from _reductions(shape)
        yield from _products()
        yield from _scalars()
        yield from _images()


def _elementwise(shape: Shape) -> Iterator[Case]:
    x = {"x": (F, shape)}
    scalar = {"s": (F, ())}
    yield Case(f"{shape} scalar operands", "a = Add(x, s)\n y = Sub(s, a)\n b = Div(s, x)\n z = Max(b, s)",
               x | scalar, outputs=("y", "z"))  # fmt: skip
    yield Case(f"{shape} unary", "a = Neg(x)\n b = Sigmoid(a)\n c = Erf(b)\n y = Exp(c)", x)
    yield Case(f"{shape} Where of scalars", "c = Less(x, s)\n y = Where(c, s, x)", x | scalar)
    yield Case(f"{shape} Where of a scalar condition", "y = Where(c, x, s)", x | scalar | {"c": ("bool", ())})
    yield Case(f"{shape} Clip", "y = Clip(x, s, t)", x | scalar | {"t": (F, ())})
    yield Case(f"{shape} Cast", "i = Cast<to = 7>(x)\n y = Cast<to = 1>(i)\n z = Cast<to = 9>(i)", x,
               outputs=("y", "z"))  # fmt: skip
    yield Case(f"{shape} Identity", "y = Identity(x)", x)
    yield Case(f"{shape} one element", "y = Add(x, o)", x | {"o": (F, (1,))})
    yield Case(f"{shape} quantised", "q = QuantizeLinear(x, k, p)\n y = DequantizeLinear(q, k, p)", x,
               {"k": np.float32(0.25), "p": np.int8(3)})  # fmt: skip


def _reductions(shape: Shape) -> Iterator[Case]:
    rank = len(shape)
    x = {"x": (F, shape)}
    for operator in ("ReduceMax", "ReduceMean", "ReduceProd", "ReduceL2") if rank < 2 else ("ReduceMean",):
        yield Case(f"{shape} {operator}", f"y = {operator}<keepdims = 0>(x)\n z = {operator}(x)", x,
                   outputs=("y", "z"))  # fmt: skip
        for axis in sorted({0, rank - 1}) if rank else ():
            yield Case(
                f"{shape} {operator} axis {axis}", f"y = {operator}<keepdims = 0, axes = [{axis}]>(x)", x
            )
    turned = f"<perm = {list(range(rank))[::-1]}>" if rank else ""
    yield Case(
        f"{shape} over its largest",
        f"m = ReduceMax<keepdims = 0>(x)\n d = Div(x, m)\n e = Equal(x, m)\n w = Where(e, m, d)\n"
        f"y = Transpose{turned}(w)\n z = Transpose(m)",
        x, outputs=("y", "z"),
    )  # fmt: skip
    yield Case(f"{shape} chain of sums",
               "t = ReduceSum<keepdims = 0>(x)\n u = Exp(x)\n v = ReduceSum<keepdims = 0>(u)\n y = Div(t, v)",
               x)  # fmt: skip
    yield Case(f"{shape} normalised",
               "m = ReduceMean<keepdims = 0>(x)\n c = Sub(x, m)\n q = Mul(c, c)\n"
               "v = ReduceMean<keepdims = 0>(q)\n r = Sqrt(v)\n e = Add(r, o)\n y = Div(c, e)", x,
               {"o": np.float32(1)})  # fmt: skip
    if rank:
        for operator in ("Softmax", "LogSoftmax"):
            text = f"y = {operator}<axis = -1>(x)\n z = {operator}<axis = 0>(x)"
            yield Case(f"{shape} {operator}", text, x, outputs=("y", "z"))
        yield Case(f"{shape} ArgMax",
                   "y = ArgMax<axis = 0, keepdims = 0>(x)\n z = ArgMin<axis = -1, keepdims = 1>(x)", x,
                   outputs=("y", "z"))  # fmt: skip
        yield Case(f"{shape} CumSum", "y = CumSum(x, a)", x, {"a": np.int64(0)})
        yield Case(f"{shape} LayerNormalization", "y = LayerNormalization<axis = -1>(x, g, g)", x,
                   {"g": np.full(shape[-1:], 0.5, "f4")})  # fmt: skip


def _movement(shape: Shape) -> Iterator[Case]:
    rank = len(shape)
    x = {"x": (F, shape)}
    yield Case(f"{shape} Expand", "y = Expand(x, w)", x, {"w": np.array((2, *shape), "i8")})
    yield Case(f"{shape} Unsqueeze", "y = Unsqueeze(x, a)", x, {"a": np.array([0])})
    yield Case(f"{shape} Transpose", "y = Transpose(x)", x)
    yield Case(f"{shape} Flatten", "y = Flatten<axis = 0>(x)", x)
    yield Case(f"{shape} joined", "u = Unsqueeze(x, a)\n e = Exp(u)\n y = Concat<axis = 0>(u, e, u)", x,
               {"a": np.array([0])})  # fmt: skip
    yield Case(f"{shape} indices", "y = Gather(w, i)", {"i": ("int64", shape)},
               {"w": np.arange(12, dtype="f4").reshape(4, 3)})  # fmt: skip
    if rank:
        yield Case(f"{shape} OneHot", "y = OneHot(i, d, v)", {"i": ("int64", shape)},
                   {"d": np.int64(4), "v": np.array([0, 1], "f4")})  # fmt: skip
        first, last = {"a": np.int64(1)}, {"i": ("int64", ())}
        yield Case(f"{shape} Gather of one", "y = Gather<axis = 0>(x, a)\n z = Gather<axis = 0>(x, i)",
                   x | last, first, ("y", "z"))  # fmt: skip
        yield Case(f"{shape} GatherND", "y = GatherND(x, a)", x, {"a": np.zeros(rank, "i8")})
        yield Case(f"{shape} Tile", "y = Tile(x, a)", x, {"a": np.full(rank, 2)})
        yield Case(f"{shape} Pad", "y = Pad(x, p, s)", x, {"p": np.ones(2 * rank, "i8"), "s": np.float32(3)})
        yield Case(f"{shape} Slice", "y = Slice(x, a, b)", x, {"a": np.array([0]), "b": np.array([1])})
        if shape[0] % 2 == 0:
            yield Case(f"{shape} Split", "y, z = Split<axis = 0>(x)", x, outputs=("y", "z"))
        yield Case(f"{shape} TopK", "y, z = TopK<axis = 0>(x, k)", x, {"k": np.array([1])}, ("y", "z"))
        yield Case(f"{shape} ScatterElements", "y = ScatterElements<axis = 0>(x, i, x)",
                   x | {"i": ("int64", shape)})  # fmt: skip


def _products() -> Iterator[Case]:
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
        "vectors": ((3,), (3,)), "matrix and vector": ((2, 3), (3,)), "vector and matrix": ((3,), (3, 4)),
        "batch and vector": ((2, 1, 3), (3,)), "vector and batch": ((3,), (2, 3, 4)),
        "matrices": ((2, 3), (3, 4)), "one row": ((1, 3), (3, 1)), "broadcast": ((4, 1, 2, 3), (5, 3, 2)),
        "one element": ((1,), (1,)), "ranks 5 and 2": ((2, 1, 2, 2, 3), (3, 4)),
    }  # fmt: skip
    for name, (a, b) in shapes.items():
        text = "p = MatMul(a, b)\n q = Mul(p, s)\n r = Relu(q)\n y = Add(s, r)"
        inputs = {"a": (F, a), "s": (F, ())}
        yield Case(f"MatMul {name}", text, inputs | {"b": (F, b)})
        rng = np.random.default_rng(1)
        yield Case(f"MatMul {name}, constant", text, inputs, {"b": rng.normal(size=b).astype("f4")})
    yield Case("Einsum to a number", 'y = Einsum<equation: string = "i,i->">(a, b)',
               {"a": (F, (5,)), "b": (F, (5,))})  # fmt: skip
    yield Case("Einsum of a number", 'y = Einsum<equation: string = ",i->i">(a, b)',
               {"a": (F, ()), "b": (F, (5,))})  # fmt: skip
    for shape in ((), (1,), (4,), (2, 1), (1, 4)):
        yield Case(f"Gemm with C of {shape}", "y = Gemm(a, b, c)",
                   {"a": (F, (2, 3)), "b": (F, (3, 4)), "c": (F, shape)})  # fmt: skip


def _scalars() -> Iterator[Case]:
    s, t = {"s": (F, ())}, {"t": (F, ())}
    yield Case("bools", "a = Less(s, t)\n b = Not(a)\n c = Or(a, b)\n d = And(b, c)\n y = Xor(a, d)", s | t)
    yield Case("integers", "k = Max(j, o)\n a = Mod(i, k)\n b = Mul(a, i)\n c = Max(b, j)\n y = Abs(c)",
               {"i": ("int64", ()), "j": ("int64", ())}, {"o": np.int64(1)})  # fmt: skip
    yield Case("vector of numbers", "a = Unsqueeze(s, z)\n b = Unsqueeze(t, z)\n"
               "c = Concat<axis = 0>(a, b, a)\n"
               "d = ReduceSum<keepdims = 0>(c)\n y = Mul(d, c)", s | t, {"z": np.array([0])})  # fmt: skip
    yield Case("Squeeze", "a = Squeeze(x)\n b = Exp(a)\n y = Add(b, s)", s | {"x": (F, (1, 1))})
    yield Case("Reshape", "a = Reshape(x, n)\n y = Mul(a, s)", s | {"x": (F, (1, 1, 1))},
               {"n": np.zeros(0, "i8")})  # fmt: skip
    yield Case("sums of several", "y = Sum(s, x, t)\n z = Mean(x, s)\n w = Max(s, t, x)",
               s | t | {"x": (F, (2, 3))}, outputs=("y", "z", "w"))  # fmt: skip
    yield Case("no operator", "y = Identity(s)\n z = Identity(y)", s, outputs=("y", "z"))
    yield Case("Pow", "y = Pow(s, x)\n z = Pow(x, t)\n w = Sqrt(s)", s | t | {"x": (F, (3,))},
               outputs=("y", "z", "w"))  # fmt: skip
    yield Case("a number from each row", "a = Mul(x, x)\n r = ReduceSum<keepdims = 0>(a, l)\n q = Sqrt(r)\n"
               "m = ReduceMax<keepdims = 0>(q)\n y = Div(q, m)", {"x": (F, (3, 40))},
               {"l": np.array([1])})  # fmt: skip


def _images() -> Iterator[Case]:
    rng = np.random.default_rng(2)
    x, s = {"x": (F, (1, 3, 6, 5))}, {"s": (F, ())}
    full, deep = rng.normal(size=(4, 3, 3, 3)).astype("f4"), rng.normal(size=(3, 1, 3, 3)).astype("f4")
    ends = "a = Mul(c, s)\n b = Relu(a)\n y = Add(b, s)"
    yield Case("Conv", f"c = Conv<pads = [1, 1, 1, 1]>(x, w)\n{ends}", x | s, {"w": full})
    each = f"c = Conv<pads = [1, 1, 1, 1], group = 3>(x, w)\n{ends}"
    yield Case("depthwise Conv", each, x | s, {"w": deep})
    yield Case("Conv of one axis", f"c = Conv(x, w)\n{ends}", s | {"x": (F, (1, 3, 7))}, {"w": full[..., 0]})
    yield Case("MaxPool", f"c = MaxPool<kernel_shape = [2, 2]>(x)\n{ends}", x | s)
    yield Case("GlobalAveragePool", f"c = GlobalAveragePool(x)\n{ends}", x | s)
    yield Case("largest of an image", "m = ReduceMax<keepdims = 0>(x)\n y = Div(x, m)\n z = Exp(m)", x,
               outputs=("y", "z"))  # fmt: skip


def save(chosen: Sequence[Case], path: Path) -> tuple[list[Array], list[Array]]:
    """Write one model with the graphs of all cases; inputs for it, and the outputs of ONNX Runtime.

    Names of the nth case begin with `c<n>_`.
    """
    nodes, ports, weights, inputs = [], [], [], []
    outputs: list[str] = []
    rng = np.random.default_rng(4)
    for number, case in enumerate(chosen):
        model = onnx.parser.parse_model(f"{HEADER.format(opset=OPSET)}g () => () {{ {case.text} }}")
        for name, value in case.weights.items():
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
        for name, (dtype, shape) in case.inputs.items():
            model.graph.input.append(onnx.helper.make_tensor_value_info(name, TYPES[dtype], shape))
            inputs.append(_values(rng, dtype, shape))
        graph = onnx.compose.add_prefix(model, f"c{number}_").graph
        nodes += graph.node
        ports += graph.input
        weights += graph.initializer
        outputs += [f"c{number}_{name}" for name in case.outputs]

    def write(made: list[onnx.ValueInfoProto]) -> None:
        graph = onnx.helper.make_graph(nodes, "ranks", ports, made, weights)
        imports = [onnx.helper.make_opsetid("", OPSET)]
        onnx.save(onnx.helper.make_model(graph, opset_imports=imports, ir_version=8), path)

    write([onnx.ValueInfoProto(name=name) for name in outputs])
    expected = open_reference(path).run(inputs)
    kinds = [onnx.helper.np_dtype_to_tensor_dtype(value.dtype) for value in expected]
    write([
        onnx.helper.make_tensor_value_info(name, kind, value.shape)
        for name, kind, value in zip(outputs, kinds, expected, strict=True)
    ])  # fmt: skip
    return inputs, expected


def _values(rng: np.random.Generator, dtype: str, shape: Sequence[int]) -> Array:
    """Positive numbers; for other types 0 and 1, which every index may be."""
    if dtype == "float":
        return np.asarray(rng.uniform(0.2, 2, shape), "float32")
    return np.asarray(rng.integers(0, 2, shape), dtype)
