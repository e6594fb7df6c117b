"""oneDNN: convolutions with any groups, strides and dilation, dense layers, matmuls of activations.

Primitives are created once, when a model is opened, for exactly the sizes of a subgraph; bias, residual and
activation are post-ops. The library runs in the thread that calls it: Kiln's threads divide the rows of an
image or of a matrix among them, in ranges fixed at build time, so that results do not depend on the number of
threads.

Weights of matmuls and of depthwise convolutions are stored in the layout that the library's code for the
target's vector unit reads, and are used in place. For other convolutions the library chooses the block of
output channels (8 to 64) by the processor's caches, and is a thousand times slower with any other layout:
their weights are stored in their original layout and reordered when a model is opened, once in a process,
into memory of the library. On a processor with a different vector unit than the target's, the library also
reorders weights whose stored layout it cannot use.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.byoc.backend import Backend, Code, TargetFacts
from kiln.byoc.backends.onednn_library import LIBRARY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.arrays import Array
    from kiln.byoc.match import Match

_LANES = {"avx512": 16, "avx2": 8}  # channels in a block of depthwise weights
_LEAST_WORK = 1 << 20  # multiply-adds below which a task is not worth its call
_ROWS_OF_TASK = (
    64  # rows of a task if their number is dynamic: one primitive for 64 rows, one for the remainder
)
_LEAST_STATIC_ROWS = (
    8  # rows; below, the library's code for a dynamic number of rows is faster than for a static one
)


def patterns() -> list[Any]:
    """Graph patterns: dense layers, matmuls and convolutions, with their epilogues."""
    from kiln.byoc import products

    return [*products.dense(), *products.matmul(), *products.conv2d()]


def groups() -> list[Any]:
    """Patterns of fused functions: dense layers and convolutions, with their epilogues."""
    from kiln.byoc import products

    return products.groups("dense", "conv2d")


def generate(match: Match, facts: TargetFacts) -> Code | None:
    """Generate primitives for the sizes of the match; None for a convolution of dynamic height or width."""
    from kiln.byoc import products

    if match.pattern == "matmul":
        return _batch_matmul(match, facts)
    if match.pattern == "conv2d" and not products.is_product(match):
        return _convolution(match, facts)
    return _product(match, facts)


def _convolution(match: Match, facts: TargetFacts) -> Code | None:
    """The code of a convolution; a task is rows of an image, or, for one thread and a static batch, all."""
    from kiln.byoc.backends.onednn_rows import split_rows
    from kiln.tir.symbols import product

    x, y, attrs = match.operands["x"].shape, match.output.shape, match.anchor["attrs"]
    kh, kw, per_group, _ = match.operands["w"].shape
    if not all(isinstance(size, int) for size in (*x[1:], *y[1:])):
        return None
    (_, height, width, depth), (_, out_height, out_width, columns) = x, y
    all_images = facts.threads == 1 and isinstance(x[0], int)
    work = out_height * out_width * columns * kh * kw * per_group
    image_per_thread = isinstance(x[0], int) and x[0] >= facts.threads
    chunks = (
        1 if all_images or image_per_thread else max(1, min(facts.threads, out_height, work // _LEAST_WORK))
    )
    rows = split_rows(height, out_height, kh, attrs, chunks)
    _, left, _, right = attrs["padding"]
    shapes = sorted({row.shape for row in rows})
    packed, tag = _depthwise(match, facts)
    names = {
        "PARTS": len(shapes), "CHUNKS": len(rows), "IMAGES": x[0] if all_images else 1, "TAKES_STORED": 0,
        "IN": depth, "OUT": columns, "KH": kh, "KW": kw, "GROUPS": attrs["groups"],
        "WIDTH": width, "OUT_WIDTH": out_width, "LEFT": left, "RIGHT": right,
        "STRIDE_H": attrs["strides"][0], "STRIDE_W": attrs["strides"][1],
        "DILATION_H": attrs["dilation"][0], "DILATION_W": attrs["dilation"][1],
    }  # fmt: skip
    tables = [
        "static const struct shape { int64_t height, out_height, top, bottom; } shapes[PARTS] = {",
        *(f"    {{{', '.join(map(str, shape))}}}," for shape in shapes),
        "};",
        "/* Of each task of an image: its part, where its rows begin, floats of its output. */",
        "static const struct chunk { int32_t part; int64_t x, y, size; } chunks[CHUNKS] = {",
        *(
            f"    {{{shapes.index(row.shape)}, {row.first * width * depth}, "
            f"{row.out_first * out_width * columns}, {row.out_rows * out_width * columns}}},"
            for row in rows
        ),
        "};",
    ]
    images = 1 if all_images else x[0]
    body = [
        "const int64_t image = task / CHUNKS;",
        "const struct chunk *chunk = &chunks[task % CHUNKS];",
        f"float *to = y + image * {out_height * out_width * columns} + chunk->y;",
        *_residual(match, "chunk->size * IMAGES"),
        f"const dnnl_status_t status = run(&parts[chunk->part], x + image * {height * width * depth} + "
        f"chunk->x, {_weights(match)}, to);",
    ]
    constants = {"w": match.operands["w"].value if packed is None else packed}
    total = product([images, len(rows)])
    task = _TaskCode("conv", names, tables, body, total)
    return _code(match, facts, task, constants, tag)


def _depthwise(match: Match, facts: TargetFacts) -> tuple[Array | None, str | None]:
    """Weights of a depthwise convolution, channels padded to whole blocks, and oneDNN's tag of that layout.

    (None, None) for other convolutions and for targets without such a layout.
    """
    import numpy as np

    weights, lanes = match.operands["w"].value, _LANES.get(facts.isa)
    assert weights is not None
    channels = weights.shape[3]
    if lanes is None or weights.shape[2] != 1 or match.anchor["attrs"]["groups"] != channels:
        return None, None
    padded = np.pad(weights, ((0, 0), (0, 0), (0, 0), (0, -channels % lanes)))
    return padded, f"dnnl_hwioG{lanes}g"


def _product(match: Match, facts: TargetFacts) -> Code:
    """The code of a matmul with a constant matrix; a task computes some of the rows."""
    from kiln.tir.symbols import ceil_div, product

    weights = match.operands["w"].value
    assert weights is not None
    depth, columns = weights.shape[-2:]
    weights, tag = weights.reshape(depth, columns), None
    rows = product(match.output.shape[:-1])
    if isinstance(rows, int):
        step = rows
        if facts.threads > 1 and rows * depth * columns > _LEAST_WORK:
            step = max(
                _LEAST_STATIC_ROWS, ceil_div(_LEAST_WORK, depth * columns), ceil_div(rows, facts.threads)
            )
        remainder = rows % step
        rows_of_primitives = (
            [step, remainder] if remainder else [step if step >= _LEAST_STATIC_ROWS else None]
        )
    else:
        step, rows_of_primitives = _ROWS_OF_TASK, [_ROWS_OF_TASK, None]
    if None not in rows_of_primitives and facts.isa == "avx512" and columns >= 64:
        weights, tag = _in_blocks(weights), "dnnl_BA16a64b"
    names = {
        "PARTS": len(rows_of_primitives), "BATCHED": 0, "BATCH": 1, "DEPTH": depth, "COLUMNS": columns,
        "TAKES_STORED": 1, "IS_DYNAMIC": int(None in rows_of_primitives),
    }  # fmt: skip
    size = str(rows) if isinstance(rows, int) else "rows"
    call = f"&parts[PART], x + first * DEPTH, {_weights(match)}, to"
    run_static = f"run({call.replace('PART', '0', 1)})"
    last = len(rows_of_primitives) - 1
    last_call = call.replace("PART", str(last), 1)
    run_last = (
        f"run({last_call})"
        if rows_of_primitives[-1] is not None
        else f"run_dynamic({last_call}, 1, count, DEPTH, COLUMNS)"
    )
    body = [
        f"const int64_t first = task * {step};",
        f"const int64_t count = {size} - first < {step} ? {size} - first : {step};",
        "(void)count;",
        "float *to = y + first * COLUMNS;",
        *_residual(match, "count * COLUMNS"),
        "const dnnl_status_t status = "
        + (f"{run_last};" if last == 0 else f"count == {step} ? {run_static} : {run_last};"),
    ]
    sizes = [] if isinstance(rows, int) else [("rows", rows)]
    table = _rows_table(rows_of_primitives)
    task = _TaskCode("product", names, table, body, ceil_div(rows, step), sizes)
    return _code(match, facts, task, {"w": weights}, tag)


def _in_blocks(weights: Array) -> Array:
    """Weights (depth, columns) in blocks of 16 x 64, the blocks of a column adjacent, padded with zeros."""
    import numpy as np

    depth, columns = weights.shape
    padded = np.pad(weights, ((0, -depth % 16), (0, -columns % 64)))
    blocks = padded.reshape(padded.shape[0] // 16, 16, padded.shape[1] // 64, 64)
    return np.ascontiguousarray(blocks.transpose(2, 0, 1, 3))


def _batch_matmul(match: Match, facts: TargetFacts) -> Code:
    """The code of a batch matmul; a task is one matmul, or, with one thread, the whole batch."""
    from kiln.tir.symbols import product

    x, w = match.operands["x"].shape, match.operands["w"].shape
    batch = product(x[:-2])
    whole_batch = facts.threads == 1 or (isinstance(batch, int) and batch == 1)
    sizes = {"batch": batch if whole_batch else 1, "rows": x[-2], "depth": x[-1], "columns": w[-1]}
    is_dynamic = [name for name, size in sizes.items() if not isinstance(size, int)]
    names = {
        "PARTS": 1, "TAKES_STORED": 1, "BATCHED": 1, "IS_DYNAMIC": int(bool(is_dynamic)),
        **{name.upper(): size if name not in is_dynamic else "ANY" for name, size in sizes.items()
           if name != "rows"},
    }  # fmt: skip
    text_of = {name: name if name in is_dynamic else str(size) for name, size in sizes.items()}
    call = (
        f"&parts[0], x + task * {text_of['rows']} * {text_of['depth']}, "
        f"w + task * {text_of['depth']} * {text_of['columns']}, "
        f"NULL, y + task * {text_of['rows']} * {text_of['columns']}"
    )
    extents = ", ".join(text_of[name] for name in ("batch", "rows", "depth", "columns"))
    body = [
        f"const dnnl_status_t status = {f'run_dynamic({call}, {extents})' if is_dynamic else f'run({call})'};"
    ]
    table = _rows_table([None if "rows" in is_dynamic else x[-2]])
    dynamic_sizes = [(name, sizes[name]) for name in is_dynamic]
    task = _TaskCode("product", names, table, body, 1 if whole_batch else batch, dynamic_sizes)
    return _code(match, facts, task, {}, None)


def _rows_table(rows_of_primitives: list[Any]) -> list[str]:
    """C table of the number of rows of each primitive; None in `rows_of_primitives` is a dynamic number."""
    sizes = ", ".join("DNNL_RUNTIME_DIM_VAL" if rows is None else str(rows) for rows in rows_of_primitives)
    return [f"static const int64_t rows_of[PARTS] = {{{sizes}}};"]


def _residual(match: Match, count: str) -> list[str]:
    """C that copies the residual to the output, as the library's post-op adds to the output's content."""
    if "residual" not in match.operands:
        return []
    return ["if (residual != y)", f"    memcpy(to, residual + (to - y), sizeof *y * (size_t)({count}));"]


def _weights(match: Match) -> str:
    return "w, bias" if "bias" in match.operands else "w, NULL"


@dataclass(frozen=True)
class _TaskCode:
    """The C that computes one task of a subgraph: statements that define `status`, from the number `task`.

    `kind`: conv or product, of the file c/onednn_KIND.c. `macros`: values by name. `tables`: lines before the
    functions. `count`: number of tasks. `sizes`: dynamic sizes that the C reads, by name.
    """

    kind: str
    macros: Mapping[str, Any]
    tables: list[str]
    body: list[str]
    count: Any
    sizes: list[tuple[str, Any]] = field(default_factory=list)


def _code(
    match: Match, facts: TargetFacts, task: _TaskCode, constants: Mapping[str, Any], tag: str | None
) -> Code:
    """The generated C of a subgraph. `tag`: oneDNN's name of the layout of constant weights, if not plain."""
    from kiln.byoc import products

    total, sizes = task.count, task.sizes
    limits, bias = products.limits(match), products.bias_of(match)
    operands = ["x", "w"] + [name for name in ("bias", "residual") if name in match.operands]
    macros = {**task.macros, "BIAS": int(bias is not None), "RESIDUAL": int("residual" in match.operands)}
    defined = [f"#define {name} {value}" for name, value in macros.items()]
    if limits is not None:
        defined += [
            f"#define {name} {_number(limit)}" for name, limit in zip(("LOW", "HIGH"), limits, strict=True)
        ]
    defined += [f"#define STORED_TAG {tag}"] if tag is not None else []
    shared = facts.threads > 1 and not (isinstance(total, int) and total == 1)
    inside = [name for name, _ in sizes]
    tasks = total if shared else None
    count = [] if shared or isinstance(total, int) else [("tasks", total)]
    parameters = [f"const float *{name}" for name in operands] + ["float *y"]
    parameters += [f"int32_t {name}" for name in [*inside, *(name for name, _ in count)]]
    parameters += ["int32_t begin", "int32_t end"] if shared else []
    first, last = ("begin", "end") if shared else ("0", "tasks" if count else str(total))
    stored = dict(constants) | ({"bias": bias} if bias is not None else {})
    make_parameters = [f"const float *{name}" for name in operands if name in stored]
    lines = [
        *defined, _source("common"), *task.tables, _source(task.kind),
        f"static int32_t SYMBOL_make({', '.join(make_parameters) or 'void'}) {{",
        *(["    (void)bias;"] if bias is not None else []),
        f"    return make({'w' if 'w' in stored else 'NULL'});",
        "}\n",
        f"int32_t SYMBOL({', '.join(parameters)}) {{",
        f"    for (int64_t task = {first}; task < {last}; task++) {{",
        *(f"        {line}" for line in task.body),
        "        if (status != dnnl_success)",
        "            return (int32_t)status;",
        "    }",
        "    return 0;",
        "}\n",
    ]  # fmt: skip
    in_place = ["residual"] if "residual" in match.operands else []
    extents = [size for _, size in [*sizes, *count]]
    return Code("\n".join(lines), operands, stored, extents, tasks, in_place, opens=True)


def _source(name: str) -> str:
    """Text of c/onednn_NAME.c: the lines of the generated C that all subgraphs share."""
    return (Path(__file__).parent / "c" / f"onednn_{name}.c").read_text(encoding="utf-8")


def _number(value: float) -> str:
    if value in (float("inf"), float("-inf")):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    return f"({float(value)!r}f)"


BACKEND = Backend(
    "onednn",
    archs=("x86_64",),
    library=LIBRARY,
    generate=generate,
    patterns=patterns,
    groups=groups,
    layouts={"x": "(…, k) or NHWC", "w": "(k, n) or HWIO"},
)
