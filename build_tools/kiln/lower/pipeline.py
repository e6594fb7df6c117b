"""The `lower` stage: from the simplified graph to kernels and steps, for one target."""

from __future__ import annotations

from pathlib import Path

import tvm
from tvm import relax

from kiln.byoc.external import External
from kiln.config import Target
from kiln.graph.pipeline import run
from kiln.graph.transposes import cancel_transposes
from kiln.kernels.operators.legalize import RULES
from kiln.lower.dims import Dims
from kiln.lower.fused_steps import Groups
from kiln.lower.index_checks import index_checks
from kiln.lower.packings import Packings
from kiln.lower.prefetch import look_ahead
from kiln.lower.prepare import explicit_padding, free_reshapes, safe_indices, store_quantised
from kiln.lower.recompute import recompute
from kiln.lower.steps import Steps
from kiln.lower.views.in_place_concat import keep_concats_apart
from kiln.lower.views.in_place_padding import keep_padding_apart
from kiln.lower.views.steps import Placement
from kiln.lower.walk import Builder
from kiln.opinfo import attach
from kiln.params import store
from kiln.tir.builder import Machine
from kiln.tir.tuning_records import Choices


def tvm_target(target: Target) -> tvm.target.Target:
    """TVM's description of a target: LLVM for its triple, cpu and features."""
    description: dict[str, object] = {"kind": "llvm", "mtriple": target.triple, "mcpu": target.cpu}
    if target.features:
        description["mattr"] = list(target.features)
    if target.arch == "armv7":  # else objects do not link with hard-float code
        description["mfloat-abi"] = "hard"
    return tvm.target.Target(description)


def machine_of(
    target: Target, threads: str, winograd: str = "off", choices: Choices | None = None
) -> Machine:
    """The `Machine` that schedules read: properties of `target`, and the model's choices."""
    return Machine(
        isa=target.vector.isa,
        vector_bits=target.vector.bits,
        registers=target.vector.registers,
        dot=target.vector.dot,
        in_order=target.vector.in_order,
        l2_bytes=target.cache.l2,
        l1_bytes=target.cache.l1d,
        shared_bytes=target.cache.l3,
        parallel=threads != "none",
        cores=target.cores,
        winograd=winograd,
        weight_growth=target.weight_growth,
        choices={} if choices is None else choices,
    )


def lower(
    mod: tvm.IRModule,
    model: str,
    target: Target,
    threads: str,
    dump: Path | None = None,
    winograd: str = "off",
    choices: Choices | None = None,
    external: External | None = None,
    precision: str = "fp32",
    checks: str | None = None,
    packings: Packings | None = None,
) -> Steps:
    """Lower a simplified module, whose parameters are constants, to kernels and steps for `target`.

    `dump`: a folder for the IR after each pass. `choices`: tuning records measured on the target's CPU; None:
    no records. `external`: passes that assign subgraphs to libraries. `precision`: precision of the tensors
    between kernels; other than fp32 only on GPUs. `checks`: "indices" adds steps that check indices.
    `packings`: the forms that weights shared with other buckets or cases may be stored in; None: any form.
    """
    if target.cuda is not None:
        from kiln.lower import gpu  # imports TVM's schedules for GPUs, which no other target needs

        mod = index_checks(model, checks == "indices", gpu=True)(mod)
        return gpu.lower(mod, model, target, machine_of(target, threads), precision, dump, external)
    params: store.Tensors = {}

    passes = [
        # Phase 0: subgraphs for libraries, found by patterns of operators
        *([] if external is None else external.before()),
        # Phase 1: the graph in the form that kernels need
        ("padding", explicit_padding),
        ("quantised", store_quantised),
        ("reshapes", free_reshapes),
        ("index_checks", index_checks(model, checks == "indices")),
        ("indices", safe_indices),
        ("params", store.split_into(params)),
        # Phase 2: operators become PrimFuncs with op info; neighbours are fused
        ("legalize", attach.legalize_with_info(RULES, ["relax.reshape"])),
        ("patterns", relax.transform.AnnotateTIROpPattern()),
        ("kinds", attach.annotate),
        ("padding_apart", keep_padding_apart),
        ("concats_apart", keep_concats_apart),
        ("fuse", relax.transform.FuseOps(2)),
        ("fuse_tir", attach.fuse_tir),
        ("barriers", cancel_transposes),  # removes the reshapes that stopped fusion
        ("canonical", relax.transform.CanonicalizeBindings()),
        ("dead", relax.transform.DeadCodeElimination()),
        # subgraphs for libraries, found by the op info of fused groups
        *([] if external is None else external.after(params)),
        # constants that a formula replaces
        ("recompute", recompute(params)),
    ]
    mod = run(mod, passes, dump)
    # Phase 3: a kernel for each group
    machine = machine_of(target, threads, winograd, choices)
    ops, groups = attach.of_functions(mod), Groups(Dims(model, mod), machine, tvm_target(target), packings)
    steps = Builder(mod, ops, params, groups, Placement(mod, ops, groups)).build()
    look_ahead(groups)
    return steps
