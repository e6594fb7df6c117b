"""Pinned Debian 12 packages of XNNPACK and its dependencies: aarch64 and x86-64, glibc 2.35 or later."""

from __future__ import annotations

from kiln.byoc.backend import Deb, Library

_COPYRIGHTS = {
    "libxnnpack0": "d50b04149e18710e6ea3c4a1051afa96ef78cff00ce7022e31b94e86a6fa0c59",
    "libpthreadpool0": "ec659c564956241a091e75a00db96a35557602c672d13662b23c882fcbb042ca",
    "libcpuinfo0": "4043aafc22dfa1786806bb8935058ac88e255c74df93951cd25cb8968b13ed88",
    "gcc-12-base": "da8191658b3452ce9caf31638ba61dab31a38c619fa39df119812e050f592fd3",
}
_XNNPACK = "pool/main/x/xnnpack/{}_0.0~git20220216.ae108ef-2"
_PTHREADPOOL = "pool/main/p/pthreadpool/{}_0.0~git20210507.1787867-1"
_CPUINFO = "pool/main/c/cpuinfo/{}_0.0~git20220617.082deff-1+deb12u1"
_GCC = "pool/main/g/gcc-12/{}_12.2.0-14+deb12u1"


def _package(path_in_archive: str, name: str, arch: str, library: tuple[str, str], licence: str) -> Deb:
    """A Debian package with one library; `library`: the library's path in the package, and its SHA-256."""
    path, digest = library
    files = {
        path: (f"lib/{path.rsplit('/', 1)[1]}", digest),
        f"usr/share/doc/{name}/copyright": ("licence.txt", _COPYRIGHTS[name]),
    }
    return Deb(f"{path_in_archive.format(name)}_{arch}.deb", files, licence)


def _header(path_in_archive: str, name: str, arch: str, header: str, digest: str) -> Deb:
    return Deb(
        f"{path_in_archive.format(name)}_{arch}.deb", {f"usr/include/{header}": (f"include/{header}", digest)}
    )


def _debs(arch: str, folder: str, xnnpack: str, pthreadpool: str, cpuinfo: str) -> list[Deb]:
    """The packages of Debian 12; each library's SHA-256 is given. FP16 and FXdiv are compiled in."""
    library_path = f"usr/lib/{folder}/lib"
    return [
        _header(
            _XNNPACK,
            "libxnnpack-dev",
            arch,
            "xnnpack.h",
            "985cd667cebb9d59967a655d98270c7097f61070b54fc4b8f30260dab50c6b8a",
        ),
        _header(
            _PTHREADPOOL,
            "libpthreadpool-dev",
            arch,
            "pthreadpool.h",
            "bc2ca2ed9bf9379880a4ced7e916223239c139a52d9930ce379762887d8cc8be",
        ),
        _package(
            _XNNPACK, "libxnnpack0", arch, (f"{library_path}XNNPACK.so.0", xnnpack), "BSD-3-Clause AND MIT"
        ),
        _package(
            _PTHREADPOOL,
            "libpthreadpool0",
            arch,
            (f"{library_path}pthreadpool.so.0", pthreadpool),
            "BSD-2-Clause",
        ),
        _package(_CPUINFO, "libcpuinfo0", arch, (f"{library_path}cpuinfo.so.0", cpuinfo), "BSD-2-Clause"),
    ]


LIBRARY = Library(
    name="XNNPACK",
    licence="BSD-3-Clause AND MIT AND BSD-2-Clause",
    symbols=(
        "xnn_initialize",
        "xnn_create_convolution2d_nhwc_f32",
        "xnn_setup_convolution2d_nhwc_f32",
        "xnn_create_fully_connected_nc_f32",
        "xnn_setup_fully_connected_nc_f32",
        "xnn_run_operator",
    ),
    headers=("xnnpack.h", "pthreadpool.h"),
    shared=("libXNNPACK.so", "libpthreadpool.so", "libcpuinfo.so"),
    package="libxnnpack-dev",
    debs={
        "x86_64": _debs(
            "amd64",
            "x86_64-linux-gnu",
            "40298990e9ad33f768a17ca12cb39a1a5f0617d1d69e685d76c321114d7d2221",
            "6c04af410bcfbd1c2d10ba682fe918a95223885195f9d2c4725118984ef1d71d",
            "437503c2c3506321812b9c38a8da3d4c3fbd25741ac1f682a7c729f7011b8029",
        ),
        "aarch64": [
            *_debs(
                "arm64",
                "aarch64-linux-gnu",
                "3d52e5e01189341f012b23bc1be1679fadd024c5b3f1989a232809b096aa87fb",
                "f626c468a961bfb1083d7d3fd6a8c28cd56da5c9fe0d97e13e86b0e80a284958",
                "b340a23e9a28b82e7789ff04b4ad525cdee88dcedb03192ac32e465efb2442ed",
            ),
            # On aarch64 XNNPACK calls one function of libgcc_s, which not every system has.
            Deb(
                f"{_GCC.format('libgcc-s1')}_arm64.deb",
                {
                    "lib/aarch64-linux-gnu/libgcc_s.so.1": (
                        "lib/libgcc_s.so.1",
                        "046856f95f4636f1fc7c3a12bf4f3cd5634c2fc5145c3fdf7395d4f349fa69c7",
                    )
                },
                "GPL-3.0-or-later WITH GCC-exception-3.1",
            ),
            Deb(
                f"{_GCC.format('gcc-12-base')}_arm64.deb",
                {"usr/share/doc/gcc-12-base/copyright": ("licence.txt", _COPYRIGHTS["gcc-12-base"])},
            ),
        ],
    },
)
