"""Matmuls and convolutions on tensor cores, with wmma fragments and sums in float32 or int32.

Fragments are 16 x 16 x 16 with float16, bfloat16 or 8-bit integer operands, or 16 x 16 x 8 with float32
operands that were rounded to tf32. Sums of integers are exact in int32, whatever their order. Matmuls,
batched or not, and convolutions have one form: C[s, i, j] = sum over k of A[s, i, k] * B[s, k, j], where each
of i, j and k may stand for several axes of the function (in a convolution, i is batch, row and column, and k
is the window and the channels). dlight's analysis assigns the axes.

1. Operands are reindexed to A[s, i, k] and to B[s, k, j] or B[s, j, k], whichever is contiguous in memory,
   and padded to whole tiles. These tensors are never stored: reindexing and padding are computed where an
   element is loaded, so that a convolution gathers its windows (im2col) while it loads the image into shared
   memory.
2. A thread block computes a tile of C. In steps over k it loads a slice of A and of B into shared memory,
   from which each warp loads its own fragments. The distance of rows in shared memory exceeds a multiple of
   16 elements by 16 or 32 bytes, so that the rows of a fragment are in different banks. Of 8-bit operands the
   16 elements of k that a fragment needs are next to each other for all rows of the slice: a fragment then
   begins at a multiple of 32 bytes, as wmma demands. Both slices have three places in shared memory: two
   are filled while the fragments of the third are multiplied. They have two where shared memory cannot
   hold three.
3. The sums go through shared memory once more; the epilogue (bias, residual, activation, rounding) is
   computed between shared memory and the result.

Tile and number of parts are those that a model of the GPU's cycles expects to take least
(kiln.kernels.gpu.block_tile). A product with few rows and columns has few blocks with every tile: its sum
over k is then divided among several blocks (split-K), which write float32 sums of their parts to memory; a
second kernel adds the parts and computes the epilogue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import s_tir, tirx
from tvm.ir import Call, TensorLoad
from tvm.s_tir.dlight.gpu.matmul import get_index_map
from tvm.tirx.analysis import undefined_vars

from kiln.kernels.gpu.block_tile import PLACES, SHARED_BYTES, BlockTile, ProductTiles
from kiln.kernels.gpu.fragment_form import BRAIN, HALF, INTEGERS, TF32, FragmentForm, OperandSlice
from kiln.kernels.gpu.wmma import EDGE, intrinsics, sum_type
from kiln.tir.symbols import is_dynamic

_WARP = 32
_THREADS = 128  # of a block that adds parts of sums
_LANES = 4  # elements that a thread loads or stores at once, where it cannot be more
ROUNDED = "tirx.kiln_tf32"  # the operator that rounds to tf32, see kiln.kernels.gpu.tf32


class TensorProduct:
    """A dlight schedule rule: `apply` returns a schedule, or None for a function that it does not handle.

    `tiles`: chooses the tile of a product.
    """

    def __init__(self, tiles: ProductTiles) -> None:
        self.tiles = tiles

    def apply(self, func: Any, target: Any, _: bool) -> Any:
        """Schedule `func` if it has one matmul or convolution of operands in 8 or 16 bits or tf32."""
        schedule = s_tir.Schedule(func)
        try:
            blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
        except Exception:  # no root block: handwritten loops
            return None
        sums = [block for block in blocks if _sums(schedule.get(block))]
        form = _form(schedule, sums[0]) if len(sums) == 1 else None
        if form is None:
            return None
        try:
            _inline_others(schedule, sums[0])
            return _scheduled(schedule, sums[0], form, self.tiles)
        except Exception:  # of TVM's own kinds: several results, or no inlining; another rule can handle it
            return None

    def is_target_available(self, target: Any) -> bool:
        """Always True; dlight calls it before it applies a rule."""
        return True


def _inline_others(schedule: s_tir.Schedule, product: Any) -> None:
    """Inline blocks before another operand of the epilogue, such as a conversion of the residual."""
    reached = [*_reached(schedule.get_producers, product), *_reached(schedule.get_consumers, product)]
    names = {schedule.get(block).name_hint for block in (product, *reached)}
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        if schedule.get(block).name_hint not in names:
            schedule.compute_inline(block)


def _reached(step: Callable[[Any], Any], block: Any) -> list[Any]:
    """The blocks that repeated steps lead to from `block`."""
    blocks = list(step(block))
    return [*blocks, *(further for one in blocks for further in _reached(step, one))]


def _sums(block: Any) -> bool:
    """Whether a block is a reduction."""
    return any(int(axis.iter_type) == tirx.IterVar.CommReduce for axis in block.iter_vars)


def _form(schedule: s_tir.Schedule, product: Any) -> FragmentForm | None:
    """The form of the operands of a block that sums products of two tensors; None for other blocks."""
    block = schedule.get(product)
    store = block.body
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, tirx.Add):
        return None
    value = store.value.b
    if not isinstance(value, tirx.Mul) or len(block.reads) != 2:
        return None
    factors, total = (value.a, value.b), str(store.buffer.dtype)
    for form in (HALF, BRAIN, *INTEGERS):
        casts = all(isinstance(s, tirx.Cast) and str(s.value.ty.dtype) == form.dtype for s in factors)
        if casts and total == sum_type(form.dtype):
            return form if form.row_gap is not None or _k_is_last(block, 1) else None
    if total != "float32":
        return None
    rounded = {schedule.get(p).body.buffer for p in schedule.get_producers(product) if _rounds(schedule, p)}
    return TF32 if all(isinstance(s, TensorLoad) and s.source in rounded for s in factors) else None


def _rounds(schedule: s_tir.Schedule, block: Any) -> bool:
    """Whether a block rounds a tensor to tf32."""
    store = schedule.get(block).body
    value = store.value if isinstance(store, tirx.BufferStore) else None
    return isinstance(value, Call) and str(getattr(value.op, "name", "")) == ROUNDED


def _k_is_last(block: Any, read: int) -> bool:
    """Whether operand number `read` of a reduction is contiguous along k."""
    index = block.reads[read].region[-1].min
    summed = [a.var for a in block.iter_vars if int(a.iter_type) == tirx.IterVar.CommReduce]
    return any(used.same_as(axis) for used in undefined_vars(index) for axis in summed)


def _scheduled(schedule: s_tir.Schedule, product: Any, form: FragmentForm, tiles: ProductTiles) -> Any:
    """The schedule, after reindexing, padding and tiling of the block `product`; None if no tile fits."""
    block = schedule.get(product)
    innermost = [a for a in block.iter_vars if int(a.iter_type) == tirx.IterVar.CommReduce][-1].dom.extent
    transposed = _k_is_last(block, 1)
    runs = tuple(read.source.shape[-1] for read in block.reads)
    reads = [schedule.reindex(product, ("read", number)) for number in (0, 1)]
    written = schedule.reindex(product, ("write", 0))
    maps = get_index_map(schedule.get(product))
    if maps is None:
        return None
    block_map, a_map, b_map, c_map = maps
    schedule.transform_layout(reads[0], ("write", 0), a_map)
    schedule.transform_layout(reads[1], ("write", 0), b_map)
    schedule.transform_layout(written, ("read", 0), c_map)
    schedule.transform_block_layout(product, block_map)
    if not transposed:
        schedule.transform_layout(reads[1], ("write", 0), lambda s, j, k: (s, k, j))
    extents = [axis.dom.extent for axis in schedule.get(product).iter_vars]
    tile_and_parts = tiles.choose(form.dtype, extents, innermost, form.depth(extents[3]))
    if tile_and_parts is None:
        return None
    tile, parts = tile_and_parts
    schedule.pad_einsum(product, [1, *tile.sizes])
    if parts > 1:
        part_loop, _ = schedule.split(schedule.get_loops(product)[-1], [parts, None])
        total, product = product, schedule.rfactor(part_loop, 0)
        _add_parts(schedule, total)
    _compute(schedule, product, tile, transposed, form, runs, epilogue=parts == 1)
    return schedule


def _add_parts(schedule: s_tir.Schedule, total: Any) -> None:
    """Bind the block `total`, which adds the parts of sums, to threads, one for each element of the result.

    Blocks that read the sums are inlined into the last of them. Raises ValueError for several results.
    """
    last = total
    while consumers := schedule.get_consumers(last):
        if len(consumers) > 1:  # a value that is read more than once, as GELU reads its argument
            waiting = [consumer for consumer in consumers if schedule.get_consumers(consumer)]
            if not waiting:
                raise ValueError("several results of one product")
            for consumer in waiting:
                schedule.compute_inline(consumer)
            continue
        if last is not total:
            schedule.compute_inline(last)
        last = consumers[0]
    threads = schedule.split(schedule.fuse(*schedule.get_loops(last)), [None, _THREADS])
    schedule.bind(threads[0], "blockIdx.x")
    schedule.bind(threads[1], "threadIdx.x")
    schedule.compute_at(total, threads[1])
    schedule.set_scope(total, 0, "local")


def _compute(
    schedule: s_tir.Schedule, product: Any, tile: BlockTile, transposed: bool, form: FragmentForm, runs: Any,
    epilogue: bool,
) -> None:  # fmt: skip
    """Tile a padded product, bind it to blocks and warps, and put fragments in place of its inner loops.

    `transposed`: B is [s, j, k], else [s, k, j]. `runs`: contiguous elements of both operands in memory.
    `epilogue`: this kernel computes the blocks that follow; otherwise the product has an axis of parts before
    k, and its result is stored as it is.
    """
    names = intrinsics(form.dtype, form.edge, transposed)
    batch, i, j, *parts, k = schedule.get_loops(product)
    if parts:
        schedule.reorder(*parts, batch, i, j, k)
        batch = schedule.fuse(*parts, batch)
    i, ii = schedule.split(i, [None, EDGE])
    j, ji = schedule.split(j, [None, EDGE])
    k, ki = schedule.split(k, [None, form.edge])
    schedule.reorder(i, j, k, ii, ji, ki)
    fragment = schedule.blockize(ii)
    i_block, i_warp, i_own = schedule.split(i, [None, tile.warps[0], tile.fragments[0]])
    j_block, j_warp, j_own = schedule.split(j, [None, tile.warps[1], tile.fragments[1]])
    k_step, k_own = schedule.split(k, [None, tile.depth // form.edge])
    schedule.reorder(i_block, j_block, i_warp, j_warp, k_step, k_own, i_own, j_own)
    schedule.bind(batch, "blockIdx.z")
    schedule.bind(i_block, "blockIdx.x")
    schedule.bind(j_block, "blockIdx.y")
    warp = schedule.fuse(i_warp, j_warp)
    schedule.bind(warp, "threadIdx.y")
    warps = tile.warps[0] * tile.warps[1]
    for number in (0, 1):
        elements_of_thread = tile.sizes[number] * tile.depth // (warps * _WARP)
        operand_slice = OperandSlice(
            number, elements_of_thread, runs[number], form.gap(number == 0 or transposed)
        )
        _load(schedule, fragment, operand_slice, k_step, warps, form)
    _in_stages(schedule, k_step, form.step_bytes(*tile.sizes, transposed))
    operands = []
    for number, scope in enumerate(("wmma.matrix_a", "wmma.matrix_b")):
        operand = schedule.cache_read(fragment, number, scope)
        schedule.compute_at(operand, k_own)
        operands.append(operand)
    result = schedule.cache_write(fragment, 0, "shared")
    sums = schedule.cache_write(fragment, 0, "wmma.accumulator")
    schedule.reverse_compute_at(sums, warp)
    schedule.reverse_compute_at(result, j_block)
    start = schedule.decompose_reduction(fragment, k_step)
    edges = (EDGE, form.edge), (EDGE, form.edge) if transposed else (form.edge, EDGE)
    for operand, name, edge in zip(operands, (names.load_a, names.load_b), edges, strict=True):
        schedule.tensorize(_fragments(schedule, operand, edge), name)
    stored = _fragments(schedule, sums, (EDGE, EDGE))
    step_loop = schedule.get_loops(sums)[-3]
    schedule.tensorize(stored, names.store)
    # On the block that writes the buffer, which tensorize has just made: on another it would have no effect.
    schedule.storage_align(schedule.get_child_blocks(step_loop)[0], 0, axis=-2, factor=EDGE, offset=4)
    schedule.tensorize(schedule.get_loops(schedule.get_child_blocks(start)[0])[-2], names.fill)
    schedule.tensorize(schedule.get_loops(schedule.get_child_blocks(fragment)[0])[-3], names.multiply)
    if epilogue:
        _inline_consumers(schedule, result)
    _spread(schedule, result, warps)


def _in_stages(schedule: s_tir.Schedule, k_step: Any, slices: int) -> None:
    """Copy the slices of a step while the fragments of the step two before it are multiplied.

    With two steps, or where shared memory holds the slices of two steps only, it is the one before; a dynamic
    number of steps is left as it is. `slices`: bytes of the slices of both operands in a step.
    """
    steps = schedule.get(k_step).extent
    places = min(PLACES, SHARED_BYTES // slices)
    if is_dynamic(steps) or min(int(steps), places) < 2:
        return
    schedule.annotate(k_step, "software_pipeline_stage", [0, 0, min(int(steps), places) - 1])
    schedule.annotate(k_step, "software_pipeline_order", [0, 1, 2])
    schedule.annotate(k_step, "software_pipeline_async_stages", [0])


def _fragments(schedule: s_tir.Schedule, block: Any, edge: tuple[int, int]) -> Any:
    """Tile the last two loops of a block into fragments; returns the outer loop of one fragment."""
    i, j = schedule.get_loops(block)[-2:]
    i, ii = schedule.split(i, [None, edge[0]])
    j, ji = schedule.split(j, [None, edge[1]])
    schedule.reorder(i, j, ii, ji)
    schedule.unroll(i)
    schedule.unroll(j)
    return ii


def _load(
    schedule: s_tir.Schedule,
    fragment: Any,
    operand: OperandSlice,
    k_step: Any,
    warps: int,
    form: FragmentForm,
) -> None:
    """Copy the slice of an operand that the step `k_step` reads to shared memory."""
    loaded = schedule.cache_read(fragment, operand.number, "shared")
    if operand.gap is None:
        schedule.transform_layout(loaded, ("write", 0), lambda s, i, k: (s, k // form.edge, i, k % form.edge))
    schedule.compute_at(loaded, k_step)
    wide = _stored_as(schedule, loaded) == {form.dtype}
    lanes = _lanes_of_copy(operand.of_thread, operand.run, form) if wide else _LANES
    _spread(schedule, loaded, warps, lanes)
    if operand.gap is None:
        schedule.storage_align(loaded, 0, axis=-3, factor=128, offset=32)
    else:
        schedule.storage_align(loaded, 0, axis=-2, factor=EDGE, offset=operand.gap)
    _inline_producers(schedule, loaded)


def _lanes_of_copy(own: int, run: Any, form: FragmentForm) -> int:
    """Elements that a thread copies at once: 16 bytes, if its `own` elements and the runs allow it."""
    wide = not is_dynamic(run) and int(run) % form.widest == 0 and own % form.widest == 0
    return form.widest if wide else _LANES


def _stored_as(schedule: s_tir.Schedule, block: Any) -> set[str]:
    """Types of the tensors in memory from which a block and its producers compute."""
    producers = schedule.get_producers(block)
    inner = {schedule.get(producer).writes[0].source for producer in producers}
    dtypes = {str(read.source.dtype) for read in schedule.get(block).reads if read.source not in inner}
    return dtypes.union(*(_stored_as(schedule, producer) for producer in producers))


def _spread(schedule: s_tir.Schedule, block: Any, warps: int, lanes: int = _LANES) -> None:
    """Distribute the last two loops of a block over the threads, in vectors of `lanes` elements."""
    fused = schedule.fuse(*schedule.get_loops(block)[-2:])
    _, y, x, lane_loop = schedule.split(fused, [None, warps, _WARP, lanes])
    schedule.bind(y, "threadIdx.y")
    schedule.bind(x, "threadIdx.x")
    schedule.vectorize(lane_loop)


def _inline_producers(schedule: s_tir.Schedule, block: Any) -> None:
    """Inline all elementwise producers of a block into it, directly or indirectly read."""
    while producers := [p for p in schedule.get_producers(block) if not _sums(schedule.get(p))]:
        for producer in producers:
            schedule.compute_inline(producer)


def _inline_consumers(schedule: s_tir.Schedule, block: Any) -> None:
    """Inline all blocks that follow a block into it. Raises ValueError if it has several results."""
    while consumers := schedule.get_consumers(block):
        waiting = [c for c in consumers if schedule.get_consumers(c)]
        if len(consumers) > 1:
            for consumer in waiting:
                schedule.compute_inline(consumer)
            if not waiting:
                raise ValueError("several results of one product")
            continue
        schedule.reverse_compute_inline(consumers[0])
