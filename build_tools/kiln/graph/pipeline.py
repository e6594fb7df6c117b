"""The passes of the `simplify` stage: one flat list, read from top to bottom."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import tvm
from tvm import relax

from kiln.files import atomic_write
from kiln.graph.clip import clip_to_min_max
from kiln.graph.constants import fold_constants, fold_levels, fold_simple_constants
from kiln.graph.convolutions import plain_convolutions
from kiln.graph.dead_taps import dead_taps
from kiln.graph.divisions import divisions_by_constants, divisions_by_square_roots, divisions_by_zero
from kiln.graph.empties import without_empties
from kiln.graph.group_norm import group_norms
from kiln.graph.grouped_heads import grouped_heads
from kiln.graph.infinities import register
from kiln.graph.integer import integer_arithmetic
from kiln.graph.layout import channels_last
from kiln.graph.norms import norms
from kiln.graph.parallel_convolutions import parallel_convolutions
from kiln.graph.products import products_in_place
from kiln.graph.quantised_moves import quantised_moves
from kiln.graph.requantise import requantise
from kiln.graph.reshapes import sink_reshapes
from kiln.graph.separable_pools import separable_pools
from kiln.graph.split_dense import split_dense
from kiln.graph.tiny_weights import tiny_weights
from kiln.graph.transposes import cancel_transposes

Pass = Callable[[tvm.IRModule], tvm.IRModule]

register()


def clean(mod: tvm.IRModule) -> tvm.IRModule:
    """Remove copies, common subexpressions and dead code."""
    transform = relax.transform
    for step in (
        transform.CanonicalizeBindings(),
        transform.EliminateCommonSubexpr(),
        transform.DeadCodeElimination(),
    ):
        mod = step(mod)
    return mod


PASSES: list[tuple[str, Pass]] = [
    # Phase 0: remove tensors without elements.
    ("empties", without_empties),
    ("divisions_by_zero", divisions_by_zero),
    # Phase 1: arithmetic. Integers first, while the weights are still integers.
    ("levels", fold_levels),
    ("quantised_moves", quantised_moves),
    ("integer", integer_arithmetic),
    ("decompose", relax.transform.DecomposeOpsForInference()),
    ("group_norms", group_norms),
    ("constants", fold_simple_constants),
    ("fold", fold_constants),
    ("batchnorm", relax.transform.FoldBatchnormToConv2D()),
    ("clip", clip_to_min_max),
    ("divisions", divisions_by_constants),
    ("norms", norms),
    ("roots", divisions_by_square_roots),
    ("clean", clean),
    # Phase 2: layout. NHWC inside, and no transpose that another one undoes.
    ("convolutions", plain_convolutions),
    ("layout", channels_last),
    ("normalize", relax.transform.Normalize()),
    ("transposes", cancel_transposes),
    ("constants_layout", fold_simple_constants),
    ("fold_layout", fold_constants),
    ("clean_convolutions", clean),
    ("parallel_convolutions", parallel_convolutions),
    ("dead_taps", dead_taps),
    ("separable_pools", separable_pools),
    ("tiny_weights", tiny_weights),
    ("clean_layout", clean),
    # Phase 3: remove splits, copies, transposes and reshapes between operators that can share a kernel.
    ("split_dense", split_dense),
    ("grouped_heads", grouped_heads),
    ("products", products_in_place),
    ("reshapes", sink_reshapes),
    ("requantise", requantise),
    ("clean_reshapes", clean),
]


def run(mod: tvm.IRModule, passes: Iterable[tuple[str, Pass]], dump: Path | None = None) -> tvm.IRModule:
    """Run passes one after the other; the folder `dump` receives the IR after each."""
    for index, (name, step) in enumerate(passes):
        mod = step(mod)
        if dump is not None:
            atomic_write(dump / f"{index:02d}-{name}.txt", mod.script(show_meta=False))
    return mod


def simplify(mod: tvm.IRModule, dump: Path | None = None) -> tvm.IRModule:
    """Run PASSES over a module whose parameters are constants; `dump` receives the IR after each pass."""
    return run(mod, PASSES, dump)
