"""Programmatic dependent launch (sm_90 and newer): kernels themselves wait for the launches before them.

The runtime launches such a kernel as soon as all blocks of the launch before it have begun. Its blocks are
then on the GPU, and wait there until that launch is complete and what it wrote can be seen: the time between
two launches is spent while the first one still runs. Each kernel does both at its very beginning, before it
reads or writes memory: it lets the launch after it begin, and waits (PTX ISA, `griddepcontrol`). A launch
completes only after its own wait, so that waiting for one launch waits for all before it. Launched in the
usual way, both instructions do nothing.
"""

from __future__ import annotations

import re

from kiln.config.target import Cuda
from kiln.errors import KilnError

OLDEST = 90  # architecture whose GPUs can do so
BEGIN = "kiln_after_launches"
_HELPER = f"""
static __device__ __forceinline__ void {BEGIN}() {{
#if __CUDA_ARCH__ >= {OLDEST}0
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}}
"""
_KERNEL = 'extern "C" __global__ '
_DEFINITION = re.compile(r'^extern "C" __global__ .*\) \{$', re.MULTILINE)
_ENTRY = re.compile(r"^\.visible \.entry\b[^{;]*\{", re.MULTILINE)


def archs_of(cuda: Cuda | None) -> list[int]:
    """Architectures of a target, such as 90, whose kernels are launched early."""
    archs = [] if cuda is None or not cuda.early_launch else [int(arch[3:]) for arch in cuda.archs]
    return [arch for arch in archs if arch >= OLDEST]


def in_cuda(source: str) -> str:
    """CUDA C of kernels, as TVM's code generator writes it, with the wait at the beginning of each kernel.

    Raises KilnError for a kernel whose first line is another one: it would run without waiting.
    """
    if 'extern "C"' not in source:
        return source
    first = source.index('extern "C"')
    body, waiting = _DEFINITION.subn(lambda match: f"{match[0]}\n  {BEGIN}();", source[first:])
    lines = source[first:].splitlines()
    kernels = sum(line.startswith(_KERNEL) and not line.endswith(";") for line in lines)
    if waiting != kernels:
        raise KilnError(f"CUDA C: {kernels} kernels, of which {waiting} wait for earlier launches")
    return source[:first] + _HELPER + body


def in_ptx(text: str, arch: str) -> str:
    """A PTX module for `arch`, such as sm_90a, with the wait at the beginning of each kernel.

    Raises KilnError if it has none.
    """
    if int(re.sub(r"\D", "", arch)) < OLDEST:
        return text
    launch_and_wait = "griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;"
    changed, count = _ENTRY.subn(lambda match: f"{match[0]}\n\t{launch_and_wait}", text)
    if count == 0:
        raise KilnError(f"PTX for {arch} without a line that begins with '.visible .entry': no kernel")
    return changed
