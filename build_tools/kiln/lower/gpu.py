"""The `lower` stage for a GPU: from the simplified graph to kernel launches, as steps for later stages.

The graph is fused as for a CPU, but padding stays part of its convolution: dlight computes the padding where
an element is read. Each step contains the name of its kernel and, as `launch`, its grid and block of threads.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import tvm
from tvm import relax, tirx

from kiln.byoc.external import External
from kiln.config import Target, sizes
from kiln.config.precisions import is_narrow, stored
from kiln.config.sizes import SizeExpr
from kiln.errors import KilnError
from kiln.graph.pipeline import run
from kiln.graph.transposes import cancel_transposes
from kiln.kernels.families import macs_of
from kiln.kernels.gpu import dlight, serial_loops, tf32
from kiln.kernels.gpu.half import half_storage
from kiln.kernels.operators.legalize import RULES, quantize
from kiln.lower.dims import Dims
from kiln.lower.fused_steps import Groups
from kiln.lower.prepare import free_reshapes, safe_indices, store_quantised
from kiln.lower.recompute import recompute
from kiln.lower.small_groups import small_groups
from kiln.lower.steps import Steps
from kiln.lower.walk import Builder
from kiln.opinfo import attach
from kiln.opinfo.attach import OpInfo, refusal
from kiln.params import store
from kiln.tir.builder import Machine
from kiln.tir.kernel_name import digest
from kiln.tir.symbols import ranges_of, variables

# GPUs have an instruction for nearbyint. TVM 0.27 prints the bit pattern that round_small reads as
# `&(1262485504)`, which is not valid C.
_RULES = {
    **RULES,
    **serial_loops.RULES,
    "relax.quantize": partial(quantize, rounded=tirx.nearbyint),
}
for _name in ("relax.argmax", "relax.argmin"):  # TVM's own forms can be shared among threads
    del _RULES[_name]


class CudaGroups(Groups):
    """Adds the kernel launches of fused groups to `steps`."""

    def __init__(self, dims: Dims, machine: Machine, target: tvm.target.Target) -> None:
        super().__init__(dims, machine, target)
        self._launches: dict[Any, dlight.Launches] = {}

    def add(
        self, func: tirx.PrimFunc, ops: list[OpInfo], inputs: list[str], outputs: list[str], name: str
    ) -> None:
        """Add the launches of one fused group."""
        values = self.values_of(func, [*inputs, *outputs])
        # Lowering replaces variables by new ones of the same names.
        by_name = {variable.name: value for variable, value in values.items()}

        def size(expr: Any) -> SizeExpr:
            return self.dims.size(expr, {variable: by_name[variable.name] for variable in variables(expr)})

        key = func, repr(by_name)
        if key not in self._launches:
            bare = [param for param in func.params if tirx.is_buffer_var(param)]
            plain = tirx.PrimFunc(bare, func.body, None, attrs=func.attrs).without_attr(attach.ATTRIBUTE)
            try:
                self._launches[key] = dlight.lower(plain, self.target, lambda e: self._most(size(e)))
            except Exception as error:  # TVM's passes raise many kinds
                raise KilnError(f"{self.dims.model}: {refusal(ops, error)}") from error
        lowered = self._launches[key]
        names = [*inputs, *outputs]
        for dtype, count in lowered.scratch:
            elements = count * 8 // int(tvm.DataType(dtype).bits)
            names.append(self.steps.new(dtype, [elements]).name)
        with ranges_of(self.bounds(values)):
            macs = macs_of(func)
        for launch in lowered.launches:
            arguments = [
                names[a.position] if a.value is None else {"dim": size(a.value)} for a in launch.arguments
            ]
            # All multiply-adds of a group are attributed to its first kernel.
            self._launch(launch, ops, arguments, [size(extent) for extent in launch.grid], macs)
            macs = 0

    def _most(self, expr: SizeExpr) -> int:
        return sizes.bounds(expr, self.steps.box)[1]

    def _launch(
        self, launch: dlight.Launch, ops: list[OpInfo], arguments: list[Any], grid: list[SizeExpr], macs: int
    ) -> None:
        stem = ops[0]["name"].split(".")[-1] if ops else "kernel"
        symbol = f"kilnk_{stem}_{digest(launch.func)}"
        if symbol not in self._symbols:
            self._symbols.add(symbol)
            self.steps.functions[symbol] = launch.func.with_attr("global_symbol", symbol)
            types = [
                {"dtype": a.dtype, "const": not a.written, **({} if a.value is None else {"scalar": True})}
                for a in launch.arguments
            ]
            about = {"symbol": symbol, "args": types, "parallel": False, "family": "cuda"}
            self.steps.kernels.append({**about, "ops": ops, "flops": 2 * macs})
        self.steps.steps.append(
            {
                "kernel": symbol,
                "extent": 0,
                "args": arguments,
                "writes": [n for n, a in zip(arguments, launch.arguments, strict=True) if a.written],
                "in_place": [],
                "label": "+".join(op["name"].removeprefix("nn.") for op in ops) or "cuda",
                "attrs": ops[0]["attrs"] if ops else {},
                "macs": macs,
                "launch": {"grid": grid, "block": list(launch.block)},
            }
        )


def fused(
    mod: tvm.IRModule, precision: str = "fp32", dump: Path | None = None, external: External | None = None
) -> tuple[tvm.IRModule, store.Tensors]:
    """Fuse a simplified module; returns it as PrimFuncs without schedules, and `main`'s parameter values.

    `dump`: a folder for the IR after each pass. `external`: see kiln.byoc.external.External.
    """
    mod = tvm.IRModule(dict(mod.functions), attrs=mod.attrs)
    params: store.Tensors = {}

    passes = [
        # Phase 0: subgraphs for libraries, found by patterns of operators
        *([] if external is None else external.before()),
        # Phase 1: the graph in the form that kernels need
        ("quantised", store_quantised),
        ("reshapes", free_reshapes),
        ("indices", safe_indices),
        ("params", store.split_into(params)),
        # Phase 2: operators become PrimFuncs with op info; neighbours are fused
        ("legalize", attach.legalize_with_info(_RULES, ["relax.reshape"])),
        ("patterns", relax.transform.AnnotateTIROpPattern()),
        ("kinds", attach.annotate),
        ("small_groups", small_groups),
        ("fuse", relax.transform.FuseOps(2)),
        ("fuse_tir", attach.fuse_tir),
        ("barriers", cancel_transposes),
        ("canonical", relax.transform.CanonicalizeBindings()),
        ("dead", relax.transform.DeadCodeElimination()),
        # subgraphs for libraries, found by the op info of fused groups
        *([] if external is None else external.after(params)),
        # constants that a formula replaces
        ("recompute", recompute(params)),
        # Phase 3: precision of stored tensors, or of matmul operands
        *_precise(precision, params),
    ]
    return run(mod, passes, dump), params


def _precise(precision: str, params: dict[str, Any]) -> list[tuple[str, Any]]:
    """The pass, if any, that converts a module to `precision`; empty for fp32."""
    if precision == "tf32":
        return [("tf32", tf32.products)]
    return [("half", half_storage(params, stored(precision)))] if is_narrow(precision) else []


def lower(
    mod: tvm.IRModule,
    model: str,
    target: Target,
    machine: Machine,
    precision: str,
    dump: Path | None,
    external: External | None = None,
) -> Steps:
    """Lower a simplified module, whose parameters are constants, to kernels and launches for a GPU.

    `dump`: a folder for the IR after each pass. `external`: see kiln.byoc.external.External. Raises KilnError
    with the names of the operators for a group that cannot be lowered for a GPU.
    """
    assert target.cuda is not None
    mod, params = fused(mod, precision, dump, external)
    # Phase 4: kernels and launches for each group
    ops = attach.of_functions(mod)
    groups = CudaGroups(Dims(model, mod), machine, dlight.tvm_target(target.cuda))
    # No tensor is stored inside another: padding costs no copy on a GPU.
    return Builder(mod, ops, params, groups).build()
