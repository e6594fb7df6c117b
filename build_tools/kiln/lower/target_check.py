"""What LLVM knows of a target's CPU and features.

What LLVM does not know it ignores, with a warning only.
"""

from __future__ import annotations

from tvm.target import Target as TvmTarget
from tvm.target import codegen

from kiln.config import Target, cpu_features
from kiln.config.check import nearest
from kiln.errors import KilnError
from kiln.frontend.quiet import quiet_stderr


def check(target: Target) -> None:
    """Raise KilnError for a CPU or a feature that LLVM does not know for the target's architecture."""
    with quiet_stderr():
        plain = TvmTarget({"kind": "llvm", "mtriple": target.triple})
        cpus = sorted(str(name) for name in codegen.llvm_get_cpu_archlist(plain))
        known = target.cpu in cpus
        unknown = [
            feature[1:]
            for feature in target.features
            if feature[1:] not in codegen.llvm_get_cpu_features(
                TvmTarget({"kind": "llvm", "mtriple": target.triple, "mattr": [f"+{feature[1:]}"]})
            )
        ]  # fmt: skip
    if not known:
        raise KilnError(
            f"target '{target.name}': LLVM knows no CPU '{target.cpu}' for {target.arch} (key 'cpu')"
            f"{nearest(target.cpu, cpus)}"
        )
    if unknown:
        raise KilnError(
            f"target '{target.name}': LLVM knows no feature '{unknown[0]}' for {target.arch} (key 'features')"
        )


def cpu_features_of(target: Target) -> list[str]:
    """The features that kiln_open asks the processor for, names of config/cpu_features.py.

    None for kernels on a GPU, and where there is no operating system to ask. Raises KilnError for a feature
    that a processor cannot be asked for.
    """
    if target.cuda is not None or target.deployment == "freestanding":
        return []
    with quiet_stderr():
        closure = codegen.llvm_get_cpu_features(
            TvmTarget(
                {"kind": "llvm", "mtriple": target.triple, "mcpu": target.cpu, "mattr": target.features}
            )
        )
    try:
        return cpu_features.asked(target.arch, map(str, closure))
    except KilnError as error:
        raise KilnError(f"target '{target.name}': {error}") from None
