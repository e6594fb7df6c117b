"""A bundle with buckets, made by hand: y = x * mask + w and z = the sums of y's rows, w of shape [1].

batch 1..2, width 2..16 by 2; an exact bucket, one that pads widths up to 8, one for a range, and none for the
width 10.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from kiln.config import Target
from kiln.config.boxes import BoxList
from kiln.config.data import RandomInput
from kiln.files import write_json
from kiln.golden import inputs as input_sets
from kiln.golden.cases import golden_cases, shorten
from kiln.golden.schema import SymbolicInput
from kiln.golden.vectors import Vectors
from kiln.plan.schema import parse_plan
from records import golden_file

from . import tiny

# A pair of kernels for each bucket. t is y's copy in the arena, with rows of `room` elements: after the real
# ones of the bucket that pads lie zeros.
_PAIR = """
void sized_scale_NAME(const float *x, const float *mask, const float *w, float *t, int32_t width,
                      int32_t begin, int32_t end) {
    for (int32_t row = begin; row < end; row++)
        for (int32_t i = 0; i < ROOM; i++)
            t[row * ROOM + i] = i < width ? x[row * width + i] * mask[row * width + i] + w[0] : 0.0f;
}
void sized_sums_NAME(const float *t, float *y, float *z, int32_t rows, int32_t width) {
    for (int32_t row = 0; row < rows; row++) {
        z[row] = 0.0f;
        for (int32_t i = 0; i < ROOM; i++)
            z[row] += t[row * ROOM + i];
        for (int32_t i = 0; i < width; i++)
            y[row * width + i] = t[row * ROOM + i];
    }
}
"""
_ROOMS = {"batch1_width4": "4", "width_pad8": "8", "width12_16": "width"}
KERNELS = "#include <stdint.h>\n" + "".join(
    _PAIR.replace("NAME", name).replace("ROOM", room) for name, room in _ROOMS.items()
)
W = np.array([1.5], np.float32)
DIMS = [
    {"name": "batch", "min": 1, "max": 2, "multiple": 1},
    {"name": "width", "min": 2, "max": 16, "multiple": 2},
]


def _part(strategy: str, least: int, most: int, multiple: int = 1) -> dict[str, Any]:
    size = most if strategy in ("exact", "pad") else None
    return {"strategy": strategy, "min": least, "max": most, "multiple": multiple, "size": size}


BUCKETS: list[dict[str, Any]] = [
    {"name": "batch1_width4", "dims": {"batch": _part("exact", 1, 1), "width": _part("exact", 4, 4, 2)}},
    {"name": "width_pad8", "dims": {"batch": _part("range", 1, 2), "width": _part("pad", 2, 8, 2)}},
    {"name": "width12_16", "dims": {"batch": _part("range", 1, 2), "width": _part("range", 12, 16, 2)}},
]


def _port(name: str, shape: list[Any]) -> dict[str, Any]:
    elements = 2 * 16 if len(shape) == 2 else 2
    about = {"dtype": "float32", "layout": None, "quant": None}
    return {"name": name, "c_name": name, "shape": shape, "bytes": 4 * elements, **about}


INTERFACE: dict[str, Any] = {
    "model": "sized",
    "inputs": [_port("x", ["batch", "width"]), _port("mask", ["batch", "width"])],
    "outputs": [_port("y", ["batch", "width"]), _port("z", ["batch"])],
    "dims": DIMS,
}


def plan() -> dict[str, Any]:
    """The plan of `KERNELS`: two steps in every bucket."""
    real, const = {"dtype": "float32", "const": False}, {"dtype": "float32", "const": True}
    number = {"dtype": "int32", "const": True, "scalar": True}
    return {
        "format": 2,
        "name": "sized",
        "target": "any",
        "threads": "pthread",
        "model_hash": hashlib.sha256(b"sized").hexdigest(),
        "inputs": INTERFACE["inputs"],
        "outputs": INTERFACE["outputs"],
        "dims": DIMS,
        "params": {
            "bytes": 4,
            "align": 64,
            "storage": "embedded",
            "section": None,
            "tensors": [{"name": "w", "offset": 0, "bytes": 4, "dtype": "float32", "shape": [1]}],
        },
        "kernels": [
            kernel
            for name in _ROOMS
            for kernel in (
                {
                    "symbol": f"sized_scale_{name}",
                    "args": [const, const, const, real, number],
                    "parallel": True,
                    "ops": [{"name": "relax.multiply", "kind": "broadcast", "attrs": {}}],
                    "flops": 0,
                },
                {
                    "symbol": f"sized_sums_{name}",
                    "args": [const, real, real, number, number],
                    "parallel": False,
                    "ops": [{"name": "relax.sum", "kind": "reduce", "attrs": {}}],
                    "flops": 0,
                },
            )
        ],
        "buckets": [_bucket(entry) for entry in BUCKETS],
    }


def _bucket(entry: dict[str, Any]) -> dict[str, Any]:
    name, sizes = entry["name"], entry["dims"]
    rows, width = sizes["batch"]["max"], sizes["width"]["max"]
    arena = 4 * rows * width
    t = {"at": "arena", "offset": 0, "bytes": arena}

    def dim(name: str) -> dict[str, Any]:
        return {"at": "dim", "expr": name}

    scale = [
        {"at": "input", "index": 0, "offset": 0},
        {"at": "input", "index": 1, "offset": 0},
        {"at": "params", "offset": 0, "bytes": 4},
        t,
        dim("width"),
    ]
    sums = [
        t,
        {"at": "output", "index": 0, "offset": 0},
        {"at": "output", "index": 1, "offset": 0},
        dim("batch"),
        dim("width"),
    ]
    strategies = [interval["strategy"] for interval in sizes.values()]
    return {
        "name": entry["name"],
        "strategy": next((s for s in ("range", "pad") if s in strategies), "exact"),
        "dims": {n: {k: interval[k] for k in ("min", "max", "multiple")} for n, interval in sizes.items()},
        "when": None,
        "arena_bytes": arena,
        "lower_bound_bytes": arena,
        "steps": [
            {
                "kernel": f"sized_scale_{name}",
                "extent": "batch",
                "label": "multiply",
                "attrs": {},
                "args": scale,
            },
            {"kernel": f"sized_sums_{name}", "extent": 0, "label": "sum", "attrs": {}, "args": sums},
        ],
        "tensors": [{"name": "t", "offset": 0, "bytes": arena, "first": 0, "last": 1, "kind": "activation"}],
    }


def build(folder: Path, target: Target, kernels: str = KERNELS, plan: dict[str, Any] | None = None) -> Path:
    """Make the bundle in `folder`; returns the folder."""
    tiny.assemble(folder, target, plan or _plan(), W.tobytes(), kernels)
    golden = folder / "golden"
    golden.mkdir(exist_ok=True)
    vectors, masks = Vectors(), ["mask"]
    boxes = BoxList.model_validate({"dims": DIMS, "buckets": BUCKETS})
    interface = parse_plan(_plan()).interface
    for one in golden_cases([RandomInput(kind="random", seed=1)], boxes.buckets, interface, masks, None):
        ports = interface.at(one.sizes)
        x, mask = input_sets.make_set(one.spec, ports.inputs, None, masks)
        if one.shortened:
            mask = shorten(mask, interface.inputs[1], boxes.buckets[one.bucket], one.sizes)
        y = x * mask + W
        input_arrays = list(zip(ports.inputs, [x, mask], strict=True))
        output_arrays = list(zip(ports.outputs, [y, y.sum(axis=1)], strict=True))
        vectors.add(
            one.name, input_arrays, output_arrays, bucket=boxes.buckets[one.bucket].name, dims=one.sizes
        )
    for path, content in vectors.files.items():
        (golden / path).write_bytes(content)
    content = golden_file(
        vectors.entries,
        dims=boxes.dims,
        buckets=boxes.buckets,
        inputs=[SymbolicInput(name=p.name, dtype=p.dtype, shape=p.shape) for p in interface.inputs],
    )
    write_json(golden / "golden.json", content.model_dump())
    padding = {"name": "width_pad8", "mean_padding": 0.375}
    write_json(golden / "padding.json", {"format": 1, "model": "sized", "buckets": [padding]})
    return folder


_plan = plan
