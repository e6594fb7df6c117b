"""Special cases of a model: conditions on sizes and on the content of inputs that select specialised code."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from kiln.config.check import Section, choices, describe
from kiln.config.faults import PlacedError
from kiln.config.fields import NotNegative, Positive
from kiln.config.sizes import ceil_div
from kiln.config.source import FileSource

Sizes = range  # sizes of a dimension: multiples of the range's step
_SIZES = ("exact", "range", "multiple")


def _content(value: Any) -> Any:
    if not isinstance(value, (dict, FileSource)) and value not in ("zeros", "ones"):
        got = describe(value)
        raise ValueError(f"zeros, ones, or {{kind: file, path: NAME.npy}} expected, got {got}")
    return value


Content = Annotated[
    Annotated[Literal["zeros", "ones"], Tag("word")] | Annotated[FileSource, Tag("file")],
    Discriminator(lambda value: "word" if isinstance(value, str) else "file"),
    BeforeValidator(_content),
]


class Condition(Section):
    """A condition on an input's content, `{input, value}`, or a size, `{dim, exact | range | multiple}`."""

    input: str | None = Field(default=None, description="the input whose elements are compared")
    value: Content | None = Field(
        default=None, description="content of the whole input: zeros, ones, or the tensor in a .npy file"
    )
    dim: str | None = Field(default=None, description="the dimension, one of `dims`, whose size is compared")
    exact: NotNegative | None = Field(default=None, description="the dimension has this size")
    range: list[NotNegative] | None = Field(
        default=None, min_length=2, max_length=2, description="the size is in [least, greatest]"
    )
    multiple: Positive | None = Field(default=None, description="the size is a multiple of this number")

    def sizes_of(self, sizes: Sizes) -> Sizes:
        """The sizes among `sizes`, multiples of a step, that meet this condition on a size."""
        step = sizes.step if self.multiple is None else math.lcm(sizes.step, self.multiple)
        least, end = sizes.start, sizes.stop
        if self.ends is not None:
            least, end = max(least, self.ends[0]), min(end, self.ends[1] + 1)
        return Sizes(ceil_div(least, step) * step, end, step)

    def implies(self, other: Condition, dims: Mapping[str, Sizes]) -> bool:
        """Whether `other` is true wherever this condition is. `dims`: the sizes of each dimension."""
        if self.dim is None or self.dim != other.dim:
            same = self.input == other.input and self.value == other.value
            return self.dim is None and other.dim is None and same
        sizes = self.sizes_of(dims[self.dim])
        return len(other.sizes_of(sizes)) == len(sizes)

    @property
    def ends(self) -> tuple[int, int] | None:
        """The least and the greatest size that meet this condition; None for multiples and contents."""
        if self.exact is not None:
            return self.exact, self.exact
        return None if self.range is None else (self.range[0], self.range[1])

    def holds(self, size: int) -> bool:
        """Whether `size` meets this condition on a size."""
        if self.ends is not None:
            return self.ends[0] <= size <= self.ends[1]
        return self.multiple is not None and size % self.multiple == 0

    def check(self) -> None:
        """Raise PlacedError unless the keys form exactly one condition."""
        keys_given = [key for key in ("input", "value", "dim", *_SIZES) if getattr(self, key) is not None]
        if self.dim is None and not set(keys_given) & set(_SIZES):
            for key in ("input", "value"):
                if key not in keys_given:
                    raise PlacedError((key,), "missing")
        elif self.dim is None:
            raise PlacedError(("dim",), "missing: a size is that of a dimension")
        elif len(keys_given) != 2 or keys_given[1] not in _SIZES:
            raise PlacedError((), "{dim: NAME} with one of exact, range, multiple expected, and nothing else")
        elif self.range is not None and self.range[0] > self.range[1]:
            raise PlacedError(("range",), "the least is above the greatest")


class _Part(Condition):
    """One condition in the list `all`."""

    @model_validator(mode="after")
    def _one(self) -> _Part:
        self.check()
        return self


class SpecialCase(Condition):
    """One condition, or a list `all`, with specialised code in which contents and sizes are constants."""

    all: list[_Part] | None = Field(
        default=None, min_length=1, description="conditions on contents and sizes that must all be true"
    )

    @model_validator(mode="after")
    def _one(self) -> SpecialCase:
        if self.all is None:
            self.check()
        elif others := [key for key in Condition.model_fields if getattr(self, key) is not None]:
            raise PlacedError((others[0],), "is next to 'all': put it into that list")
        return self

    @property
    def conditions(self) -> list[Condition]:
        """The conditions that must all be true."""
        return [self] if self.all is None else list(self.all)


def check_cases(cases: Sequence[SpecialCase], dims: Mapping[str, Sizes]) -> None:
    """Raise PlacedError for a condition that no size or every size meets, and for an unused case.

    `dims`: the sizes of each dimension of the model.
    """
    for number, case in enumerate(cases):
        for position, condition in enumerate(case.conditions):
            inner = () if case.all is None else ("all", position)
            _check_sizes(condition, dims, (number, *inner))
            if any(other.implies(condition, dims) for other in case.conditions[:position]):
                raise PlacedError((number, *inner), "true whenever the ones before it are: remove it")
        for first, earlier in enumerate(cases[:number]):
            if all(any(c.implies(needed, dims) for c in case.conditions) for needed in earlier.conditions):
                raise PlacedError(
                    (number,), f"never used: special case {first}, which comes first, is true whenever this "
                    "one is; remove one, or put the narrower one first"
                )  # fmt: skip


def _check_sizes(condition: Condition, dims: Mapping[str, Sizes], place: tuple[str | int, ...]) -> None:
    """Raise PlacedError, at `place`, if no size or every size of its dimension meets a condition."""
    if condition.dim is None:
        return
    if condition.dim not in dims:
        raise PlacedError((*place, "dim"), f"no dimension of this name{choices(condition.dim, dims)}")
    sizes = dims[condition.dim]
    met = len(condition.sizes_of(sizes))
    text = f"{sizes.start}..{sizes.stop - 1}" + (f" by {sizes.step}" if sizes.step > 1 else "")
    if met == 0:
        raise PlacedError(place, f"no size of dims.{condition.dim} meets this: allowed {text}")
    if met == len(Sizes(ceil_div(sizes.start, sizes.step) * sizes.step, sizes.stop, sizes.step)):
        raise PlacedError(place, f"every size of dims.{condition.dim} meets this: {text}; remove it")
