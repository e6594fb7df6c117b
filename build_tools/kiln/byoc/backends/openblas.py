"""OpenBLAS: dense layers, matmuls of activations, and convolutions that are matmuls (1x1, stride 1).

The library is set to one thread, and Kiln's own threads divide the rows (if they are few, the columns) of a
matmul among them: a session then runs on as many threads as its caller gave it, and never on more. OpenBLAS
allocates its buffers from the operating system at the first call and keeps them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln.byoc.backend import Backend, Code, TargetFacts
from kiln.byoc.backends.openblas_library import LIBRARY

if TYPE_CHECKING:
    from kiln.byoc.match import Match

_FEW_ROWS = 32  # rows; below, threads share columns
_LEAST_COLUMNS = 64

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
    """Graph patterns, matmuls first; `generate` rejects convolutions that are not matmuls."""
    from kiln.byoc import products

    return [*products.dense(), *products.matmul(), *products.conv2d()]


def groups() -> list[Any]:
    """Patterns of fused functions: dense layers and convolutions, with their epilogues."""
    from kiln.byoc import products

    return products.groups("dense", "conv2d")


def generate(match: Match, facts: TargetFacts) -> Code | None:
    """Generate one cblas_sgemm for each task, which adds to the sum of bias and residual in the output.

    Returns None for a convolution that is not a matmul.
    """
    from kiln.byoc import products

    if match.pattern == "matmul":
        return _batch_matmul(match, facts)
    if match.pattern == "conv2d" and not products.is_product(match):
        return None
    return _product(match, facts)


def _product(match: Match, facts: TargetFacts) -> Code:
    """The code of a matmul with a constant matrix. A task is some rows or, if there are few, some columns."""
    from kiln.byoc import products
    from kiln.tir.symbols import ceil_div, product

    weights = match.operands["w"].value
    assert weights is not None
    weights = weights.reshape(weights.shape[-2:])
    depth, width = match.operands["w"].shape[-2:]
    rows = product(match.output.shape[:-1])
    is_static = isinstance(rows, int)
    few_rows = is_static and rows < _FEW_ROWS
    least = _LEAST_COLUMNS if few_rows else _FEW_ROWS
    total = width if few_rows else rows
    step = max(least, ceil_div(total, facts.threads)) if isinstance(total, int) else least
    shared = facts.threads > 1 and not (isinstance(total, int) and total <= step)
    bias, limits = products.bias_of(match), products.limits(match)
    operands = ["x", "w"] + [name for name in ("bias", "residual") if name in match.operands]
    size = str(total) if isinstance(total, int) else "rows"
    added = [f"bias[{'first + ' if few_rows else ''}j]"] if bias is not None else []
    element = f"[i * {width} + j]"
    start = "first" if few_rows else f"first * {width}"
    added += [f"(residual + {start}){element}"] if "residual" in match.operands else []
    extents = (str(rows), "count") if few_rows else ("count", str(width))
    body = [
        *(_range(step, size) if shared else ("const int64_t first = 0;", f"const int64_t count = {size};")),
        f"float *const out = y + {start};",
        *(_loops(extents, f"out{element} = {' + '.join(added)};") if added else []),
        f"BLAS(cblas_sgemm)(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int){extents[0]}, (int){extents[1]},",
        f"                  {depth}, 1.0f, x + {'0' if few_rows else f'first * {depth}'}, {depth},",
        f"                  w + {'first' if few_rows else '0'}, {width}, "
        f"{1 if added else 0}.0f, out, {width});",
        *(_loops(extents, _limited(f"out{element}", limits)) if limits is not None else []),
    ]
    lines = [
        _TEXT,
        _signature(operands, [] if is_static else ["rows"], shared),
        "    one_thread();",
        # One call for each task on any thread: results must not depend on the number of threads.
        f"    for (int64_t task = {'begin; task < end' if shared else '0; task < 1'}; task++) {{",
        *(f"        {line}" for line in body),
        "    }",
        "}\n",
    ]
    constants: dict[str, Any] = {"w": weights} | ({"bias": bias} if bias is not None else {})
    in_place = ["residual"] if "residual" in match.operands else []
    sizes = [] if is_static else [rows]
    tasks = ceil_div(total, step) if shared else None
    return Code("\n".join(lines), operands, constants, sizes, tasks, in_place)


def _range(step: int, size: str) -> tuple[str, str]:
    return (
        f"const int64_t first = task * {step};",
        f"const int64_t count = {size} - first < {step} ? {size} - first : {step};",
    )


def _signature(inputs: list[str], sizes: list[str], shared: bool) -> str:
    parameters = [f"const float *{name}" for name in inputs] + ["float *y"]
    parameters += [f"int32_t {name}" for name in sizes]
    parameters += ["int32_t begin", "int32_t end"] if shared else []
    return f"void SYMBOL({', '.join(parameters)}) {{"


def _loops(extents: tuple[str, str], statement: str) -> list[str]:
    return [
        f"for (int64_t i = 0; i < {extents[0]}; i++)",
        f"    for (int64_t j = 0; j < {extents[1]}; j++)",
        f"        {statement}",
    ]


def _limited(element: str, limits: tuple[float, float]) -> str:
    low, high = limits
    least = f"{element} < {low!r}f ? {low!r}f : {element}"
    if high == float("inf"):
        return f"{element} = {least};"
    return f"{element} = {element} > {high!r}f ? {high!r}f : {least};"


def _batch_matmul(match: Match, facts: TargetFacts) -> Code:
    """The code of a batch matmul; a task is one matmul of the batch."""
    from kiln.tir.symbols import product

    x, w = match.operands["x"].shape, match.operands["w"].shape
    sizes = {"m": x[-2], "n": w[-1], "k": x[-1], "batch": product(x[:-2])}
    is_dynamic = {name: size for name, size in sizes.items() if not isinstance(size, int)}
    one_task = facts.threads == 1 or (isinstance(sizes["batch"], int) and sizes["batch"] == 1)
    tasks = None if one_task else sizes["batch"]
    parameters = {name: size for name, size in is_dynamic.items() if name != "batch" or tasks is None}
    lines = [_TEXT, _signature(["x", "w"], list(parameters), tasks is not None), "    one_thread();"]
    lines += [
        f"    const int64_t {name}_ = {name if name in is_dynamic else size};"
        for name, size in sizes.items()
        if name != "batch"
    ]
    last = "end" if tasks is not None else "batch" if "batch" in is_dynamic else str(sizes["batch"])
    lines += [
        f"    for (int64_t i = {'begin' if tasks is not None else '0'}; i < {last}; i++)",
        "        BLAS(cblas_sgemm)(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)m_, (int)n_, (int)k_,",
        "                          1.0f, x + i * m_ * k_, (int)k_, w + i * k_ * n_, (int)n_, 0.0f,",
        "                          y + i * m_ * n_, (int)n_);",
        "}",
        "",
    ]
    return Code("\n".join(lines), ["x", "w"], {}, list(parameters.values()), tasks)


BACKEND = Backend(
    "openblas",
    archs=("x86_64", "aarch64", "armv7"),
    library=LIBRARY,
    generate=generate,
    patterns=patterns,
    groups=groups,
    layouts={"x": "(…, k)", "w": "(k, n)"},
)
