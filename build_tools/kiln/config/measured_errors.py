"""precision.json, as records: errors of a model in less than float32, on its golden vectors."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kiln.config.records import Record


class OutputError(Record):
    """The greatest error of an output in a golden vector, and its limit, both in `unit`.

    `error` is None if it is not finite: a NaN or an infinity that the reference does not have.
    """

    name: str
    error: float | None
    limit: float
    unit: str
    passed: bool


class VectorErrors(Record):
    """The errors of a golden vector, by output."""

    name: str
    outputs: list[OutputError]


class PrecisionFile(Record):
    """The content of precision.json.

    `precision`: the arithmetic, or the type of the weights. `failed`: why errors are missing, if the host
    cannot run the model's functions. `not_finite`: for each function, the number of values that it stored in
    16 bits and that are infinite or NaN though its operands are finite, such as a float16 beyond 65504.
    """

    format: Literal[1] = 1
    precision: str
    vectors: list[VectorErrors]
    failed: str | None
    not_finite: dict[str, Annotated[int, Field(ge=0)]]
