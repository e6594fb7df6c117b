"""`./kiln bench dispatch`: the time of choosing among 1, 4, 16 and 64 buckets, in nanoseconds.

The plans are made here and emitted as every model's is, with a kernel that does nothing; the runtime and the
plan are compiled for this machine. Measured in processor time: the choice alone, and kiln_begin, which checks
two inputs and an output, their memory and the arena as well.
"""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Any

from kiln.config import load_target
from kiln.emit.headers import include_flags
from kiln.emit.source import emit, runtime_sources
from kiln.files import atomic_dir, atomic_write
from kiln.plan.schema import parse_plan
from kiln.toolchain import compiler_command

from benchmarks.machine import description
from benchmarks.tables import markdown

COUNTS = (1, 4, 16, 64)
GREATEST = 512
PROGRAM = Path(__file__).parent / "programs" / "dispatch.c"


def plan(count: int) -> dict[str, Any]:
    """A plan of `count` buckets that share the sizes 1..512 among them."""
    ports = [
        {"name": n, "c_name": n, "dtype": "float32", "shape": ["n"], "layout": None, "quant": None}
        for n in ("x", "mask", "y")
    ]
    arguments = [{"at": "input", "index": 0, "offset": 0}, {"at": "output", "index": 0, "offset": 0}]
    step = {"kernel": "nothing", "extent": 0, "args": arguments, "label": "nothing"}
    width = GREATEST // count
    edges = [(1 + width * number, width * (number + 1)) for number in range(count)]
    return {
        "format": 2,
        "name": "many",
        "target": "host",
        "threads": "none",
        "model_hash": hashlib.sha256(str(count).encode()).hexdigest(),
        "inputs": ports[:2],
        "outputs": ports[2:],
        "dims": [{"name": "n", "min": 1, "max": GREATEST, "multiple": 1}],
        "params": {"bytes": 0, "align": 64, "storage": "embedded", "section": None, "tensors": []},
        "kernels": [
            {
                "symbol": "nothing",
                "args": [{"dtype": "float32", "const": True}, {"dtype": "float32", "const": False}],
                "parallel": False,
                "ops": [],
            }
        ],
        "buckets": [
            {
                "name": f"from{low}",
                "dims": {"n": {"min": low, "max": high, "multiple": 1}},
                "arena_bytes": 0,
                "steps": [step],
                "tensors": [],
            }
            for low, high in edges
        ],
    }


def measure(count: int, work: Path) -> tuple[float, float]:
    """Nanoseconds of the choice alone (-1: there is none), and of kiln_begin."""
    with atomic_dir(work / str(count)) as folder:
        for name, content in emit(parse_plan(plan(count)), b"").items():
            atomic_write(folder / name, content)
        atomic_write(folder / "nothing.c", "void nothing(const float *x, float *y) { (void)x, (void)y; }\n")
        sources = [*runtime_sources("none", "hosted"), folder / "many_plan.c", folder / "nothing.c"]
        program = folder / "dispatch"
        flags = ["-O2", f"-I{folder}", *include_flags(), *map(str, sources), str(PROGRAM)]
        command = [*compiler_command(load_target("host")), *flags, "-o", str(program)]
        subprocess.run(command, check=True)
        done = subprocess.run([str(program)], check=True, capture_output=True, text=True)
    select, begin = map(float, done.stdout.split())
    return select, begin


def run(work: Path, out: Path, cpus: list[int]) -> None:
    """Measure all counts; print the table and write it."""
    rows = []
    for count in COUNTS:
        select, begin = measure(count, work / "dispatch")
        rows.append([str(count), "none" if select < 0 else f"{select:.1f}", f"{begin:.1f}"])
    text = f"{description(cpus)}.\n\n" + markdown(["buckets", "choice, ns", "kiln_begin, ns"], rows)
    atomic_write(out / "dispatch.md", text)
    print(text)
