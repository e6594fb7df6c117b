"""Products on the matrix units of a GPU: tiles of 16 x 16 x 16 by wmma, float16 operands, float32 sums.

A product, batched or not, and a convolution are the same thing here: C[s, i, j] = sum over k of A[s, i, k] *
B[s, k, j], where each of i, j and k may be several axes of the function (of a convolution i is batch, row and
column, k the window and the channels). What the axes are comes from dlight's analysis.

1. Operands are reindexed to A[s, i, k] and B[s, k, j] or B[s, j, k], whichever is contiguous as it lies, and
   padded to whole tiles. None of these tensors exists: that is computed where an element is loaded, so that a
   convolution takes its windows out of the image (im2col) on the way to shared memory.
2. A block of threads computes a tile of C. In steps over k it loads a slice of A and of B into shared memory,
   of which each warp feeds its own fragments. Rows there are 8 elements apart from a multiple of 16, so that
   the rows of a fragment lie in different banks.
3. The sums go through shared memory once more, and what follows the product (bias, residual, activation,
   rounding) is computed on the way from there to the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir.dlight.gpu.matmul import get_index_map
from tvm.tirx.analysis import undefined_vars

from kiln.kernels.symbols import is_open

EDGE = 16  # of a fragment, along i, j and k
_WARP = 32
# Below this many rows or columns most of a fragment would be padding: one thread an element does less.
_LEAST = 8


@dataclass(frozen=True)
class Tile:
    """What one block of threads computes: warps along i and j, fragments of each, and of a step of k."""

    warps: tuple[int, int]
    fragments: tuple[int, int]
    depth: int = 2

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Elements along i, j and k."""
        i, j = (w * f * EDGE for w, f in zip(self.warps, self.fragments, strict=True))
        return i, j, self.depth * EDGE


# All take less than 48 KiB of shared memory. The last one that is not wider than the product is used.
TILES = [Tile((2, 2), (1, 1)), Tile((2, 2), (1, 2)), Tile((2, 2), (2, 1)), Tile((2, 2), (2, 2))]


class TensorProduct:
    """A rule as dlight has them: `apply` returns a schedule, or None for a function that it is not for."""

    def apply(self, func: Any, target: Any, _: bool) -> Any:
        """Schedule `func` if it holds one product of float16 tensors."""
        schedule = s_tir.Schedule(func)
        try:
            blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
        except Exception:  # no root block: loops that somebody wrote
            return None
        sums = [block for block in blocks if _sums(schedule.get(block))]
        if len(sums) != 1 or not _is_half_product(schedule.get(sums[0])):
            return None
        try:
            return _scheduled(schedule, sums[0])
        except Exception:  # TVM's own kinds: several results, a form that cannot be inlined; others can do it
            return None

    def is_target_available(self, target: Any) -> bool:
        return True


def _sums(block: Any) -> bool:
    return any(int(axis.iter_type) == tirx.IterVar.CommReduce for axis in block.iter_vars)


def _is_half_product(block: Any) -> bool:
    """Whether the block adds products of two float16 tensors, widened, to float32."""
    store = block.body
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, tirx.Add):
        return False
    product = store.value.b
    return (
        isinstance(product, tirx.Mul)
        and str(store.buffer.dtype) == "float32"
        and all(
            isinstance(side, tirx.Cast) and str(side.value.ty.dtype) == "float16"
            for side in (product.a, product.b)
        )
        and len(block.reads) == 2
    )


