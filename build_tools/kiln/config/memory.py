"""Memory of a machine without an operating system: regions of its address space, and what each holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from kiln.config.check import Section
from kiln.config.faults import PlacedError
from kiln.config.fields import Bytes

Holds = Literal["code", "parameters", "data", "heap", "arena"]
_END = 1 << 32  # addresses have 32 bits
_HOLDS_ONE = ("code", "data")
_SEVERAL = ("parameters", "arena")  # what several regions may hold


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
        "test programs take tensors and an arena that no region holds, with the data unless a region holds "
        "it; arena: a part of the model's arena. Several regions may hold parameters, and several the arena",
    )
    cost: float = Field(
        default=1.0,
        gt=0,
        le=1e6,
        allow_inf_nan=False,
        description="of a region that holds parameters or arena: cost of an access, relative to the other "
        "regions; the cheapest are filled first, with what is used most",
    )
    reserve: Bytes = Field(
        default=0,
        description="of a region that holds parameters or arena: bytes that they leave free for its other "
        "contents",
    )
    section: Annotated[str, Field(pattern=r"^[.A-Za-z_][.A-Za-z0-9_]*$")] | None = Field(
        default=None,
        description="of a region that holds parameters or arena: the linker section of what is placed there; "
        "null: .rodata.<model>_params_<region>, .bss.<region>",
    )

    @property
    def room(self) -> int:
        """The most bytes that parameters or arena may take of the region."""
        return self.bytes - self.reserve

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
        _check_placed(region, number, place)
    held: list[str] = [kind for region in regions for kind in region.holds]
    for word in sorted(set(held)):
        if held.count(word) > 1 and word not in _SEVERAL:
            raise PlacedError((place,), f"{held.count(word)} entries of 'holds' are '{word}', allowed: one")
    for word in _HOLDS_ONE:
        if word not in held:
            raise PlacedError((place,), f"no region holds '{word}': add it to the key 'holds' of one region")


def _check_placed(region: Region, number: int, place: str) -> None:
    """Raise PlacedError for a region with an entry of `holds` twice, or with a key that would do nothing."""
    for entry in region.holds:
        if region.holds.count(entry) > 1:
            raise PlacedError((place, number, "holds"), f"'{region.name}' holds '{entry}' twice")
    if region.reserve >= region.bytes:
        raise PlacedError(
            (place, number, "reserve"),
            f"{region.reserve} of the {region.bytes} bytes of '{region.name}', allowed: fewer",
        )
    for key in ("cost", "reserve", "section"):
        if getattr(region, key) != Region.model_fields[key].default and not set(_SEVERAL) & set(region.holds):
            raise PlacedError(
                (place, number, key),
                f"'{region.name}' holds neither parameters nor arena: the key has no effect",
            )


def regions_of(regions: Sequence[Region] | None, kind: Literal["parameters", "arena"]) -> list[Region]:
    """The regions that hold `kind`, the cheapest first; none where the memory is not known."""
    return sorted(
        (region for region in regions or () if kind in region.holds), key=lambda region: region.cost
    )


def region_of(regions: Sequence[Region], kind: Holds) -> Region:
    """The region that holds `kind`; that of the code for parameters, and of the data for the heap."""
    kinds: tuple[str, ...] = {"parameters": ("parameters", "code"), "heap": ("heap", "data")}.get(
        kind, (kind,)
    )
    return next(region for word in kinds for region in regions if word in region.holds)
