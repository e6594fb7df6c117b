"""buckets.json, as records: the boxes of sizes that get specialised code, in order of priority.

bucket.json has one entry of it.
"""

from __future__ import annotations

from typing import Literal

from kiln.config.dims import Segment
from kiln.config.interface import Dimension
from kiln.config.records import Record

STATIC = "static"


class Box(Record):
    """One bucket: the accepted sizes of each dimension."""

    name: str
    dims: dict[str, Segment]

    @property
    def padded(self) -> dict[str, Segment]:
        """The dimensions whose inputs are padded up to the bucket's size."""
        return {name: segment for name, segment in self.dims.items() if segment.strategy == "pad"}

    @property
    def fixed(self) -> dict[str, int]:
        """The sizes of the dimensions that are static in the bucket's graph, by dimension."""
        return {name: segment.size for name, segment in self.dims.items() if segment.size is not None}


# The only bucket of a model without dynamic dimensions.
STATIC_BOX = Box(name=STATIC, dims={})


class BoxList(Record):
    """The content of buckets.json.

    `fallback`: what happens at sizes outside all buckets: general code computes them, or a run fails.
    """

    format: Literal[1] = 1
    dims: list[Dimension]
    fallback: Literal["dynamic", "error"] = "dynamic"
    buckets: list[Box]
