"""XNNPACK: NHWC convolutions (also depthwise) and dense layers, with bias and clip in the operator.

An operator is created when a model is opened: XNNPACK packs the weights for the CPU that it detects, into
memory that XNNPACK allocates. The caller cannot provide that memory: the header of this version (2022-02-16)
has no weights cache, and the allocator passed to xnn_initialize is process-wide, set by the first caller.

An operator stores the addresses of a run, so only one thread at a time can use it: each has a lock, and
sessions that run at the same time take turns. The library runs in the thread that calls it. Where several of
Kiln's threads share a step, each task is a separate operator for some of the output channels, with the
weights of those channels: no weight is packed twice, and results do not depend on the number of threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kiln.byoc.backend import Backend, Code, TargetFacts
from kiln.byoc.backends.xnnpack_library import LIBRARY
from kiln.config.sizes import ceil_div

if TYPE_CHECKING:
    from kiln.byoc.match import Match

_READS_PAST = 16  # XNN_EXTRA_BYTES
_CHANNELS = 32  # least output channels of an operator; fewer do not fill the library's tiles

_TEXT = """\
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <xnnpack.h>

enum {{ PARTS = {parts}, CHANNELS = {channels} /* of a part but the last */, ALL = {all} }};

/* An operator for some of the output channels; who sets it up holds the lock until it has run. */
static struct {{
    xnn_operator_t op;
    pthread_mutex_t lock;
}} parts[PARTS];

static size_t channels_of(int32_t part) {{
    return part + 1 < PARTS ? CHANNELS : ALL - (size_t)part * CHANNELS;
}}

bool cpuinfo_initialize(void); /* of cpuinfo.h */

static int32_t SYMBOL_make({made}) {{
    /* Linkers that leave out libraries that nothing calls must keep those that XNNPACK calls. */
    if (!cpuinfo_initialize() || pthreadpool_get_threads_count(NULL) != 1)
        return xnn_status_unsupported_hardware;
    enum xnn_status status = xnn_initialize(NULL);
    for (int32_t i = 0; i < PARTS && status == xnn_status_success; i++) {{
        const size_t first = (size_t)i * CHANNELS, count = channels_of(i);
        if (parts[i].op != NULL)
            continue; /* from an attempt that failed at a later part */
        (void)pthread_mutex_init(&parts[i].lock, NULL);
        status = {create};
    }}
    return (int32_t)status;
}}

