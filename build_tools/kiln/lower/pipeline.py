"""The passes of the `lower` stage: one flat list for CPUs and GPUs, from the graph to kernels and steps."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import tvm
from tvm import relax

from kiln import forks
from kiln.byoc import gpu_choices
from kiln.byoc.external import External
from kiln.byoc.triton.merge import merge_projections
from kiln.config import Target
from kiln.graph.constants import fold_constants
from kiln.graph.pipeline import Pass, run
from kiln.graph.requantise import requantise
from kiln.graph.transposes import cancel_transposes
from kiln.kernels.gpu.block_tile import Gpu, ProductTiles
from kiln.kernels.operators.added import legalize_added
from kiln.kernels.operators.legalize import cpu_rules
from kiln.lower import attention, gpu, target_check
from kiln.lower.batch_parts import in_batch_parts
from kiln.lower.block_products import block_products
from kiln.lower.branches import cheap_branches, no_branches
from kiln.lower.channel_multipliers import channel_multipliers
from kiln.lower.dequantised_rows import dequantised_rows
from kiln.lower.dims import Dims
from kiln.lower.fixed_point import fixed_point
from kiln.lower.fused_steps import GroupLowering
from kiln.lower.fused_takes import fused_takes
from kiln.lower.index_checks import index_checks
from kiln.lower.integer_pools import integer_pools
from kiln.lower.integer_products import integer_products
from kiln.lower.integer_weights import integer_weights
from kiln.lower.late_operands import late_operands
from kiln.lower.levels_in_registers import stored_levels
from kiln.lower.llvm_target import tvm_target
from kiln.lower.lowered_kernels import KernelPlan
from kiln.lower.own_dequantise import own_dequantise
from kiln.lower.packings import Packings
from kiln.lower.padded_channels import padded_channels
from kiln.lower.padded_rows import padded_rows
from kiln.lower.patch_choice import in_patches
from kiln.lower.pointwise import pointwise
from kiln.lower.prefetch import add_prefetches
from kiln.lower.prepare import explicit_padding, free_reshapes, safe_indices
from kiln.lower.recompute import recompute
from kiln.lower.recurrent_steps import in_steps
from kiln.lower.resized_images import fuse_interpolations, keep_transposes_separate
from kiln.lower.schema import PatchRecord
from kiln.lower.shared_elements import shared_elements
from kiln.lower.signed_tensors import signed_tensors
from kiln.lower.slices_in_place import slices_in_place
from kiln.lower.small_groups import small_groups
from kiln.lower.split_parts import split_parts
from kiln.lower.step_kernels import Build
from kiln.lower.steps import Steps
from kiln.lower.tables import tables
from kiln.lower.unrolled import unrolled
from kiln.lower.views.in_place_concat import keep_concats_separate
from kiln.lower.views.in_place_padding import keep_padding_separate
from kiln.lower.views.steps import Placement
from kiln.lower.walk import Builder
from kiln.opinfo import attach
from kiln.params import store
from kiln.tir.bfloat16 import in_float32
from kiln.tir.builder import Machine
from kiln.tir.tuning_records import TuningRecords, choices_of


def machine_of(
    target: Target, threads: str, winograd: str = "off", choices: TuningRecords | None = None
) -> Machine:
    """The `Machine` that schedules read: properties of `target`, and the model's choices."""
    return Machine(
        isa=target.vector.isa,
        vector_bits=target.vector.bits,
        registers=target.vector.registers,
        dot="vnni" if target.vector.dot == "amx" else target.vector.dot,
        tiles=target.vector.dot == "amx",
        in_order=target.vector.in_order,
        l2_bytes=target.cache.l2,
        l1_bytes=target.cache.l1d,
        shared_bytes=target.cache.l3,
        parallel=threads != "none",
        cores=target.cores,
        winograd=winograd,
        weight_growth=target.weight_growth,
        choices={} if choices is None else choices,
        half=target.cuda is None and target_check.converts_half(target),
        fma=target.vector.fma,
        word_bits=64 if target.arch.endswith("64") else 32,
    )


