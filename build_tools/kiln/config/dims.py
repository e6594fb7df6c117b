"""Symbolic dimensions: their ranges, and the sizes that get code of their own."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from kiln.config.check import PlacedError, Section
from kiln.config.fields import Positive


class Bucket(Section):
    """A size, or a range of sizes, that is served by one function. A bare number means `exact`."""

    exact: Positive | None = None
    pad: Positive | None = Field(default=None, description="inputs are padded up to this size")
    range: list[Positive] | None = Field(
        default=None, min_length=2, max_length=2, description="[least, greatest]"
    )

    @model_validator(mode="after")
    def _one(self) -> Bucket:
        if sum(value is not None for value in (self.exact, self.pad, self.range)) != 1:
            raise ValueError("exactly one of exact, pad, range expected")
        if self.range is not None and self.range[0] > self.range[1]:
            raise ValueError(f"range [{self.range[0]}, {self.range[1]}]: the least is above the greatest")
        return self

    @property
    def edges(self) -> tuple[int, int]:
        """Least and greatest size named by this bucket."""
        if self.range is not None:
            return self.range[0], self.range[1]
        size = self.exact if self.exact is not None else self.pad
        assert size is not None
        return size, size


def _bucket(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, dict, Bucket)):
        raise PlacedError((), "a number, or one of {exact: n}, {pad: n}, {range: [a, b]} expected")
    return {"exact": value} if isinstance(value, int) else value


def _size(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise PlacedError((), "a whole number or a dimension's name expected")
    if isinstance(value, int) and value < 1:
        raise ValueError(f"must be at least 1, got {value}")
    return value


# One entry of a shape: a size, or the name of a symbolic dimension.
Size = Annotated[
    Any,
    BeforeValidator(_size),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]}),
]


class Dim(Section):
    """The sizes a symbolic dimension may have: min, min + multiple, … up to max."""

    min: Positive
    max: Positive
    multiple: Positive = 1
    buckets: list[Annotated[Bucket, BeforeValidator(_bucket)]] = Field(default_factory=list)

    @model_validator(mode="after")
    def _consistent(self) -> Dim:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        for name, bound in (("min", self.min), ("max", self.max)):
            if bound % self.multiple:
                raise ValueError(f"{name} {bound} is not a multiple of {self.multiple}")
        for bucket in self.buckets:
            least, greatest = bucket.edges
            if least < self.min or greatest > self.max:
                size = f"{least}" if least == greatest else f"[{least}, {greatest}]"
                raise ValueError(f"bucket {size} lies outside the range {self.min}..{self.max}")
        return self
