"""OpenBLAS: dense layers, products of activations, and convolutions that are such a product (1x1, stride 1).

The library is told to use one thread, and Kiln's own threads share the rows (of few rows, the columns) of a
product: a session then runs on as many threads as its caller gave it, and never on more. OpenBLAS takes its
buffers from the operating system at the first call and keeps them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln.byoc.backend import Backend, Code, Facts, Library, Wheel

if TYPE_CHECKING:
    from kiln.byoc.match import Match

_HEADERS = {
    "cblas.h": "bb05d0d79716e4b45035f5739f3f0b7649e6ef0df0fad43298052bbcde5c7676",
}
_LICENCE = "51b0d449fdce3b1fabfead1af1cc6eff1df46a70b378c27dc0f5663afc6cc66a"
_VERSION = "0.3.31.188.0"
# What the wheels hold beside OpenBLAS itself.
_LICENCES = {
    "libgfortran": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "libquadmath": "LGPL-2.1-or-later",
}


def _wheel(platform: str, config: str, shared: dict[str, str]) -> Wheel:
    inside = "scipy_openblas32"
    licence = f"{inside}-{_VERSION}.dist-info/licenses/LICENSE.txt"
    files = {
        f"{inside}/include/cblas.h": ("include/cblas.h", _HEADERS["cblas.h"]),
        f"{inside}/include/openblas_config.h": ("include/openblas_config.h", config),
        licence: ("licence.txt", _LICENCE),
        **{f"{inside}/lib/{name}": (f"lib/{name}", digest) for name, digest in shared.items()},
    }
    held = [_LICENCES[name.split("-")[0]] for name in shared if name.split("-")[0] in _LICENCES]
    terms = " AND ".join(["BSD-3-Clause", *held])
    return Wheel("scipy-openblas32", _VERSION, platform, files, link=("libscipy_openblas.so",), licence=terms)


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
    defines=("KILN_OPENBLAS=scipy_",),  # what the wheel's symbols begin with
)

_FEW = 32  # rows; below, threads share columns
_COLUMNS = 64

_TEXT = """\
#include <cblas.h>
#include <stdint.h>

#ifdef KILN_OPENBLAS
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define BLAS(name) JOIN(KILN_OPENBLAS, name)
#else
#define BLAS(name) name
#endif

