"""Operators that TVM has no schedule for on GPUs, run on the CPU: running sums, scatter, topk, argmax."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from kiln.config.target import Cuda
from kiln.emit import cuda_objects
from kiln.kernels.gpu import dlight
from kiln.kernels.operators import non_max_suppression
from kiln.lower.pipeline import fused
from kiln.opinfo import attach
from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as script

from .launched import Kernels, evaluate

Array = npt.NDArray[Any]
CUDA = Cuda(archs=["sm_75", "sm_90"], ptx=False)
OP = relax.op


def _floats(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def _whole(*shape: int, below: int, dtype: str = "int64") -> Array:
    return np.random.default_rng(sum(shape)).integers(0, below, shape).astype(dtype)


def _before(x: Array, axis: int) -> Array:
    """Sums of what stands before each element."""
    return np.cumsum(x, axis) - x


def _scattered(x: Array, places: Array, new: Array, combine: Any = None) -> Array:
    """ONNX's ScatterND, one update after the other."""
    result = x.copy()
    for row in np.ndindex(places.shape[:-1]):
        at = tuple(places[row])
        result[at] = new[row] if combine is None else combine(result[at], new[row])
    return result


def _scattered_elements(x: Array, places: Array, new: Array, axis: int, combine: Any = None) -> Array:
    result = x.copy()
    for index in np.ndindex(places.shape):
        at = (*index[:axis], places[index], *index[axis + 1 :])
        result[at] = new[index] if combine is None else combine(result[at], new[index])
    return result


def _largest(x: Array, count: int, axis: int) -> Array:
    return np.take(np.argsort(-x, axis, kind="stable"), range(count), axis)


_TIES = np.array([[3, 1, 3, 2, 1, 3, 0], [5, 5, 5, 5, 5, 5, 5], [0, 1, 2, 3, 4, 5, 6]], "float32")
_ROWS = np.array([[3], [0], [3], [10], [3]], "int64")  # one of them more than once
_PAIRS = _whole(2, 4, 2, below=5)

