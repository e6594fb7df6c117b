"""Every fused group of a shipped model computes what TVM's own unscheduled code for that group computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from kiln.graph.pipeline import simplify
from kiln.lower import pipeline
from kiln.lower.fused_steps import GroupLowering
from kiln.plan.lifetimes import root_of
from relaxed import PLAIN, loaded

from .lowered import Array, Compiled, Memory, runnable
from .models import imported

MODELS = ("resnet", "ppocr_cls", "blazeface")


class Recorder(GroupLowering):
    """Groups that note, for each fused group, its function, its tensors and the steps made from it."""

    last: Recorder

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.groups: list[tuple[str, tvm.tirx.PrimFunc, list[str], list[str], slice]] = []
        self.constants: dict[str, Array] = {}
        Recorder.last = self

    def add(self, func: Any, ops: Any, inputs: list[str], outputs: list[str]) -> None:
        params, begin = self.steps.params, len(self.steps.steps)
        self.constants |= {item: params[item] for item in inputs if item in params}
        super().add(func, ops, inputs, outputs)
        made = slice(begin, len(self.steps.steps))
        operators = " ".join(op["name"] for op in ops)
        self.groups.append((operators, func, inputs, outputs, made))


def _numbers(name: str, recorder: Recorder, shape: list[int], dtype: str, rng: np.random.Generator) -> Array:
    """Values for an input of a group: its own where it is a parameter, random ones otherwise."""
    if name in recorder.constants:
        return recorder.constants[name]
    if dtype.startswith("float"):
        return rng.uniform(-3, 3, shape).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)


def _compiled_by_tvm(funcs: list[tvm.tirx.PrimFunc]) -> Any:
    """Unscheduled code of all groups: the functions group0, group1, …"""
    named = {f"group{i}": func.with_attr("global_symbol", f"group{i}") for i, func in enumerate(funcs)}
    return loaded(tvm.compile(tvm.IRModule(named), target=PLAIN))


def _by_tvm(compiled: Any, func: tvm.tirx.PrimFunc, inputs: list[Array]) -> list[Array]:
    outputs = [
        tvm.runtime.tensor(np.zeros([int(size) for size in param.shape], str(param.dtype)))
        for param in func.params[len(inputs) :]
    ]
    compiled(*[tvm.runtime.tensor(np.ascontiguousarray(value)) for value in inputs], *outputs)
    return [output.numpy() for output in outputs]


class _Arena:
    """The bytes after each tensor of one group; views of one tensor share them."""

    def __init__(self, compiled: Compiled) -> None:
        self.compiled = compiled
        self.memory: dict[str, Memory] = {}

    def of(self, name: str) -> Memory:
        root = root_of(self.compiled.tensors, name)
        if root not in self.memory:
            self.memory[root] = Memory(self.compiled.tensors[root].bytes, 64)
            if root in self.compiled.result.params:
                value = np.ascontiguousarray(self.compiled.result.params[root])
                self.memory[root].bytes[:] = np.frombuffer(value.tobytes(), "uint8")
        return self.memory[root]

    def tensor(self, name: str, recorder: Recorder, shape: list[int], dtype: str) -> Array:
        """A window on a tensor: for a tensor inside a padded one, on its part of that."""
        view = recorder.steps.views.get(name)
        if view is None:
            return self.of(name).bytes.view(dtype).reshape(shape)
        whole = self.of(name).bytes.view(dtype).reshape([int(size) for size in view.parent_shape(shape)])
        return whole[tuple(slice(o, o + size) for o, size in zip(view.before, shape, strict=True))]


@pytest.mark.parametrize(
    "name", [MODELS[0], *(pytest.param(name, marks=pytest.mark.heavy) for name in MODELS[1:])]
)
def test_groups(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "GroupLowering", Recorder)
    module, _ = imported(name)
    compiled = Compiled(simplify(module), runnable("x86_64"), tmp_path).load()
    recorder = Recorder.last
    rng = np.random.default_rng(0)
    seen: dict[Any, Any] = {}  # one group of each function, and of each choice of tensors inside others
    for entry in recorder.groups:
        group, func, inputs, outputs, _ = entry
        views = tuple(n in recorder.steps.views for n in [*inputs, *outputs])
        if group != "copy":
            seen.setdefault((tvm_ffi.structural_hash(func), views), entry)
    by_tvm = _compiled_by_tvm([func for _, func, *_ in seen.values()])
    for index, (group, func, inputs, outputs, made) in enumerate(seen.values()):
        arena = _Arena(compiled)
        values = []
        for item, param in zip(inputs, func.params, strict=False):
            shape, dtype = [int(size) for size in param.shape], str(param.dtype)
            values.append(_numbers(item, recorder, shape, dtype, rng))
            if item not in recorder.constants:
                arena.tensor(item, recorder, shape, dtype)[...] = values[-1]
            elif item in compiled.tensors:
                arena.of(item)
        want = _by_tvm(by_tvm[f"group{index}"], func, values)
        for step in compiled.steps[made]:
            compiled.call(step, [arena.of(argument).pointer for argument in step.args], None)
        for output, expected in zip(outputs, want, strict=True):
            got = arena.tensor(output, recorder, list(expected.shape), str(expected.dtype))
            _agree(f"{name} {group} {[step.label for step in compiled.steps[made]]}", got, expected)
        for item in arena.memory.values():
            item.check(group)
    assert len(seen) >= 10


def _agree(what: str, got: Array, want: Array) -> None:
    error = np.abs(got.astype("f8") - want.astype("f8"))
    if want.dtype.kind in "iu":
        # a level, where the order of float arithmetic before the rounding decides
        assert error.max() <= 1, f"{what}: off by {error.max()}"
        assert (error > 0).mean() < 0.01, f"{what}: {(error > 0).mean():.1%} differ"
    else:
        scale = max(1.0, float(np.abs(want).max()))
        assert error.max() <= 2e-5 * scale, f"{what}: error {error.max():g}, scale {scale:g}"