static void one_thread(void) {
    static _Atomic int done; /* setting it twice does no harm */
    if (!done) {
        BLAS(openblas_set_num_threads)(1);
        done = 1;
    }
}
"""


def patterns() -> list[Any]:
    """Products first; a convolution is refused by `generate` unless it is one."""
    from kiln.byoc import products

    return [*products.dense(), *products.matmul(), *products.conv2d()]


def groups() -> list[Any]:
    """The same, in fused functions."""
    from kiln.byoc import products

    return products.groups("dense", "conv2d")


def generate(match: Match, facts: Facts) -> Code | None:
    """One cblas_sgemm a task, with the bias and the residual as the matrix that it adds to."""
    if match.pattern == "matmul":
        return _batched(match, facts)
    if match.pattern == "conv2d" and not _is_product(match):
        return None
    return _product(match, facts)


def _is_product(match: Match) -> bool:
    attrs = match.anchor["attrs"]
    return (
        tuple(match.operands["w"].shape[:2]) == (1, 1)
        and all(step == 1 for step in attrs["strides"])
        and not any(attrs["padding"])
        and attrs["groups"] == 1
    )


def _product(match: Match, facts: Facts) -> Code:
    """A product with a constant matrix. A task is some of the rows or, where they are few, of the columns."""
    from kiln.byoc import products
    from kiln.kernels.symbols import ceil_div, product

    weights = match.operands["w"].value
    assert weights is not None
    weights = weights.reshape(weights.shape[-2:])
    depth, width = match.operands["w"].shape[-2:]
    rows = product(match.output.shape[:-1])
    known = isinstance(rows, int)
    few = known and rows < _FEW
    least = _COLUMNS if few else _FEW
    total = width if few else rows
    step = max(least, -(-total // facts.threads)) if isinstance(total, int) else least
    shared = facts.threads > 1 and not (isinstance(total, int) and total <= step)
    bias, limits = products.bias_of(match), products.limits(match)
    operands = ["x", "w"] + [name for name in ("bias", "residual") if name in match.operands]
    size = str(total) if isinstance(total, int) else "rows"
    added = [f"bias[{'first + ' if few else ''}j]"] if bias is not None else []
    at = f"[i * {width} + j]"
    start = "first" if few else f"first * {width}"
    added += [f"(residual + {start}){at}"] if "residual" in match.operands else []
    extents = (str(rows), "count") if few else ("count", str(width))
    body = [
        *(_range(step, size) if shared else ("const int64_t first = 0;", f"const int64_t count = {size};")),
        f"float *const out = y + {start};",
        *(_loops(extents, f"out{at} = {' + '.join(added)};") if added else []),
        f"BLAS(cblas_sgemm)(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int){extents[0]}, (int){extents[1]},",
        f"                  {depth}, 1.0f, x + {'0' if few else f'first * {depth}'}, {depth},",
        f"                  w + {'first' if few else '0'}, {width}, {1 if added else 0}.0f, out, {width});",
        *(_loops(extents, _limited(f"out{at}", limits)) if limits is not None else []),
    ]
    lines = [
        _TEXT,
        _signature(operands, [] if known else ["rows"], shared),
        "    one_thread();",
        # One call a task, whoever runs them: results must not depend on the number of threads.
        f"    for (int64_t task = {'begin; task < end' if shared else '0; task < 1'}; task++) {{",
        *(f"        {line}" for line in body),
        "    }",
        "}\n",
    ]
    constants: dict[str, Any] = {"w": weights} | ({"bias": bias} if bias is not None else {})
    in_place = ["residual"] if "residual" in match.operands else []
    sizes = [] if known else [rows]
    tasks = ceil_div(total, step) if shared else None
    return Code("\n".join(lines), operands, constants, sizes, tasks, in_place)


def _range(step: int, size: str) -> tuple[str, str]:
    return (
        f"const int64_t first = task * {step};",
        f"const int64_t count = {size} - first < {step} ? {size} - first : {step};",
    )


def _signature(inputs: list[str], sizes: list[str], shared: bool) -> str:
    parts = [f"const float *{name}" for name in inputs] + ["float *y"]
    parts += [f"int32_t {name}" for name in sizes]
    parts += ["int32_t begin", "int32_t end"] if shared else []
    return f"void SYMBOL({', '.join(parts)}) {{"


def _loops(extents: tuple[str, str], statement: str) -> list[str]:
    return [
        f"for (int64_t i = 0; i < {extents[0]}; i++)",
        f"    for (int64_t j = 0; j < {extents[1]}; j++)",
        f"        {statement}",
    ]


def _limited(place: str, limits: tuple[float, float]) -> str:
    low, high = limits
    least = f"{place} < {low!r}f ? {low!r}f : {place}"
    if high == float("inf"):
        return f"{place} = {least};"
    return f"{place} = {place} > {high!r}f ? {high!r}f : {least};"


def _batched(match: Match, facts: Facts) -> Code:
    """Products of two matrices for each place in the batch axes; a task is one of them."""
    from kiln.kernels.symbols import product

    x, w = match.operands["x"].shape, match.operands["w"].shape
    sizes = {"m": x[-2], "n": w[-1], "k": x[-1], "batch": product(x[:-2])}
    is_open = {name: size for name, size in sizes.items() if not isinstance(size, int)}
    alone = facts.threads == 1 or (isinstance(sizes["batch"], int) and sizes["batch"] == 1)
    tasks = None if alone else sizes["batch"]
    given = {name: size for name, size in is_open.items() if name != "batch" or tasks is None}
    lines = [_TEXT, _signature(["x", "w"], list(given), tasks is not None), "    one_thread();"]
    lines += [
        f"    const int64_t {name}_ = {name if name in is_open else size};"
        for name, size in sizes.items()
        if name != "batch"
    ]
    last = "end" if tasks is not None else "batch" if "batch" in is_open else str(sizes["batch"])
    lines += [
        f"    for (int64_t i = {'begin' if tasks is not None else '0'}; i < {last}; i++)",
        "        BLAS(cblas_sgemm)(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)m_, (int)n_, (int)k_,",
        "                          1.0f, x + i * m_ * k_, (int)k_, w + i * k_ * n_, (int)n_, 0.0f,",
        "                          y + i * m_ * n_, (int)n_);",
        "}",
        "",
    ]
    return Code("\n".join(lines), ["x", "w"], {}, list(given.values()), tasks)


BACKEND = Backend(
    "openblas",
    archs=("x86_64", "aarch64", "armv7"),
    library=LIBRARY,
    generate=generate,
    patterns=patterns,
    groups=groups,
    layouts={"x": "(…, k)", "w": "(k, n)"},
)
