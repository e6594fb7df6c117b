"""Pinned packages of OpenBLAS: a wheel for x86_64 and aarch64, Debian 12's packages for armv7.

Debian's libraries need glibc 2.34 or later, aarch64's libgcc_s 2.35.
"""

from __future__ import annotations

from kiln.byoc.backend import Deb, Library, Wheel

_HEADERS = {
    "cblas.h": "bb05d0d79716e4b45035f5739f3f0b7649e6ef0df0fad43298052bbcde5c7676",
}
_LICENCE = "51b0d449fdce3b1fabfead1af1cc6eff1df46a70b378c27dc0f5663afc6cc66a"
_VERSION = "0.3.31.188.0"
# Licences of the other libraries in the wheels.
_LICENCES = {
    "libgfortran": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "libquadmath": "LGPL-2.1-or-later",
}


def _wheel(platform: str, config: str, shared: dict[str, str]) -> Wheel:
    folder_in_wheel = "scipy_openblas32"
    licence = f"{folder_in_wheel}-{_VERSION}.dist-info/licenses/LICENSE.txt"
    files = {
        f"{folder_in_wheel}/include/cblas.h": ("include/cblas.h", _HEADERS["cblas.h"]),
        f"{folder_in_wheel}/include/openblas_config.h": ("include/openblas_config.h", config),
        licence: ("licence.txt", _LICENCE),
        **{f"{folder_in_wheel}/lib/{name}": (f"lib/{name}", digest) for name, digest in shared.items()},
    }
    licences = [_LICENCES[name.split("-")[0]] for name in shared if name.split("-")[0] in _LICENCES]
    terms = " AND ".join(["BSD-3-Clause", *licences])
    return Wheel("scipy-openblas32", _VERSION, platform, files, link=("libscipy_openblas.so",), licence=terms)


_GCC = "pool/main/g/gcc-12/{}_12.2.0-14+deb12u1_{}.deb"
_GCC_LICENCE = {
    # libgcc-s1 and libgfortran5 have their copyright file in gcc-12-base.
    "usr/share/doc/gcc-12-base/copyright": (
        "licence.txt",
        "da8191658b3452ce9caf31638ba61dab31a38c619fa39df119812e050f592fd3",
    ),
}
# Dependencies of the wheel's libgfortran, which the wheel expects in every system.
_NEEDED_BY_GFORTRAN = [
    Deb(
        "pool/main/z/zlib/zlib1g_1.2.13.dfsg-1_arm64.deb",
        {
            "lib/aarch64-linux-gnu/libz.so.1.2.13": (
                "lib/libz.so.1",
                "ffb1ab496e6eced03ab679075f9f2c415c7728a145cc7f63d614497102d73822",
            ),
            "usr/share/doc/zlib1g/copyright": (
                "licence.txt",
                "9e5b96d63773a5d177ba264254390f792be07e41748ebd94730981c6cac31cc6",
            ),
        },
        "Zlib",
    ),
    Deb(
        _GCC.format("libgcc-s1", "arm64"),
        {
            "lib/aarch64-linux-gnu/libgcc_s.so.1": (
                "lib/libgcc_s.so.1",
                "046856f95f4636f1fc7c3a12bf4f3cd5634c2fc5145c3fdf7395d4f349fa69c7",
            ),
        },
        _LICENCES["libgfortran"],
    ),
    Deb(_GCC.format("gcc-12-base", "arm64"), _GCC_LICENCE),
]
_DEBIAN = "pool/main/o/openblas/{}_0.3.21+ds-4_armhf.deb"
_FOLDER = "arm-linux-gnueabihf"
_ARMV7 = [
    Deb(
        _DEBIAN.format("libopenblas-pthread-dev"),
        {
            f"usr/include/{_FOLDER}/openblas-pthread/cblas.h": (
                "include/cblas.h",
                "4ca05f518fa1a9e526da58ae195c9491b191d96337f6b910c9d0330eec4aa68a",
            ),
            f"usr/include/{_FOLDER}/openblas-pthread/openblas_config.h": (
                "include/openblas_config.h",
                "a037dc77d0be789cb50df434e83e65ce26e8532905edbbde6015b9ec284ac459",
            ),
        },
    ),
    Deb(
        _DEBIAN.format("libopenblas0-pthread"),
        {
            f"usr/lib/{_FOLDER}/openblas-pthread/libopenblas_armv6p-r0.3.21.so": (
                "lib/libopenblas.so.0",
                "60fabdd5a6a98b1941ebfea7f46bfbe4ae6ab71ebfe276d86ce1f4095c83e530",
            ),
            "usr/share/doc/libopenblas0-pthread/copyright": (
                "licence.txt",
                "3a668a70e1d025a79e455e5b9a2268d5d262b108dff14ec70c77f19f929bc9b2",
            ),
        },
        "BSD-3-Clause",
    ),
    Deb(
        _GCC.format("libgfortran5", "armhf"),
        {
            f"usr/lib/{_FOLDER}/libgfortran.so.5.0.0": (
                "lib/libgfortran.so.5",
                "b4b944eb70839504590b2e461471bca299917ba0dda49b1cb973470b688973b1",
            ),
        },
        _LICENCES["libgfortran"],
    ),
    Deb(
        _GCC.format("libgcc-s1", "armhf"),
        {
            f"lib/{_FOLDER}/libgcc_s.so.1": (
                "lib/libgcc_s.so.1",
                "0b5985126b49e377ded6cfa10c3c155c9c53705dd9b5797a780317bc3e274f04",
            ),
        },
        _LICENCES["libgfortran"],
    ),
    Deb(_GCC.format("gcc-12-base", "armhf"), _GCC_LICENCE),
]

LIBRARY = Library(
    name="OpenBLAS",
    licence="BSD-3-Clause",
    symbols=("cblas_sgemm", "openblas_set_num_threads"),
    headers=("cblas.h", "openblas_config.h"),
    shared=("libopenblas.so",),
    package="libopenblas-dev",
    wheels={
        "x86_64": [
            _wheel(
                "manylinux2014_x86_64",
                "2e1085094ea1a7e9a84a16fef0514a6a0cbd7470dc9e61f5963227ddb1e5e66f",
                {
                    "libscipy_openblas.so": (
                        "1209e25e77d668246de596be4570f32c1c60eb3b551534d2fbdc31aa6c11a6bf"
                    ),
                    "libgfortran-040039e1.so.5.0.0": (
                        "0352e75f0719d9a299cb52919977eb5d7bd249d1fcad06d5e14030b272aae619"
                    ),
                    "libquadmath-96973f99.so.0.0.0": (
                        "934c22ded0e7d169c4d4678876c96051adf3d94545da962f60b41659b075da3b"
                    ),
                },
            )
        ],
        "aarch64": [
            _wheel(
                "manylinux2014_aarch64",
                "14dbce822d666b1b83d9d33edf38306a89b070c4c91f01647ea8797a135b11c0",
                {
                    "libscipy_openblas.so": (
                        "260508f00c11242d0ba56fff42b5d97e383210c5437fc8cc2efc129708316d23"
                    ),
                    "libgfortran-daac5196.so.5.0.0": (
                        "038a5e3c53dfc3e3c00dd55c7f734cc8a0afa08f5557e07a0158c8e7695254f5"
                    ),
                },
            )
        ],
    },
    debs={"aarch64": _NEEDED_BY_GFORTRAN, "armv7": _ARMV7},
    defines=("KILN_OPENBLAS=scipy_",),  # prefix of the wheel's symbols
)
