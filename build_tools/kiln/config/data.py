"""Data of a model: preprocessing of images, names of classes, and the inputs of golden vectors."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from kiln.config.check import Section
from kiln.config.faults import PlacedError
from kiln.config.fields import Positive
from kiln.config.source import Source


def _rectangle(value: list[int]) -> list[int]:
    """`value`, a rectangle. Raises ValueError where it begins outside of every image, or has no pixel."""
    if min(value[:2]) < 0 or min(value[2:]) < 1:
        raise ValueError(f"[top, left, height, width] with top, left >= 0 and height, width >= 1 expected, "
                         f"got {value}")  # fmt: skip
    return value


# The rectangle of an image to use.
Crop = Annotated[
    list[int],
    Field(min_length=4, max_length=4, description="[top, left, height, width] in pixels"),
    AfterValidator(_rectangle),
]


class Preprocess(Section):
    """Image to tensor: resize, crop or pad to `size`, then x = (pixel * scale - mean) / std per channel."""

    input: str | None = Field(
        default=None, description="the input that the image becomes; null: the only input"
    )
    resize: Literal["shorter_side", "stretch", "fit_height", "letterbox"] = Field(
        default="shorter_side",
        description="shorter_side: keep the aspect, then crop the centre; stretch: change the aspect; "
        "fit_height: pad or squeeze the width; letterbox: keep the aspect, pad both sides",
    )
    resize_to: Positive | None = Field(
        default=None,
        description="shorter_side: pixels of the shorter side; null: the least that covers `size`",
    )
    size: list[Positive] = Field(min_length=2, max_length=2, description="[height, width]")
    filter: Literal["nearest", "bilinear", "bicubic", "lanczos"] = Field(
        default="bilinear", description="interpolation between pixels"
    )
    channels: Literal["RGB", "BGR", "L"] = Field(default="RGB", description="order of the channels; L: grey")
    scale: float = Field(default=1 / 255, gt=0, description="factor of a pixel's value of 0 to 255")
    mean: list[float] = Field(
        default_factory=lambda: [0.0],
        description="subtracted: one value, or one for each channel; left out: 0",
    )
    std: list[float] = Field(
        default_factory=lambda: [1.0], description="divisor: one value, or one for each channel; left out: 1"
    )
    pad: float = Field(default=0.0, description="value of padding, after normalisation")
    layout: Literal["NCHW", "NHWC"] = Field(description="order of the input's axes")

    @model_validator(mode="after")
    def _per_channel(self) -> Preprocess:
        count = len(self.channels)
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, count):
                raise ValueError(
                    f"{name}: 1 or {count} values expected for {self.channels}, got {len(values)}"
                )
        for key, kinds in (("resize_to", ("shorter_side",)), ("pad", ("fit_height", "letterbox"))):
            if getattr(self, key) and self.resize not in kinds:
                raise PlacedError((key,), f"only goes with resize: {' or '.join(kinds)}, not {self.resize}")
        if 0.0 in self.std:
            raise ValueError("std: must not be 0")
        if self.resize_to is not None and self.resize_to < max(self.size) and self.resize == "shorter_side":
            raise ValueError(f"resize_to: must be at least {max(self.size)} to cut out {self.size}")
        return self


class LabelList(Section):
    """Class names listed in the YAML file."""

    kind: Literal["list"] = Field(description="names listed here")
    names: list[str] = Field(description="the classes' names in the order of the output")


class LabelFile(Section):
    """Class names in a file: a JSON list, a JSON object from index to name, or one name on each line."""

    kind: Literal["json", "lines"] = Field(
        description="json: a list, or an object from index to name; lines: one name on each line"
    )
    source: Source = Field(description="where the file comes from")


Labels = Annotated[LabelList | LabelFile, Field(discriminator="kind")]


class Run(Section):
    """How the goal `run` presents a result: the best classes of one image."""

    image: Source = Field(description="source of the image")
    crop: Crop | None = Field(default=None, description="the rectangle of the image to use; null: all of it")
    top: Positive = Field(default=5, description="number of classes to show")
    softmax: bool = Field(default=False, description="the output is logits: apply a softmax first")
    output: str | None = Field(default=None, description="the output with the scores; null: the first")


class Bounds(Section):
    """Range of random values; for integers both ends are included."""

    low: float | None = Field(
        default=None,
        description="the least value; null: -1 for floats, the type's least value for integers of 8 or 16 "
        "bits, 0 for other integers",
    )
    high: float | None = Field(
        default=None,
        description="the greatest value; null: 1, or the type's greatest value for integers of 8 or 16 bits",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Bounds:
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")
        return self


class RandomInput(Bounds):
    """Uniformly distributed values."""

    kind: Literal["random"] = Field(description="uniformly distributed values")
    seed: int = Field(ge=0, description="seed of the random number generator")
    inputs: dict[str, Bounds] = Field(
        default_factory=dict,
        description="by input, bounds that override the ones above, such as for indices into a table",
    )


class NormalInput(Section):
    """Normally distributed values."""

    kind: Literal["normal"] = Field(description="normally distributed values")
    seed: int = Field(ge=0, description="seed of the random number generator")
    mean: float = Field(default=0.0, description="mean of the values")
    std: float = Field(default=1.0, ge=0, description="standard deviation of the values")


class ImageInput(Section):
    """An image, converted as the section `preprocess` specifies."""

    kind: Literal["image"] = Field(description="an image, converted by `preprocess`")
    source: Source = Field(description="source of the image")
    crop: Crop | None = Field(default=None, description="the rectangle of the image to use; null: all of it")
    rotate: Literal[0, 90, 180, 270] = Field(default=0, description="degrees clockwise, after the crop")


class TensorInput(Section):
    """Values from .npy files, one file for each input."""

    kind: Literal["tensors"] = Field(description="values from files")
    tensors: dict[str, Source] = Field(description="by input, the .npy file with the values")


GoldenInput = Annotated[RandomInput | NormalInput | ImageInput | TensorInput, Field(discriminator="kind")]


def _default_inputs() -> list[GoldenInput]:
    return [RandomInput(kind="random", seed=seed) for seed in (1, 2, 3)]


class Golden(Section):
    """Golden vectors: the test inputs, and the reference that computes the expected outputs."""

    inputs: list[GoldenInput] = Field(
        default_factory=_default_inputs,
        min_length=1,
        description="content of the inputs, one entry for each test case; left out: three of kind random",
    )
    runs: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=4, description="for a model with state: runs that follow one another in each test case"
    )
    reference: Literal["auto", "onnxruntime", "builtin", "builtin_ref", "torch"] = Field(
        default="auto",
        description="auto: onnxruntime for ONNX, builtin for TFLite, torch for PyTorch; builtin, "
        "builtin_ref: LiteRT's two kernel sets",
    )