@dataclass
class Lowering:
    """The settings of one run of the passes, and their results: parameters and kernels.

    `choices`: tuning records measured on the target's CPU; None: no records. `external`: passes that assign
    subgraphs to libraries. `precision`: of the tensors between kernels; other than fp32 on GPUs alone.
    `checks`: "indices" adds steps that check indices. `packings`: the forms that weights shared with other
    buckets or cases may be stored in; None: any form. `ram_limit`: bytes, beyond which layers are computed in
    patches; `patched`: the patches chosen. `product_tiles`: chooses the tiles of products on a GPU's tensor
    cores; None: what was measured, else the rule. `target`: None for any GPU, up to the kernels.
    """

    model: str
    target: Target | None
    threads: str
    winograd: str = "off"
    choices: TuningRecords | None = None
    external: External | None = None
    precision: str = "fp32"
    checks: str | None = None
    packings: Packings | None = None
    ram_limit: int | None = None
    product_tiles: ProductTiles | None = None
    patched: PatchRecord | None = None
    params: store.Tensors = field(default_factory=dict)  # from the pass `params` on, by name
    groups: GroupLowering | None = None  # from the pass `kernels` on, with the steps

    @property
    def on_gpu(self) -> bool:
        return self.target is None or self.target.cuda is not None

    @cached_property
    def machine(self) -> Machine:
        """The machine of the kernels of the target's first variant; tuning records are for CPUs."""
        assert self.target is not None
        if self.on_gpu:
            return machine_of(self.target, self.threads)
        return machine_of(self.target, self.threads, self.winograd, self.choices)

    @property
    def in_fixed_point(self) -> bool:
        """Whether quantised tensors are rescaled in integers, which is faster without vectors of floats.

        On a Cortex-M4 a 64-bit multiply-add replaces two conversions, a multiply-add and three comparisons.
        """
        if self.target is None:
            return False
        return self.target.vector.isa in ("none", "dsp", "mve") or not target_check.has_floats(self.target)


CPU, GPU = "cpu", "gpu"  # marks of the entries that only one kind of target has


def passes(lowering: Lowering) -> list[tuple[str, Pass]]:
    """The passes of one run, in order: each maps the module to a module, from the graph to the kernels."""
    external, params = lowering.external, lowering.params
    entries: list[tuple[str, Pass] | tuple[str, Pass, str]] = [
        *([] if external is None else external.before()),  # Phase 0: subgraphs for libraries, by patterns
        # Phase 1: the graph in the form that kernels need
        ("projections", merge_projections, GPU),
        ("branches", cheap_branches, CPU),
        ("branches", no_branches, GPU),
        ("unrolled", unrolled, GPU),
        ("fold_unrolled", fold_constants, GPU),
        ("integer_products", partial(products, lowering), CPU),  # GPUs compute them on tensor cores
        ("integer_pools", partial(pools, lowering), CPU),
        ("requantise", requantise, CPU),
        ("tables", tables, CPU),
        *([("fixed_point", fixed_point)] if lowering.in_fixed_point else []),
        ("integer_weights", integer_weights, GPU),
        ("multipliers", partial(multipliers, lowering), CPU),
        ("pointwise", lambda mod: pointwise(mod, lowering.machine.isa), CPU),
        ("padding", partial(padding, lowering), CPU),  # a GPU's kernels pad where they read an element
        ("quantised", partial(stored_levels, lowering.on_gpu)),
        ("patches", partial(patches, lowering), CPU),
        *([] if lowering.precision == "fp32" else [("padded_channels", padded_channels, GPU)]),
        ("reshapes", free_reshapes),
        ("split_parts", split_parts, CPU),
        ("index_checks", index_checks(lowering.model, lowering.checks == "indices", lowering.on_gpu)),
        ("indices", safe_indices),
        ("params", store.split_into(params)),
        # Phase 2: operators become PrimFuncs with op info; neighbours are fused
        ("added", legalize_added),
        ("legalize", legalized(lowering)),
        ("bfloat16", in_float32, CPU),
        ("shared_elements", shared_elements, GPU),
        ("patterns", relax.transform.AnnotateTIROpPattern()),
        ("kinds", attach.annotate),
        ("separate_padding", keep_padding_separate, CPU),
        ("separate_concats", keep_concats_separate, CPU),
        ("resized_images", partial(resized_images, lowering), CPU),
        ("fused_takes", fused_takes, CPU),
        ("own_dequantise", own_dequantise, CPU),
        ("late_operands", late_operands),
        ("small_groups", small_groups, GPU),
        ("fuse", relax.transform.FuseOps(2)),
        ("fuse_tir", attach.fuse_tir),
        ("barriers", cancel_transposes),  # removes the reshapes that stopped fusion
        ("canonical", relax.transform.CanonicalizeBindings()),
        ("dead", relax.transform.DeadCodeElimination()),
        *([] if external is None else external.after(params)),  # subgraphs for libraries, by their op info
        ("recompute", recompute(params)),  # constants that a formula replaces
        ("attention", partial(attentions, lowering)),  # for three functions that would store the scores
        ("dequantised_rows", lambda mod: dequantised_rows(lowering.machine, mod), CPU),
        ("slices_in_place", slices_in_place, GPU),
        *([] if lowering.precision == "fp32" else [("padded_rows", padded_rows, GPU)]),
        ("precision", gpu.in_precision(lowering.precision, params), GPU),
        # Phase 3: a kernel for each group; the module then holds the kernels by symbol
        ("kernels", partial(cpu_kernels, lowering), CPU),
        ("kernels", partial(gpu_kernels, lowering), GPU),
        ("prefetch", partial(prefetch, lowering), CPU),
    ]
    return [entry[:2] for entry in entries if entry[2:] in ((), (GPU if lowering.on_gpu else CPU,))]


