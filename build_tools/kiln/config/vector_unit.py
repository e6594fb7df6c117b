"""The vector unit of a core: the key `vector` of targets/*.yaml."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from kiln.config.check import PlacedError, Section
from kiln.config.fields import Positive


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
    registers: Positive = Field(description="number of vector registers of that width")
    fma: bool = Field(description="the unit has fused multiply-add")
    dot: Literal["none", "sdot", "i8mm", "vnni"] = Field(
        description="int8 dot-product instructions; i8mm: Arm's sdot, and products of matrices as well"
    )
    in_order: bool = Field(description="the core issues in order: loads are scheduled well before their use")

    @model_validator(mode="after")
    def _fits_sve(self) -> Vector:
        if self.isa == "sve" and self.bits < 256:
            raise PlacedError(
                ("bits",),
                f"{self.bits} with isa sve: 256 or 512 expected; with 128 bits, isa neon does the same",
            )
        if self.isa == "sve" and self.dot not in ("sdot", "i8mm"):
            raise PlacedError(("dot",), f"'{self.dot}' with isa sve, which has dot products: sdot expected")
        return self
