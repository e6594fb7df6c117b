"""Dynamic dimensions: their ranges, and the sizes that get specialised code (buckets)."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from kiln.config import sizes
from kiln.config.check import Section
from kiln.config.faults import PlacedError
from kiln.config.fields import Bytes, NotNegative, Positive
from kiln.config.records import INT32_MAX, Record


def key_of(symbol: str) -> str:
    """The key in `dims` for a name in a model file: n for `N`, seq_len for `seq len`, empty for `?`."""
    return re.sub(r"^[0-9_]+|_+$", "", re.sub("[^a-z0-9_]+", "_", symbol.lower()))


class PadTo(Section):
    """Size to which inputs are padded, and how padding is shown to be neutral. A plain number means `to`."""

    to: Positive = Field(description="size to which inputs are padded")
    assume: Literal["measured"] | None = Field(
        default=None,
        description="measured: outputs are compared on adversarial data instead of a proof; null: a proof "
        "is required",
    )


def _pad_to(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, dict, PadTo)):
        raise PlacedError((), "a number, or {to: n, assume: measured} expected")
    return {"to": value} if isinstance(value, int) else value


_PAD_SCHEMA = {
    "anyOf": [{"type": "integer", "minimum": 1}, PadTo.model_json_schema()],
    "description": "inputs are padded up to this size",
}


class Bucket(Section):
    """A size, or a range of sizes, with specialised code. A plain number means `exact`."""

    exact: NotNegative | None = Field(default=None, description="code for this size only")
    pad: Annotated[PadTo, BeforeValidator(_pad_to), WithJsonSchema(_PAD_SCHEMA)] | None = Field(
        default=None, description="inputs are padded up to this size"
    )
    range: list[NotNegative] | None = Field(
        default=None, min_length=2, max_length=2, description="code for all sizes in [least, greatest]"
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
        """Least and greatest size in the bucket's YAML; for `pad`, the padded size twice."""
        if self.range is not None:
            return self.range[0], self.range[1]
        size = self.exact if self.pad is None else self.pad.to
        assert size is not None
        return size, size

    @property
    def label(self) -> str:
        """The bucket in YAML notation, such as `{pad: 128}`."""
        values = {"exact": self.exact, "pad": self.pad and self.pad.to, "range": self.range}
        return next(f"{{{key}: {value}}}" for key, value in values.items() if value is not None)


def _bucket(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, dict, Bucket)):
        raise PlacedError((), "a number, or one of {exact: n}, {pad: n}, {range: [a, b]} expected")
    return {"exact": value} if isinstance(value, int) else value


def _size(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        if isinstance(value, list):
            return sizes.check(value)
        raise PlacedError((), "a whole number or a dimension's name expected")
    size = sizes.parse(value) if isinstance(value, str) and not value.isidentifier() else value
    if isinstance(size, int) and size < 1:
        raise ValueError(f"must be at least 1, got {size}")
    return size


# One entry of a shape: a size, the name of a dynamic dimension, or an expression such as `past + 1`.
Size = Annotated[
    Any,
    BeforeValidator(_size),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]}),
]


DimBucket = Annotated[Bucket, BeforeValidator(_bucket)]


class Dim(Section):
    """Sizes of a dynamic dimension: min, min + multiple, … up to max; and the buckets for these sizes."""

    min: NotNegative = Field(le=INT32_MAX, description="the least size; 0: tensors may be empty")
    max: Positive = Field(le=INT32_MAX, description="the greatest size")
    multiple: Positive = Field(default=1, le=INT32_MAX, description="all sizes are multiples of this number")
    buckets: list[DimBucket] = Field(
        default_factory=list,
        description="sizes that get specialised code; auto: chosen by the build from `traffic`",
    )
    auto: bool = Field(default=False, description="true is equivalent to buckets: auto")
    fallback: Literal["dynamic", "error"] = Field(
        default="dynamic",
        description="sizes outside all buckets: dynamic: general code computes them; error: a run fails",
    )
    traffic: str | None = Field(
        default=None,
        description="auto: CSV file, relative to the YAML, of observed sizes: a column for each dimension, "
        "and count",
    )
    costs: str | None = Field(
        default=None,
        description="auto: CSV file of measured times: columns of this dimension, nanoseconds, "
        "open_nanoseconds",
    )
    max_buckets: Positive | None = Field(
        default=None, description="auto: greatest number of buckets; null: 4"
    )
    code_budget: Bytes | None = Field(
        default=None, description="auto: greatest code size of all buckets, in bytes"
    )
    auto_as: Literal["pad", "exact"] | None = Field(
        default=None, description="auto: strategy of the buckets; null: pad"
    )
    auto_assume: Literal["measured"] | None = Field(
        default=None,
        description="auto: measured: comparison on adversarial data may replace the proof that padding is "
        "neutral; null: a proof is required",
    )

    @model_validator(mode="before")
    @classmethod
    def _word(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("buckets"), str):
            if data["buckets"] != "auto":
                raise PlacedError(
                    ("buckets",), f"'{data['buckets']}' is not allowed, allowed: a list of buckets, auto"
                )
            return {**data, "buckets": [], "auto": True}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> Dim:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        for name, bound in (("min", self.min), ("max", self.max)):
            if bound % self.multiple:
                raise ValueError(f"{name} {bound} is not a multiple of {self.multiple}")
        if self.auto_as == "exact" and self.auto_assume is not None:
            raise PlacedError(("auto_assume",), "only goes with auto_as: pad; exact buckets pad nothing")
        if self.auto:
            if self.buckets:
                raise PlacedError(("buckets",), "sizes and auto: one of them only")
            if self.traffic is None:
                raise PlacedError(
                    ("traffic",),
                    "missing: auto needs the sizes that came in, a .csv file that `run` and `bench` with "
                    "traffic=FILE write, and programs, while the model has other buckets",
                )
            return self
        for key in ("traffic", "costs", "max_buckets", "code_budget", "auto_as", "auto_assume"):
            if getattr(self, key) is not None:
                raise PlacedError((key,), "only goes with buckets: auto")
        segments(self, self.buckets)
        return self