def legalized(lowering: Lowering) -> Pass:
    """The pass that makes PrimFuncs of operators, with their op info."""
    rules = gpu.RULES if lowering.on_gpu else cpu_rules(lowering.target)
    return attach.legalize_with_info(rules, ["relax.reshape"])


def patches(lowering: Lowering, mod: tvm.IRModule) -> tvm.IRModule:
    """Compute parts of batches for caches, of images if RAM is limited, and of sequences without an OS."""
    mod, lowering.patched = in_patches(in_batch_parts(mod, lowering.machine), lowering.ram_limit)
    freestanding = lowering.target is not None and lowering.target.deployment == "freestanding"
    return in_steps(mod) if freestanding else mod


def padding(lowering: Lowering, mod: tvm.IRModule) -> tvm.IRModule:
    """Make the padding of convolutions separate operators, but for that which kernels skip."""
    return explicit_padding(lowering.machine, mod)


def products(lowering: Lowering, mod: tvm.IRModule) -> tvm.IRModule:
    """Multiply the integers of two quantised activations, and of one by weights with scales of blocks.

    AMX, which one of the target's variants may have, multiplies int8 weights several times as fast as any
    instruction does those of 4 bits, and all variants read the same weights.
    """
    units = [] if lowering.target is None else lowering.target.vector_units
    narrow = not (lowering.in_fixed_point or any(unit.dot == "amx" for unit in units))
    return block_products(integer_products(lowering.model)(mod), narrow)


def pools(lowering: Lowering, mod: tvm.IRModule) -> tvm.IRModule:
    """Sum the integers of quantised tensors in average pools.

    `fixed_point` rounds those of TFLite, and `patches` divides pools by the operator's name.
    """
    mod = signed_tensors(mod) if lowering.machine.isa == "mve" else mod
    patched = lowering.ram_limit is not None
    return mod if patched else integer_pools(mod, raw=not lowering.in_fixed_point)


def multipliers(lowering: Lowering, mod: tvm.IRModule) -> tvm.IRModule:
    """Replace channel multipliers of depthwise convolutions by repeated channels, where that is faster."""
    return channel_multipliers(lowering.machine.lanes("float32"))(mod)


def resized_images(lowering: Lowering, mod: tvm.IRModule) -> tvm.IRModule:
    """Resize images with channels last: keep transposes around it separate, but no elementwise operators."""
    return keep_transposes_separate(fuse_interpolations(mod), lowering.machine.lanes("float32"))


