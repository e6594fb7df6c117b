"""Entries of plan.json about parameters, and about the regions of memory that hold them and the arena."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kiln.config.records import Record

Count = Annotated[int, Field(ge=0)]


class StoredTensor(Record):
    """A tensor in params.bin.

    `made`: the transform that made it; `bytes_before`: size of the tensor in the graph; `of`: first 16 digits
    of the SHA-256 of that tensor, None for a tensor that lowering made.
    """

    OMITTED: ClassVar[frozenset[str]] = frozenset({"of"})

    name: str
    offset: Count
    bytes: Count
    dtype: str
    shape: list[int]
    made: str = ""
    bytes_before: Count = 0
    of: str | None = None


class TransformTotal(Record):
    """Number of the tensors that one kind of transform made, and their bytes before and after."""

    tensors: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


class SeveralForms(Record):
    """A parameter that is stored in several forms."""

    name: str
    forms: int
    bytes_before: int
    bytes_after: int


class LiftedSummary(Record):
    """Bytes of the parameters before and after the transforms at build time.

    `lifted_bytes`: all functions; `distinct_bytes`: the same with equal tensors once; `stored_bytes`: after
    packing, equal tensors once.
    """

    lifted_bytes: int = 0
    distinct_bytes: int = 0
    stored_bytes: int = 0
    transforms: dict[str, TransformTotal] = Field(default_factory=dict)
    several: list[SeveralForms] = Field(default_factory=list)


class PlacedRegion(Record):
    """A region of memory used by a model: `bytes` bytes in the linker section `section`."""

    name: str
    bytes: Count
    section: str


class Parameters(Record):
    """The parameters of all buckets; `storage`: embedded, section or file.

    `image`: C symbol of the parameters that several models of one library share; None: the model's own.
    `parts`: where they are split over regions, the parts in their order, each a multiple of `align` bytes.
    """

    bytes: Count
    align: int = 64
    storage: Literal["embedded", "section", "file"]
    section: Annotated[str, Field(pattern=r"^[.A-Za-z_][.A-Za-z0-9_]*$")] | None = None
    tensors: list[StoredTensor] = Field(default_factory=list)
    lifted: LiftedSummary = LiftedSummary()
    image: str | None = None
    parts: list[PlacedRegion] = Field(default_factory=list)
