"""Limits of memory, work and time, and the clock by which instructions become time."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from kiln.config.check import Section
from kiln.config.fields import Bytes, Positive

_RATE = r"^([0-9]+(?:\.[0-9]+)?) ?(Hz|kHz|MHz|GHz)$"
_UNITS = {"Hz": 1, "kHz": 1_000, "MHz": 1_000_000, "GHz": 1_000_000_000}


def _hertz(value: Any) -> Any:
    match = re.fullmatch(_RATE, value) if isinstance(value, str) else None
    if isinstance(value, str) and match is None:
        raise ValueError(f"a rate expected, such as 168000000 or 168MHz, got '{value}'")
    return round(float(match[1]) * _UNITS[match[2]]) if match else value


Hertz = Annotated[
    int,
    BeforeValidator(_hertz),
    Field(ge=1),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": _RATE}]}),
]


class Clock(Section):
    """The rate at which a core without an operating system works, for estimates from instructions."""

    hz: Hertz = Field(description="cycles of the core in a second, such as 168MHz")
    cycles_per_instruction: float = Field(
        default=1.0,
        gt=0,
        le=1000,
        allow_inf_nan=False,
        description="mean cycles of an instruction, wait states of the memory included, as measured on the "
        "chip",
    )


class Budget(Section):
    """Limits of memory, work and time; the build fails if one is exceeded."""

    flash_bytes: Bytes | None = Field(
        default=None, description="greatest size of code and parameters; null: no limit"
    )
    ram_bytes: Bytes | None = Field(
        default=None, description="greatest size of arena and static data; null: no limit"
    )
    stack_bytes: Bytes | None = Field(
        default=None,
        description="greatest depth of the stack below a call of the model, on freestanding targets of arch "
        "arm_m and riscv32; null: no limit",
    )
    instructions: Positive | None = Field(
        default=None,
        description="most instructions of a run; `test` counts them on an emulated machine without an "
        "operating system; null: no limit",
    )
    latency_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None,
        description="longest time of a run in milliseconds; `test` measures the first run of each golden "
        "vector, or computes it from instructions by the target's key `clock`; null: no limit",
    )
