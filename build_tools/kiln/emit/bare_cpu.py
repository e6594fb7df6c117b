"""The bits of kiln_cpu_features of a processor without an operating system, from LLVM's list of features."""

from __future__ import annotations

from kiln.config import Target, bare_features
from kiln.errors import KilnError


def bare_mask(target: Target) -> int:
    """Bits of the features that code for `target` may use; 0 where they have no bits. Raises KilnError."""
    if target.deployment != "freestanding" or target.arch not in bare_features.BITS:
        return 0
    from tvm.target import codegen

    from kiln.lower.llvm_target import tvm_target

    features = codegen.llvm_get_cpu_features(tvm_target(target))
    try:
        return bare_features.mask(target.arch, map(str, features))
    except KilnError as error:
        raise KilnError(f"target '{target.name}': {error}") from None
