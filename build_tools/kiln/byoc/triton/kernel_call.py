"""Code shared by the kernels of all templates: parameters, launches, and limits of the target's GPUs."""

from __future__ import annotations

from typing import Any

from kiln.byoc import products
from kiln.byoc.backend import Launch, TargetFacts
from kiln.byoc.match import Match
from kiln.byoc.triton.compiler import KernelRequest, compile_kernel
from kiln.byoc.triton.tiles import SHARED_BYTES, GpuLimits
from kiln.config.precisions import is_narrow, stored

TYPES = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16", "int8": "*i8", "uint8": "*u8",
         "int32": "*i32"}  # fmt: skip
MOST_BLOCKS = 65535  # blocks along y and z


def architectures(facts: TargetFacts) -> list[int]:
    """Architectures to compile for: the target's, and, with PTX for newer GPUs, sm_80, which they all run."""
    assert facts.cuda is not None
    archs = [int(arch[3:]) for arch in facts.cuda.archs]
    return archs if not facts.cuda.ptx or 80 in archs else [80, *archs]


def limits_of(facts: TargetFacts) -> GpuLimits:
    """The resources that tiles may use on every GPU of the target."""
    assert facts.cuda is not None
    least = min(SHARED_BYTES.get(arch, 99 << 10) for arch in architectures(facts))
    return GpuLimits(least, facts.cuda.multiprocessors, facts.gpu)


class KernelCall:
    """A kernel under construction: its parameters in the template's order, with their known values.

    `types`: pointers and dynamic sizes; `constants`: everything else; `sizes`: the dynamic sizes in order.
    """

    def __init__(self, facts: TargetFacts) -> None:
        self.facts = facts
        self.types: dict[str, str] = {}
        self.constants: dict[str, Any] = {"TF32": facts.precision == "tf32"}
        self.sizes: list[Any] = []

    def pointer(self, name: str, dtype: str | None) -> None:
        """Add a tensor; without a type, a tensor that this kernel does not read."""
        if dtype is None:
            self.constants[name] = None
        else:
            self.types[name] = TYPES[dtype]

    def size(self, name: str, value: Any) -> None:
        """Add a size: a constant of the code, or a parameter if it is dynamic."""
        if isinstance(value, int):
            self.constants[name] = value
        else:
            self.types[name] = "i32"
            self.sizes.append(value)

    def launch(
        self, template: str, kernel: str, grid: tuple[Any, Any, Any], warps: int, stages: int
    ) -> tuple[str, Launch, list[Any]]:
        """Compile: the source of the Code, its launch, and its sizes with the two null pointers of Triton."""
        request = KernelRequest(
            template, kernel, self.types, self.constants, architectures(self.facts), warps, stages
        )
        compiled = compile_kernel(request)
        launch = Launch(grid, (compiled.threads, 1, 1), ptx=True, dynamic_bytes=compiled.dynamic_bytes)
        return "".join(compiled.ptx), launch, [*self.sizes, 0, 0]


def epilogue(call: KernelCall, match: Match) -> None:
    """Add the constants of a product's epilogue."""
    low, high = products.limits(match) or (0.0, 0.0)
    kind = match.options.get("activation") or "none"
    call.constants |= {
        "HAS_BIAS": "bias" in match.operands or bool(match.options.get("norm")),
        "HAS_RESIDUAL": "residual" in match.operands,
        "ACTIVATION": kind, "LOW": low if kind == "clip" else 0.0, "HIGH": high if kind == "clip" else 0.0,
    }  # fmt: skip


def window(call: KernelCall, match: Match) -> list[tuple[str, Any]]:
    """Add the constants of a convolution's window; returns the sizes of its input and output."""
    attrs, (height, width) = match.anchor["attrs"], match.operands["w"].shape[:2]
    steps, pads, dilation = attrs["strides"], attrs["padding"], attrs["dilation"]
    numbers_of_window = {
        "FILTER_H": height, "FILTER_W": width, "STRIDE_H": steps[0], "STRIDE_W": steps[1],
        "PAD_H": pads[0], "PAD_W": pads[1], "DILATE_H": dilation[0], "DILATE_W": dilation[1],
    }  # fmt: skip
    call.constants |= {name: int(value) for name, value in numbers_of_window.items()}
    names = ("batch", "height", "width"), ("out_height", "out_width")
    numbers = [*zip(names[0], match.operands["x"].shape[:3], strict=True)]
    return [*numbers, *zip(names[1], match.output.shape[1:3], strict=True)]


def narrow_types(facts: TargetFacts, names: list[str]) -> dict[str, str]:
    """The types of tensors that are stored in 16 bits, the output among them."""
    return dict.fromkeys([*names, "output"], stored(facts.precision)) if is_narrow(facts.precision) else {}
