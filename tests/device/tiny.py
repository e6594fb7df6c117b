"""A bundle small enough to be made by hand: out = (x * w + 1)², x of shape [2, 3], w of shape [3]."""

from __future__ import annotations

import copy
import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from kiln.config import Target, load_target
from kiln.device.link import common_objects
from kiln.emit.bare_cpu import bare_mask
from kiln.emit.compile import compile_file
from kiln.emit.headers import dlpack_h, kiln_h, kiln_image_h
from kiln.emit.link import archive, has_shared
from kiln.emit.source import emit, runtime_sources
from kiln.golden.schema import GoldenEntry
from kiln.plan.schema import parse_plan
from kiln.toolchain import oldest_cpu_command
from records import golden_file, golden_tensor

KERNELS = """
#include <stdint.h>
void tiny_scale(const float *x, const float *w, float *t, int32_t begin, int32_t end) {
    for (int32_t row = begin; row < end; row++)
        for (int i = 0; i < 3; i++)
            t[3 * row + i] = x[3 * row + i] * w[i];
}
void tiny_square(const float *t, float *workspace, float *y) {
    for (int i = 0; i < 6; i++)
        workspace[i] = t[i] + 1.0f;
    for (int i = 0; i < 6; i++)
        y[i] = workspace[i] * workspace[i];
}
"""
W = np.array([0.5, -2.0, 3.0], np.float32)


# The plan's records of `KERNELS`, and of its only bucket.
_REAL, _CONST = {"dtype": "float32", "const": False}, {"dtype": "float32", "const": True}
_T = {"at": "arena", "offset": 0, "bytes": 24}
_KERNEL_RECORDS: list[dict[str, Any]] = [
    {
        "symbol": "tiny_scale",
        "args": [_CONST, _CONST, _REAL],
        "parallel": True,
        "ops": [{"name": "relax.multiply", "kind": "broadcast", "attrs": {}}],
        "flops": 6,
    },
    {
        "symbol": "tiny_square",
        "args": [_CONST, _REAL, _REAL],
        "parallel": False,
        "ops": [
            {"name": "relax.add", "kind": "elemwise", "attrs": {}},
            {"name": "relax.square", "kind": "elemwise", "attrs": {}},
        ],
        "flops": 12,
    },
]
_BUCKET: dict[str, Any] = {
    "name": "static",
    "dims": {},
    "arena_bytes": 88,
    "lower_bound_bytes": 48,
    "steps": [
        {
            "kernel": "tiny_scale",
            "extent": 2,
            "label": "multiply",
            "attrs": {},
            "args": [
                {"at": "input", "index": 0, "offset": 0},
                {"at": "params", "offset": 0, "bytes": 12},
                _T,
            ],
        },
        {
            "kernel": "tiny_square",
            "extent": 0,
            "label": "add+square",
            "attrs": {},
            "args": [
                _T,
                {"at": "arena", "offset": 64, "bytes": 24},
                {"at": "output", "index": 0, "offset": 0},
            ],
        },
    ],
    "tensors": [
        {"name": "t", "offset": 0, "bytes": 24, "first": 0, "last": 1, "kind": "activation"},
        {"name": "ws", "offset": 64, "bytes": 24, "first": 1, "last": 1, "kind": "workspace"},
    ],
}


def plan(storage: str = "embedded") -> dict[str, Any]:
    """The plan of `KERNELS`: two steps, one tensor and one workspace in the arena."""
    io = {"dtype": "float32", "shape": [2, 3], "layout": None, "quant": None, "bytes": 24}
    fields = {
        "format": 2,
        "name": "tiny",
        "target": "any",
        "threads": "pthread",
        "model_hash": hashlib.sha256(b"tiny").hexdigest(),
        "inputs": [{"name": "x", "c_name": "x", **io}],
        "outputs": [{"name": "y", "c_name": "y", **io}],
        "dims": [],
        "params": {
            "bytes": 12,
            "align": 64,
            "storage": storage,
            "section": ".kiln_params" if storage == "section" else None,
            "tensors": [{"name": "w", "offset": 0, "bytes": 12, "dtype": "float32", "shape": [3]}],
        },
        "kernels": _KERNEL_RECORDS,
        "buckets": [_BUCKET],
    }
    return copy.deepcopy(fields)  # tests change what they get


