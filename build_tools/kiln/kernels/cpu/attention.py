"""Attention as one kernel: blocks of queries against blocks of keys, with an online softmax.

Computation  out[lead, query] = g(sum over keys of softmax(f(q . k))[key] * v[key]). f: scale, masks and
             biases as the graph has them; g: the fused epilogue.
Schedule     A unit of work is one block of queries of one head. For each block of keys: the scores, with the
             keys as rows and the queries as columns of the register tile, so that maxima and sums of a query
             are lanes of a vector; exponentials relative to the greatest score so far; then the weighted
             values, added to the result so far, which is scaled when the greatest score has grown
             (M. Milakov, N. Gimelshein: Online normalizer calculation for softmax, 2018). Tasks are ranges of
             units.
Packing      The queries of a block are transposed into scratch memory once; keys are read in place. Values
             whose columns are contiguous are read in place, others are packed block by block.
Memory       Scratch for one block in each task, however long the sequences are. Scores are never stored.
Applies      The chain of a product, a softmax over its last axis and a product, of float32, with constant
             widths of keys and values; numbers of queries and keys of any kind.
Accuracy     Sums of exponentials and of values run in order of keys. A row whose scores are all -inf is NaN,
             as for the softmax of ONNX, or zeros where the graph asks for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as builder

from kiln.kernels.cpu import attention_row
from kiln.kernels.cpu.attention_block import AttentionBlock, Blocks, QueryBlock
from kiln.kernels.cpu.attention_nests import Attention, read_attention
from kiln.kernels.cpu.attention_row import AttentionRow
from kiln.kernels.cpu.batch_matmul import flat
from kiln.kernels.cpu.epilogue import Epilogue
from kiln.kernels.cpu.gemm_tile import choose_tile
from kiln.opinfo.attach import OpInfo
from kiln.tir.builder import (
    Kernel,
    KernelAndBuffers,
    Machine,
    Sized,
    argument,
    bind,
    define,
    divide,
    registers,
    serial,
    unravel,
)
from kiln.tir.fused import Fused
from kiln.tir.symbols import ceil_div, int64, is_dynamic
from kiln.tir.tiled_loops import tasks_of

# Queries and keys of a block, at most, before they are rounded to tiles: queries, keys and results of a block
# stay in the L2 cache, its scores in the L1 cache.
_QUERIES, _KEYS = 96, 64
# The most tasks, since each has scratch memory; and the share of the scores' size that it may take.
_TASKS, _SHARE = 16, 2
# Least scores of a head, and least elements of a key and a value together, with which one kernel is faster
# than three: with fewer scores, three kernels have them in the cache too, and narrow heads are mostly
# exponentials. Measured on Zen 4, AVX2 and AVX-512: 15 to 20 % faster at 1,500 x 1,500, within 3 % at
# 197 x 197, 10 % slower with 8 elements.
_SCORES, _WIDTH = 256 * 256, 32
# Least queries and least keys: queries are the lanes of a vector, and a softmax of few keys has nothing to
# keep between blocks.
_LEAST = 64
# Bytes of scores that are too much memory whatever the speed.
_TOO_LARGE = 4 << 20


def blocking(machine: Machine, queries: int, keys: int) -> Blocks:
    """The sizes of blocks and register tiles for `queries` queries and `keys` keys."""
    plain = replace(machine, packing=None)
    tile = choose_tile(plain, min(keys, _KEYS), queries).in_one()
    columns = tile.columns
    block = columns * max(1, min(ceil_div(queries, columns), _QUERIES // columns))
    greatest_rows = choose_tile(plain, _QUERIES, _QUERIES).rows
    rows = max(number for number in range(1, greatest_rows + 1) if block % number == 0)
    return Blocks(tile, block, tile.rows * max(1, ceil_div(min(keys, _KEYS), tile.rows)), rows)


def applies(fused: Fused, ops: Sequence[OpInfo]) -> Attention | None:
    """The attention of a group if this family can compute it, else None; the same on all machines."""
    attention = read_attention(fused, ops)
    if attention is None or any(is_dynamic(width) for width in attention.widths):
        return None
    ranges = fused.ranges
    heads, queries, keys = (
        ranges.greatest(size) for size in (ranges.product(attention.lead), *attention.sizes)
    )
    return attention if pays(heads, queries, keys, sum(attention.widths)) else None


def pays(heads: int, queries: int, keys: int, width: int) -> bool:
    """Whether one kernel is better than three; `width`: elements of a key and of a value together."""
    if queries < _LEAST or keys < _LEAST:
        return False
    return (queries * keys > _SCORES and width >= _WIDTH) or heads * queries * keys * 4 > _TOO_LARGE


def _extra(fused: Fused, attention: Attention) -> list[Any]:
    """The parameters that masks, biases and the epilogue read."""
    extra_buffers: list[Any] = []
    for anchor, last in (
        (attention.product, attention.scores),
        (attention.weighted, attention.last),
    ):
        read = fused.inputs(last, [*fused.params, anchor.buffer]) if last is not anchor else []
        extra_buffers += [buffer for buffer in read if buffer in fused.params and buffer not in extra_buffers]
    return extra_buffers


def _sizes(attention: Attention, form: Blocks) -> dict[str, int]:
    """Elements of each part of the scratch memory of a task."""
    width, columns = attention.widths
    step = attention.values.strides[attention.column.var]
    packed = is_dynamic(step) or step != 1
    return {
        "queries": width * form.queries,
        "scores": form.keys * form.queries,
        "result": columns * form.queries,
        **({"values": form.keys * form.tile.columns} if packed else {}),
        **dict.fromkeys(("greatest", "before", "factor", "sum"), form.queries),
    }


def make(attention: Attention, fused: Fused, machine: Machine) -> KernelAndBuffers:
    """Make the kernel of a whole group; return it with the buffers of its parameters."""
    ranges, greatest = fused.ranges, fused.ranges.greatest
    queries, keys = attention.sizes
    width, columns = attention.widths
    form = blocking(machine, greatest(queries), greatest(keys))
    count = ceil_div(queries, form.queries)
    units = ranges.product([*attention.lead, count])
    sizes = _sizes(attention, form)
    stored = greatest(ranges.product([*attention.lead, queries, keys]))
    tasks = min(greatest(units), _TASKS, max(1, stored // (_SHARE * sum(sizes.values()))))
    shared = tasks > 1 and machine.shares(stored * (width + columns) // form.tile.lanes)
    tasks = tasks if shared else 1
    operands = [attention.queries.buffer, attention.keys.buffer, attention.values.buffer]
    extra = _extra(fused, attention)
    output = attention.last.buffer
    arguments = [flat(buffer, ranges, fused.tables) for buffer in operands]
    arguments += [argument(buffer, fused.tables) for buffer in [*extra, output]]

    def body(buffers: list[tirx.Buffer], begin: Expr, end: Expr) -> None:
        data = [buffer.memory if isinstance(buffer, Sized) else buffer for buffer in buffers[:3]]
        names = dict(zip([*extra, output], buffers[3:], strict=True))
        score = Epilogue(fused, attention.product, attention.scores, names)
        result = Epilogue(fused, attention.weighted, attention.last, names)
        memory = {name: registers([size * tasks], "float32") for name, size in sizes.items()}

        def unit(number: Expr, task: Expr) -> None:
            task_memory = {name: (buffer, bind(task * int64(sizes[name]))) for name, buffer in memory.items()}
            *lead, block = (bind(index) for index in unravel(number, [*attention.lead, count]))
            first = bind(block * int64(form.queries))
            rows_left = bind(tirx.min(int64(queries) - first, int64(form.queries)))

            def of(kind: type[AttentionBlock], block: QueryBlock) -> None:
                kind(attention, form, data, score, result, task_memory, block).emit()

            if not attention_row.applies(attention, form):
                of(AttentionBlock, QueryBlock(lead, first, rows_left))
                return
            with builder.If(rows_left <= int64(attention_row.MOST)):
                with builder.Then(), serial(rows_left) as row:
                    of(AttentionRow, QueryBlock(lead, bind(first + row), int64(1)))
                with builder.Else():
                    of(AttentionBlock, QueryBlock(lead, first, rows_left))

        with tasks_of(tasks, shared, begin, end) as task:
            first = bind(divide(task * int64(units), tasks))
            last = bind(divide((task + int64(1)) * int64(units), tasks))
            with serial(last - first, first) as number:
                unit(number, task)

    func = define(arguments, tasks if shared else None, body, False, ranges)
    kernel = Kernel(func, tasks if shared else None, {}, "attention", ranges=ranges)
    return kernel, [*operands, *extra, output]
