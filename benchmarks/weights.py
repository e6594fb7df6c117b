"""`./kiln bench weights`: products of one row with weights in 8, 4 and 16 bits, against the speed of memory.

Such a product reads each weight once, so the least time is that of reading the file's weights. Each form of
the weights is a model of one product, larger than the caches; Kiln and peers that read the file take turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from kiln.errors import KilnError
from kiln.files import atomic_write, read_json
from onnx import TensorProto, helper, numpy_helper

from benchmarks import subjects
from benchmarks.compare import Match, Plan, play
from benchmarks.contenders import Contender, Folders, LeftOutError, files_of
from benchmarks.machine import bandwidth, description
from benchmarks.tables import cell, markdown
from benchmarks.workers import say

DEPTH = 4096
BYTES = 64 << 20  # of the weights of each model: more than caches hold
_TOLERANCE = {"absolute": 1e-4, "relative": 1e-3}


@dataclass(frozen=True)
class Stored:
    """A form of weights: bits of each; `block`: terms of a sum that share a scale, 0: all of a column."""

    name: str
    bits: int
    block: int = 0

    @property
    def columns(self) -> int:
        """The number of columns with which the weights of DEPTH rows have BYTES bytes."""
        return BYTES * 8 // self.bits // DEPTH


FORMS = (Stored("fp16", 16), Stored("int8", 8), Stored("int4_32", 4, 32), Stored("int4_128", 4, 128))


def model_of(form: Stored) -> onnx.ModelProto:
    """y = x W for one row x, with the weights W in a form: from a seed, and of a size that keeps y near 1."""
    rng = np.random.default_rng(0)
    shape = [DEPTH, form.columns]
    size = 1.0 / DEPTH**0.5
    constants: list[Any] = []
    if form.bits == 16:
        weights = rng.standard_normal(shape, np.float32)
        constants.append(numpy_helper.from_array((weights * size).astype(np.float16), "w"))
        nodes = [helper.make_node("Cast", ["w"], ["real"], to=TensorProto.FLOAT)]
    else:
        most = 2 ** (form.bits - 1) - 1
        levels = rng.integers(-most, most + 1, shape, np.int8)
        scales = [DEPTH // form.block, form.columns] if form.block else [form.columns]
        scale = (rng.uniform(0.5, 1.5, scales) * size / most).astype(np.float32)
        attributes = {"axis": 0, "block_size": form.block} if form.block else {"axis": 1}
        if form.bits == 4:
            pairs = levels.reshape(-1, 2) & 15
            packed = (pairs[:, 0] | pairs[:, 1] << 4).astype(np.uint8)
            constants.append(helper.make_tensor("w", TensorProto.INT4, shape, packed.tobytes(), raw=True))
        else:
            constants.append(numpy_helper.from_array(levels, "w"))
        constants.append(numpy_helper.from_array(scale, "s"))
        nodes = [helper.make_node("DequantizeLinear", ["w", "s"], ["real"], **attributes)]
    nodes.append(helper.make_node("MatMul", ["x", "real"], ["y"]))
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, width])
        for name, width in (("x", DEPTH), ("y", form.columns))
    ]
    graph = helper.make_graph(nodes, "product", ports[:1], ports[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def prepare(folder: Path) -> list[str]:
    """Files of the models of FORMS, made once, as names for a build."""
    folder.mkdir(parents=True, exist_ok=True)
    for form in FORMS:
        path = folder / f"row_{form.name}.onnx"
        if not path.is_file():
            atomic_write(path, model_of(form).SerializeToString())
        keys = f"source: {{kind: file, path: {path.name}}}\ntolerance: {_TOLERANCE}\n".replace("'", "")
        atomic_write(path.with_suffix(".yaml"), keys)
    return [str(folder / f"row_{form.name}.yaml") for form in FORMS]


def run(args: argparse.Namespace, contenders: Sequence[Contender], folders: Folders, out: Path) -> None:
    """Measure all forms; write weights.md (weights-ISA.md) into `out` and print it. Raises KilnError."""
    plan = Plan(args.rounds, args.seconds, args.clock, args.cpus, args.isa)
    targets = list(dict.fromkeys(c.target for c in contenders if c.target is not None))
    names = [contender.name for contender in contenders]
    rows: list[list[str]] = []
    for threads in args.threads:
        measured = bandwidth(args.isa or "avx512", args.cpus[:threads], folders)
        measured = measured or bandwidth("avx2", args.cpus[:threads], folders)
        if measured is None:
            raise KilnError("the bandwidth of this machine's memory cannot be measured")
        rate = measured.read[max(measured.read)]
        for form in FORMS:
            match = _match(form, contenders, targets, threads, plan, folders)
            if match is None:
                continue
            rows.append(row(match, form, contenders, threads, rate))
    if not rows:
        raise KilnError("nothing could be measured; the lines above say why")
    bandwidth_columns = [f"{c.name}, of the bandwidth" for c in contenders if c.target is not None]
    text = (
        f"{description(args.cpus)}; "
        + ", ".join(f"{c.name} {c.version}" for c in contenders)
        + f". One row of {DEPTH} values by weights of the file's bytes; the bandwidth is that of reading in "
        "the same run.\n\n"
        + markdown(
            ["weights", "threads", "MB", "GB/s", *bandwidth_columns, *(f"{name}, ms" for name in names)], rows
        )
    )
    path = out / (f"weights-{args.isa}.md" if args.isa else "weights.md")
    atomic_write(path, text)
    print(text)
    say(f"written to {path}")


def row(
    match_and_size: tuple[Match, int],
    form: Stored,
    contenders: Sequence[Contender],
    threads: int,
    rate: float,
) -> list[str]:
    """A row of the table: bytes read, GB/s of the memory, Kiln's shares of it, times."""
    (match, size), names = match_and_size, [contender.name for contender in contenders]
    fastest = match.fastest(names)
    cells = [cell(match.times.get(name), name == fastest, threads == 1) for name in names]
    ours = [match.times.get(c.name) for c in contenders if c.target is not None]
    shares = ["–" if t is None else f"{size / t.median / rate * 1e-7:.0f} %" for t in ours]
    return [form.name, str(threads), f"{size / 1e6:.0f}", f"{rate:.1f}", *shares, *cells]


def _match(
    form: Stored, contenders: Sequence[Contender], targets: Sequence[str], threads: int, plan: Plan,
    folders: Folders,
) -> tuple[Match, int] | None:  # fmt: skip
    """Times of the contenders that can run a form, and the bytes of parameters that a bundle reads."""
    name = f"row_{form.name}"
    try:
        subject = subjects.find(subjects.SizedModel(name), folders, targets)
    except LeftOutError as reason:
        say(str(reason))
        return None
    files, _ = files_of(subject, contenders, folders)
    say(f"{name}, {threads} thread{'s' if threads > 1 else ''}")
    match = play(replace(subject, name=name), files, threads, plan, folders)
    bundle = next((file for contender, file in files.items() if contender.target is not None), None)
    if bundle is None or not match.times:
        return None
    return match, int(read_json(bundle / "manifest.json")["params"]["bytes"])
