"""Products and softmax whose rows, columns and depth show at run time, at many sizes, against numpy."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.config.sizes import evaluate
from kiln.emit.objects import compile_object
from kiln.frontend.size_of import to_size
from kiln.kernels.families import FusedGroup, kernels_of
from kiln.lower.llvm_target import tvm_target
from kiln.lower.pipeline import machine_of
from kiln.tir import abi
from kiln.tir.symbols import SymbolRanges, variables
from tvm import te, tirx, topi

from .lowered import Array, close, loaded, runnable

HEADS, WIDTH, AFTER = 3, 8, 64
SIZES = [(1, 1), (1, 90), (100, 1), (7, 17), (16, 16), (33, 31), (64, 64), (13, 47), (100, 90)]
ROWS, COLUMNS = tirx.Var("rows", "int64"), tirx.Var("columns", "int64")


class Open:
    """One kernel for a range of sizes."""

    def __init__(
        self, tensors: Sequence[Any], name: str, family: str, target: str, folder: Path, rows: int = 100
    ) -> None:
        described = runnable(target)
        func = te.create_prim_func(list(tensors))
        ranges = SymbolRanges({ROWS: (1, rows), COLUMNS: (1, 90)})
        info = {"name": name, "kind": "", "attrs": {}, "out_dtype": "float32"}
        machine = machine_of(described, "pthread")
        (part,) = kernels_of(FusedGroup(func, [info], frozenset(), {}, ranges=ranges), machine)
        self.kernel = part.kernel
        assert self.kernel.family == family
        self.sizes = [variable.name for variable in self.kernel.sizes]
        lowered = abi.lower(self.kernel, tvm_target(described))
        self.scratch = [size for _, size in lowered.scratch]
        path = folder / "kernel.o"
        compile_object({"kernel": lowered.func.with_attr("global_symbol", "kernel")}, described, path)
        self.library = loaded(path)

    def tasks(self, sizes: Mapping[str, int]) -> int:
        """The number of tasks of the kernel, which depends on the vectors of its target."""
        tasks = self.kernel.tasks
        if isinstance(tasks, int):
            return tasks
        values = {variable: sizes[variable.name] for variable in variables(tasks)}
        return evaluate(to_size(tasks, values, {}), {})

    def run(self, inputs: Sequence[Array], shape: Sequence[int], sizes: Mapping[str, int]) -> Array:
        """The output; the memory after it must stay unchanged."""
        count = int(np.prod(shape))
        out = np.full(count + AFTER, 7, "f4")
        scratch = [np.zeros(size + 64, "u1") for size in self.scratch]
        places = [array.ctypes.data for array in [*inputs, out]]
        places += [array.ctypes.data + -array.ctypes.data % 64 for array in scratch]
        numbers = [sizes[name] for name in self.sizes]
        if self.kernel.tasks is not None:
            numbers += [0, self.tasks(sizes)]
        pointers = [ctypes.c_void_p(place) for place in places]
        self.library.kernel(*pointers, *(ctypes.c_int32(number) for number in numbers))
        assert (out[count:] == 7).all()
        return out[:count].reshape(shape)


def _index(value: int) -> Any:
    return tirx.IntImm("int64", value)


def _tensor(shape: Sequence[Any], name: str) -> Any:
    return te.placeholder([_index(s) if isinstance(s, int) else s for s in shape], "float32", name=name)


@pytest.mark.parametrize("target", ["host", "x86_64"])
def test_scores(target: str, tmp_path: Path) -> None:
    """Rows and columns are open, and what follows the product too."""
    q, k = _tensor([ROWS, HEADS, WIDTH], "q"), _tensor([COLUMNS, HEADS, WIDTH], "k")
    d = te.reduce_axis((0, _index(WIDTH)), name="d")
    shape = [_index(HEADS), ROWS, COLUMNS]
    product = te.compute(shape, lambda h, i, j: te.sum(q[i, h, d] * k[j, h, d], axis=d), name="product")
    half = te.compute(shape, lambda *at: product(*at) * tirx.FloatImm("float32", 0.5), name="half")
    kernel = Open([q, k, half], "einsum", "contraction", target, tmp_path)
    rng = np.random.default_rng(0)
    for rows, columns in SIZES:
        a = rng.uniform(-1, 1, (rows, HEADS, WIDTH)).astype("f4")
        b = rng.uniform(-1, 1, (columns, HEADS, WIDTH)).astype("f4")
        got = kernel.run([a, b], (HEADS, rows, columns), {"rows": rows, "columns": columns})
        close(got, np.einsum("ihd,jhd->hij", a.astype("f8"), b) / 2, 1e-6)


@pytest.mark.parametrize("packed", [False, True])
def test_scores_of_few_rows(packed: bool, tmp_path: Path) -> None:
    """Sums along k, whose lanes are added at the end; `packed`: k is not contiguous in the few rows."""
    width = 67
    q = _tensor([HEADS, width, ROWS] if packed else [HEADS, ROWS, width], "q")
    k = _tensor([HEADS, COLUMNS, width], "k")
    d = te.reduce_axis((0, _index(width)), name="d")

    def sums(h: Any, i: Any, j: Any) -> Any:
        return te.sum((q[h, d, i] if packed else q[h, i, d]) * k[h, j, d], axis=d)

    product = te.compute([_index(HEADS), ROWS, COLUMNS], sums, name="product")
    kernel = Open([q, k, product], "einsum", "contraction", "x86_64", tmp_path, rows=7)
    rng = np.random.default_rng(0)
    for rows, columns in [(1, 1), (1, 90), (2, 3), (5, 6), (7, 17), (4, 88)]:
        a = rng.uniform(-1, 1, (HEADS, rows, width)).astype("f4")
        b = rng.uniform(-1, 1, (HEADS, columns, width)).astype("f4")
        given = np.ascontiguousarray(a.transpose(0, 2, 1)) if packed else a
        got = kernel.run([given, b], (HEADS, rows, columns), {"rows": rows, "columns": columns})
        close(got, a.astype("f8") @ b.transpose(0, 2, 1), 1e-6)


@pytest.mark.parametrize("target", ["host", "x86_64"])
def test_mix(target: str, tmp_path: Path) -> None:
    """Rows and depth are open; the result's axes have another order."""
    p, v = _tensor([HEADS, ROWS, COLUMNS], "p"), _tensor([COLUMNS, HEADS, WIDTH], "v")
    t = te.reduce_axis((0, COLUMNS), name="t")
    shape = [ROWS, _index(HEADS), _index(WIDTH)]
    product = te.compute(shape, lambda i, h, d: te.sum(p[h, i, t] * v[t, h, d], axis=t), name="product")
    kernel = Open([p, v, product], "einsum", "contraction", target, tmp_path)
    rng = np.random.default_rng(0)
    for rows, columns in SIZES:
        a = rng.uniform(-1, 1, (HEADS, rows, columns)).astype("f4")
        b = rng.uniform(-1, 1, (columns, HEADS, WIDTH)).astype("f4")
        got = kernel.run([a, b], (rows, HEADS, WIDTH), {"rows": rows, "columns": columns})
        close(got, np.einsum("hit,thd->ihd", a.astype("f8"), b), 2e-6)


@pytest.mark.parametrize("target", ["host", "x86_64"])
def test_softmax(target: str, tmp_path: Path) -> None:
    x = _tensor([HEADS, ROWS, COLUMNS], "x")
    kernel = Open([x, topi.nn.softmax(x, -1)], "nn.softmax", "rows", target, tmp_path)
    rng = np.random.default_rng(0)
    for rows, columns in SIZES:
        a = rng.uniform(-8, 8, (HEADS, rows, columns)).astype("f4")
        got = kernel.run([a], a.shape, {"rows": rows, "columns": columns})
        powers = np.exp(a.astype("f8") - a.max(-1, keepdims=True))
        close(got, powers / powers.sum(-1, keepdims=True), 1e-6)
