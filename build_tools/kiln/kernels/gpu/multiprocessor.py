"""What a multiprocessor of an NVIDIA GPU has, by architecture: tiles are chosen by these numbers.

Sources: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", for memory and
threads; NVIDIA's white papers of the architectures for multiply-adds. Cycles of a step were read from machine
code of this project's kernels for each architecture (tests/gpu/issue_model.py), not from a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

REGISTERS = 64 << 10  # 32-bit registers of a multiprocessor, the same for all architectures


@dataclass(frozen=True)
class Multiprocessor:
    """One multiprocessor: shared memory of all of its blocks in bytes, threads, and rates.

    `rate`: multiply-adds of 16-bit numbers in a cycle, by `mma` with sums in float32. `step_cycles`: of a
    step of 32 elements of the depth of one block, by tile: 32 x 32, 32 x 64 or 64 x 32, and 64 x 64.
    """

    shared_bytes: int
    threads: int
    rate: int
    step_cycles: tuple[int, int, int]

    def blocks(self, shared_bytes: int, threads: int, registers: int) -> int:
        """The number of blocks that run on it at a time, each with so much memory and so many threads.

        `registers`: of a thread.
        """
        by_memory = self.shared_bytes // (shared_bytes + 1024)  # of which the system uses 1 KiB
        return max(1, min(by_memory, self.threads // threads, REGISTERS // (threads * registers)))


_TURING = Multiprocessor(64 << 10, 1024, 512, (421, 640, 802))
_AMPERE = Multiprocessor(164 << 10, 2048, 1024, (130, 153, 201))
_SMALL_AMPERE = Multiprocessor(100 << 10, 1536, 512, (133, 190, 302))
_ORIN = Multiprocessor(164 << 10, 1536, 1024, (133, 155, 204))
_HOPPER = Multiprocessor(228 << 10, 2048, 1024, (173, 225, 329))
_BY_ARCHITECTURE = {
    75: _TURING, 80: _AMPERE, 86: _SMALL_AMPERE, 87: _ORIN, 88: _SMALL_AMPERE, 89: _SMALL_AMPERE, 90: _HOPPER,
    100: _HOPPER, 103: _HOPPER, 110: _HOPPER, 120: _SMALL_AMPERE, 121: _SMALL_AMPERE,
}  # fmt: skip
HOPPER = _HOPPER


def multiprocessor_of(archs: Sequence[str]) -> Multiprocessor:
    """The least resources among the GPUs of `archs`, such as sm_90, since one code runs on all of them.

    An architecture that is not known counts as the newest known one before it.
    """
    known = [_BY_ARCHITECTURE[max(n for n in _BY_ARCHITECTURE if n <= max(int(a[3:]), 75))] for a in archs]
    first, second, third = (max(one.step_cycles[at] for one in known) for at in range(3))
    return Multiprocessor(
        min(one.shared_bytes for one in known), min(one.threads for one in known),
        min(one.rate for one in known), (first, second, third),
    )  # fmt: skip