def base_target(name: str = "x86_64") -> Target:
    """A shipped target without variants."""
    target = load_target(name)
    return target.for_variant(target.base)


def gcc_target(name: str = "x86_64") -> Target:
    """A shipped target whose programs the machine's own gcc makes."""
    target = base_target(name)
    compiler = target.c_compiler.model_copy(
        update={"kind": "gcc", "command": None, "target": None, "flags": []}
    )
    libc = target.libc.model_copy(update={"static": False})
    return target.model_copy(update={"c_compiler": compiler, "libc": libc})


def plan_for(target: Target, storage: str = "embedded") -> dict[str, Any]:
    """`plan` with the target's own variant, for any processor, and no threads where the target has none."""
    cpu = {"arch": target.arch, "variants": [{"name": target.base}]}
    return {**plan(storage), "cpu": cpu, **({"threads": "none"} if target.threads == "none" else {})}


def build(folder: Path, target: Target, storage: str = "embedded", kernels: str = KERNELS) -> Path:
    """Make the bundle in `folder`, with other kernels if a test wants them wrong; returns the folder."""
    assemble(folder, target, plan_for(target, storage), W.tobytes(), kernels)
    _golden(folder / "golden")
    return folder


def assemble(
    folder: Path,
    target: Target,
    plan: dict[str, Any],
    payload: bytes,
    kernels: str,
    kernel_command: Sequence[str] | None = None,
) -> None:
    """Headers, library and parameters of a bundle made from a plan and the C text of its kernels.

    `kernel_command` compiles the kernels; None: for the oldest CPU, as the rest.
    """
    name, storage = plan["name"], plan["params"]["storage"]
    include, objects = folder / "include", folder / "objects"
    for path in (include, objects, folder / "lib"):
        path.mkdir(parents=True, exist_ok=True)
    for header in (kiln_h(), kiln_image_h(), dlpack_h()):
        shutil.copy(header, include)
    for file, content in emit(parse_plan(plan), payload).items():
        destination = include if file.endswith(".h") else objects
        (destination / file).write_bytes(content.encode() if isinstance(content, str) else content)
    (objects / f"{name}_kernels.c").write_text(kernels)
    if storage == "file":
        shutil.copy(objects / "params.bin", folder)
    runtime = runtime_sources(plan["threads"], target.deployment, target.arch, False, target.system)
    command = len(oldest_cpu_command(target))
    flags = [*oldest_cpu_command(target), "-std=c11", "-O2", "-ffunction-sections", "-fdata-sections"]
    flags += target.system.flags
    mask = bare_mask(target)
    flags += [f"-DKILN_CPU_FEATURES=UINT64_C({mask:#x})"] if mask else []
    flags += ["-fPIC"] if has_shared(target) else []
    of_kernels = flags if kernel_command is None else [*kernel_command, *flags[-1:]]
    headers = [include / file.name for file in (kiln_h(), dlpack_h())]
    object_files = [objects / f"kiln_{source.stem}.o" for source in runtime]
    for out, built in zip(
        object_files, common_objects(target, runtime, flags[command:], headers), strict=True
    ):
        if built.suffix == ".o":
            shutil.copyfile(built, out)
        else:
            compile_file([*flags, f"-I{include}"], built, out)
    for source in [*objects.glob("*.c"), *objects.glob("*.S")]:
        object_files.append(objects / f"{source.stem}.o")
        used = of_kernels if source.name == f"{name}_kernels.c" else flags
        compile_file([*used, f"-I{include}", f"-I{objects}"], source, object_files[-1])
    archive(sorted(object_files), folder / "lib" / f"lib{name}.a")


def _golden(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    rng, vectors = np.random.default_rng(1), []
    for name in ("random1", "random2"):
        x = rng.standard_normal((2, 3)).astype(np.float32)
        (folder / f"{name}.input0.bin").write_bytes(x.tobytes())
        (folder / f"{name}.output0.bin").write_bytes(((x * W + 1) ** 2).tobytes())
        inputs = golden_tensor("x", [2, 3], file=f"{name}.input0.bin")
        outputs = golden_tensor("y", [2, 3], file=f"{name}.output0.bin")
        vectors.append(GoldenEntry(name=name, inputs=[inputs], outputs=[outputs]))
    (folder / "golden.json").write_text(golden_file(vectors).model_dump_json())
