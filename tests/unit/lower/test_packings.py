"""Forms of weights: chosen for all buckets together, within the target's limit for each weight."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tvm
from kiln.config import Target, load_target
from kiln.config.boxes import Box
from kiln.config.interface import Interface
from kiln.config.slice_records import LowerConfig, PlanConfig
from kiln.kernels.cpu.convolution import Convolution
from kiln.kernels.cpu.winograd_cost import DIRECT, relative_time
from kiln.lower.cases import Case
from kiln.lower.packings import Use, limits, uses_of
from kiln.lower.packings_stage import packings_of
from kiln.lower.pipeline import Lowering, lower, machine_of
from kiln.lower.schema import LoweredBucket
from kiln.params import store
from kiln.plan.stage import LowerResult, make_plan
from kiln.tir.symbols import SymbolRanges
from relaxed import const, module
from tvm import relax

op = relax.op
RNG = np.random.default_rng(0)
KERNEL = RNG.standard_normal((3, 3, 48, 48)).astype("float32")  # 48 is a multiple of every panel's width
POINTS = RNG.standard_normal((1, 1, 48, 48)).astype("float32")
DENSE = RNG.standard_normal((48, 96)).astype("float32")
SIZES = (2, 4, 7, 28)
NHWC = {"data_layout": "NHWC", "kernel_layout": "HWIO"}


def network(size: int) -> tvm.IRModule:
    """Two convolutions and a dense layer, on pictures of size x size."""

    def body(x: Any) -> Any:
        first = op.nn.relu(op.nn.conv2d(x, const(KERNEL), padding=[1, 1, 1, 1], **NHWC))
        second = op.nn.conv2d(first, const(POINTS), **NHWC)
        return op.matmul(op.mean(second, [1, 2]), const(DENSE))

    mod = module([((1, size, size, 48), "float32")], body)
    mod["main"] = mod["main"].with_attr("num_input", 1)
    return mod


def stored(target: Target, packings: dict[str, list[int]] | None) -> dict[int, int]:
    """By bytes of a weight, the bytes of all its forms that a plan of four buckets stores."""
    lowered = []
    for size in SIZES:
        mod = network(size)
        steps = lower(mod, Lowering("m", target, "none", winograd="auto", packings=packings))
        _, values = store.split(mod)
        lifted = {name: {"bytes": v.nbytes, "sha256": store.digest(v)} for name, v in values.items()}
        case = {"name": "", "params": "0/", "when": None, "lifted": lifted, **dict(steps.record())}
        params = {f"0/{name}": value for name, value in steps.params.items()}
        bucket = {"cases": [case], "threads": "none", "variants": [{"name": "base"}]}
        lowered.append(LowerResult(LoweredBucket.model_validate(bucket), params))
    buckets = [Box(name=f"n{size}", dims={}) for size in SIZES]
    port = {"name": "x", "c_name": "x", "dtype": "float32", "shape": [1]}
    interface = Interface.model_validate({"inputs": [port], "outputs": [port]})
    plan, _ = make_plan(lowered, buckets, interface, PlanConfig(name="m"), target)
    found: dict[int, int] = {}
    for tensor in plan.params.tensors:
        if tensor.bytes_before:
            found[tensor.bytes_before] = found.get(tensor.bytes_before, 0) + tensor.bytes
    several = {row.bytes_before: row.bytes_after for row in plan.params.lifted.several}
    assert all(found[before] == after for before, after in several.items())
    return found


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["x86_64", "aarch64"])
def test_no_weight_grows_beyond_the_limit_over_all_buckets(name: str) -> None:
    target = load_target(name)
    cases = [Case(str(size), network(size)) for size in SIZES]
    chosen = packings_of(cases, LowerConfig(name="m", threads="none"), target)
    assert list(chosen) == [store.digest(KERNEL)]
    alone, together = stored(target, None), stored(target, chosen)
    assert alone[KERNEL.nbytes] > target.weight_growth * KERNEL.nbytes
    for weight in (KERNEL, POINTS, DENSE):
        assert together[weight.nbytes] <= target.weight_growth * weight.nbytes
    assert together[POINTS.nbytes] == POINTS.nbytes and together[DENSE.nbytes] == DENSE.nbytes


def test_one_bucket_is_free() -> None:
    for name in ("x86_64", "aarch64"):
        target = load_target(name)
        machine = machine_of(target, "none", "auto")
        for size in SIZES:
            assert limits([network(size)], "m", machine) == {}
        assert limits([network(28)] * 4, "m", machine) == {}


@pytest.mark.parametrize(
    ("policy", "growth", "expected"),
    [
        ("off", 1.0, None),  # all are direct
        ("f4", 4.0, None),  # all are what the model says
        ("f2", 1.0, None),  # not allowed at all
        ("auto", 1.8, {DIRECT, 2}),
        ("auto", 3.0, None),
        ("auto", 4.0, {DIRECT, 2, 4}),
        ("auto", 100.0, None),
    ],
)
def test_policies_and_limits(policy: Any, growth: float, expected: set[int] | None) -> None:
    machine = machine_of(load_target("x86_64").for_variant("v3"), "none", policy)
    machine = dataclasses.replace(machine, weight_growth=growth)
    limit_of_size = limits([network(size) for size in SIZES], "m", machine)
    assert set(limit_of_size) == (set() if expected is None else {store.digest(KERNEL)})
    for forms in limit_of_size.values():
        size = sum({DIRECT: 1.0, 2: 16 / 9, 4: 4.0}[form] for form in forms)
        assert expected is not None and set(forms) <= expected and size <= growth


def _dynamic_use(stride: int) -> Use:
    """A convolution of 48 channels, 1 to 31 rows of 8 pixels."""
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType([1, n, 8, 48], "float32"))
    builder = relax.BlockBuilder()
    dims = '{"n": {"dim": "n", "divide": 1, "min": 1, "max": 31}}'
    with builder.function("main", [x], attrs={"num_input": 1, "kiln.dims": dims}):
        with builder.dataflow():
            conv = op.nn.conv2d(x, const(KERNEL), padding=[1, 1, 1, 1], strides=[stride, stride], **NHWC)
            builder_result = builder.emit_output(conv)
        builder.emit_func_output(builder_result)
    (use,) = uses_of(builder.get(), "m")
    return use


def test_sizes_of_uses_are_the_greatest() -> None:
    use = _dynamic_use(2)
    assert use.is_dynamic and not use.can_transform
    assert (use.conv.height, use.conv.out_h, use.conv.rows) == (33, 16, 64)


def test_the_form_of_a_dynamic_convolution_is_that_of_its_kernel() -> None:
    """Kernels choose it from symbols, this pass from numbers: the same three sizes of an image."""
    use = _dynamic_use(1)
    assert use.can_transform
    assert [conv.out_h for conv in use.samples] == [1, 6, 31]
    n = tvm.tirx.Var("n", "int64")
    attrs = {"strides": [1, 1], "dilation": [1, 1], "groups": 1}
    conv = Convolution.of_sizes([1, n + 2, 10, 48], [3, 3, 48, 48], [1, n, 8, 48], attrs)
    conv.ranges = SymbolRanges({n: (1, 31)})
    machine = machine_of(load_target("x86_64"), "none", "auto")
    samples = [(sample, sample.ranges) for sample in use.samples]
    for m in (2, 4):
        expected = relative_time([(conv, point) for point in conv.ranges.points()], m, machine)
        assert relative_time(samples, m, machine) == pytest.approx(expected)
