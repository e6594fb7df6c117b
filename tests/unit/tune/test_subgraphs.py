"""Subgraphs that libraries could compute: the search for them, and their timing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from kiln.byoc.passes import ChosenBackends
from kiln.byoc.registry import load, names
from kiln.config import load_target
from kiln.config.byoc import Byoc, read
from kiln.errors import KilnError
from kiln.lower.pipeline import Lowering, lower
from kiln.tune import subgraphs
from kiln.tune.subgraphs import Subgraph, SubgraphSubject, passes_for
from relaxed import const, module
from tvm import relax, tirx

TARGET = load_target("x86_64").for_variant("v3")


def found(
    mod: tvm.IRModule, monkeypatch: pytest.MonkeyPatch, *names: str, **byoc: Any
) -> dict[str, Subgraph]:
    class Case:
        module = mod

    monkeypatch.setattr(subgraphs, "cases_of", lambda _module: [Case()])
    monkeypatch.setattr(subgraphs.store, "load", lambda _path: mod)
    backends = [load(name) for name in names]
    chosen = ChosenBackends(Byoc(backends=list(names), **byoc))
    return subgraphs.subgraphs_of([Path("any")], backends, TARGET, "pthread", chosen)


def convolutions(x: Any) -> Any:
    """Twice the same 3x3 convolution of 6 channels, padded, with bias and ReLU; then one of 1x1 alone."""
    for _ in range(2):
        x = relax.op.nn.conv2d(
            x,
            const(np.ones((3, 3, 6, 6), "float32")),
            padding=(1, 1, 1, 1),
            data_layout="NHWC",
            kernel_layout="HWIO",
        )
        x = relax.op.nn.relu(relax.op.add(x, const(np.ones(6, "float32"))))
    return relax.op.nn.conv2d(
        x, const(np.ones((1, 1, 6, 4), "float32")), data_layout="NHWC", kernel_layout="HWIO"
    )


def test_equal_parts_are_one_with_all_backends_that_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = module([([1, 8, 8, 6], "float32")], convolutions)
    entries = found(mod, monkeypatch, "openblas", "xnnpack").values()
    assert {part.key: (part.count, [b.name for b in part.backends]) for part in entries} == {
        "conv2d 1x8x8x6 3x3x6x6 p1x1x1x1 bias relu": (2, ["xnnpack"]),
        "conv2d 1x8x8x6 1x1x6x4": (1, ["openblas", "xnnpack"]),
    }
    assert list(found(mod, monkeypatch, "xnnpack", leave=["* relu"])) == ["conv2d 1x8x8x6 1x1x6x4"]


def test_what_is_not_there_in_a_network_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = module([([1, 8, 8, 6], "float32")], convolutions)
    part = next(part for key, part in found(mod, monkeypatch, "xnnpack").items() if "3x3" in key)
    own = lower(part.module, Lowering("own", TARGET, "pthread"))
    assert "pad" in [step.label for step in own.steps]
    external = lower(
        part.module,
        Lowering("lib", TARGET, "pthread", external=passes_for(load("xnnpack"), TARGET, "pthread")),
    )
    assert [step.label for step in external.steps] == ["copy", "conv2d+add+relu"]
    for steps, backend in ((own, None), (external, "xnnpack")):
        subject = SubgraphSubject("s0", part.key, steps, backend)
        assert not any("pad" in call.symbol or "copy" in call.symbol for call in subject.calls)
        kinds = [memory.kind for memory in subject.memory]
        assert kinds.count("OUTPUT") == kinds.count("WEIGHTS") == 1 and "INPUT" in kinds
        read = {place for call in subject.calls for place in call.arguments}
        assert all(
            subject.memory[place].kind != "SCRATCH" for call in subject.opened for place in call.arguments
        )
        assert {kinds[place] for place in read} >= {"INPUT", "OUTPUT", "WEIGHTS"}
    (opened,) = subject.opened
    assert opened.symbol == subject.calls[0].symbol + "_open"
    (code,) = subject.externals.values()
    assert f"int32_t {opened.symbol}(" in code.source


def test_dynamic_sizes_are_timed_at_their_greatest(monkeypatch: pytest.MonkeyPatch) -> None:
    size = tirx.Var("n", "int64")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([2, size * 2, 8], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            output = builder.emit_output(relax.op.matmul(x, const(np.ones((8, 4), "float32"))))
        builder.emit_func_output(output)
    dims = {"n": {"dim": "seq", "divide": 1, "min": 1, "max": 64}}
    mod = builder.get()
    mod["main"] = mod["main"].with_attr("kiln.dims", json.dumps(dims))
    (part,) = found(mod, monkeypatch, "xnnpack").values()
    (param,) = part.module["main"].params
    assert [int(extent) for extent in param.ty.shape] == [2, 128, 8]


def test_auto_in_the_configuration() -> None:
    from kiln.byoc.registry import selected_backends

    auto = Byoc.model_validate(read("auto"))
    assert (
        auto.auto
        and not auto.named
        and {"openblas", "xnnpack"} <= {b.name for b in selected_backends(auto, TARGET)}
    )
    named = Byoc.model_validate(read("auto, xnnpack"))
    assert named.auto and [backend.name for backend in selected_backends(named, TARGET)] == ["xnnpack"]
    with pytest.raises(KilnError, match="backend 'xnnpack' for target 'armv7': it supports x86_64, aarch64"):
        selected_backends(named, load_target("armv7"))


def test_auto_says_why_it_asks_nobody() -> None:
    """On GPUs only backends are measured whose kernels are part of the bundle."""
    from kiln.byoc.registry import reason_for_no_backend, selected_backends

    gpu, auto, named = load_target("cuda"), *(Byoc.model_validate(read(x)) for x in ("auto", "auto,cublas"))
    assert [backend.name for backend in selected_backends(auto, gpu)] == ["cutlass"]
    assert [backend.name for backend in selected_backends(auto, load_target("cuda_sm90"))] == [
        "triton",
        "cutlass",
    ]
    with pytest.raises(KilnError, match=r"a library of the device.*byoc=cublas uses it"):
        selected_backends(named, gpu)
    with pytest.raises(KilnError, match="backend 'openblas' for target 'cuda'"):
        selected_backends(Byoc.model_validate(read("auto,openblas")), gpu)
    absent = {"onednn": "byoc: backend 'onednn' for target 'x86_64': no room", "xnnpack": "no wheel"}
    assert reason_for_no_backend(TARGET, absent).endswith("everything: onednn: no room; xnnpack: no wheel")
    bare = TARGET.model_copy(update={"name": "bare", "arch": "riscv64"})
    assert reason_for_no_backend(bare, {}).endswith(f"no backend supports it, known: {', '.join(names())}")
