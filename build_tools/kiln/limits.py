"""Limits on what a stage may take: memory in the stage's own process, seconds in the build that waits for it.

Memory is what the kernel counts for RLIMIT_DATA: private writable memory. Reserved address space, files that
are mapped and shared libraries do not count; RLIMIT_AS would count them, and compilers reserve far more than
they use. Programs that a stage starts have the same limit each.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

MEMORY = "KILN_MEMORY"  # environment variable of a stage: bytes

# Stages that run the model, wait for a device or measure on one: what they take is up to the model.
_UNLIMITED = ("tune", "byoc-choose", "device-")
# How Python, NumPy, C++, LLVM and the C library say that an allocation failed.
_REFUSED = re.compile(
    r"MemoryError|bad_alloc|[Oo]ut of memory|Cannot allocate memory|Unable to allocate|bad array new length"
)


def apply() -> None:
    """Give this process, a stage, the limit in its environment. Systems without RLIMIT_DATA ignore it."""
    asked = os.environ.get(MEMORY)
    if asked is None:
        return
    import resource

    if hasattr(resource, "RLIMIT_DATA"):
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = int(asked) if most == resource.RLIM_INFINITY else min(int(asked), most)
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, most))


def applies(stage: str) -> bool:
    """Whether the stage of this name has limits."""
    return not stage.startswith(_UNLIMITED)


def ran_out(said: Sequence[str]) -> bool:
    """Whether a stage that failed says on stderr that it got no memory."""
    return any(_REFUSED.search(line) for line in said)


def shown(count: int) -> str:
    """Bytes as limits are written: `16GiB`, `300MiB`."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count % size == 0:
            return f"{count // size}{unit}"
    return str(count)
