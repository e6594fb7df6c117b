"""XNNPACK: convolutions in NHWC, depthwise ones too, and dense layers, with bias and clip in the operator.

An operator is made at open: XNNPACK packs the weights for the CPU that it finds. It does so in memory of its
own, and there is no other way: the header of this version (2022-02-16) has no weights cache, and the allocator
that xnn_initialize takes is one for the whole process, chosen by whoever comes first.

An operator has one owner at a time, because the addresses of a run are set in it; so each has a lock, and
sessions that run at the same time take turns at it. Each uses one thread of the library. Where several threads
of Kiln's share a step, each task is an operator of its own for some of the output channels, with that part of
the weights: no weight is packed twice, and results do not depend on the number of threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kiln.byoc.backend import Backend, Code, Deb, Facts, Library

if TYPE_CHECKING:
    from kiln.byoc.match import Match

_HEADERS = {
    "usr/include/xnnpack.h": (
        "include/xnnpack.h",
        "985cd667cebb9d59967a655d98270c7097f61070b54fc4b8f30260dab50c6b8a",
    ),
}
_THREADS_HEADER = {
    "usr/include/pthreadpool.h": (
        "include/pthreadpool.h",
        "bc2ca2ed9bf9379880a4ced7e916223239c139a52d9930ce379762887d8cc8be",
    ),
}


def _debs(arch: str, folder: str, xnnpack: str, pthreadpool: str, cpuinfo: str) -> list[Deb]:
    """The packages of Debian 12. The three numbers are the SHA-256 of the libraries."""

    def library(name: str, package: str, digest: str, licence: str) -> dict[str, tuple[str, str]]:
        return {
            f"usr/lib/{folder}/{name}": (f"lib/{name}", digest),
            f"usr/share/doc/{package}/copyright": ("licence.txt", licence),
        }

    x, p, c = (f"pool/main/{place}" for place in ("x/xnnpack", "p/pthreadpool", "c/cpuinfo"))
    return [
        Deb(f"{x}/libxnnpack-dev_0.0~git20220216.ae108ef-2_{arch}.deb", _HEADERS),
        Deb(f"{p}/libpthreadpool-dev_0.0~git20210507.1787867-1_{arch}.deb", _THREADS_HEADER),
        Deb(
            f"{x}/libxnnpack0_0.0~git20220216.ae108ef-2_{arch}.deb",
            library(
                "libXNNPACK.so.0",
                "libxnnpack0",
                xnnpack,
                "d50b04149e18710e6ea3c4a1051afa96ef78cff00ce7022e31b94e86a6fa0c59",
            ),
        ),
        Deb(
            f"{p}/libpthreadpool0_0.0~git20210507.1787867-1_{arch}.deb",
            library(
                "libpthreadpool.so.0",
                "libpthreadpool0",
                pthreadpool,
                "ec659c564956241a091e75a00db96a35557602c672d13662b23c882fcbb042ca",
            ),
        ),
        Deb(
            f"{c}/libcpuinfo0_0.0~git20220617.082deff-1+deb12u1_{arch}.deb",
            library(
                "libcpuinfo.so.0",
                "libcpuinfo0",
                cpuinfo,
                "4043aafc22dfa1786806bb8935058ac88e255c74df93951cd25cb8968b13ed88",
            ),
        ),
    ]


LIBRARY = Library(
    name="XNNPACK",
    # XNNPACK; pthreadpool and cpuinfo; FXdiv and FP16, of which headers are compiled in.
    licence="BSD-3-Clause AND BSD-2-Clause AND MIT",
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
        "aarch64": _debs(
            "arm64",
            "aarch64-linux-gnu",
            "3d52e5e01189341f012b23bc1be1679fadd024c5b3f1989a232809b096aa87fb",
            "f626c468a961bfb1083d7d3fd6a8c28cd56da5c9fe0d97e13e86b0e80a284958",
            "b340a23e9a28b82e7789ff04b4ad525cdee88dcedb03192ac32e465efb2442ed",
        ),
    },
)

_READS_PAST = 16  # XNN_EXTRA_BYTES
_CHANNELS = 32  # the fewest that are worth an operator of their own, and what a part's number divides by

_TEXT = """\
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <xnnpack.h>

