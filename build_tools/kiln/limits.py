"""Resource limits of stages: each stage limits its own memory; the build limits the time of each stage.

Memory is private writable memory, which the kernel counts for RLIMIT_DATA. Reserved address space, mapped
files and shared libraries do not count; RLIMIT_AS would count them, and compilers reserve far more than
they use. Each program that a stage starts has the same limit.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource  # here: at the end of a shell's memory it could not be loaded
import signal
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from kiln.files import full_disk

# Bytes of each unit in which configurations state sizes.
UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 1000, "MB": 1000**2}

# Environment variables of a stage.
MEMORY = "KILN_MEMORY"  # the limit in bytes
JOBS = "KILN_JOBS"  # processes of the build that may work at the same time
_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

# Messages of Python, NumPy, C++, LLVM and the C library about a failed allocation.
_REFUSED = re.compile(
    r"MemoryError|bad_alloc|[Oo]ut of memory|Cannot allocate memory|Unable to allocate|bad array new length"
    r"|failed to map segment"
)
_LEAST_FOR_BUILDS = 1 << 30  # of address space: with less, libraries cannot be loaded, and fail anyhow


def apply() -> None:
    """Apply the memory limit in the environment to this process; no effect on systems without RLIMIT_DATA."""
    requested = os.environ.get(MEMORY)
    if requested is None:
        return
    if hasattr(resource, "RLIMIT_DATA"):
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        allowed = int(requested) if most == resource.RLIM_INFINITY else min(int(requested), most)
        resource.setrlimit(resource.RLIMIT_DATA, (allowed, most))


def shell_limit() -> int | None:
    """Bytes of memory that the shell, or what else started Kiln, allows a process; None: no limit."""
    own = MEMORY in os.environ  # RLIMIT_DATA is the one that `apply` has set
    names = ["RLIMIT_AS"] if own else ["RLIMIT_AS", "RLIMIT_DATA"]
    kinds = [kind for kind in names if hasattr(resource, kind)]
    limits_set = [resource.getrlimit(getattr(resource, kind))[0] for kind in kinds]
    return min((limit for limit in limits_set if limit != resource.RLIM_INFINITY), default=None)


def shell_hint() -> str:
    """A hint for the end of an error line that a shell's limit has most likely caused; else empty."""
    limit = shell_limit()
    if limit is None or limit >= _LEAST_FOR_BUILDS:
        return ""
    least = shown(_LEAST_FOR_BUILDS)
    return f"; this shell allows {shown(limit)} of memory (ulimit -v), Kiln needs {least} or more"


def end_text(status: int) -> str:
    """The end of a process in words: an exit status, or, below zero, a signal.

    A shell's limit of processor time ends a process by a signal too.
    """
    if status >= 0:
        return f"exit status {status}"
    text = f"killed by {signal.Signals(-status).name}"
    seconds = resource.getrlimit(resource.RLIMIT_CPU)[0]
    if seconds == resource.RLIM_INFINITY or -status not in (signal.SIGKILL, signal.SIGXCPU):
        return text
    return f"{text}: this shell allows {seconds} s of processor time (ulimit -t)"


def silent_end(status: int, folders: Iterable[Path] = ()) -> str:
    """The end of a process that printed nothing, in words, with the likely cause.

    That is a full disk, or a shell's limit of the size of files.

    `folders`: where it writes, besides the current folder, build/ in it, which may be a disk of its own, and
    that of temporary files. LLVM ends a process, and the system aborts one, whose file cannot grow.
    """
    full = full_disk([Path.cwd(), Path.cwd() / "build", Path(tempfile.gettempdir()), *folders])
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if full is None and most != resource.RLIM_INFINITY:
        full = f"this shell allows files of {shown(most)} (ulimit -f)"
    return end_text(status) if full is None else f"{end_text(status)}: {full}"


def memory() -> int:
    """Bytes of memory of this machine, or of the container that this process runs in."""
    limits_known = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):
            limits_known.append(int(Path(path).read_text()))
    return min(limits_known)


def ran_out_of_memory(lines: Sequence[str]) -> bool:
    """Whether the lines on a failed stage's stderr report a failed allocation."""
    return any(_REFUSED.search(line) for line in lines)


def shown(count: int) -> str:
    """A number of bytes in the notation of limits, such as `16GiB` or `300MiB`."""
    units = {size: unit for unit, size in UNITS.items() if size >= 1 << 10 and size & (size - 1) == 0}
    whole = max((size for size in units if count % size == 0), default=None)
    return str(count) if whole is None else f"{count // whole}{units[whole]}"
