"""The proof against the reference: small random graphs, and where padding is proven, both runs must agree.

Every graph is an operator of one kind between others, drawn from a fixed seed. ONNX Runtime runs it on exact
inputs and on inputs padded with the value that was proven, of both signs, all negative and large.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from kiln.config import model as models
from kiln.config.boxes import Box
from kiln.config.dims import Segment
from kiln.config.slice_records import ImportConfig
from kiln.frontend import options
from kiln.frontend.importer import import_model
from kiln.specialize.padding.analysis import NotProvenError
from kiln.specialize.padding.fills import proven_fills
from onnx import helper, numpy_helper

LEAST, GREATEST = 5, 8
N = (1, 0)  # an axis of size n; (a, b) stands for a * n + b
Dims = list[tuple[int, int]]
Tensor = tuple[str, Dims]
SHAPES: list[Dims] = [[(0, 1), N, (0, 4)], [N, (0, 4)], [(0, 2), (0, 3), N], [(0, 2), N, (0, 4)], [(0, 2), N]]


@dataclass
class Graph:
    """A graph that grows: every step adds nodes after a tensor that is there."""

    draw: random.Random
    tensors: list[Tensor]
    nodes: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)

    def constant(self, value: Any) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(self, kind: str, inputs: list[str], dims: Dims, **attributes: Any) -> Tensor:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=f"n{len(self.nodes)}", **attributes))
        self.tensors.append((name, list(dims)))
        return self.tensors[-1]

    def number(self, *choices: float) -> str:
        return self.constant(np.float32(self.draw.choice(choices)))

    def axis(self, dims: Dims) -> int:
        """An axis, mostly one that is padded."""
        open_ = [axis for axis, (a, _) in enumerate(dims) if a]
        return self.draw.choice(open_ if open_ and self.draw.random() < 0.8 else range(len(dims)))

    def along_n(self, name: str, dims: Dims) -> str:
        """`name` of size n with axes after it, to go with an axis of `dims` that is n."""
        behind = len(dims) - 1 - dims.index(N)
        axes = self.constant(np.arange(1, behind + 1))
        return self.add("Unsqueeze", [name, axes], [N] + [(0, 1)] * behind)[0] if behind else name


def elementwise(g: Graph, x: str, dims: Dims) -> None:
    kind = g.draw.choice(["Relu", "Neg", "Tanh", "Abs", "Sigmoid", "Floor", "Erf", "Reciprocal"])
    g.add(kind, [x], dims)


def with_number(g: Graph, x: str, dims: Dims) -> None:
    kind = g.draw.choice(["Add", "Mul", "Sub", "Div", "Max", "Min"])
    g.add(kind, [x, g.number(0, 1, 2, -1, 0.5, 3)], dims)


def with_another(g: Graph, x: str, dims: Dims) -> None:
    other = g.draw.choice([name for name, found in g.tensors if found == dims])
    g.add(g.draw.choice(["Add", "Mul", "Sub", "Max"]), [x, other], dims)


def masked(g: Graph, x: str, dims: Dims) -> None:
    if N in dims:
        g.add("Mul", [x, g.along_n("mask", dims)], dims)


def masked_softmax(g: Graph, x: str, dims: Dims) -> None:
    if N in dims:
        gone = g.add("Sub", [g.number(1), "mask"], [N])[0]
        bias = g.add("Mul", [gone, g.number(-1e9, -1e4, -3.4e38)], [N])[0]
        scores = g.add("Add", [x, g.along_n(bias, dims)], dims)[0]
        g.add(g.draw.choice(["Softmax", "LogSoftmax"]), [scores], dims, axis=dims.index(N))


def reduced(g: Graph, x: str, dims: Dims) -> None:
    axis, keep = g.axis(dims), g.draw.randrange(2)
    left = [*dims[:axis], *([(0, 1)] if keep else []), *dims[axis + 1 :]]
    kind = g.draw.choice(
        ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd", "ReduceSumSquare"]
    )
    if kind == "ReduceSum":
        g.add(kind, [x, g.constant(np.array([axis]))], left, keepdims=keep)
    else:
        g.add(kind, [x], left, axes=[axis], keepdims=keep)


def softmax(g: Graph, x: str, dims: Dims) -> None:
    g.add("Softmax", [x], dims, axis=g.axis(dims))


def transposed(g: Graph, x: str, dims: Dims) -> None:
    order = g.draw.sample(range(len(dims)), len(dims))
    g.add("Transpose", [x], [dims[axis] for axis in order], perm=order)


def merged(g: Graph, x: str, dims: Dims) -> None:
    for axis in range(len(dims) - 1):
        (a, b), (c, d) = dims[axis : axis + 2]
        whole = [*dims[:axis], (a * d + b * c, b * d), *dims[axis + 2 :]]
        if not (a and c) and sum(one != 0 for one, _ in whole) < 2:
            shape = [-1 if one else size for one, size in whole]
            g.add("Reshape", [x, g.constant(np.array(shape))], whole)
            return


def split(g: Graph, x: str, dims: Dims) -> None:
    for axis, (a, b) in enumerate(dims):
        if a > 1 and not b and sum(one != 0 for one, _ in dims) < 2:
            parts: Dims = g.draw.choice([[N, (0, a)], [(0, a), N]])
            whole = [*dims[:axis], *parts, *dims[axis + 1 :]]
            g.add("Reshape", [x, g.constant(np.array([-1 if one else size for one, size in whole]))], whole)
            return


def product(g: Graph, x: str, dims: Dims) -> None:
    if len(dims) < 2:
        return
    order = [*range(len(dims) - 2), len(dims) - 1, len(dims) - 2]
    turned = g.add("Transpose", [x], [dims[axis] for axis in order], perm=order)
    one, other = g.draw.choice([((x, dims), turned), (turned, (x, dims))])
    g.add("MatMul", [one[0], other[0]], [*one[1][:-1], other[1][-1]])


def sliced(g: Graph, x: str, dims: Dims) -> None:
    axis = g.axis(dims)
    a, b = dims[axis]
    ends = [(0, 1, 1, (0, 1)), (-1, 99, 1, (0, 1)), (1, 99, 1, (a, b - 1)), (0, -1, 1, (a, b - 1))]
    first, last, step, size = g.draw.choice([*ends, (0, 99, 1, (a, b)), (-1, -99, -1, (a, b))])
    if a * LEAST + b > 1:
        bounds = [g.constant(np.array([value])) for value in (first, last, axis, step)]
        g.add("Slice", [x, *bounds], [*dims[:axis], size, *dims[axis + 1 :]])


def joined(g: Graph, x: str, dims: Dims) -> None:
    axis = g.axis(dims)
    fixed = [2 if at == axis else size for at, (_, size) in enumerate(dims)]
    if all(not a for at, (a, _) in enumerate(dims) if at != axis):
        parts = [x, g.constant(np.full(fixed, g.draw.choice([0, 1]), np.float32))]
        g.draw.shuffle(parts)
        a, b = dims[axis]
        g.add("Concat", parts, [*dims[:axis], (a, b + 2), *dims[axis + 1 :]], axis=axis)


def windowed(g: Graph, x: str, dims: Dims) -> None:
    if len(dims) != 3 or dims[1][0] or dims[2][0] * LEAST + dims[2][1] < 4:
        return
    before, after = g.draw.choice([(0, 0), (1, 0), (0, 1), (1, 1)])
    (a, b), kind = dims[2], g.draw.choice(["Conv", "MaxPool", "AveragePool"])
    out = (a, b + before + after - 2)
    if kind == "Conv":
        kernel = np.random.default_rng(1).normal(size=(2, dims[1][1], 3)).astype("float32")
        g.add(kind, [x, g.constant(kernel)], [dims[0], (0, 2), out], pads=[before, after])
    else:
        g.add(kind, [x], [*dims[:2], out], kernel_shape=[3], pads=[before, after])


def scanned(g: Graph, x: str, dims: Dims) -> None:
    g.add("CumSum", [x, g.constant(np.int64(g.axis(dims)))], dims, reverse=g.draw.randrange(2))


def picked(g: Graph, x: str, dims: Dims) -> None:
    axis, index = g.axis(dims), g.draw.choice([0, -1])
    g.add("Gather", [x, g.constant(np.array([index]))], [*dims[:axis], (0, 1), *dims[axis + 1 :]], axis=axis)


STEPS: list[Callable[[Graph, str, Dims], None]] = [
    elementwise, with_number, with_another, masked, masked_softmax, reduced, softmax, transposed, merged,
    split, product, sliced, joined, windowed, scanned, picked,
]  # fmt: skip
KINDS = {step.__name__: step for step in STEPS}


def grown(kind: str, seed: int) -> tuple[onnx.ModelProto, Dims, float | None]:
    """A model of inputs x and mask, the shape of x, and the value that the YAML pads x with, if any."""
    draw = random.Random(f"{kind} {seed}")
    shape = draw.choice(SHAPES)
    g = Graph(draw, [("x", shape)])
    steps = [
        *draw.choices(STEPS, k=draw.randrange(2)),
        KINDS[kind],
        *draw.choices(STEPS, k=draw.randrange(2)),
    ]
    for step in steps:
        if g.tensors[-1][1]:
            step(g, *g.tensors[-1])
    last, dims = g.tensors[-1]
    total = g.add("ReduceSum", ["mask", g.constant(np.array([0]))], [(0, 1)])[0]
    y = g.add("Add", [last, g.add("Mul", [total, g.number(0)], [(0, 1)])[0]], dims or [(0, 1)])
    ports = [
        helper.make_tensor_value_info("x", 1, ["n" if a else b for a, b in shape]),
        helper.make_tensor_value_info("mask", 1, ["n"]),
    ]
    outputs = [helper.make_tensor_value_info(y[0], 1, [None] * len(y[1]))]
    graph = helper.make_graph(g.nodes, "g", ports, outputs, g.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model, shape, draw.choice([None, None, 0.0, 3.0, -2.0])


def fills(path: Path, pad: float | None) -> dict[str, Any] | None:
    """The fill values of the proof that padding `n` is neutral; None without a proof."""
    segment = Segment(strategy="range", min=LEAST, max=GREATEST, multiple=1)
    config = ImportConfig.model_validate({"name": "m", "dims": {"n": {"min": LEAST, "max": GREATEST}}})
    module, interface = import_model(path, options.from_config(config, Box(name="b", dims={"n": segment})))
    try:
        return proven_fills(
            module, ["n"], interface, {"x": models.Tensor(pad=pad), "mask": models.Tensor(mask=True)}
        )
    except NotProvenError:
        return None


@pytest.mark.parametrize(("seeds", "least"), [(7, 1), pytest.param(15, 3, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_what_is_proven_is_so(tmp_path: Path, kind: str, seeds: int, least: int) -> None:
    found = 0
    for seed in range(seeds):
        model, shape, pad = grown(kind, seed)
        path = tmp_path / "m.onnx"
        path.write_bytes(model.SerializeToString())
        fill = fills(path, pad)
        if fill is None:
            continue
        found += 1
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        rng = np.random.default_rng(seed)
        for size in range(LEAST, GREATEST):
            widths = [(0, GREATEST - size if a else 0) for a, _ in shape]
            x = rng.normal(size=[a * size + b for a, b in shape]).astype("float32")
            for given in (x, -np.abs(x), 30 * x):
                mask = (np.arange(size) < size - rng.integers(0, 2)).astype("float32")
                want = session.run(None, {"x": given, "mask": mask})[0]
                padded = {
                    "x": np.pad(given, widths, constant_values=fill["x"]),
                    "mask": np.pad(mask, (0, GREATEST - size)),
                }
                got = session.run(None, padded)[0][tuple(map(slice, want.shape))]
                magnitude = np.abs(want[np.isfinite(want)]).max(initial=1e-2)
                np.testing.assert_allclose(got, want, 1e-3, 1e-4 * magnitude, err_msg=f"{seed} {fill}")
    assert found >= least  # the others are refused