int32_t SYMBOL({parameters}) {{
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
_CONV = (
    """xnn_create_convolution2d_nhwc_f32(
            {numbers}, {groups}, {depth}, {each}, {channels}, ALL,
            w + first * {stored}, {bias}, {low}, {high}, 0, &parts[i].op)""",
    """xnn_setup_convolution2d_nhwc_f32(parts[i].op, (size_t)({batch}), (size_t)({height}), (size_t)({width}),
            x{from_first}, y + first, NULL)""",
)
_DENSE = (
    """xnn_create_fully_connected_nc_f32(
            {depth}, count, {depth}, ALL, w + first * {stored}, {bias}, {low}, {high}, 0, &parts[i].op)""",
    """xnn_setup_fully_connected_nc_f32(parts[i].op, (size_t)({batch}), x, y + first, NULL)""",
)
_RESIDUAL = """
        const size_t count = channels_of(i);
        for (size_t row = 0; row < (size_t)({rows}); row++)
            for (size_t j = row * ALL + first; j < row * ALL + first + count; j++) {{
                const float sum = y[j] + residual[j];
                y[j] = {limited};
            }}"""


def patterns() -> list[Any]:
    """Graph patterns: convolutions and dense layers, with their epilogues."""
    from kiln.byoc import products

    return [*products.conv2d(), *products.dense()]


def groups() -> list[Any]:
    """Patterns of fused functions: convolutions and dense layers, with their epilogues."""
    from kiln.byoc import products

    return products.groups("conv2d", "dense")


def generate(match: Match, facts: TargetFacts) -> Code | None:
    """Generate one or more operators, each for a range of output channels.

    Returns None if the least value of a clip is not below the greatest, which XNNPACK rejects.
    """
    from kiln.byoc import products
    from kiln.tir.symbols import product

    limits = products.limits(match) or (-np.inf, np.inf)
    weights, bias = match.operands["w"].value, products.bias_of(match)
    if weights is None or not limits[0] < limits[1]:
        return None
    # XNNPACK reads the weights of one output channel after the other.
    packed = np.ascontiguousarray(np.moveaxis(weights, -1, 0))
    conv = match.pattern == "conv2d"
    groups = int(match.anchor["attrs"]["groups"]) if conv else 1
    operators, channels = _operators(len(packed), groups, facts.threads)
    added = "residual" in match.operands
    x, rows = match.operands["x"].shape, product(match.output.shape[:-1])
    all_sizes = (
        dict(zip(("batch", "height", "width"), x, strict=False)) if conv else {"batch": product(x[:-1])}
    )
    all_sizes |= {"rows": rows} if added else {}
    sizes = {name: size for name, size in all_sizes.items() if not isinstance(size, int)}
    text_of = {name: name if name in sizes else size for name, size in all_sizes.items()}
    create, setup = _CONV if conv else _DENSE
    low, high = (-np.inf, np.inf) if added else limits
    fields = {
        "stored": packed[0].size,
        "depth": packed.shape[-1] if conv else packed[0].size,
        "bias": "NULL" if bias is None else "bias + first",
        "low": _number(low),
        "high": _number(high),
        **(_convolution_fields(match, groups, len(packed)) if conv else {}),
    }
    constant_names = [name for name in ("w", "bias") if name in match.operands]
    operands = ["x", *constant_names, *(["residual"] if added else [])]
    parameters = [*(f"const float *{name}" for name in operands), "float *y"]
    parameters += [f"int32_t {name}" for name in sizes]
    parameters += ["int32_t begin", "int32_t end"] if operators > 1 else []
    source = _TEXT.format(
        parts=operators, channels=channels, all=len(packed),
        made=", ".join(f"const float *{name}" for name in constant_names),
        create=create.format(**fields), setup=setup.format(**fields, **text_of),
        parameters=", ".join(parameters),
        unused=" ".join(f"(void){name};" for name in constant_names), begin="begin" if operators > 1 else "0",
        end="end" if operators > 1 else "PARTS",
        after=_RESIDUAL.format(rows=text_of["rows"], limited=_limited("sum", limits)) if added else "",
    )  # fmt: skip
    constants: dict[str, Any] = {"w": packed} | ({"bias": bias} if bias is not None else {})
    tasks = operators if operators > 1 else None
    return Code(source, operands, constants, list(sizes.values()), tasks, reads_past=_READS_PAST, opens=True)


def _convolution_fields(match: Match, groups: int, width: int) -> dict[str, Any]:
    """C text of a convolution's parameters, and of the offset in a pixel where an operator's groups start."""
    attrs, weights = match.anchor["attrs"], match.operands["w"].shape
    top, left, bottom, right = attrs["padding"]
    numbers = [top, right, bottom, left, *weights[:2], *attrs["strides"], *attrs["dilation"]]
    channels_per_group = width // groups
    return {
        "numbers": ", ".join(str(int(number)) for number in numbers),
        "channels": match.operands["x"].shape[-1],
        "groups": "1" if groups == 1 else f"(uint32_t)(count / {channels_per_group})",
        "each": "count" if groups == 1 else channels_per_group,
        "from_first": "" if groups == 1 else f" + first / {channels_per_group} * {weights[2]}",
    }


def _operators(width: int, groups: int, threads: int) -> tuple[int, int]:
    """Number of operators, and the output channels of all but the last. Groups are not divided."""
    step = _CHANNELS * (1 if groups == 1 else width // groups)
    channels = ceil_div(width, threads * step) * step if threads > 1 else width
    return ceil_div(width, channels), channels


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
