"""How float32 parameters are stored in fewer bits, without loss: found from their values.

float16, bfloat16   every element is a number of that type
int8, int4          element = (level - zero) * scale, with a scale, and perhaps a zero point, for each block

Models with 16-bit, 8-bit or 4-bit weights arrive here with weights in float32, in whatever way their files
express it: by types, by DequantizeLinear with any axis and block size, by Cast and Mul, transposed, reshaped,
or scaled by a folded normalisation. The values alone decide, so all of these are found, and nothing else is:
a tensor whose values do not come from few levels has no encoding. 16-bit values are restored exactly;
products of a level and a scale to within a rounding of float32.

Tensors are seen as matrices (all axes but the last, the last axis). A block is a number of rows by one
column, a number of columns of one row, or the whole matrix.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np

from kiln.arrays import Array
from kiln.config.sizes import ceil_div

Kind = Literal["float16", "bfloat16", "int8", "int4"]

# Fewer bytes stay float32: kernels would grow by more than the parameters shrink.
LEAST = 1024
# Fewest elements of a block: shorter runs of any numbers may have common levels by chance, and save nothing.
_SHORTEST = 16
_LEVELS = {"int4": 16, "int8": 256}
# A level may differ from an integer by so much; levels below 256 times a float32 are far more exact.
_TOLERANCE = 0.02
# Relative difference of an element and a level times a scale, both right: the element was rounded as a
# product and once more with a folded factor, the scale that is found is rounded, and so is the product.
_ROUNDING = 4 * 2.0**-24


@dataclass(frozen=True)
class Encoding:
    """The form in which a matrix of float32 is stored.

    `rows`, `columns`: of a block that shares a scale; 0 for 16-bit floats. `has_zero`: whether each block has
    a zero point. `half_scales`: whether scales are stored in float16.
    """

    kind: Kind
    rows: int = 0
    columns: int = 0
    has_zero: bool = False
    half_scales: bool = False

    @property
    def is_float(self) -> bool:
        """Whether elements are 16-bit floats."""
        return self.kind in ("float16", "bfloat16")

    @property
    def bits(self) -> int:
        """Bits of an element, without scales."""
        return {"int4": 4, "int8": 8}.get(self.kind, 16)

    @property
    def scale_type(self) -> str:
        """The type of the scales."""
        return "float16" if self.half_scales else "float32"

    def text(self) -> str:
        """The encoding in a few words, for reports."""
        return self.kind if self.is_float else f"{self.kind} in blocks of {self.rows}x{self.columns}"


@dataclass(frozen=True)
class Levels:
    """A matrix as integers: `levels` int8 (rows, columns), and per block `scales` float32 and `zeros` int16.

    An int4 matrix has levels from -8 to 7.
    """

    levels: Array
    scales: Array
    zeros: Array


# What was found in tensors, by digest and shape: passes and kernels ask for the same ones.
_FOUND: dict[tuple[bytes, tuple[int, ...]], Encoding | None] = {}


def find(value: Array) -> Encoding | None:
    """The encoding of a float32 tensor with the fewest bits; None where it has none, or is small.

    bfloat16 where both types of 16 bits hold all values: it is widened by a shift on every processor.
    """
    if str(value.dtype) != "float32" or value.nbytes < LEAST:
        return None
    key = (hashlib.sha256(np.ascontiguousarray(value).data).digest(), value.shape)
    if key not in _FOUND:
        _FOUND[key] = _found(value)
    return _FOUND[key]


def _found(value: Array) -> Encoding | None:
    if not value.ndim or not np.isfinite(value).all():
        return None
    matrix = np.ascontiguousarray(value).reshape(-1, value.shape[-1])
    encoding = _integers(matrix)
    if encoding is not None:
        return encoding
    for kind, dtype in (("bfloat16", ml_dtypes.bfloat16), ("float16", np.float16)):
        if _is_exact(matrix.reshape(-1)[:256], dtype) and _is_exact(matrix, dtype):
            return Encoding(kind)  # type: ignore[arg-type]
    return None


def _is_exact(values: Array, dtype: Any) -> bool:
    with np.errstate(over="ignore"):
        return bool((values.astype(dtype).astype(np.float32).view("u4") == values.view("u4")).all())


def levels(value: Array, encoding: Encoding) -> Levels:
    """The integers of a tensor that has the integer encoding `encoding`."""
    matrix = np.ascontiguousarray(value).reshape(-1, value.shape[-1])
    fitted = _fitted(matrix, encoding.rows, encoding.columns)
    assert fitted is not None
    numbers, scales, low, _ = fitted
    least = -(_LEVELS[encoding.kind] // 2)
    zeros = np.where(low < 0, 0, least - low) if not encoding.has_zero else least - low
    if not encoding.has_zero:
        zeros = np.zeros_like(low)
    spread = _spread(zeros, encoding.rows, encoding.columns, matrix.shape)
    integers = (numbers + spread).astype(np.int8)
    scales = scales.astype(np.float16 if encoding.half_scales else np.float32).astype(np.float32)
    return Levels(integers, scales, zeros.astype(np.int16))


# The integers of the tensors asked for last, by digest: each of the stored parts asks again.
_KNOWN: dict[tuple[bytes, Encoding], Levels] = {}
_REMEMBERED = 4


def levels_of(value: Array, encoding: Encoding) -> Levels:
    """`levels`, computed once for successive calls with equal arguments."""
    key = (hashlib.sha256(np.ascontiguousarray(value).data).digest(), encoding)
    if key not in _KNOWN:
        while len(_KNOWN) >= _REMEMBERED:
            del _KNOWN[next(iter(_KNOWN))]
        _KNOWN[key] = levels(value, encoding)
    return _KNOWN[key]


def restored(parts: Levels, encoding: Encoding) -> Array:
    """The float32 matrix of `parts`, as kernels compute it."""
    shape = parts.levels.shape
    zeros = _spread(parts.zeros, encoding.rows, encoding.columns, shape)
    scales = _spread(parts.scales, encoding.rows, encoding.columns, shape)
    values: Array = (parts.levels.astype(np.float32) - zeros.astype(np.float32)) * scales
    return values


def _spread(blocks: Array, rows: int, columns: int, shape: tuple[int, ...]) -> Array:
    """A number for each block, repeated for each element of a matrix of `shape`."""
    repeated: Array = blocks.repeat(rows, 0)[: shape[0]].repeat(columns, 1)[:, : shape[1]]
    return repeated


def _integers(matrix: Array) -> Encoding | None:
    """The integer encoding of a matrix with the fewest scales; int4 before int8."""
    best: Encoding | None = None
    for rows, columns in _blocks(matrix):
        fitted = _fitted(matrix, rows, columns)
        if fitted is None:
            continue
        _, scales, low, high = fitted
        for kind, count in _LEVELS.items():
            half = scales.astype(np.float16).astype(np.float32) == scales
            centred = bool((low >= -(count // 2)).all() and (high < count // 2).all())
            if centred or bool((high - low < count).all()):
                encoding = Encoding(kind, rows, columns, not centred, bool(half.all()))  # type: ignore[arg-type]
                if best is None or (encoding.bits, 0) < (best.bits, 0):
                    best = encoding
                break
        if best is not None and best.kind == "int4":
            break
    return best


def _blocks(matrix: Array) -> Iterator[tuple[int, int]]:
    """Sizes of blocks whose elements may have common levels, judged by a few; fewest blocks first."""
    rows, columns = matrix.shape
    picked = np.unique(np.linspace(0, columns - 1, 32).astype(int))
    down = _run(np.ascontiguousarray(matrix[:, picked].T))
    picked = np.unique(np.linspace(0, rows - 1, 32).astype(int))
    along = _run(np.ascontiguousarray(matrix[picked]))
    if down >= rows and along >= columns:
        yield rows, columns
    if down >= rows:
        yield rows, 1
    if along >= columns:
        yield 1, columns
    for size in _sizes(down, rows):
        yield size, 1
    for size in _sizes(along, columns):
        yield 1, size


def _sizes(longest: int, whole: int) -> list[int]:
    """Sizes of blocks to try where the first block of some runs seems to have `longest` elements."""
    if longest >= whole or longest < _SHORTEST:
        return []
    power = 1 << (longest.bit_length() - 1)
    tried = [longest, longest - longest % 8, power]
    return [size for size in dict.fromkeys(tried) if size >= _SHORTEST]


def _run(runs: Array) -> int:
    """The number of first elements that have common levels in each of `runs`, an array (run, element)."""
    length = runs.shape[1]
    if length < _SHORTEST or not _on_levels(runs[:, :_SHORTEST]):
        return length if length < _SHORTEST and _on_levels(runs) and length > 1 else 0
    least, most = _SHORTEST, length
    while least < most:  # the greatest length for which all runs are on levels
        middle = (least + most + 1) // 2
        if _on_levels(runs[:, :middle]):
            least = middle
        else:
            most = middle - 1
    return least


def _on_levels(runs: Array) -> bool:
    return _steps(np.ascontiguousarray(runs)) is not None


def _fitted(matrix: Array, rows: int, columns: int) -> tuple[Array, Array, Array, Array] | None:
    """(multiples, scales, least and greatest multiple per block) of a matrix in blocks of rows x columns.

    None unless the elements of each block are multiples of one number, with fewer than 256 levels.
    """
    height, width = matrix.shape
    down, across = ceil_div(height, rows), ceil_div(width, columns)
    if down * rows != height or across * columns != width:
        # The last block is filled with its own first elements, which change none of its levels.
        matrix = matrix[_repeated(height, rows)][:, _repeated(width, columns)]
    tiles = matrix.reshape(down, rows, across, columns).transpose(0, 2, 1, 3).reshape(down * across, -1)
    steps = _steps(tiles)
    if steps is None:
        return None
    numbers = np.rint(tiles / np.where(steps > 0, steps, 1)[:, None])
    squares = (numbers * numbers).sum(1)
    scales = np.where(squares > 0, (tiles * numbers).sum(1, dtype=np.float64) / np.maximum(squares, 1), 0.0)
    exact = _exact_scales(tiles, numbers.astype(np.float32), scales)
    if exact is None:
        return None
    low, high = numbers.min(1), numbers.max(1)
    whole = numbers.reshape(down, across, rows, columns).transpose(0, 2, 1, 3).reshape(down * rows, -1)
    shape = (down, across)
    return (
        whole[:height, :width].astype(np.int16), exact.reshape(shape),
        low.astype(np.int16).reshape(shape), high.astype(np.int16).reshape(shape),
    )  # fmt: skip


def _exact_scales(tiles: Array, numbers: Array, scales: Array) -> Array | None:
    """A float32 scale for each row of `tiles`, near `scales`, that restores all of its elements; else None.

    `scales` are means over a row's elements, which lean to an element that occurs often: its rounding may
    move them by more than one step of float32, so the neighbours are tried as well. Scales that fit in
    float16 go first.
    """
    near = scales.astype(np.float32)
    with np.errstate(over="ignore"):
        half = scales.astype(np.float16).astype(np.float32)
    if bool((_worst(tiles, numbers, half) <= 0).all()):
        return half
    best, least = near, np.full(len(tiles), np.inf)
    for steps in (0, 1, -1, 2, -2):
        scale = (near.view(np.int32) + np.int32(steps)).view(np.float32)
        worst = _worst(tiles, numbers, scale)
        best = np.where((least > 0) & (worst < least), scale, best)
        least = np.minimum(least, worst)
        if bool((least <= 0).all()):
            return best.astype(np.float32)
    return None


def _worst(tiles: Array, numbers: Array, scales: Array) -> Array:
    """By row, the most by which the error of a restored element exceeds that of rounding; <= 0: nowhere."""
    with np.errstate(invalid="ignore"):  # a scale beyond float16 is infinite, and restores nothing
        errors: Array = np.abs(numbers * scales[:, None] - tiles) - _ROUNDING * np.abs(tiles)
    return np.asarray(errors.max(1))


def _repeated(length: int, block: int) -> Array:
    """Indices of `length` elements in whole blocks: those beyond the end repeat the last block's first."""
    padded_length = math.ceil(length / block) * block
    last = length - (length % block or block)
    return np.concatenate([np.arange(length), np.full(padded_length - length, last)])


def _steps(runs: Array) -> Array | None:
    """A number that divides all elements of a run, for each run; None unless every run has such a number.

    The elements of a run have fewer than 256 levels. The number of a run of zeros is 0.
    """
    sizes = np.abs(runs)
    greatest = sizes.max(1).astype(np.float64)
    ordered = np.sort(sizes, axis=1)
    gaps = np.diff(ordered, axis=1, prepend=0).astype(np.float64)
    gaps[gaps <= greatest[:, None] * 2.0**-20] = np.inf
    gap = gaps.min(1)
    steps_of_runs = np.zeros(len(runs))
    left = np.flatnonzero(greatest > 0)
    for parts in range(1, 129):
        if not left.size:
            return steps_of_runs
        steps = gap[left] / parts
        reach = greatest[left] / steps
        if bool((reach > 256).any()):
            return None
        counts = sizes[left] / steps[:, None]
        # Gaps of rounded numbers: the error of a step grows with the level.
        close = np.abs(counts - np.rint(counts)) <= _TOLERANCE
        whole = close.all(1)
        steps_of_runs[left[whole]] = steps[whole]
        left = left[~whole]
    return None if left.size else steps_of_runs