# name → (inputs, the operator, the same by NumPy)
CASES: dict[str, tuple[list[Array], Callable[..., Any], Callable[..., Array]]] = {
    "sum_last": ([_floats(3, 37)], lambda x: OP.cumsum(x, -1), lambda x: np.cumsum(x, -1)),
    "sum_middle": ([_floats(3, 37, 5)], lambda x: OP.cumsum(x, 1), lambda x: np.cumsum(x, 1)),
    "sum_many_lines": ([_floats(7, 1031)], lambda x: OP.cumsum(x, 0), lambda x: np.cumsum(x, 0)),
    "sum_flat": ([_floats(3, 7)], lambda x: OP.cumsum(x), lambda x: np.cumsum(x)),
    "sum_down": ([_floats(200, 3)], lambda x: OP.cumsum(x, 0), lambda x: np.cumsum(x, 0)),
    "sum_flat_before": (
        [_whole(90, 3, below=99)],
        lambda x: OP.cumsum(x, exclusive=True),
        lambda x: _before(x.reshape(-1), 0),
    ),
    "sum_one": ([_floats(5, 1)], lambda x: OP.cumsum(x, 1), lambda x: x),
    "sum_before": ([_floats(3, 37)], lambda x: OP.cumsum(x, 1, exclusive=True), lambda x: _before(x, 1)),
    "sum_cast": (
        [_whole(3, 37, below=9, dtype="int32")],
        lambda x: OP.cumsum(x, 1, "int64"),
        lambda x: np.cumsum(x, 1, "int64"),
    ),
    "sum_long": (
        [_whole(2, 1500, below=9, dtype="float32")],
        lambda x: OP.cumsum(x, 1),
        lambda x: np.cumsum(x, 1),
    ),
    "sum_long_middle": (
        [_whole(2, 700, 3, below=9, dtype="int32")],
        lambda x: OP.cumsum(x, 1, "int64", exclusive=True),
        lambda x: _before(x.astype("int64"), 1),
    ),
    "product_long": ([1 + _floats(1, 600) / 90], lambda x: OP.cumprod(x, 1), lambda x: np.cumprod(x, 1)),
    "product": ([_floats(3, 9, 2)], lambda x: OP.cumprod(x, 1), lambda x: np.cumprod(x, 1)),
    "scatter_rows": (
        [_floats(11, 3), _ROWS, _floats(5, 3)],
        lambda x, i, u: OP.scatter_nd(x, i, u),
        _scattered,
    ),
    "scatter_add": (
        [_floats(11, 3), _ROWS, _floats(5, 3)],
        lambda x, i, u: OP.scatter_nd(x, i, u, "add"),
        lambda x, i, u: _scattered(x, i, u, np.add),
    ),
    "scatter_points": (
        [_floats(5, 6, 7), _PAIRS, _floats(2, 4, 7)],
        lambda x, i, u: OP.scatter_nd(x, i, u, "max"),
        lambda x, i, u: _scattered(x, i, u, np.maximum),
    ),
    "scatter_elements": (
        [_floats(9, 4), _whole(6, 3, below=9), _floats(6, 3)],
        lambda x, i, u: OP.scatter_elements(x, i, u, 0),
        lambda x, i, u: _scattered_elements(x, i, u, 0),
    ),
    "scatter_elements_mul": (
        [_floats(3, 4, 5), _whole(3, 4, 8, below=5), _floats(3, 4, 8)],
        lambda x, i, u: OP.scatter_elements(x, i, u, 2, "mul"),
        lambda x, i, u: _scattered_elements(x, i, u, 2, np.multiply),
    ),
    "first": ([_TIES], lambda x: OP.argmax(x, 1), lambda x: np.argmax(x, 1)),
    "first_middle": ([_floats(2, 33, 5)], lambda x: OP.argmin(x, 1), lambda x: np.argmin(x, 1)),
    "first_long": ([_floats(3, 1001)], lambda x: OP.argmax(x, 1, True), lambda x: np.argmax(x, 1)[:, None]),
    # Nothing is better than the number that the reduction begins with.
    "first_of_least": ([np.zeros((3, 70), "uint8")], lambda x: OP.argmax(x, 1), lambda x: np.argmax(x, 1)),
    "first_of_infinite": (
        [np.full((3, 7), np.inf, "float32")],
        lambda x: OP.argmin(x, 1),
        lambda x: np.argmin(x, 1),
    ),
    # TVM shuffles no types of 8 bits among threads.
    "first_bytes": (
        [_whole(2, 100, below=9, dtype="uint8")],
        lambda x: OP.argmax(x, 1),
        lambda x: np.argmax(x, 1),
    ),
    "greatest_bytes": (
        [_whole(2, 100, below=99, dtype="int8")],
        lambda x: OP.max(x, 1),
        lambda x: np.max(x, 1),
    ),
    # Blocks compute more lines than there are; the length alone is a multiple of the threads.
    "sum_few_lines": (
        [_floats(1, 5, 64), _floats(1, 1, 64)],
        lambda x, y: OP.sum(OP.multiply(x, y), 2),
        lambda x, y: np.sum(x * y, 2),
    ),
    "ties": (
        [np.arange(-3.5, 4, 0.5, dtype="float32")],
        lambda x: OP.round(x),
        np.round,  # ONNX's Round: ties to even
    ),
    "nearest": (
        [_floats(1, 2, 4, 5)],
        lambda x: OP.image.resize2d(
            x,
            (7, 9),
            layout="NCHW",
            method="nearest_neighbor",
            coordinate_transformation_mode="align_corners",
            rounding_method="round",
        ),
        lambda x: x[:, :, [0, 1, 1, 2, 2, 3, 3]][:, :, :, [0, 1, 1, 2, 2, 3, 3, 4, 4]],
    ),
    "largest": ([_TIES], lambda x: OP.topk(x, 4, 1, "indices"), lambda x: _largest(x, 4, 1)),
    "largest_middle": (
        [_floats(2, 33, 5)],
        lambda x: OP.topk(x, 6, 1, "values"),
        lambda x: np.take_along_axis(x, _largest(x, 6, 1), 1),
    ),
}


