"""The key `tolerance` of a model: the greatest allowed differences from the reference."""

from __future__ import annotations

from pydantic import Field

from kiln.config.check import Section


class Limits(Section):
    """Greatest allowed difference between an output and the reference; see Tolerance."""

    absolute: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="in the output's unit; null: not overridden"
    )
    relative: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="fraction of the output's greatest magnitude; null: not overridden",
    )
    levels: int | None = Field(default=None, ge=0, description="quantisation levels; null: not overridden")


class Tolerance(Section):
    """Floats: |got - want| <= absolute + relative * max|want|. Integers: |got - want| <= levels."""

    absolute: float = Field(default=1e-5, ge=0, allow_inf_nan=False, description="in the output's unit")
    relative: float = Field(
        default=1e-4, ge=0, allow_inf_nan=False, description="fraction of the output's greatest magnitude"
    )
    levels: int = Field(default=1, ge=0, description="quantisation levels, for integer outputs")
    outputs: dict[str, Limits] = Field(
        default_factory=dict, description="by output, limits that override the ones above"
    )
    fp16: Limits = Field(
        default=Limits(absolute=1e-3, relative=1e-2),
        description="with precision: fp16, lower limits are raised to these values",
    )
    bf16: Limits = Field(
        default=Limits(absolute=8e-3, relative=8e-2),
        description="with precision: bf16, lower limits are raised to these values",
    )
    tf32: Limits = Field(
        default=Limits(absolute=1e-3, relative=5e-3),
        description="with precision: tf32, lower limits are raised to these values",
    )

    @property
    def stated(self) -> list[str]:
        """The keys of limits for all outputs whose value is not the default."""
        default = Tolerance()
        return [k for k in ("absolute", "relative", "levels") if getattr(self, k) != getattr(default, k)]