class Segment(Record):
    """The sizes of one dimension that a bucket accepts: multiples of `multiple` from `min` to `max`.

    `size`: the static size in the bucket's graph; None if the dimension stays dynamic. `measured`: with
    strategy pad, whether comparison on adversarial data may replace the proof that padding is neutral.
    """

    OMITTED: ClassVar[frozenset[str]] = frozenset({"measured"})

    strategy: Literal["exact", "pad", "range", "dynamic"]
    min: int
    max: int
    multiple: int
    size: int | None = None
    measured: bool = False


def whole(dim: Dim) -> Segment:
    """One segment for all sizes of `dim`."""
    if dim.min == dim.max:
        return Segment(strategy="exact", min=dim.min, max=dim.max, multiple=dim.multiple, size=dim.min)
    return Segment(strategy="dynamic", min=dim.min, max=dim.max, multiple=dim.multiple)


def segments(dim: Dim, buckets: list[Bucket]) -> list[Segment]:
    """The segment of each bucket, exact sizes first: they have priority over a bucket that contains them.

    A pad bucket accepts the sizes above the greatest size of the next smaller pad or range bucket. Raises
    PlacedError for a bucket outside the dimension's range, with a size that is not a multiple, that overlaps
    another bucket, or all of whose sizes are exact buckets.
    """
    spans: list[tuple[int, int, int]] = []  # least, greatest, position
    exact: dict[int, int] = {}
    for position, bucket in enumerate(buckets):
        least, greatest = bucket.edges
        path = ("buckets", position)
        shown = f"{least}" if least == greatest else f"[{least}, {greatest}]"
        if least < dim.min or greatest > dim.max:
            raise PlacedError(path, f"bucket {shown} is outside the range {dim.min}..{dim.max}")
        for edge in (least, greatest):
            if edge % dim.multiple:
                raise PlacedError(path, f"bucket {shown}: {edge} is not a multiple of {dim.multiple}")
        if bucket.exact is not None:
            if least in exact:
                raise PlacedError(path, f"bucket {shown} is there twice")
            exact[least] = position
        else:
            spans.append((least, greatest, position))
    spans.sort()
    result = [
        Segment(strategy="exact", min=size, max=size, multiple=dim.multiple, size=size)
        for size in sorted(exact)
    ]
    below = dim.min - dim.multiple  # the greatest size that a span before this one accepts
    for least, greatest, position in spans:
        bucket, path = buckets[position], ("buckets", position)
        first = below + dim.multiple if bucket.pad is not None else least
        if least <= below:
            raise PlacedError(path, f"bucket {bucket.label} overlaps the one that takes sizes up to {below}")
        if sum(first <= size <= greatest for size in exact) == (greatest - first) // dim.multiple + 1:
            raise PlacedError(path, f"bucket {bucket.label} is unreachable: exact ones hold all its sizes")
        size = greatest if bucket.pad is not None or first == greatest else None
        strategy = "pad" if bucket.pad is not None and first != greatest else "range"
        if first == greatest:
            strategy = "exact"
        result.append(
            Segment.model_validate(
                {
                    "strategy": strategy,
                    "min": first,
                    "max": greatest,
                    "multiple": dim.multiple,
                    "size": size,
                    "measured": strategy == "pad" and _is_measured(bucket),
                }
            )
        )
        below = greatest
    return result


def _is_measured(bucket: Bucket) -> bool:
    return bucket.pad is not None and bucket.pad.assume == "measured"


def covers(dim: Dim, accepted: list[Segment]) -> bool:
    """Whether every size of `dim` is in one of the segments `accepted`."""
    following = dim.min
    for segment in sorted(accepted, key=lambda entry: entry.min):
        if segment.min > following:
            return False
        following = max(following, segment.max + dim.multiple)
    return following > dim.max
