"""Partitioning: subgraphs that patterns match and those that they must not, and the partitioned module."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tvm
from kiln.byoc.backend import TargetFacts
from kiln.byoc.partition import MODULES, Partition, externals
from kiln.byoc.passes import ChosenBackends, Passes
from kiln.byoc.registry import check_folders, load, selected_backends
from kiln.config import load_target
from kiln.config.byoc import Byoc, read
from kiln.errors import KilnError
from kiln.lower.pipeline import Lowering, lower
from kiln.lower.schema import SizeArgument
from kiln.lower.steps import SIZE_PARAMETER
from relaxed import const, module
from tvm import relax, tirx

FACTS = TargetFacts("x86_64", "avx2", 4)
TARGET = load_target("x86_64").for_variant("v3")


def partition(mod: tvm.IRModule, **byoc: Any) -> tvm.IRModule:
    """The module partitioned for the backend openblas."""
    return Partition(FACTS, ChosenBackends(Byoc(backends=["openblas"], **byoc))).graph(load("openblas"))(mod)


def keys(mod: tvm.IRModule) -> list[str]:
    return sorted(about["key"] for about in externals(mod).values())


def operators(mod: tvm.IRModule) -> list[str]:
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    return [binding.value.op.name for binding in bindings if isinstance(binding.value, relax.Call)]


def dense(x: Any, rows: int = 8, columns: int = 4) -> Any:
    return relax.op.matmul(x, const(np.ones((rows, columns), "float32")))


BIAS = np.arange(4, dtype="float32")


def test_bias_residual_and_activation_are_taken_with_the_product() -> None:
    mod = module(
        [([2, 3, 8], "float32"), ([2, 3, 4], "float32")],
        lambda x, r: relax.op.nn.relu(relax.op.add(r, relax.op.add(dense(x), const(BIAS)))),
    )
    partitioned = partition(mod)
    assert operators(partitioned) == ["relax.call_dps_packed"]
    assert keys(partitioned) == ["dense 2x3x8 8x4 bias residual relu"]
    (symbol,) = externals(partitioned)
    (source,) = partitioned.attrs[MODULES]
    assert f"void {symbol}(" in source.inspect_source() and "SYMBOL" not in source.inspect_source()


def test_what_something_else_reads_too_is_not_swallowed() -> None:
    def graph(x: Any, builder: relax.BlockBuilder) -> Any:
        product = builder.emit(dense(x))
        return builder.emit(relax.op.multiply(relax.op.nn.relu(product), product))

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([2, 8], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            output = builder.emit_output(graph(x, builder))
        builder.emit_func_output(output)
    partitioned = partition(builder.get())
    assert keys(partitioned) == ["dense 2x8 8x4"]
    assert operators(partitioned) == ["relax.call_dps_packed", "relax.nn.relu", "relax.multiply"]


@pytest.mark.parametrize("shape", [[4, 4], [1, 4], [4, 1]])
def test_only_a_tensor_of_the_outputs_shape_is_a_residual(shape: list[int]) -> None:
    mod = module([([4, 8], "float32"), (shape, "float32")], lambda x, r: relax.op.add(dense(x), r))
    assert keys(partition(mod)) == ["dense 4x8 8x4" + " residual" * (shape == [4, 4])]


def test_a_clip_is_taken_with_its_limits() -> None:
    mod = module(
        [([4, 8], "float32")],
        lambda x: relax.op.maximum(relax.op.minimum(dense(x), const(6.0)), const(-1.5)),
    )
    partitioned = partition(mod)
    (about,) = externals(partitioned).values()
    assert about["key"] == "dense 4x8 8x4 clip"
    assert "-1.5f" in about["source"] and "6.0f" in about["source"]


def test_a_convolution_that_is_no_product_stays() -> None:
    weights = np.ones((3, 3, 8, 4), "float32")
    mod = module(
        [([1, 6, 6, 8], "float32")],
        lambda x: relax.op.nn.conv2d(x, const(weights), data_layout="NHWC", kernel_layout="HWIO"),
    )
    assert operators(partition(mod)) == ["relax.nn.conv2d"]


def test_globs_steer() -> None:
    def mod() -> tvm.IRModule:
        return module([([2, 8], "float32")], lambda x: dense(relax.op.nn.relu(dense(x, 8, 8))))

    assert keys(partition(mod())) == ["dense 2x8 8x4", "dense 2x8 8x8 relu"]
    assert keys(partition(mod(), take=["dense *x8 relu"])) == ["dense 2x8 8x8 relu"]
    assert keys(partition(mod(), leave=["openblas dense* relu"])) == ["dense 2x8 8x4"]


def test_a_second_run_finds_nothing_and_keeps_what_there_is() -> None:
    partitioned = partition(module([([2, 8], "float32")], dense))
    again = partition(partitioned)
    assert externals(again) == externals(partitioned) and len(again.attrs[MODULES]) == 1


def test_dynamic_sizes_reach_the_call() -> None:
    size = tirx.Var("n", "int64")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([2, size, 8], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            output = builder.emit_output(dense(x))
        builder.emit_func_output(output)
    dims = {"n": {"dim": "seq", "divide": 1, "min": 1, "max": 64}}
    mod = builder.get()
    mod["main"] = mod["main"].with_attr("kiln.dims", json.dumps(dims))
    steps = lower(mod, Lowering("m", TARGET, "pthread", external=passes()))
    (step,) = steps.steps
    assert step.args[-1] == SizeArgument(dim=["*", "seq", 2]) and "seq" in json.dumps(step.extent)
    assert steps.kernels[0].args[-1] == SIZE_PARAMETER
    assert "int32_t rows" in steps.kernels[0].external.source


def passes(name: str = "openblas", **byoc: Any) -> Passes:
    return Passes([load(name)], Partition(FACTS, ChosenBackends(Byoc(backends=[name], **byoc))))


def test_a_call_is_a_step_like_any_other() -> None:
    mod = module(
        [([2, 8], "float32"), ([2, 4], "float32")],
        lambda x, r: relax.op.exp(relax.op.add(relax.op.add(dense(x), const(BIAS)), r)),
    )
    steps = lower(mod, Lowering("m", TARGET, "none", external=passes()))
    call, rest = steps.steps
    assert call.kernel.startswith("kilnx_openblas_dense_") and rest.kernel.startswith("kilnk_")
    assert call.macs == 2 * 4 * 8 and call.label == "matmul+add+add"
    # The residual's memory may become the output's: each element is read before it is written.
    assert call.in_place == [call.args[3]]
    assert call.args[-1] == rest.args[0]
    assert [op.name for op in steps.kernels[0].ops] == ["matmul", "add", "add"]


def test_what_is_fused_is_found_by_its_op_info() -> None:
    """After fusion a backend sees op info and tensors only; it finds the same as in the graph before."""

    class After(Passes):
        def before(self) -> list[Any]:
            return []

    mod = module(
        [([2, 8], "float32"), ([2, 4], "float32")],
        lambda x, r: relax.op.nn.relu(relax.op.add(relax.op.add(dense(x), const(BIAS)), r)),
    )
    found = lower(mod, Lowering("m", TARGET, "none", external=After([load("openblas")], Partition(FACTS))))
    before = lower(mod, Lowering("m", TARGET, "none", external=passes()))
    assert [step.kernel for step in found.steps] == [step.kernel for step in before.steps]
    assert found.kernels[0].external.key == "dense 2x8 8x4 bias residual relu"


@pytest.mark.parametrize(
    ("text", "backends"), [("none", []), ("openblas", ["openblas"]), ("a, b", ["a", "b"])]
)
def test_the_short_form(text: str, backends: list[str]) -> None:
    byoc = Byoc.model_validate(read(text))
    assert byoc.backends == backends and byoc.is_used == bool(backends)


def test_unknown_backends_are_named() -> None:
    with pytest.raises(KilnError, match=r"byoc: unknown backend 'openblass'; did you mean 'openblas'\?"):
        selected_backends(Byoc(backends=["openblass"]), TARGET)


def test_the_folder_of_an_unknown_backend() -> None:
    named = load_target("x86_64").model_copy(update={"libraries": {"openblas": "/a", "openblass": "/b"}})
    with pytest.raises(
        KilnError, match=r"key 'libraries\.openblass': unknown backend 'openblass'; did you mean 'openblas'"
    ):
        check_folders(named)


def test_the_folder_of_a_backend_that_the_target_cannot_have() -> None:
    board = load_target("cortex_m4").model_copy(update={"libraries": {"openblas": "/a"}})
    with pytest.raises(
        KilnError, match=r"key 'libraries\.openblas': remove it: byoc: backend 'openblas' for"
    ):
        check_folders(board)
