"""CUTLASS's headers, and the headers of CUDA's C++ library that they include: fetched once, then cached.

The headers are in wheels on PyPI, pinned by SHA-256: nvidia-cutlass (BSD-3-Clause) and nvidia-cuda-cccl, of
which only the headers of libcu++ are used (Apache-2.0 WITH LLVM-exception).
"""

from __future__ import annotations

import platform
from pathlib import Path

from kiln.errors import KilnError
from kiln.files import atomic_dir
from kiln.paths import cache_dir
from kiln.sources.cuda_toolkit import unpack

CUTLASS, CCCL = "4.2.0.0", "13.3.5.0.6"
_CUTLASS_SHA256 = "f9599ada45c7bcb6bf53f7d3f0a7d154183e53451c01bfa59eecd37dd4a693f6"
# By architecture of the build machine: the wheels differ, their headers do not.
_CCCL_SHA256 = {
    "x86_64": "d5230098fa2df5021e1a00c0c4eee41797671a91119d31e892463e5ccf3ee326",
    "aarch64": "6f30b8076b3e69951c459c94ae190bde51924b320076ebaec376d36848b4c76e",
}


def cutlass_headers() -> list[Path]:
    """The include folders of the headers; 10 MB are downloaded if they are not in the cache.

    Raises KilnError if a wheel cannot be downloaded, has another SHA-256, or does not exist for this machine.
    """
    machine = platform.machine()
    if machine not in _CCCL_SHA256:
        raise KilnError(
            f"CUTLASS {CUTLASS}: no headers of CUDA for a machine of type '{machine}', only x86_64, aarch64"
        )
    folder = cache_dir() / "cuda" / f"cutlass-{CUTLASS}-{CCCL}"
    if not folder.is_dir():
        with atomic_dir(folder, shared=True) as headers:
            source, cuda = "cutlass_library/source/", ["include/cccl/cuda/", "include/cccl/nv/"]
            unpack("nvidia-cutlass", CUTLASS, _CUTLASS_SHA256, headers, source, ["include/"])
            unpack("nvidia-cuda-cccl", CCCL, _CCCL_SHA256[machine], headers, "nvidia/cu13/", cuda)
    return [folder / "include", folder / "include" / "cccl"]
