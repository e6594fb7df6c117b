"""Kernels lowered in forks: the files are the same as without, and no error is lost."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pytest
from kiln import forks, limits
from kiln.config import canonical_json, load_target, target_config
from kiln.emit.objects import compile_object
from kiln.kernels.families import GroupKernel
from kiln.lower import lowered_kernels
from kiln.lower.llvm_target import tvm_target
from kiln.lower.lowered_kernels import KernelPlan
from kiln.lower.pipeline import machine_of
from kiln.lower.step_kernels import Build
from kiln.params import store
from kiln.tir.builder import Kernel
from relaxed import const, module
from tvm import relax, te, topi
from tvm_ffi import structural_hash

CONFIG = {"name": "net", "winograd": "off"}


def network(x: Any) -> Any:
    """Two pairs of equal layers, one more, and a concat in place: some steps share kernels."""
    generator = np.random.default_rng(0)
    for _ in range(2):
        weight = const(generator.standard_normal((8, 8, 3, 3)))
        x = relax.op.nn.relu(
            relax.op.nn.conv2d(x, weight, padding=1, data_layout="NHWC", kernel_layout="OIHW")
        )
        x = relax.op.tanh(relax.op.nn.max_pool2d(x, pool_size=3, strides=1, padding=1, layout="NHWC"))
    return relax.op.concat([relax.op.nn.softmax(x), relax.op.exp(x)], axis=-1)


@pytest.mark.parametrize("target", ["x86_64", "cortex_m4"])
def test_forks_make_the_same_files(tmp_path: Path, target: str) -> None:
    """The `lower` stage writes the same bytes with one process and with three."""
    store.save(module([((1, 12, 12, 8), "float32")], network), tmp_path)
    (tmp_path / "interface.json").write_text("{}")
    (tmp_path / "target.json").write_text(canonical_json(target_config(load_target(target))))
    (tmp_path / "lower.json").write_text(json.dumps(CONFIG))
    results = []
    for jobs in ("1", "3"):
        out = tmp_path / f"jobs{jobs}"
        words = ["lower", "--in", str(tmp_path), "--target", str(tmp_path / "target.json")]
        words += ["--config", str(tmp_path / "lower.json"), "--out", str(out)]
        done = forked.run_stage(words, tmp_path, {**os.environ, limits.JOBS: jobs})
        assert (done.returncode, done.stderr) == (0, "")
        results.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert results[0].keys() == {"functions.json", "params.safetensors", "steps.json"}
    assert results[0] == results[1]
    symbols = set(json.loads(results[0]["functions.json"]))
    assert len(symbols) >= 5 and all(symbol in results[0]["steps.json"].decode() for symbol in symbols)


def test_what_cannot_be_lowered_is_left_to_the_walk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A kernel whose lowering fails beforehand has no result, and the others have theirs.

    A process that is killed meanwhile leaves no file.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left: list[Path] = []
    target = load_target("x86_64")
    build = Build("", machine_of(target, "none"), tvm_target(target, lowering=True))
    lower, plan = lowered_kernels._lower, KernelPlan()

    def failing(part: GroupKernel, ops: Any, build: Build) -> Any:
        left.extend(tmp_path.iterdir())
        if part.macs == 2:
            raise ValueError("no")
        return lower(part, ops, build)

    monkeypatch.setattr(lowered_kernels, "_lower", failing)
    monkeypatch.setattr(forks, "jobs", lambda: 1)
    parts = []
    for number in range(5):
        a = te.placeholder((number + 8,), "float32")
        func = te.create_prim_func([a, topi.exp(a)])
        parts.append(GroupKernel(Kernel(func, family="opaque"), list(func.params), macs=number))
        assert plan.of(parts[-1], [], build).symbol == f"planned{number}"
        assert plan.of(parts[-1], [], build).symbol == f"planned{number}"
    plan.lower()
    found = [plan.find(part.kernel.func, structural_hash(part.kernel.func), build) for part in parts]
    assert [ready is not None for ready in found] == [True, True, False, True, True] and left == []
    assert found[0] is not None and found[0].symbol == lower(parts[0], [], build).symbol


@pytest.mark.parametrize("name", ["cortex_m4", "x86_64"])
def test_objects_of_equal_kernels_are_equal(name: str, tmp_path: Path) -> None:
    """Models whose tensors have other names share a kernel's object, as joint libraries need."""
    target = load_target(name)
    build = Build("", machine_of(target, "none"), tvm_target(target, lowering=True))
    objects = []
    for number, words in enumerate((("x", "y"), ("image", "T"))):
        a, b = (te.placeholder((9, 8), "float32", word) for word in words)
        func = te.create_prim_func([a, b, topi.multiply(topi.exp(a), b)])
        part = GroupKernel(Kernel(func), list(func.params[:3]), macs=1)
        ready = lowered_kernels._lower(part, [], build)
        path = tmp_path / f"{number}.o"
        compile_object({ready.symbol: ready.func}, target, path)
        objects.append((ready.symbol, path.read_bytes()))
    assert objects[0] == objects[1]
