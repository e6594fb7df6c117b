"""CUTLASS: dense layers, matmuls of activations and NHWC convolutions, as kernels in the model's GPU image.

CUTLASS consists of headers: nvcc compiles the kernels at build time, and the device needs no library. A
kernel is composed of CUTLASS's threadblock-level templates (byoc/backends/cuda/kiln_cutlass.cuh), with the
sizes of the subgraph as constants; float32 is computed by FFMA instructions, without rounding to tf32.
Weights are stored with the depth as the innermost axis.

With `precision: fp16` or bf16 tensor cores multiply 16-bit numbers, accumulate in float32 (the bias too), and
store 16 bits. Tensor cores load several numbers at a time, so a subgraph of odd depth is left to Kiln. With
`precision: tf32` they multiply float32 numbers rounded to tf32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.byoc.backend import Backend, Code, Launch, Library, TargetFacts, Wheel
from kiln.config.precisions import holds, is_narrow, stored
from kiln.config.sizes import ceil_div

if TYPE_CHECKING:
    from kiln.byoc.match import Match

_LICENCE_FILE = "nvidia_cutlass-4.2.0.0.dist-info/licenses/LICENSE.txt"
_WHEEL = Wheel(
    "nvidia-cutlass",
    "4.2.0.0",
    "any",
    {_LICENCE_FILE: ("licence.txt", "80a7a18b73d41f64dd9ca881af35938f8de88b18c728703251f4c94d1299884d")},
    licence="BSD-3-Clause",
)
LIBRARY = Library(
    name="CUTLASS",
    licence="BSD-3-Clause",
    symbols=(),
    wheels={"x86_64": [_WHEEL], "aarch64": [_WHEEL]},
    heap="none",
)

# Tiles of the output, the largest first: rows and columns of a block, then of a warp.
_TILES = ((128, 128, 32, 64), (128, 64, 64, 32), (64, 64, 32, 32), (64, 32, 32, 32))
# With tensor cores a warp's tile is larger along the rows; a tile that is 32 columns wide is too narrow.
_TENSOR_TILES = ((128, 128, 64, 32), (128, 64, 64, 32), (64, 64, 32, 32))
_ELEMENTS = {"float32": "float", "float16": "cutlass::half_t", "bfloat16": "cutlass::bfloat16_t"}
_ENOUGH_BLOCKS = 96  # blocks: about as many as a GPU has multiprocessors
_LEAST_ROWS = 8  # rows: with fewer most of a tile is idle, and the time is that of reading the weights
_MOST_BATCH = 65535  # blocks along z: the greatest batch of one call
_LARGEST_FILTER = 32  # rows or columns of a filter: CUTLASS stores one bit for each

_TEXT = """\
#include "kiln_cutlass.cuh"

