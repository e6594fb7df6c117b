"""Kernels made of CUTLASS's parts: what they compute, run on the CPU, and machine code for each architecture.

Of float32 and float16 the path of the oldest GPUs runs here; the loops of newer ones, which copy to shared
memory asynchronously, run with bf16 and tf32, which have no others.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tvm
from kiln.byoc.backend import TargetFacts
from kiln.byoc.partition import Partition
from kiln.byoc.passes import ChosenBackends, Passes
from kiln.byoc.registry import load, selected_backends
from kiln.config import load_target, sizes
from kiln.config.byoc import Byoc
from kiln.config.target import Cuda
from kiln.emit.cuda_objects import external_kernels, image_of, source_of
from kiln.errors import KilnError
from kiln.lower.pipeline import Lowering, lower
from kiln.lower.steps import Steps
from kiln.plan.schema import Plan
from plans import plan_of
from relaxed import const, module, rounded_to_tf32, run_by_tvm
from tvm import relax, tirx

from . import double
from .graphs import clip, few_bits, with_inputs_alone
from .launched import run_kernel
from .test_cuda_kernels import ARCHS, images_of

Array = npt.NDArray[Any]
TARGET = load_target("cuda_sm90")
RANDOM = np.random.default_rng(11)


_weights = partial(few_bits, RANDOM)


def _dense(x: Any, depth: int, columns: int) -> Any:
    return relax.op.add(relax.op.matmul(x, const(_weights(depth, columns))), const(_weights(columns)))


def _conv(x: Any, *shape: int, **attributes: Any) -> Any:
    return relax.op.nn.conv2d(
        x, const(_weights(*shape)), data_layout="NHWC", kernel_layout="HWIO", **attributes
    )


# name → (shapes of the inputs, the graph, key of the one part that CUTLASS gets)
CASES: dict[str, tuple[list[list[int]], Callable[..., Any], str]] = {
    "dense": (
        [[2, 70, 45], [2, 70, 33]],
        lambda x, r: relax.op.nn.relu(relax.op.add(_dense(x, 45, 33), r)),
        "dense 2x70x45 45x33 bias residual relu",
    ),
    "bare": (
        [[2000, 12]],
        lambda x: relax.op.matmul(x, const(_weights(12, 700))),
        "dense 2000x12 12x700",
    ),
    "batched": ([[3, 9, 20], [3, 20, 40]], relax.op.matmul, "matmul 3x9x20 3x20x40"),
    "strided": (
        [[2, 13, 11, 5]],
        lambda x: clip(
            relax.op.add(_conv(x, 3, 2, 5, 37, strides=[2, 1], padding=[1, 0, 0, 1]), const(_weights(37))),
            -1.5,
            6.0,
        ),
        "conv2d 2x13x11x5 3x2x5x37 p1x0x0x1 s2x1 bias clip",
    ),
    "dilated": (
        [[1, 16, 16, 64], [1, 12, 12, 48]],
        lambda x, r: relax.op.add(_conv(x, 3, 3, 64, 48, dilation=[2, 2]), r),
        "conv2d 1x16x16x64 3x3x64x48 d2x2 residual",
    ),
    "pointwise": ([[1, 7, 7, 33]], lambda x: _conv(x, 1, 1, 33, 66), "conv2d 1x7x7x33 1x1x33x66"),
}


# The same with tensor cores: their tiles need a depth that is even.
HALVES: dict[str, tuple[list[list[int]], Callable[..., Any], str]] = {
    "half_dense": (
        [[2, 70, 42], [2, 70, 36]],
        lambda x, r: relax.op.nn.relu(relax.op.add(_dense(x, 42, 36), r)),
        "dense 2x70x42 42x36 bias residual relu",
    ),
    "half_batched": ([[3, 9, 24], [3, 24, 40]], relax.op.matmul, "matmul 3x9x24 3x24x40"),
    "half_conv": (
        [[2, 13, 11, 4]],
        lambda x: clip(
            relax.op.add(_conv(x, 3, 2, 4, 37, strides=[2, 1], padding=[1, 0, 0, 1]), const(_weights(37))),
            -1.5,
            6.0,
        ),
        "conv2d 2x13x11x4 3x2x4x37 p1x0x0x1 s2x1 bias clip",
    ),
}


BOTH = {**CASES, **HALVES}
TENSORS = [
    *((precision, name) for precision in ("fp16", "bf16", "tf32") for name in HALVES),
    ("tf32", "pointwise"),  # floats are loaded one by one, too
]
# Pairs whose type is multiplied in another test of the gate, and whose form is too, with another type.
HEAVY = [("bf16", "half_batched"), ("bf16", "half_conv"), ("tf32", "half_dense")]


def _passes(precision: str = "fp32") -> Passes:
    facts = TargetFacts("x86_64", "avx2", 1, 90, precision)
    return Passes([load("cutlass")], Partition(facts, ChosenBackends(Byoc())))


def _open_rows() -> tvm.IRModule:
    """A dense layer and a convolution over n images, 1 to 20."""
    size = tirx.Var("n", "int64")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([size, 6, 5, 8], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            inner = builder.emit(relax.op.nn.relu(_conv(x, 3, 3, 8, 24, padding=[1, 1, 1, 1])))
            output = builder.emit_output(builder.emit(_dense(inner, 24, 40)))
        builder.emit_func_output(output)
    mod = builder.get()
    dims = {"n": {"dim": "n", "divide": 1, "min": 1, "max": 20}}
    mod["main"] = mod["main"].with_attr("kiln.dims", json.dumps(dims)).with_attr("num_input", 1)
    return mod


LoweredModules = tuple[
    dict[str, tvm.IRModule], dict[str, Steps], Any
]  # modules, the steps of each, all their kernels


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> LoweredModules:
    """The modules that the gate tests."""
    mods = {name: _module(name) for name in CASES}
    tensors = [pair for pair in TENSORS if pair not in HEAVY]
    mods |= {f"{precision}_{name}": _module(name) for precision, name in tensors}
    mods["open"] = _open_rows()
    mods["chain"] = module(
        [([16, 64], "float32")],
        lambda x: relax.op.nn.relu(_dense(relax.op.nn.relu(_dense(x, 64, 48)), 48, 24)),
    )
    precisions = {f"{precision}_{name}": precision for precision, name in tensors} | {"chain": "fp16"}
    return _made(mods, precisions, tmp_path_factory.mktemp("cutlass"))


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> LoweredModules:
    """The modules of the pairs in HEAVY."""
    mods = {f"{precision}_{name}": _module(name) for precision, name in HEAVY}
    precisions = {f"{precision}_{name}": precision for precision, name in HEAVY}
    return _made(mods, precisions, tmp_path_factory.mktemp("rest"))


def _module(name: str) -> tvm.IRModule:
    shapes, graph, _ = BOTH[name]
    return module([(shape, "float32") for shape in shapes], graph)


def _made(mods: dict[str, tvm.IRModule], precisions: dict[str, str], folder: Path) -> LoweredModules:
    steps = {}
    for name, mod in mods.items():
        precision = precisions.get(name, "fp32")
        passes = _passes(precision)
        steps[name] = lower(
            with_inputs_alone(mod), Lowering("m", TARGET, "none", external=passes, precision=precision)
        )
    plan = _plan(steps)
    text, _ = external_kernels(plan)
    functions = {name: func for one in steps.values() for name, func in one.functions.items()}
    own_source = source_of(functions, Cuda(archs=ARCHS, ptx=False)) if functions else ""
    library = double.kernels_on_cpu(own_source, plan.model_dump(), folder / "kernels.so", external=text)
    return mods, steps, ctypes.CDLL(str(library))


def _plan(steps: dict[str, Steps]) -> Plan:
    kernels = {kernel.symbol: kernel.model_dump() for one in steps.values() for kernel in one.kernels}
    launched = [
        {"kernel": step.kernel, "label": step.label, "args": [], "launch": step.launch}
        for one in steps.values()
        for step in one.steps
    ]
    return plan_of(kernels=list(kernels.values()), buckets=[{"steps": launched}])


def _aligned(array: Array) -> Array:
    """A copy of `array` at a multiple of 64 bytes, as tensors of a session; NumPy aligns to 16 bytes."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    first = -memory.ctypes.data % 64
    out = memory[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out


def _run(library: Any, steps: Steps, inputs: list[Array], dims: dict[str, int]) -> Array:
    """The one output, after all steps have run."""
    tensors = {**steps.params, **dict(zip(steps.inputs, inputs, strict=True))}
    values = {name: _aligned(array) for name, array in tensors.items()}
    for name, tensor in steps.tensors.items():
        shape = [sizes.evaluate(size, dims) for size in tensor.shape]
        if tensor.alias is not None and tensor.alias in values:
            values[name] = values[tensor.alias].reshape(shape)
        if name not in values:
            values[name] = _aligned(np.full(shape, np.nan, tensor.dtype))
    for step in steps.steps:
        words = [
            values[arg].ctypes.data if isinstance(arg, str) else sizes.evaluate(arg.dim, dims)
            for arg in step.args
        ]
        grid = [sizes.evaluate(extent, dims) for extent in step.launch.grid]
        run_kernel(getattr(library, f"{step.kernel}_on_cpu"), grid, step.launch.block, words)
    return values[steps.outputs[0]]


@pytest.mark.heavy
@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("order", ["0", "1"])
def test_a_kernel_computes_what_the_graph_says(
    made: Any, monkeypatch: pytest.MonkeyPatch, name: str, order: str
) -> None:
    monkeypatch.setenv("KILN_CUDA_REVERSED", order)
    mods, steps, library = made
    inputs = [RANDOM.standard_normal(shape, np.float32) for shape in CASES[name][0]]
    assert [kernel.external.key for kernel in steps[name].kernels] == [CASES[name][2]]
    (want,) = run_by_tvm(mods[name], inputs)
    np.testing.assert_allclose(_run(library, steps[name], inputs, {}), want, rtol=1e-4, atol=1e-4)


@pytest.mark.heavy
@pytest.mark.parametrize(("precision", "name"), TENSORS)
def test_tensor_cores_multiply_what_the_type_holds(
    request: pytest.FixtureRequest, precision: str, name: str
) -> None:
    """Sums of exact products, in float32, rounded once: the error is that of a number of this type."""
    mods, steps, library = request.getfixturevalue("rest" if (precision, name) in HEAVY else "made")
    inputs = [_weights(*shape) for shape in BOTH[name][0]]
    case = f"{precision}_{name}"
    assert BOTH[name][2] in [k.external.key for k in steps[case].kernels if k.external is not None]
    (want,) = run_by_tvm(mods[case], inputs)
    unit = {"fp16": 1e-3, "bf16": 8e-3, "tf32": 1e-5}[precision]
    np.testing.assert_allclose(_run(library, steps[case], inputs, {}), want, rtol=unit, atol=1e-4)


@pytest.mark.heavy
def test_tf32_is_rounded_to_nearest(made: Any) -> None:
    """Not cut off, which would cost another bit."""
    mods, steps, library = made
    name = "half_batched"
    inputs = [RANDOM.standard_normal(shape, np.float32) for shape in HALVES[name][0]]
    (want,) = run_by_tvm(mods[f"tf32_{name}"], [rounded_to_tf32(value) for value in inputs])
    got = _run(library, steps[f"tf32_{name}"], inputs, {})
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    (exact,) = run_by_tvm(mods[f"tf32_{name}"], inputs)
    assert np.abs(got - exact).max() > 1e-4


@pytest.mark.heavy
def test_between_two_products_nothing_is_converted(made: Any) -> None:
    mods, steps, library = made
    labels = [step.label.split("+")[0] for step in steps["chain"].steps]
    assert labels == ["astype", "matmul", "matmul", "astype"]
    x = _weights(16, 64)
    (want,) = run_by_tvm(mods["chain"], [x])
    np.testing.assert_allclose(_run(library, steps["chain"], [x], {}), want, rtol=5e-3, atol=5e-2)


@pytest.mark.heavy
@pytest.mark.parametrize("count", [1, 3, 20])
def test_dynamic_sizes(made: Any, count: int) -> None:
    mods, steps, library = made
    assert len(steps["open"].steps) == 2
    x = RANDOM.standard_normal((count, 6, 5, 8), np.float32)
    (want,) = run_by_tvm(mods["open"], [x])
    np.testing.assert_allclose(_run(library, steps["open"], [x], {"n": count}), want, rtol=1e-4, atol=1e-4)


@pytest.mark.heavy
def test_machine_code_for_every_architecture(made: Any, tmp_path: Path) -> None:
    """ptxas accepts a product and a convolution, of floats and of halves."""
    _, steps, _ = made
    names = ("dense", "fp16_half_conv")
    text, include = external_kernels(_plan({name: steps[name] for name in names}))
    image = image_of(text, Cuda(archs=ARCHS, ptx=False), tmp_path, include)[0]
    assert images_of(image) == [(2, 75), (2, 87), (2, 90)]


@pytest.mark.heavy
def test_machine_code_of_what_newer_gpus_multiply(made: Any, rest: Any, tmp_path: Path) -> None:
    steps = {**made[1], **rest[1]}
    names = [f"{precision}_{name}" for precision, name in TENSORS if precision != "fp16"]
    names += ["dilated", "fp16_half_dense"]
    text, include = external_kernels(_plan({name: steps[name] for name in names}))
    image = image_of(text, Cuda(archs=["sm_80", "sm_87", "sm_90"], ptx=False), tmp_path, include)[0]
    assert images_of(image) == [(2, 80), (2, 87), (2, 90)]


@pytest.mark.parametrize(
    ("shape", "graph"),
    [
        ([4, 45], lambda x: _dense(x, 45, 33)),
        ([1, 16, 16, 8], lambda x: _conv(x, 3, 3, 1, 8, groups=8)),
        ([1, 40, 40, 8], lambda x: _conv(x, 33, 1, 8, 8)),
    ],
    ids=["few rows", "groups", "a large filter"],
)
def test_what_is_left(shape: list[int], graph: Any) -> None:
    steps = lower(
        with_inputs_alone(module([(shape, "float32")], graph)),
        Lowering("m", TARGET, "none", external=_passes()),
    )
    assert not any(kernel.external is not None for kernel in steps.kernels)


def test_backends_are_for_where_they_compute() -> None:
    with pytest.raises(KilnError, match="it computes on a CPU, the target's kernels run on a GPU"):
        selected_backends(Byoc(backends=["openblas"]), TARGET)
    with pytest.raises(KilnError, match="it computes on an NVIDIA GPU, the target's kernels run on a CPU"):
        selected_backends(Byoc(backends=["cutlass"]), load_target("x86_64"))
