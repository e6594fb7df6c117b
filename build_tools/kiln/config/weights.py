"""The key `weights` of a model: the type in which the file's float32 weights are stored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from kiln.config.check import Section
from kiln.config.faults import PlacedError

WeightType = Literal["fp16", "bf16", "int8", "int4"]
_TYPES = ("fp16", "bf16", "int8", "int4")
# Greatest error of an output, as a fraction of its greatest magnitude, unless the model sets another.
_LIMITS = {"fp16": 1e-2, "bf16": 5e-2, "int8": 5e-2, "int4": 0.25}


class Weights(Section):
    """The type of stored weights, its blocks, and the error that the build accepts."""

    type: WeightType = Field(description="fp16, bf16: 16-bit floats; int8, int4: integers with scales")
    block: int | None = Field(
        default=None,
        ge=16,
        le=4096,
        description="int8, int4: number of weights of an output channel that share a scale; null: 64 for "
        "int4, the whole channel for int8",
    )
    limit: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="greatest error of an output that the build accepts, as a fraction of the output's "
        "greatest magnitude; null: 0.01 for fp16, 0.05 for bf16 and int8, 0.25 for int4",
    )

    @model_validator(mode="after")
    def _blocks_of_integers(self) -> Weights:
        if self.block is not None and self.type in ("fp16", "bf16"):
            raise PlacedError(("block",), f"{self.type} has no scales: for int8 and int4 only")
        return self

    @property
    def accepted(self) -> float:
        """The error that the build accepts."""
        return _LIMITS[self.type] if self.limit is None else self.limit


def _read(value: Any) -> Any:
    if isinstance(value, str):
        if value not in _TYPES:
            raise ValueError(
                f"'{value}', allowed: {', '.join(_TYPES)}, or a section such as {{type: int4, block: 32}}"
            )
        return {"type": value}
    return value


_SECTION = Weights.model_json_schema()
_SCHEMA = {"anyOf": [{"enum": [*_TYPES]}, _SECTION, {"type": "null"}]}
WeightsKey = Annotated[Weights | None, BeforeValidator(_read), WithJsonSchema(_SCHEMA)]
