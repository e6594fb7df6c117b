"""The machine that a benchmark runs on: its description, memory bandwidth and peak of arithmetic."""

from __future__ import annotations

import os
import platform
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kiln.config import Target, load_target
from kiln.device.check.peak import peak_program
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
    version = ".".join(platform.release().split(".")[:2])
    load, used = os.getloadavg()[0], ",".join(map(str, cpus))
    return (
        f"{model} (family {fields.get('cpu family', '?')}, {widest}), {os.cpu_count()} cores, "
        f"{used} used, load {load:.1f} at the start, Linux {version}"
    )


@dataclass(frozen=True)
class Bandwidth:
    """GB/s of all cores that were measured together, by the bytes that each of them works on."""

    cores: int
    read: Mapping[int, float]
    copy: Mapping[int, float]  # as many bytes written as read, both counted

    def seconds(self, read: int, written: int, within: int) -> float:
        """The least time to read and write so many bytes of a working set of `within` bytes.

        Written bytes, and as many read ones, move at the rate of a copy, all further ones at that of reading.
        """
        size = self.level(within)
        alone = max(read - written, 0)
        return (alone / self.read[size] + (read + written - alone) / self.copy[size]) * 1e-9

    def level(self, within: int) -> int:
        """The smallest measured size that holds a core's share, the largest where none does."""
        return next((size for size in sorted(self.read) if size * self.cores >= within), max(self.read))


def bandwidth(isa: str, cpus: Sequence[int], folders: Folders) -> Bandwidth | None:
    """The bandwidth of memory, measured on all of `cpus` together; None for an `isa` not in VECTORS."""
    if isa not in VECTORS:
        return None
    program = _program("bandwidth", isa, folders)
    running = [
        subprocess.Popen(
            ["taskset", "-c", str(cpu), str(program)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for cpu in cpus
    ]
    read: dict[int, float] = defaultdict(float)
    copy: dict[int, float] = defaultdict(float)
    for process in running:
        for line in process.communicate()[0].splitlines():
            size, *rates = line.split()
            read[int(size)] += float(rates[0])
            copy[int(size)] += float(rates[1])
    return Bandwidth(len(cpus), dict(read), dict(copy))


def fma_peak(target: Target, cpu: int, folders: Folders) -> float:
    """GFLOP/s of one core that does nothing but float32 multiply-adds as wide as the target's vectors.

    The greater of two runs, since the clock rises and falls with the load.
    """
    program = peak_program(target, folders.work / "programs" / f"peak-{target.name}-{target.vector.isa}")
    command = ["taskset", "-c", str(cpu), str(program)]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(2)]
    return max(float(run.stdout) for run in runs)


def _program(name: str, isa: str, folders: Folders) -> Path:
    bits, flag = VECTORS[isa]
    return link(
        load_target("host"),
        [PROGRAMS / f"{name}.c"],
        ["-O2", "-ffp-contract=fast", "-mfma", flag, f"-DBITS={bits}"],
        folders.work / "programs" / f"{name}-{isa}" / name,
    )