enum {{ PARTS = {parts}, CHANNELS = {channels} /* of one part but the last */, ALL = {all} }};

/* An operator for some of the output channels; who sets it up holds the lock until it has run. */
static struct {{
    xnn_operator_t op;
    pthread_mutex_t lock;
}} parts[PARTS];

bool cpuinfo_initialize(void); /* cpuinfo.h */

static int32_t SYMBOL_make({made}) {{
    /* Linkers that leave out libraries that nothing calls must keep those that XNNPACK calls. */
    if (!cpuinfo_initialize() || pthreadpool_get_threads_count(NULL) != 1)
        return xnn_status_unsupported_hardware;
    enum xnn_status status = xnn_initialize(NULL);
    for (int32_t i = 0; i < PARTS && status == xnn_status_success; i++) {{
        const size_t first = (size_t)i * CHANNELS, count = i + 1 < PARTS ? CHANNELS : ALL - first;
        if (parts[i].op != NULL)
            continue; /* from an attempt that failed at a later part */
        (void)pthread_mutex_init(&parts[i].lock, NULL);
        status = {create};
    }}
    return (int32_t)status;
}}

{signature} {{
    {unused}
    for (int32_t i = {begin}; i < {end}; i++) {{
        const size_t first = (size_t)i * CHANNELS;
        (void)pthread_mutex_lock(&parts[i].lock);
        enum xnn_status status = {setup};
        if (status == xnn_status_success)
            status = xnn_run_operator(parts[i].op, NULL);
        (void)pthread_mutex_unlock(&parts[i].lock);
        if (status != xnn_status_success)
            return (int32_t)status;{after}
    }}
    return 0;
}}
"""

_RESIDUAL = """
        const size_t count = i + 1 < PARTS ? CHANNELS : ALL - first;
        for (int64_t row = 0; row < {rows}; row++)
            for (size_t j = row * ALL + first; j < row * ALL + first + count; j++) {{
                const float sum = y[j] + residual[j];
                y[j] = {limited};
            }}"""


def patterns() -> list[Any]:
    """Convolutions and dense layers."""
    from kiln.byoc import products

    return [*products.conv2d(), *products.dense()]


def groups() -> list[Any]:
    """The same, in fused functions."""
    from kiln.byoc import products

    return products.groups("conv2d", "dense")


def generate(match: Match, facts: Facts) -> Code | None:
    """Operators for parts of the output channels. None where the clip leaves nothing, which XNNPACK refuses."""
    from kiln.byoc import products
    from kiln.kernels.symbols import product

    limits = products.limits(match) or (-np.inf, np.inf)
    if not limits[0] < limits[1]:
        return None
    is_conv = match.pattern == "conv2d"
    weights, bias = match.operands["w"].value, products.bias_of(match)
    assert weights is not None
    width, groups = weights.shape[-1], int(match.anchor["attrs"]["groups"]) if is_conv else 1
    parts, channels = _parts(width, groups, facts.threads)
    # XNNPACK reads the weights of one output channel after the other.
    packed = np.ascontiguousarray(np.moveaxis(weights, -1, 0))
    residual = "residual" in match.operands
    x, y = match.operands["x"].shape, match.output.shape
    # What the sizes of a run decide.
    wanted = (
        {"batch": product(x[:1]), "height": x[1], "width": x[2]} if is_conv else {"batch": product(x[:-1])}
    )
    if residual:
        wanted["rows"] = product(y[:-1])
    sizes = {name: size for name, size in wanted.items() if not isinstance(size, int)}
    said = {name: name if name in sizes else str(size) for name, size in wanted.items()}
    operands = ["x", "w"] + [name for name in ("bias", "residual") if name in match.operands]
    clip = (-np.inf, np.inf) if residual else limits
    first_bias = "bias + first" if bias is not None else "NULL"
    depth = int(np.prod(packed.shape[1:]))
    shared = parts > 1
    per_group = width // groups
    one, many = ("1", f"{per_group}") if groups == 1 else (f"count / {per_group}", f"{per_group}")
    if groups == 1:
        many = "count"
    data = f"x + first / {per_group} * {weights.shape[-2]}" if groups > 1 else "x"
    tail = f"w + first * {depth}, {first_bias}, {_number(clip[0])}, {_number(clip[1])}, 0, &parts[i].op"
    if is_conv:
        attrs = match.anchor["attrs"]
        top, left, bottom, right = (int(size) for size in attrs["padding"])
        numbers = [top, right, bottom, left, *weights.shape[:2], *attrs["strides"], *attrs["dilation"]]
        create = (
            f"xnn_create_convolution2d_nhwc_f32(\n            {', '.join(map(str, numbers))}, {one}, "
            f"{weights.shape[-2]}, {many}, {x[-1]}, ALL,\n            {tail})"
        )
        setup = (
            f"xnn_setup_convolution2d_nhwc_f32(\n            parts[i].op, (size_t){said['batch']}, "
            f"(size_t){said['height']}, (size_t){said['width']}, {data}, y + first, NULL)"
        )
    else:
        create = f"xnn_create_fully_connected_nc_f32(\n            {depth}, count, {depth}, ALL,\n            {tail})"
        setup = (
            f"xnn_setup_fully_connected_nc_f32(\n            parts[i].op, (size_t){said['batch']}, x, "
            "y + first, NULL)"
        )
    after = ""
    if residual:
        after = _RESIDUAL.format(rows=said["rows"], limited=_limited("sum", limits))
    kept = [name for name in ("w", "bias") if name in operands]
    signature = [f"const float *{name}" for name in operands] + ["float *y"]
    signature += [f"int32_t {name}" for name in sizes] + (["int32_t begin", "int32_t end"] if shared else [])
    source = _TEXT.format(
        parts=parts,
        channels=channels,
        all=width,
        made=", ".join(f"const float *{name}" for name in kept),
        create=create,
        setup=setup,
        signature=f"int32_t SYMBOL({', '.join(signature)})",
        unused=" ".join(f"(void){name};" for name in kept),
        begin="begin" if shared else "0",
        end="end" if shared else "PARTS",
        after=after,
    )
    constants = {"w": packed, **({"bias": bias} if bias is not None else {})}
    return Code(
        source,
        operands,
        constants,
        list(sizes.values()),
        parts if shared else None,
        reads_past=_READS_PAST,
        opens=True,
    )


def _parts(width: int, groups: int, threads: int) -> tuple[int, int]:
    """How many operators, and the output channels of each but the last. Groups are not divided."""
    step = _CHANNELS * (width // groups) if groups > 1 else _CHANNELS
    channels = -(-width // threads // step) * step if threads > 1 else width
    return -(-width // channels), channels


def _number(value: float) -> str:
    if np.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    return f"{float(np.float32(value))!r}f"


def _limited(name: str, limits: tuple[float, float]) -> str:
    low, high = limits
    text = name
    if not np.isinf(high):
        text = f"{name} > {_number(high)} ? {_number(high)} : {text}"
    if not np.isinf(low):
        text = f"{name} < {_number(low)} ? {_number(low)} : {text}"
    return text


BACKEND = Backend(
    "xnnpack",
    archs=("x86_64", "aarch64"),
    library=LIBRARY,
    generate=generate,
    patterns=patterns,
    groups=groups,
    layouts={"conv2d": "NHWC, OHWI", "dense": "(…, k), (n, k)"},
)
