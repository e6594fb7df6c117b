"""Transposes of dynamic sizes: blocks, the width of positions, and the code that LLVM makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import tvm
from kiln.config import load_target
from kiln.kernels.cpu import transposed
from kiln.lower.pipeline import Lowering, lower
from kiln.tir import abi
from tvm.relax import op

from . import test_kernels_symbolic
from .lowered import runnable_alone
from .test_kernels_symbolic import CASES, _conv, build

# What `abi.lower` is called with: a kernel and TVM's description of the target.
Call = tuple[Any, Any]


def _transposes(monkeypatch: pytest.MonkeyPatch, name: str, variant: str, channels: int) -> Sequence[Call]:
    """The kernels for a target that write images channels last, into a tensor with a border."""
    monkeypatch.setattr(test_kernels_symbolic, "BOX", {"n": (32, 160), "m": (1, 4), "k": (32, 160)})
    calls: list[Call] = []
    lowered = abi.lower

    def on_lower(kernel: Any, target: Any) -> Any:
        calls.append((kernel, target))
        return lowered(kernel, target)

    monkeypatch.setattr(abi, "lower", on_lower)
    mod = build(
        [("m", channels, "n", "k")],
        lambda x: _conv(op.permute_dims(x, [0, 2, 3, 1]), 3, 3, channels, 16, padding=1),
    )
    lower(mod, Lowering("m", load_target(name).for_variant(variant), "pthread"))
    monkeypatch.setattr(abi, "lower", lowered)
    return [call for call in calls if call[0].wide_positions]


def test_transposes_of_dynamic_sizes_are_computed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    make = transposed.make
    monkeypatch.setattr(transposed, "make", lambda *given: made.append(given[0]) or make(*given))
    for name in ("channels last", "channels first", "two dynamic axes"):
        lower(build(*CASES[name]), Lowering("m", runnable_alone("x86_64"), "pthread"))
    assert [one.lanes for one in made] == [8, 8, 8]
    assert [len(one.nest.axes) for one in made] == [3, 3, 2]  # rows and columns of an image are one axis


@pytest.mark.parametrize(
    ("name", "variant", "bits"), [("x86_64", "v3", 64), ("aarch64", "base", 64), ("armv7", "base", 32)]
)
def test_positions_have_the_width_of_pointers(
    name: str, variant: str, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((kernel, target),) = _transposes(monkeypatch, name, variant, 24)
    text = abi.lower(kernel, target).func.script()
    assert f"T.let[T.int{bits}] = T.Div" in text
    assert f"T.let[T.int{96 - bits}] = T.Div" not in text


def test_divisions_are_not_repeated_for_each_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM 22's LoopStrengthReduce repeats divisions; once the last line fails, wide positions can go."""
    ((kernel, target),) = _transposes(monkeypatch, "x86_64", "v4", 128)

    def divisions(kernel: Any) -> int:
        func = abi.lower(kernel, target).func.with_attr("global_symbol", "k")
        built = tvm.get_global_func("target.build.llvm")(tvm.IRModule({"k": func}), target)
        mnemonics = [line.split()[0] for line in built.inspect_source("asm").splitlines() if line.split()]
        return sum("div" in mnemonic for mnemonic in mnemonics)

    assert divisions(kernel) <= 8  # two, each in 32 and in 64 bits, and those of the elements of short axes
    assert divisions(replace(kernel, wide_positions=False)) > 16
