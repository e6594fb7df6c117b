"""Memory of a machine without an operating system: regions of its address space, and what each holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from kiln.config.check import PlacedError, Section
from kiln.config.fields import Bytes

Holds = Literal["code", "parameters", "data", "heap"]
_END = 1 << 32  # addresses have 32 bits
_HOLDS_ONE = ("code", "data")


class Region(Section):
    """A region of memory with the kinds of content that the linker places there."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,30}$")] = Field(
        description="the region's name in linker scripts and reports"
    )
    origin: Annotated[int, Field(ge=0, lt=_END)] = Field(description="address of the first byte")
    bytes: Annotated[Bytes, Field(gt=0)] = Field(description="size of the region")
    holds: list[Holds] = Field(
        min_length=1,
        description="code: vectors, code, constants and initial values; parameters: the model's parameters, "
        "with the code unless a region holds them; data: variables and the stack; heap: memory from which "
        "test programs take arena and tensors, with the data unless a region holds it",
    )

    @property
    def end(self) -> int:
        """The address after the last byte."""
        return self.origin + self.bytes


def check_regions(regions: Sequence[Region], place: str) -> None:
    """Raise PlacedError for regions that overlap, that share a name, or that leave code or data no place.

    `place`: the key of the list.
    """
    for number, region in enumerate(regions):
        if region.end > _END:
            raise PlacedError(
                (place, number),
                f"region '{region.name}' ends at {region.end:#x}, allowed: at most {_END:#x}",
            )
        for other in regions[:number]:
            if other.name == region.name:
                raise PlacedError((place, number, "name"), f"two regions are called '{region.name}'")
            if region.origin < other.end and other.origin < region.end:
                raise PlacedError(
                    (place, number, "origin"),
                    f"region '{region.name}' ({region.origin:#x} to {region.end:#x}) overlaps "
                    f"'{other.name}' ({other.origin:#x} to {other.end:#x})",
                )
    held: list[str] = [kind for region in regions for kind in region.holds]
    for word in sorted(set(held)):
        if held.count(word) > 1:
            raise PlacedError((place,), f"{held.count(word)} entries of 'holds' are '{word}', allowed: one")
    for word in _HOLDS_ONE:
        if word not in held:
            raise PlacedError((place,), f"no region holds '{word}'")


def region_of(regions: Sequence[Region], kind: Holds) -> Region:
    """The region that holds `kind`; that of the code for parameters, and of the data for the heap."""
    wanted: tuple[str, ...] = {"parameters": ("parameters", "code"), "heap": ("heap", "data")}.get(
        kind, (kind,)
    )
    return next(region for word in wanted for region in regions if word in region.holds)
