"""What the numbers were measured on."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

from kiln.config import load_target
from kiln.device.link import link

from benchmarks.contenders import Folders

PROGRAMS = Path(__file__).resolve().parent / "programs"
VECTORS = {"avx512": (512, "-mavx512f"), "avx2": (256, "-mavx2")}


def description(cpus: list[int]) -> str:
    """The processor, its widest vectors, the cores used, the load, the system; one line."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    flags = fields.get("flags", "").split()
    widest = next((name for name in ("avx512f", "avx2", "sse4_2") if name in flags), "")
    model = fields.get("model name", platform.machine())
    load, used = os.getloadavg()[0], ",".join(map(str, cpus))
    return (
        f"{model} (family {fields.get('cpu family', '?')}, {widest}), {os.cpu_count()} cores, "
        f"{used} used, load {load:.1f} at the start, Linux {platform.release()}"
    )


def fma_peak(isa: str, cpu: int, folders: Folders) -> float | None:
    """GFLOP/s of one core that does nothing but float32 multiply-adds with `isa`; None: no program for it."""
    if isa not in VECTORS:
        return None
    bits, flag = VECTORS[isa]
    program = link(
        load_target("host"),
        [PROGRAMS / "peak.c"],
        ["-O2", "-ffp-contract=fast", "-mfma", flag, f"-DBITS={bits}"],
        work=folders.work / "programs" / f"peak-{isa}",
        name="peak",
    )
    command = ["taskset", "-c", str(cpu), str(program)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