struct SYMBOL_limits {{
    static constexpr float low = {low}, high = {high};
}};
using SYMBOL_tile = kiln::{tile};
using SYMBOL_kernel = kiln::{kernel};
extern "C" __global__ void __launch_bounds__({threads}) SYMBOL({parameters}) {{
    SYMBOL_kernel::run(x, w, {bias}, {residual}, y, {sizes});
}}
"""


def include_folders() -> list[Path]:
    """Include folders: Kiln's own headers, CUTLASS's, and the CUDA C++ headers that CUTLASS includes."""
    from kiln.sources.cuda_headers import cutlass_headers

    return [Path(__file__).parent / "cuda", *cutlass_headers()]


def patterns() -> list[Any]:
    """Graph patterns: dense layers, matmuls and convolutions, with their epilogues."""
    from kiln.byoc import products

    return [*products.dense(), *products.matmul(), *products.conv2d()]


def generate(match: Match, facts: TargetFacts) -> Code | None:
    """Generate one kernel; None for few rows, grouped convolutions, and filters that are too large."""
    from kiln.byoc import products
    from kiln.tir.symbols import product

    x, w, shape = match.operands["x"].shape, match.operands["w"].shape, match.output.shape
    if match.pattern == "matmul":
        return _matmul(match, facts, x[-2], w[-1], x[-1], product(x[:-2]))
    rows = product(shape[:-1])
    if isinstance(rows, int) and rows < _LEAST_ROWS:
        return None
    if match.pattern == "dense":
        return _product(match, facts, rows)
    attrs = match.anchor["attrs"]
    if attrs["groups"] != 1 or max(w[:2]) > _LARGEST_FILTER:
        return None
    generator = _product if products.is_product(match) else _convolution
    return generator(match, facts, rows)


class _SizeParameters:
    """Sizes as C text: constants, or names of the kernel's parameters for dynamic dimensions.

    `open`: the dynamic sizes by the name of their parameter.
    """

    def __init__(self) -> None:
        self.open: dict[str, Any] = {}

    def text(self, name: str, size: Any) -> str:
        if isinstance(size, int):
            return str(size)
        self.open[name] = size
        return name


def _product(match: Match, facts: TargetFacts, rows: Any) -> Code | None:
    value = match.operands["w"].value
    assert value is not None
    sizes, (depth, columns) = _SizeParameters(), match.operands["w"].shape[-2:]
    weights = value.reshape(depth, columns)
    numbers = [sizes.text("rows", rows), columns, depth]
    kernel = _Kernel(_PRODUCT, (rows, columns, 1), [depth], _comma_separated(numbers))
    return _code(match, facts, kernel, sizes, weights.T.copy())


def _matmul(match: Match, facts: TargetFacts, rows: Any, columns: Any, depth: Any, batch: Any) -> Code | None:
    if (isinstance(rows, int) and rows < _LEAST_ROWS) or (isinstance(batch, int) and batch > _MOST_BATCH):
        return None
    sizes = _SizeParameters()
    numbers = [
        sizes.text(*name_and_size)
        for name_and_size in (("rows", rows), ("columns", columns), ("depth", depth))
    ]
    kernel = _Kernel(_BATCHED, (rows, columns, batch), [depth, columns], _comma_separated(numbers))
    return _code(match, facts, kernel, sizes, None)


def _convolution(match: Match, facts: TargetFacts, rows: Any) -> Code | None:
    attrs, value = match.anchor["attrs"], match.operands["w"].value
    assert value is not None
    sizes, names = _SizeParameters(), ("batch", "height", "width", "channels")
    n, h, w, c = (
        sizes.text(*name_and_size) for name_and_size in zip(names, match.operands["x"].shape, strict=True)
    )
    p, q = (
        sizes.text(*name_and_size)
        for name_and_size in zip(("rows", "columns"), match.output.shape[1:3], strict=True)
    )
    r, s, _, k = value.shape
    # The padding at the bottom and right follows from the sizes of the output.
    numbers = [n, h, w, c, k, r, s, p, q, *attrs["padding"][:2], *attrs["strides"], *attrs["dilation"]]
    size = f"{{{_comma_separated(numbers)}, cutlass::conv::Mode::kCrossCorrelation, 1, 1}}"
    weights = value.transpose(3, 0, 1, 2).copy()
    kernel = _Kernel(_CONVOLUTION, (rows, k, 1), [value.shape[2]], size)
    return _code(match, facts, kernel, sizes, weights)


def _comma_separated(numbers: Sequence[Any]) -> str:
    return ", ".join(map(str, numbers))


_PRODUCT, _BATCHED = (
    f"Product<SYMBOL_tile, SYMBOL_limits, {{residual}}, cutlass::layout::{layout}>"
    for layout in ("ColumnMajor", "RowMajor")
)
_CONVOLUTION = "Convolution<SYMBOL_tile, SYMBOL_limits, {residual}>"


@dataclass(frozen=True)
class _Kernel:
    """A kernel of CUTLASS for given sizes.

    `template`: text of its C++ type. `extents`: rows, columns and batch of the output. `inner`: innermost
    sizes of the tensors that are read, which limit the width of a load. `numbers`: C text of the sizes.
    """

    template: str
    extents: tuple[Any, Any, Any]
    inner: list[Any]
    numbers: str


def _code(
    match: Match, facts: TargetFacts, kernel: _Kernel, sizes: _SizeParameters, weights: Any
) -> Code | None:
    """The code of one kernel.

    `sizes`: the dynamic sizes. `weights`: as stored, None if computed. Returns None if tensor cores cannot
    load the operands or the weights exceed the precision's range.
    """
    from kiln.byoc import products
    from kiln.tir.symbols import ceil_div

    rows, columns, batch = kernel.extents
    dtype, narrow, tensor = stored(facts.precision), is_narrow(facts.precision), facts.precision != "fp32"
    element = _ELEMENTS[dtype]
    rectangle = _tile(rows, columns, batch, _TENSOR_TILES if tensor else _TILES)
    threads = 32 * (rectangle[0] // rectangle[2]) * (rectangle[1] // rectangle[3])
    tile = f"Simt<{_comma_separated(rectangle)}>"
    bias = products.bias_of(match)
    constants = {"w": weights, "bias": bias}
    dtypes: dict[str, str] = {}
    if tensor:
        most = 8 if narrow else 4
        align = min(_numbers_per_load(size, most) for size in kernel.inner)
        tile = f"Tensor<{_comma_separated([element, *rectangle, align, _numbers_per_load(columns, most)])}>"
    if narrow:
        if align == 1 or (weights is not None and not holds(dtype, weights)):
            return None
        constants["w"] = None if weights is None else weights.astype(dtype)
        dtypes = dict.fromkeys(("x", "w", "residual", "output"), dtype)
    low, high = products.limits(match) or (float("-inf"), float("inf"))
    added = [name for name in ("bias", "residual") if name in match.operands]
    operands = ["x", "w", *added]
    parameters = [f"const {'float' if name == 'bias' else element} *{name}" for name in operands]
    source = _TEXT.format(
        low=_literal(low), high=_literal(high), tile=tile, threads=threads, sizes=kernel.numbers,
        kernel=kernel.template.format(residual=str("residual" in added).lower()),
        parameters=_comma_separated([*parameters, f"{element} *y", *(f"int {name}" for name in sizes.open)]),
        **{name: name if name in added else "nullptr" for name in ("bias", "residual")},
    )  # fmt: skip
    return Code(
        source, operands, {name: value for name, value in constants.items() if value is not None},
        list(sizes.open.values()), in_place=[name for name in added if name == "residual"],
        launch=Launch(
            (ceil_div(rows, rectangle[0]), ceil_div(columns, rectangle[1]), batch), (threads, 1, 1)
        ),
        dtypes=dtypes,
    )  # fmt: skip


def _numbers_per_load(size: Any, most: int) -> int:
    """Numbers per load from rows of this size; `most`: as many as 16 bytes hold."""
    fits = (n for n in (8, 4, 2, 1) if n <= most)
    return next(n for n in fits if n == 1 or (isinstance(size, int) and size % n == 0))


def _tile(rows: Any, columns: Any, batch: Any, tiles: Sequence[tuple[int, int, int, int]]) -> Any:
    """The largest tile that yields enough blocks for a GPU; a middle one for dynamic sizes."""
    if not all(isinstance(size, int) for size in (rows, columns, batch)):
        return tiles[-1] if isinstance(columns, int) and columns <= 32 else tiles[2]
    fits = (
        tile
        for tile in tiles
        if ceil_div(rows, tile[0]) * ceil_div(columns, tile[1]) * batch >= _ENOUGH_BLOCKS
    )
    return next(fits, tiles[-1])


def _literal(value: float) -> str:
    if value in (float("inf"), float("-inf")):
        return ("-" if value < 0 else "") + "__builtin_huge_valf()"
    return f"{value!r}f"


BACKEND = Backend(
    "cutlass",
    archs=("x86_64", "aarch64"),
    library=LIBRARY,
    generate=generate,
    patterns=patterns,
    layouts={"x": "(…, k) or NHWC", "w": "(n, k) or (n, h, w, c)"},
    device="cuda",
    include_folders=include_folders,
)
