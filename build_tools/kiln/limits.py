"""Resource limits of stages: each stage limits its own memory; the build limits the time of each stage.

Memory is private writable memory, which the kernel counts for RLIMIT_DATA. Reserved address space, mapped
files and shared libraries do not count; RLIMIT_AS would count them, and compilers reserve far more than
they use. Each program that a stage starts has the same limit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

MEMORY = "KILN_MEMORY"  # environment variable of a stage: the limit in bytes

# Messages of Python, NumPy, C++, LLVM and the C library about a failed allocation.
_REFUSED = re.compile(
    r"MemoryError|bad_alloc|[Oo]ut of memory|Cannot allocate memory|Unable to allocate|bad array new length"
)


def apply() -> None:
    """Apply the memory limit in the environment to this process; no effect on systems without RLIMIT_DATA."""
    asked = os.environ.get(MEMORY)
    if asked is None:
        return
    import resource

    if hasattr(resource, "RLIMIT_DATA"):
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = int(asked) if most == resource.RLIM_INFINITY else min(int(asked), most)
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, most))


def ran_out(said: Sequence[str]) -> bool:
    """Whether the lines on a failed stage's stderr report a failed allocation."""
    return any(_REFUSED.search(line) for line in said)


def shown(count: int) -> str:
    """A number of bytes in the notation of limits, such as `16GiB` or `300MiB`."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count % size == 0:
            return f"{count // size}{unit}"
    return str(count)
