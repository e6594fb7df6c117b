"""A plan written by hand, with kernels in C, emitted and compiled with every warning as an error."""

from __future__ import annotations

import atexit
import functools
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from c_programs import SANITIZE, WARNINGS, need, run
from kiln.emit.headers import include_flags
from kiln.emit.source import emit, runtime_sources
from kiln.plan.schema import parse_plan

Plan = dict[str, Any]
W = np.array([3, -2, 1], np.float32)

# y[b][i] = 2 * (x[b][i] * w[i] + shift), as two steps; `tasks` are the batch.
KERNELS = """
#include <stdint.h>
void NAME_scale(const float *x, const float *w, float *t, int32_t begin, int32_t end) {
    for (int32_t b = begin; b < end; b++)
        for (int i = 0; i < 3; i++)
            t[3 * b + i] = x[3 * b + i] * w[i];
}
void NAME_shift(const float *t, const int8_t *shift, float *y, int64_t n) {
    for (int64_t i = 0; i < 3 * n; i++)
        y[i] = 2 * (t[i] + (float)*shift);
}
"""


def make_plan(name: str = "tiny", storage: str = "embedded", threads: str = "pthread") -> Plan:
    """A model with a symbolic batch of 2..12 in steps of 2, in three buckets."""
    real, const = {"dtype": "float32", "const": False}, {"dtype": "float32", "const": True}

    def steps() -> list[dict[str, Any]]:
        t = {"at": "arena", "offset": 0, "bytes": 24}
        x, shift, y = (
            {"at": at, "index": i, "offset": 0} for at, i in (("input", 0), ("input", 1), ("output", 0))
        )
        size = {"at": "dim", "expr": "batch"}
        w = {"at": "params", "offset": 64, "bytes": 12}
        return [
            {"kernel": f"{name}_scale", "extent": "batch", "args": [x, w, t], "label": 'a "scale" */ ?\\'},
            {"kernel": f"{name}_shift", "extent": 0, "args": [t, shift, y, size], "label": "shift"},
        ]

    def bucket(label: str, sizes: Any, arena: int) -> dict[str, Any]:
        tensor = {"name": "t", "offset": 0, "bytes": arena, "first": 0, "last": 1, "kind": "activation"}
        return {
            "name": label,
            "dims": {"batch": sizes},
            "arena_bytes": arena,
            "steps": steps(),
            "tensors": [tensor],
        }

    return {
        "format": 2,
        "name": name,
        "target": "any",
        "threads": threads,
        "model_hash": hashlib.sha256(name.encode()).hexdigest(),
        "inputs": [
            {"name": "x:0", "c_name": "session", "dtype": "float32", "shape": ["batch", 3], "layout": None,
             "quant": None},
            {"name": "zero", "c_name": "class", "dtype": "int8", "shape": [], "layout": None,
             "quant": {"scale": 0.1, "zero_point": -3}},
        ],
        "outputs": [{"name": "y", "c_name": "y", "dtype": "float32", "shape": ["batch", 3], "layout": "NC"}],
        "dims": [{"name": "batch", "min": 2, "max": 12, "multiple": 2}],
        "params": {
            "bytes": 76,
            "align": 64,
            "storage": storage,
            "section": ".kiln_params" if storage == "section" else None,
            "tensors": [{"name": "w", "offset": 64, "bytes": 12, "dtype": "float32", "shape": [3]}],
        },
        "kernels": [
            {"symbol": f"{name}_scale", "args": [const, const, real], "parallel": True,
             "ops": [{"name": "relax.multiply"}]},
            {"symbol": f"{name}_shift", "parallel": False, "ops": [{"name": "relax.add"}],
             "args": [const, {"dtype": "int8", "const": True}, real, {"dtype": "int64", "scalar": True}]},
        ],
        "buckets": [bucket("two", 2, 24), bucket("Some", {"min": 3, "max": 8}, 96), bucket("ten", 10, 120)],
    }  # fmt: skip


PAYLOAD = bytes(64) + W.tobytes()


def setting(*path: Any) -> Callable[[Plan], None]:
    """A change of a plan: the value (last) at the keys before it."""

    def change(plan: Plan) -> None:
        at: Any = plan
        for key in path[:-2]:
            at = at[key]
        at[path[-2]] = path[-1]

    return change


def _compile(compiler: str, source: Path, out: Path, *flags: str) -> None:
    """Compile a file with the sanitizers."""
    run([need(compiler), *SANITIZE, "-g", *flags, "-c", str(source), "-o", str(out)])


@functools.cache
def _runtime(threads: str) -> list[Path]:
    """The runtime's objects, compiled once for all projects of this process."""
    folder = Path(tempfile.mkdtemp(prefix="kiln-test-runtime-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    objects = []
    for source in runtime_sources(threads, "hosted"):
        objects.append(folder / f"{source.stem}.o")
        _compile("gcc", source, objects[-1], *include_flags())
    return objects


class EmittedProgram:
    """A folder with generated source, kernels and a program, compiled with every warning as an error."""

    def __init__(self, folder: Path, threads: str = "pthread") -> None:
        self.folder, self.threads, self.objects = folder, threads, list[Path]()
        self.flags = [f"-I{folder}", *include_flags()]
        self.objects += _runtime(threads)

    def compile(self, source: Path, compiler: str = "gcc", *flags: str) -> None:
        out = self.folder / f"{source.stem}-{len(self.objects)}.o"
        _compile(compiler, source, out, *flags, *self.flags)
        self.objects.append(out)

    def add(
        self, plan: Plan, payload: bytes = PAYLOAD, compiler: str = "gcc", kernels: str = KERNELS
    ) -> Mapping[str, bytes | str]:
        """Compile the source that is generated for `plan`, and its kernels; returns the generated files."""
        name, files = plan["name"], emit(parse_plan(plan), payload)
        assert set(files) == {f"{name}.h", f"{name}_plan.c", f"{name}_params.S", "params.bin"}
        folder = self.folder / f"source-{name}"
        folder.mkdir()
        for file, content in files.items():
            (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
        (folder / "kernels.c").write_text(kernels.replace("NAME", name))
        self.flags.append(f"-I{folder}")
        self.compile(folder / f"{name}_plan.c", compiler, *WARNINGS)
        run([need("gcc"), f"-I{folder}", "-c", str(folder / f"{name}_params.S"), "-o", str(folder / "p.o")])
        self.objects.append(folder / "p.o")
        self.compile(folder / "kernels.c")
        return files

    def program(self, text: str, language: str = "c") -> Path:
        compiler, suffix = ("g++", "cc") if language == "c++" else ("gcc", "c")
        source = self.folder / f"main.{suffix}"
        source.write_text(text)
        standard = ["-std=c++17"] if language == "c++" else ["-std=c11"]
        self.compile(source, compiler, *[flag for flag in WARNINGS if not flag.startswith("-std")], *standard)
        out = self.folder / "main"
        threads = ["-pthread"] if self.threads == "pthread" else []
        objects = [str(path) for path in self.objects]
        run([need(compiler), *SANITIZE, *objects, *threads, "-o", str(out)])
        return out
