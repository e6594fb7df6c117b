"""Handwritten loops that are not plain nests (scans, scatters), in a form that dlight maps to GPU threads.

The author of such code marks the loops that may run in parallel. A parallel loop that is outermost becomes a
block with one axis; dlight's Fallback assigns a thread to each iteration, and inner loops become serial loops
of that thread. Statements between parallel loops are computed by a single thread. Each of these blocks
becomes a kernel of its own, so that it reads what earlier blocks have stored.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as script

from kiln.callbacks import structural_map, structural_walk
from kiln.kernels.gpu import scans
from kiln.kernels.operators.indices import COMBINE, count
from kiln.kernels.operators.opaque import refuse_library
from kiln.tir.symbols import int64


def mapped(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with its handwritten loops turned into blocks; unchanged if it has none.

    Raises ValueError if the code calls TVM's runtime, which is not on the GPU.
    """
    refuse_library(func)
    if not isinstance(func.body, s_tir.SBlockRealize):
        return func
    root = func.body.block
    inner, allocated = root.body, list(root.alloc_buffers)
    statements = list(inner.seq) if isinstance(inner, tirx.SeqStmt) else [inner]
    if _is_handwritten(func.body):
        inner, allocated = _blocks(root), []
    elif any(_is_handwritten(statement) for statement in statements):
        inner = _sequence(
            [
                _blocks(statement.block) if _is_handwritten(statement) else statement
                for statement in statements
            ]
        )
    else:
        return func
    block = s_tir.SBlock([], [], [], "root", inner, None, allocated)
    return func.with_body(s_tir.SBlockRealize([], True, block))


def scatter_nd(builder: Any, call: tvm.ir.Call) -> Any:
    """Legalisation rule for relax.scatter_nd: one thread per element, which searches for its updates.

    So several updates of one element are applied in order, which one thread per update would not guarantee.
    """
    data, indices, updates = call.args
    combine = COMBINE.get(str(call.attrs.reduction))

    def scatter(x: Any, places: Any, new: Any) -> Any:
        *rows, axes = list(places.shape)
        named = int(axes)  # a row of indices indexes that many axes of x, the first ones

        def write(sources: Any, target: Any) -> Any:
            old, indices, updates = sources
            with IRBuilder() as ir, script.parallel(int64(0), count(x.shape)) as number:
                element_indices = _unfold(number, x.shape)
                script.buffer_store(target, tirx.BufferLoad(old, element_indices), element_indices)
                with script.serial(int64(0), count(rows)) as update:
                    row = _unfold(update, rows)
                    is_own = [
                        tirx.Cast("int64", tirx.BufferLoad(indices, [*row, int64(axis)]))
                        == element_indices[axis]
                        for axis in range(named)
                    ]
                    value = tirx.BufferLoad(updates, [*row, *element_indices[named:]])
                    if combine is not None:
                        value = combine(tirx.BufferLoad(target, element_indices), value)
                    with script.If(tirx.all(*is_own)), script.Then():
                        script.buffer_store(target, value, element_indices)
            return ir.get()

        out = tirx.decl_buffer(x.shape, x.dtype, "scattered")
        return te.extern(
            [x.shape], [x, places, new], lambda i, o: write(i, o[0]), dtype=x.dtype, out_buffers=[out]
        )

    return builder.call_te(scatter, data, indices, updates, primfunc_name_hint="scatter_nd")


# Legalisation rules by operator name, which replace the rules for CPUs.
RULES = {
    "relax.cumsum": scans.rule(False),
    "relax.cumprod": scans.rule(True),
    "relax.scatter_nd": scatter_nd,
}


def _unfold(number: Any, sizes: Any) -> list[Any]:
    """The indices of element `number` of a tensor with the shape `sizes`."""
    indices: list[Any] = []
    for size in reversed(list(sizes)):
        indices.insert(0, tirx.floormod(number, size))
        number = tirx.floordiv(number, size)
    return indices


def _is_handwritten(statement: tirx.Stmt) -> bool:
    """Whether a statement is a block of handwritten code: no axes, no inner blocks, only loops and stores."""
    if not isinstance(statement, s_tir.SBlockRealize) or statement.block.iter_vars:
        return False
    return not _has_blocks(statement.block.body) and bool(_loops(statement.block))


def _has_blocks(body: Any) -> bool:
    return structural_walk(body, ((s_tir.SBlockRealize, tvm_ffi.VisitInterrupt),)) is not None


def _sequence(statements: list[Any]) -> Any:
    return tirx.SeqStmt(statements) if len(statements) > 1 else statements[0]


def _loops(block: Any) -> list[Any]:
    """The statements of a block; an empty list if a statement is not a loop, a store or an if."""
    body = block.body
    while isinstance(body, tirx.AttrStmt):
        body = body.body
    statements = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    plain = all(isinstance(item, (tirx.For, tirx.BufferStore, tirx.IfThenElse)) for item in statements)
    return statements if plain and not block.alloc_buffers else []


def _blocks(block: Any) -> Any:
    """One block for each parallel loop, and one for the statements between two parallel loops."""
    blocks: list[Any] = []
    waiting: list[Any] = []

    def flush() -> None:
        if waiting:
            name = f"{block.name_hint}_{len(blocks)}"
            blocks.append(_block(name, tirx.Var("one", "int64"), int64(1), _sequence(list(waiting))))
            waiting.clear()

    for statement in _loops(block):
        if isinstance(statement, tirx.For) and statement.kind == tirx.ForKind.PARALLEL:
            flush()
            name = f"{block.name_hint}_{len(blocks)}"
            blocks.append(_block(name, statement.loop_var, statement.extent, statement.body, statement.min))
        else:
            waiting.append(statement)
    flush()
    return _sequence(blocks)


def _block(name: str, variable: Any, count: Any, body: Any, first: Any = 0) -> Any:
    """A block that runs `body` for `count` values of `variable`, starting at `first`.

    The block declares no reads and writes, like the blocks of te.extern: dlight would not schedule it
    otherwise.
    """
    dtype = str(variable.ty.dtype)
    loop, axis = tirx.Var(f"{variable.name}_at", dtype), tirx.Var(variable.name, dtype)
    zero = tirx.const(0, dtype)

    def on_variable(other: Any) -> Any:
        return axis + first if other.same_as(variable) else other

    def on_loop(inner: Any) -> Any:
        return tirx.For(inner.loop_var, inner.min, inner.extent, tirx.ForKind.SERIAL, inner.body)

    body = structural_map(body, ((tirx.Var, on_variable), (tirx.For, on_loop)))
    iterated = tirx.IterVar(tvm.ir.Range(zero, count), axis, tirx.IterVar.DataPar)
    block = s_tir.SBlock([iterated], [], [], name, body)
    return tirx.For(loop, zero, count, tirx.ForKind.SERIAL, s_tir.SBlockRealize([loop], True, block))