def _tile(i: Any, j: Any) -> Tile | None:
    """The tile for `i` rows and `j` columns; None where these are too few. Open sizes count as large."""
    sizes = [1 << 20 if is_open(size) else int(size) for size in (i, j)]
    if min(sizes) < _LEAST:
        return None
    whole = [-(-size // EDGE) * EDGE for size in sizes]
    fitting = [t for t in TILES if t.sizes[0] <= whole[0] and t.sizes[1] <= whole[1]]
    return (fitting or TILES[:1])[-1]


def _k_is_last(block: Any, read: int) -> bool:
    """Whether an operand's elements along k lie next to each other."""
    index = block.reads[read].region[-1].min
    summed = [a.var for a in block.iter_vars if int(a.iter_type) == tirx.IterVar.CommReduce]
    return any(used.same_as(axis) for used in undefined_vars(index) for axis in summed)


def _scheduled(schedule: Any, product: Any) -> Any:
    block = schedule.get(product)
    transposed = _k_is_last(block, 1)
    reads = [schedule.reindex(product, ("read", number)) for number in (0, 1)]
    written = schedule.reindex(product, ("write", 0))
    maps = get_index_map(schedule.get(product))
    if maps is None:
        return None
    whole, a_map, b_map, c_map = maps
    schedule.transform_layout(reads[0], ("write", 0), a_map)
    schedule.transform_layout(reads[1], ("write", 0), b_map)
    schedule.transform_layout(written, ("read", 0), c_map)
    schedule.transform_block_layout(product, whole)
    if not transposed:
        schedule.transform_layout(reads[1], ("write", 0), lambda s, j, k: (s, k, j))
    extents = [axis.dom.extent for axis in schedule.get(product).iter_vars]
    tile = _tile(extents[1], extents[2])
    if tile is None:
        return None
    schedule.pad_einsum(product, [1, *tile.sizes])
    _compute(schedule, product, tile, transposed)
    return schedule


def _compute(schedule: Any, product: Any, tile: Tile, transposed: bool) -> None:
    # Here, as TVM 0.27 parses intrinsics of every device when it imports these: half a minute of work.
    from tvm.s_tir.tensor_intrin.cuda import get_wmma_intrin_group

    names = get_wmma_intrin_group(
        load_scope="shared", store_scope="shared", in_dtype="float16", out_dtype="float32", trans_b=transposed
    )
    batch, i, j, k = schedule.get_loops(product)
    i, ii = schedule.split(i, [None, EDGE])
    j, ji = schedule.split(j, [None, EDGE])
    k, ki = schedule.split(k, [None, EDGE])
    schedule.reorder(i, j, k, ii, ji, ki)
    fragment = schedule.blockize(ii)
    i_block, i_warp, i_own = schedule.split(i, [None, tile.warps[0], tile.fragments[0]])
    j_block, j_warp, j_own = schedule.split(j, [None, tile.warps[1], tile.fragments[1]])
    k_step, k_own = schedule.split(k, [None, tile.depth])
    schedule.reorder(i_block, j_block, i_warp, j_warp, k_step, k_own, i_own, j_own)
    schedule.bind(batch, "blockIdx.z")
    schedule.bind(i_block, "blockIdx.x")
    schedule.bind(j_block, "blockIdx.y")
    warp = schedule.fuse(i_warp, j_warp)
    schedule.bind(warp, "threadIdx.y")
    warps = tile.warps[0] * tile.warps[1]

    for number in (0, 1):
        loaded = schedule.cache_read(fragment, number, "shared")
        schedule.compute_at(loaded, k_step)
        _spread(schedule, loaded, warps)
        schedule.storage_align(loaded, 0, axis=-2, factor=EDGE, offset=8)
        _inline_before(schedule, loaded)
    operands = []
    for number, scope in enumerate(("wmma.matrix_a", "wmma.matrix_b")):
        operand = schedule.cache_read(fragment, number, scope)
        schedule.compute_at(operand, k_own)
        operands.append(operand)
    result = schedule.cache_write(fragment, 0, "shared")
    schedule.storage_align(result, 0, axis=-2, factor=EDGE, offset=4)
    sums = schedule.cache_write(fragment, 0, "wmma.accumulator")
    schedule.reverse_compute_at(sums, warp)
    schedule.reverse_compute_at(result, j_block)

    start = schedule.decompose_reduction(fragment, k_step)
    for operand, name in zip(operands, ("load_a", "load_b"), strict=True):
        schedule.tensorize(_fragments(schedule, operand), names[name])
    schedule.tensorize(_fragments(schedule, sums), names["store"])
    schedule.tensorize(schedule.get_loops(schedule.get_child_blocks(start)[0])[-2], names["init"])
    schedule.tensorize(schedule.get_loops(schedule.get_child_blocks(fragment)[0])[-3], names["compute"])
    _inline_behind(schedule, result)
    _spread(schedule, result, warps)


def _fragments(schedule: Any, block: Any) -> Any:
    """Cut the two last loops of a block into fragments; the loop that is one of them."""
    i, j = schedule.get_loops(block)[-2:]
    i, ii = schedule.split(i, [None, EDGE])
    j, ji = schedule.split(j, [None, EDGE])
    schedule.reorder(i, j, ii, ji)
    schedule.unroll(i)
    schedule.unroll(j)
    return ii


def _spread(schedule: Any, block: Any, warps: int, lanes: int = 4) -> None:
    """Share the two last loops of a block among the threads, each taking `lanes` elements at a time."""
    whole = schedule.fuse(*schedule.get_loops(block)[-2:])
    _, y, x, own = schedule.split(whole, [None, warps, _WARP, lanes])
    schedule.bind(y, "threadIdx.y")
    schedule.bind(x, "threadIdx.x")
    schedule.vectorize(own)


def _inline_before(schedule: Any, block: Any) -> None:
    """Compute all that a block reads where it reads it."""
    while producers := [p for p in schedule.get_producers(block) if not _sums(schedule.get(p))]:
        for producer in producers:
            schedule.compute_inline(producer)


def _inline_behind(schedule: Any, block: Any) -> None:
    """Compute all that follows a block as part of it."""
    while consumers := schedule.get_consumers(block):
        waiting = [c for c in consumers if schedule.get_consumers(c)]
        if len(consumers) > 1:
            for consumer in waiting:
                schedule.compute_inline(consumer)
            if not waiting:
                raise ValueError("several results of one product")
            continue
        schedule.reverse_compute_inline(consumers[0])
