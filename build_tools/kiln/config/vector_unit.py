"""The vector unit of a core: the key `vector` of targets/*.yaml."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from kiln.config.check import Section
from kiln.config.faults import PlacedError


class Unit(NamedTuple):
    """A vector instruction set: the architectures that have it, empty for all, and its widest register."""

    archs: tuple[str, ...]
    bits: int


UNITS = {
    "sse4": Unit(("x86_64",), 128), "avx2": Unit(("x86_64",), 256), "avx512": Unit(("x86_64",), 512),
    "neon": Unit(("aarch64", "armv7"), 128), "sve": Unit(("aarch64",), 512),
    "rvv": Unit(("riscv64", "riscv32"), 512), "simd128": Unit(("wasm32",), 128),
    "mve": Unit(("arm_m",), 128), "dsp": Unit(("arm_m",), 32), "none": Unit((), 64),
}  # fmt: skip


class Vector(Section):
    """Properties of one core's vector unit, on which the kernels' schedules depend."""

    isa: Literal["sse4", "avx2", "avx512", "neon", "sve", "rvv", "simd128", "mve", "dsp", "none"] = Field(
        description="the vector instruction set; sve: 64-bit ARM's with registers of `bits` or more; rvv: "
        "RISC-V's; simd128: WebAssembly's; mve: Arm's Helium; dsp: Arm's products of two 16-bit numbers in a "
        "register of 32; none: a core without vector instructions"
    )
    bits: Literal[32, 64, 128, 256, 512] = Field(
        description="width of a vector register; 32 for a core without vector registers"
    )
    registers: Annotated[int, Field(ge=4, le=64)] = Field(
        description="number of vector registers of that width"
    )
    fma: bool = Field(description="the unit has fused multiply-add")
    dot: Literal["none", "sdot", "i8mm", "vnni", "amx"] = Field(
        description="int8 dot-product instructions; i8mm: Arm's sdot, and products of matrices as well; amx: "
        "Intel's vnni, and products in AMX's tile registers as well"
    )
    in_order: bool = Field(description="the core issues in order: loads are scheduled well before their use")

    @model_validator(mode="after")
    def _has_the_width(self) -> Vector:
        if self.bits > UNITS[self.isa].bits:
            raise PlacedError(
                ("bits",), f"{self.bits} with isa {self.isa}: at most {UNITS[self.isa].bits} expected"
            )
        if self.dot == "amx" and self.bits != 512:
            raise PlacedError(
                ("dot",), f"'amx' with {self.bits} bits: isa avx512 with 512 bits expected, or another value"
            )
        if self.isa == "sve" and self.bits < 256:
            raise PlacedError(
                ("bits",),
                f"{self.bits} with isa sve: 256 or 512 expected; with 128 bits, isa neon does the same",
            )
        if self.isa == "sve" and self.dot not in ("sdot", "i8mm"):
            raise PlacedError(("dot",), f"'{self.dot}' with isa sve, which has dot products: sdot expected")
        return self