def _function(shapes: list[Any], operator: Callable[..., Any]) -> tirx.PrimFunc:
    """The fused function of one operator."""
    builder = relax.BlockBuilder()
    arguments = [relax.Var(f"x{i}", shape) for i, shape in enumerate(shapes)]
    dims = {name: {"dim": name, "divide": 1, "min": 1, "max": 70} for name in ("n0", "n1")}
    attrs = {"num_input": len(arguments), "kiln.dims": json.dumps(dims)}
    with builder.function("main", arguments, attrs=attrs):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(operator(*arguments)))
        builder.emit_func_output(result)
    mod, _ = fused(builder.get())
    (func,) = (func for func in mod.functions.values() if isinstance(func, tirx.PrimFunc))
    bare = [param for param in func.params if tirx.is_buffer_var(param)]
    return tirx.PrimFunc(bare, func.body, None, attrs=func.attrs).without_attr(attach.ATTRIBUTE)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    target, lowered = dlight.tvm_target(CUDA), {}
    for name, (inputs, operator, _) in CASES.items():
        shapes = [relax.TensorType(x.shape, str(x.dtype)) for x in inputs]
        lowered[name] = dlight.lower(_function(shapes, operator), target)
    return Kernels(lowered, CUDA, tmp_path_factory.mktemp("lines"))


def _check(kernels: Kernels, name: str, inputs: list[Array], want: Array, **sizes: int) -> None:
    """Compare the output of the kernels of a case with `want`; integers may have another width."""
    got = kernels.run(name, inputs, want.shape, **sizes)
    assert got.dtype.kind == want.dtype.kind
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("order", ["0", "1"])
def test_a_kernel_computes_what_numpy_does(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, name: str, order: str
) -> None:
    monkeypatch.setenv("KILN_CUDA_REVERSED", order)
    inputs, _, reference = CASES[name]
    _check(kernels, name, inputs, reference(*inputs))


# The first axis of each input is dynamic.
OPEN = {
    name: CASES[name]
    for name in (
        "sum_last", "sum_many_lines", "sum_down", "sum_flat_before", "scatter_rows", "largest", "first_long",
    )
}  # fmt: skip


@pytest.fixture(scope="module")
def dynamic_kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """Kernels of inputs whose first axes, n0 and n1, have 1 to 200 elements, known only at run time."""
    target, lowered = dlight.tvm_target(CUDA), {}
    for name, (inputs, operator, _) in OPEN.items():
        variables = [tirx.Var(f"n{i}", "int64") for i in range(2)]
        shapes = [
            relax.TensorType([variables[min(i, 1)], *x.shape[1:]], str(x.dtype)) for i, x in enumerate(inputs)
        ]
        lowered[name] = dlight.lower(
            _function(shapes, operator), target, lambda size: evaluate(size, {"n0": 200, "n1": 200})
        )
    return Kernels(lowered, CUDA, tmp_path_factory.mktemp("open"))


@pytest.mark.parametrize("name", list(OPEN))
def test_dynamic_sizes(dynamic_kernels: Kernels, name: str) -> None:
    inputs, _, reference = CASES[name]
    for rows in {n for n in (1, 2, 64, 65) if n < len(inputs[0])} | {len(inputs[0])}:
        arrays = [inputs[0][:rows], *inputs[1:]]
        if name == "scatter_rows":
            arrays[1] = arrays[1] % rows
        sizes = {"n0": rows, "n1": len(inputs[-1])}
        _check(dynamic_kernels, name, arrays, reference(*arrays), **sizes)


def test_threads_share_a_running_sum_of_dynamic_length(dynamic_kernels: Kernels) -> None:
    for name in ("sum_down", "sum_flat_before"):
        launches = dynamic_kernels.launches[name].launches
        serial = [a for one in launches for a in one.arguments if a.value is not None]
        assert len(launches) > 1 and serial, f"{name}: one thread would go along the whole line"


