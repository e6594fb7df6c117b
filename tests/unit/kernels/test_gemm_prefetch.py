"""The lines of the next panel that the tiles of a packed matmul prefetch."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from kiln.callbacks import structural_map, structural_walk
from kiln.config import load_target
from kiln.kernels.cpu.gemm_prefetch import panel_share
from kiln.kernels.cpu.gemm_tile import Loop
from kiln.lower.pipeline import Lowering, lower
from relaxed import const, module
from tvm import relax, sym, tirx
from tvm.ir import Call


def test_the_shares_of_tiles_are_a_panel() -> None:
    kernels = [(7, 7, 3), (3, 3, 3), (7, 7, 1), (3, 3, 36), (3, 3, 64), (1, 1, 256), (1, 10, 1), (1, 1, 1)]
    for extents, tiles, width in itertools.product(kernels, (1, 2, 7, 40, 896, 12544), (8, 16, 32, 48)):
        share = panel_share(width, [Loop(extent, 1) for extent in extents], tiles)
        lines = max(1, width // 16) * extents[0] * extents[1] * extents[2]
        assert share.tiles <= tiles, (extents, tiles, width, share)
        assert 0 <= share.of_tile * share.tiles - lines < share.of_tile, (extents, tiles, width, share)


def _last_prefetched(func: tirx.PrimFunc) -> int:
    """The greatest index of an element that `func` prefetches in the last iteration of all its loops."""
    values: dict[Any, Any] = {}
    indices: list[Any] = []

    def of_last_iteration(expr: Any) -> Any:
        """`expr` with the values of its variables."""
        return structural_map(expr, ((tirx.Var, lambda variable: values[variable]),))

    def on_loop(loop: Any) -> None:
        values[loop.loop_var] = tirx.const(int(loop.extent) - 1, loop.loop_var.ty.dtype)

    def on_bind(bind: Any) -> None:
        values[bind.var] = of_last_iteration(bind.value)

    def on_call(call: Any) -> None:
        if call.op.name == "tirx.address_of":
            indices.append(of_last_iteration(call.args[0].indices[0]))

    structural_walk(func.body, ((tirx.For, on_loop),))
    structural_walk(func.body, ((tirx.Bind, on_bind), (Call, on_call)))
    return max(int(sym.Analyzer().simplify(index)) for index in indices)


def test_a_first_layer_prefetches_at_most_the_next_panel() -> None:
    weights = np.random.default_rng(2).uniform(-1, 1, (7, 7, 3, 16)).astype("float32")

    def body(x: relax.Var) -> relax.Expr:
        layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
        return relax.op.nn.conv2d(x, const(weights), strides=2, **layouts)

    target = load_target("x86_64").for_variant("v3")
    steps = lower(module([((1, 229, 229, 3), "float32")], body), Lowering("m", target, "none"))
    (func,) = steps.functions.values()
    assert weights.size < _last_prefetched(func) < 3 * weights.size