def attentions(lowering: Lowering, mod: tvm.IRModule) -> tvm.IRModule:
    """Merge each attention that one kernel computes into one function; for CPUs those with many scores."""
    return attention.merge(mod, Dims(lowering.model, mod), lowering.params, lowering.on_gpu)


def cpu_kernels(lowering: Lowering, mod: tvm.IRModule) -> tvm.IRModule:
    """Make the kernels and steps for a CPU, with in-place padding and in-place concats."""
    assert lowering.target is not None
    dims, ops = Dims(lowering.model, mod), attach.of_functions(mod)
    target, more, plan = tvm_target(lowering.target, lowering=True), _further(lowering), KernelPlan()

    def builder(ahead: bool) -> Builder:
        groups = GroupLowering(dims, lowering.machine, target, lowering.packings, more, plan, ahead)
        return Builder(mod, ops, lowering.params, groups, Placement(mod, ops, groups))

    if forks.pays(sum(isinstance(func, tvm.tirx.PrimFunc) for func in mod.functions.values())):
        with contextlib.suppress(Exception):  # the second walk raises it again
            builder(ahead=True).walk()
        plan.lower()
    walk = builder(ahead=False)
    walk.build()
    return _kernels_of(lowering, walk.groups)


def _further(lowering: Lowering) -> list[Build]:
    """The `Build` (target and machine of the kernels) of each further variant of the target."""
    assert lowering.target is not None
    builds = []
    for name in lowering.target.variant_names[1:]:
        target = lowering.target.for_variant(name)
        choices = None if lowering.choices is None else choices_of(target)
        machine = machine_of(target, lowering.threads, lowering.winograd, choices)
        builds.append(Build(name, machine, tvm_target(target, lowering=True)))
    return builds


def gpu_kernels(lowering: Lowering, mod: tvm.IRModule) -> tvm.IRModule:
    """Make the kernels and launches for a GPU; kernels pad as they read, so no tensor is inside another."""
    assert lowering.target is not None and lowering.target.cuda is not None
    cuda = lowering.target.cuda
    measured = gpu_choices.products_of(gpu_choices.choices_of(cuda, lowering.precision))
    tiles = lowering.product_tiles or ProductTiles(Gpu.of(cuda), measured)
    groups = gpu.GpuGroupLowering(Dims(lowering.model, mod), lowering.machine, cuda, tiles)
    Builder(mod, attach.of_functions(mod), lowering.params, groups).build()
    return _kernels_of(lowering, groups)


def prefetch(lowering: Lowering, _mod: tvm.IRModule) -> tvm.IRModule:
    """Lower kernels again that prefetch the weights of later steps, see lower/prefetch.py."""
    assert lowering.groups is not None
    add_prefetches(lowering.groups)
    return _kernels_of(lowering, lowering.groups)


def _kernels_of(lowering: Lowering, groups: GroupLowering) -> tvm.IRModule:
    lowering.groups = groups
    return tvm.IRModule(groups.steps.functions)


def lower(mod: tvm.IRModule, lowering: Lowering, dump: Path | None = None) -> Steps:
    """Lower a simplified module, whose parameters are constants, to kernels and steps.

    `dump`: a folder for the IR after each pass. Raises KilnError with the names of the operators for a group
    that cannot be lowered for the target.
    """
    run(mod, passes(lowering), dump)
    assert lowering.groups is not None
    lowering.groups.steps.patched = lowering.patched
    return lowering.groups.steps


def fused(mod: tvm.IRModule, precision: str = "fp32") -> tuple[tvm.IRModule, store.Tensors]:
    """A simplified module, fused as for a GPU, and the values of the parameters of `main` by name.

    Its PrimFuncs have no schedules: it is the module that the pass `kernels` starts from.
    """
    lowering = Lowering("model", None, "none", precision=precision)
    before = itertools.takewhile(lambda entry: entry[0] != "kernels", passes(lowering))
    return run(mod, before), lowering.params