def test_every_line_has_a_thread(kernels: Kernels) -> None:
    (launch,) = kernels.launches["sum_many_lines"].launches
    assert launch.grid[0] * launch.block[0] >= 1031


def test_statements_between_parallel_loops_have_one_thread(tmp_path: Path) -> None:
    """Each part sees what those before it have stored; loops within a part stay in their order."""

    def write(x: Any, y: Any) -> Any:
        x, y = script.buffer_proxy(x), script.buffer_proxy(y)
        with IRBuilder() as made, script.seq_scope():
            with script.parallel(1, 2000) as i:
                y[i] = x[i] * 2.0
            y[0] = 1.0
            with script.serial(0, 1999) as i:
                y[i + 1] = y[i] + y[i + 1]
            with script.parallel(0, 2000) as i, script.parallel(0, 3) as j:
                y[i] = y[i] + j
        return made.get()

    x = te.placeholder((2000,), "float32", "x")
    y = te.extern([x.shape], [x], lambda i, o: write(i[0], o[0]), dtype="float32", name="y")
    found = dlight.lower(te.create_prim_func([x, y]), dlight.tvm_target(CUDA))
    assert len(found.launches) == 3
    given = np.arange(2000, dtype="float32")
    want = np.cumsum(np.append([1.0], given[1:] * 2), dtype="float32") + 3
    _check(Kernels({"parts": found}, CUDA, tmp_path), "parts", [given], want)


def _overlap(a: Array, b: Array) -> float:
    """Intersection over union of boxes (low, low, high, high)."""
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    shared = float(np.prod(np.maximum(sides, 0)))
    areas = [float(np.prod(np.maximum(one[2:] - one[:2], 0))) for one in (a, b)]
    return shared / (sum(areas) - shared) if min(areas) > 0 else 0.0


@pytest.mark.parametrize("most", [3, 40])
def test_of_boxes_that_overlap_the_best_is_kept(tmp_path: Path, most: int) -> None:
    images, classes, count, least = 2, 3, 23, 0.25
    boxes = np.random.default_rng(0).random((images, count, 2), "float32")
    sizes = np.random.default_rng(1).random((images, count, 2), "float32") * 0.5
    boxes = np.concatenate([boxes, boxes + sizes], 2)
    boxes[0, 5, 2:] = boxes[0, 5, :2]  # without an area
    scores = np.random.default_rng(2).integers(0, 9, (images, classes, count)).astype("float32") / 8  # ties
    want = np.full((images, classes * count), -1)
    for image in range(images):
        found: list[int] = []
        for kind in range(classes):
            score, chosen = scores[image, kind], list[int]()
            for box in np.argsort(-score, kind="stable"):
                far = all(_overlap(boxes[image, box], boxes[image, one]) <= 0.3 for one in chosen)
                if score[box] >= least and far and len(chosen) < most:
                    chosen.append(int(box))
            found += [kind * count + box for box in chosen]
        want[image, : len(found)] = found
    placeholders = [te.placeholder(one.shape, "float32", name) for one, name in ((boxes, "x"), (scores, "s"))]
    func = te.create_prim_func([*placeholders, non_max_suppression.kept(*placeholders, most, 0.3, least)])
    kernels = Kernels({"boxes": dlight.lower(func, dlight.tvm_target(CUDA))}, CUDA, tmp_path)
    got = kernels.run("boxes", [boxes, scores], (images, classes * count + count + 2))
    np.testing.assert_array_equal(got[:, : classes * count], want)
    assert (want >= 0).sum() > images * classes


def test_nvcc_needs_no_compiler_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """zig finds headers of the C library by the machine's compiler; its own ones have to do as well."""
    source = (
        '#include <math.h>\nextern "C" __global__ void one(float *a) { a[threadIdx.x] = cospif(a[0]); }\n'
    )
    made = []
    for path in (os.environ["PATH"], ""):
        monkeypatch.setenv("PATH", path)
        made.append(cuda_objects._compile(source, ["arch=compute_75,code=sm_75"], None, tmp_path, [])[0])
    assert made[0] == made[1]
