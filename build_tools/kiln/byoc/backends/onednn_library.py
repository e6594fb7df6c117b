"""Pinned packages of oneDNN: wheels of the CPU build with GCC's OpenMP; docs/libraries.md explains why."""

from __future__ import annotations

from kiln.byoc.backend import Library, Wheel

_VERSION = "2023.2.0"  # of the wheels; oneDNN 3.2
_HEADERS = {
    "dnnl.h": "eefd6013694bb1852d83b392e6c978b38441511b6ffe874c3cf8d4cbac7257ba",
    "dnnl_common.h": "98a01d9441dd8056551df53402cb90bfc00b92ca11a51c45649c76ce175ddf65",
    "dnnl_common_types.h": "29fa2e895a7af44e0418a1bf92675b7af9a02d55b63296bd79197a44adc2afdd",
    "dnnl_config.h": "6979dce6c950746f8c11f26dbf68b23bb492ce216c258bc03dd43c5513ece59c",
    "dnnl_types.h": "86af0d3958198bf3457afabedf1a58e476f215be7053e4eb335075b39ae8164d",
    "dnnl_version.h": "416bbdfb3c9ea2ff03fc6e3507ae325afcbfae99799cc65c46045f9f27deace5",
}
_CPU, _DEVEL = (f"{name}-{_VERSION}" for name in ("onednn_cpu_gomp", "onednn_devel_cpu_gomp"))

LIBRARY = Library(
    name="oneDNN",
    # oneDNN's own, and those of Xbyak, ITT, Level Zero's headers, Boost and LLVM (THIRD-PARTY-PROGRAMS).
    licence="Apache-2.0 AND BSD-3-Clause AND MIT AND BSL-1.0 AND Apache-2.0 WITH LLVM-exception",
    symbols=("dnnl_primitive_execute",),
    headers=tuple(f"oneapi/dnnl/{name}" for name in _HEADERS),
    shared=("libdnnl.so",),
    wheels={
        "x86_64": [
            Wheel(
                "onednn-cpu-gomp",
                _VERSION,
                "manylinux1_x86_64",
                {
                    f"{_CPU}.data/data/lib/libdnnl.so.3": (
                        "lib/libdnnl.so.3",
                        "e6376208cf6bacb041c346b504207e3aa1189a13f941c92a4383a55ac27058ae",
                    ),
                    f"{_CPU}.data/data/share/doc/onednn/LICENSE": (
                        "licence.txt",
                        "9dad27256276bb4fce6725c162ef619b5aa2e8abc8f341a4dab0b870aad55664",
                    ),
                    f"{_CPU}.data/data/share/doc/onednn/THIRD-PARTY-PROGRAMS": (
                        "licence_third_party.txt",
                        "07c6ee4e5e0a85f562ac8bb05a6e0fa2bfea3f2b312b36ffc5e3080da600bc28",
                    ),
                },
                link=("libdnnl.so",),
            ),
            Wheel(
                "onednn-devel-cpu-gomp",
                _VERSION,
                "manylinux1_x86_64",
                {
                    f"{_DEVEL}.data/data/include/oneapi/dnnl/{name}": (f"include/oneapi/dnnl/{name}", digest)
                    for name, digest in _HEADERS.items()
                },
            ),
        ]
    },
)
