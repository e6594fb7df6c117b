"""CPU features of processors without an operating system: LLVM's names, and their bits in kiln_cpu_features.

A model that is linked with a program needs no check, since both are compiled for the same target. An image
comes later: its header has the bits of its target, and the runtime those of the target that it was compiled
for (runtime_c/platform/cpu_bare.c).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kiln.errors import KilnError

# By architecture: the names of the bits, in the order of the table in runtime_c/platform/cpu_bare.c.
BITS = {
    "arm_m": (
        "v8m", "thumb2", "hwdiv", "dsp", "v8m.main", "v8.1m.main", "lob", "fpregs", "fpregs16", "fp16",
        "fp64", "vfp2sp", "vfp3d16sp", "vfp4d16sp", "fp-armv8d16sp", "fullfp16", "mve", "mve.fp",
        "acquire-release", "8msecext",
    ),
    "riscv32": (
        "m", "a", "f", "d", "c", "e", "zca", "zcb", "zcmp", "zcmt", "zba", "zbb", "zbc", "zbs", "zbkb",
        "zbkx", "zmmul", "zfh", "zfhmin", "zfinx", "zdinx", "zfa", "zicond", "zaamo", "zalrsc", "zacas",
        "zcf", "zcd", "zhinx", "zhinxmin",
    ),
}  # fmt: skip

# Features without a bit: a regular expression of their names.
_WITHOUT_BIT = {
    "arm_m": (
        # versions of the architecture, whose instructions have bits, and what each M-profile core has
        r"armv\d.*|v[4-7]\w*|thumb-mode|noarm|mclass|db|"
        # the same with 64-bit numbers, which fp64 says
        "fpregs64|vfp2|vfp3d16|vfp4d16|fp-armv8d16|"
        # instructions that other processors ignore, or that only intrinsics use
        r"pacbti|ras|cdecp\d|"
        # fewer instructions
        "soft-float|"
        # tuning, the names of CPUs among them
        r"m\d+|cortex-.*|avoid-.*|branch-.*|fix-.*|loop-align|mve\dbeat|no-.*|prefer-.*|slow.*|strict-align|use-.*"
    ),
    "riscv32": (
        "32bit|i|zicsr|zifencei|zicntr|zihpm|zihint.*|zama16b|zic64b|sm.*|ss.*|h|u|"
        "disable-.*|dlen-factor-2|log-vrgather|no-.*|optimized-.*|prefer-.*|short-forward-branch-.*|sifive7|"
        "single-element-.*|unaligned-.*|use-.*|vl-dependent-latency|vxrm-.*|.*-fusion"
    ),
}


def mask(arch: str, features: Iterable[str]) -> int:
    """Bits of kiln_cpu_features for LLVM's `features` of a processor.

    Raises KilnError for a feature that has no bit, so that no image could be checked for it.
    """
    bits = 0
    for feature in sorted(features):
        if feature in BITS[arch]:
            bits |= 1 << BITS[arch].index(feature)
        elif not re.fullmatch(_WITHOUT_BIT[arch], feature):
            raise KilnError(
                f"feature '{feature}': the header of an image of arch {arch} cannot say that it needs it; "
                f"leave it, or what implies it, out of 'features', or choose another 'cpu'; allowed: "
                f"{', '.join(BITS[arch])}"
            )
    return bits
