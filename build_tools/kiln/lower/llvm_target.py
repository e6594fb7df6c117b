"""TVM's description of a target, for LLVM."""

from __future__ import annotations

import tvm

from kiln.config import Target
from kiln.config.cpu_features import WITHOUT_GATHERS

# The feature, by architecture, that switches off vectors of unknown length: TVM would make masked loops.
# Kernels have vectors of a known width, which LLVM compiles to the same instructions.
_WITHOUT_SCALABLE = {"aarch64": "-sve", "riscv64": "-zve32x"}


def tvm_target(target: Target, *, lowering: bool = False, optimise: bool = True) -> tvm.target.Target:
    """TVM's description of a target: LLVM for its triple, cpu and features.

    `lowering`: for TVM's passes: vectors have the width of the schedules. `optimise`: with LLVM's passes.
    """
    description: dict[str, object] = {"kind": "llvm", "mtriple": _whole(target.triple), "mcpu": target.cpu}
    description |= {} if optimise else {"opt-level": 0}
    without = [_WITHOUT_SCALABLE[target.arch]] if lowering and target.arch in _WITHOUT_SCALABLE else []
    without += WITHOUT_GATHERS if target.vector.isa == "avx512" and not lowering else []
    description |= {"mattr": [*target.features, *without]} if target.features or without else {}
    if not lowering and (options := llvm_options(target)):
        description["cl-opt"] = options
    if target.system.format == "wasm":  # else TVM warns that it has to guess
        description["vector-width"] = target.vector.bits
    if target.triple.endswith("hf"):  # else objects do not link with hard-float code
        description["mfloat-abi"] = "hard"
    return tvm.target.Target(description)


def _whole(triple: str) -> str:
    """A triple with its vendor: `thumbv7em-none-eabi` becomes `thumbv7em-unknown-none-eabi`.

    Clang completes triples; LLVM alone would read `eabi` as an operating system, and call other functions.
    """
    arch, *parts = triple.split("-")
    return "-".join([arch, "unknown", *parts]) if len(parts) == 2 and parts[0] == "none" else triple


def llvm_options(target: Target) -> list[str]:
    """LLVM's own options for code of a target."""
    if target.vector.isa == "sve":
        # LLVM compiles vectors of up to so many bits to SVE's instructions on that many lanes.
        return [f"-aarch64-sve-vector-bits-min:uint={target.vector.bits}"]
    if target.vector.isa == "neon" and target.vector.registers < 32:
        # Of a loop that it unrolls, LLVM loads the operands of several iterations ahead, and spills sums: 4.4
        # to 5.4 instructions for a product of 4 floats, with fused multiply-add, where the loop has 2.1 to
        # 2.6.
        return ["-unroll-threshold-aggressive:uint=80"]
    if target.vector.isa == "none" and target.arch == "riscv64":
        return ["-unroll-threshold-aggressive:uint=80"]  # likewise, of the tiles of 2 x 4 sums
    # Without vectors a loop of few iterations gains little from being unrolled, and with few registers it
    # loses: with -O2's limit in place of -O3's, kernels of small float models have half the code on a
    # Cortex-M4.
    is_scalar = target.deployment == "freestanding" and target.vector.isa in ("none", "dsp")
    return ["-unroll-threshold-aggressive:uint=150"] if is_scalar else []
