"""interface.json, as records: inputs, outputs, kept values and dimensions of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from kiln.config import sizes
from kiln.config.records import INT32_MAX, Record, Size

Size32 = Annotated[int, Field(ge=0, le=INT32_MAX)]
Multiple = Annotated[int, Field(ge=1, le=INT32_MAX)]


class Dimension(Record):
    """A dynamic dimension: its sizes are the multiples of `multiple` in min..max."""

    name: str
    min: Size32
    max: Size32
    multiple: Multiple = 1

    @model_validator(mode="after")
    def _ordered(self) -> Dimension:
        if self.min > self.max:
            raise ValueError(f"dimension '{self.name}': {self.min}..{self.max}, allowed: min <= max")
        return self


class CountedDimension(Record):
    """A size that a step of the run counts: of tensor `tensor` of the model's file, at most `bound`."""

    name: str
    tensor: str
    bound: Size


class Quantisation(Record):
    """Real numbers as integers: real = scale * (q - zero_point)."""

    scale: float
    zero_point: int


class PortRecord(Record):
    """An input or output of the model.

    `shape`: by axis, a size expression in elements. `layout`: axis letters such as "NHWC". `quant`: None if
    the tensor is not quantised. `element`: the element type where `dtype` is only its storage, such as
    bfloat16 in uint16.
    """

    name: str
    c_name: str
    dtype: str
    shape: list[Size]
    layout: str | None = None
    quant: Quantisation | None = None
    element: str | None = None

    def at(self, chosen: Mapping[str, int]) -> PortRecord:
        """This port at the sizes `chosen` of the dimensions; the shape keeps the names of counted ones."""
        names = {name: name for size in self.shape for name in sizes.names(size)}
        shape = [sizes.substituted(size, {**names, **chosen}) for size in self.shape]
        return self.model_copy(update={"shape": shape})


class StateRecord(Record):
    """A value that a run leaves for the next one.

    `input`, `output`: positions of the input and the output in the model's file; None: the file itself keeps
    the value. `initial`: its value before the first run, a number or nested lists of numbers.
    """

    name: str
    dtype: str
    shape: list[int]
    initial: bool | int | float | list[Any] = 0
    input: int | None = None
    output: int | None = None
    quant: None = None


class Interface(Record):
    """The content of interface.json."""

    model: str = ""
    inputs: list[PortRecord]
    outputs: list[PortRecord]
    states: list[StateRecord] = Field(default_factory=list)
    dims: list[Dimension] = Field(default_factory=list)
    counted: list[CountedDimension] = Field(default_factory=list)

    def at(self, chosen: Mapping[str, int]) -> Interface:
        """This interface at the sizes `chosen` of the dimensions; shapes keep the names of counted ones."""
        sides = {
            "inputs": [port.at(chosen) for port in self.inputs],
            "outputs": [port.at(chosen) for port in self.outputs],
        }
        return self.model_copy(update=sides)
